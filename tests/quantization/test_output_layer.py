"""Test the int8 output layer with the real libraries on a random two-layer Qwen3 with tied embeddings."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarker.checkpoints.base import Silent, Target
from benchmarker.comparison.ranking import ranking_of
from benchmarker.core.errors import MissingLibraryError, UnsupportedError
from benchmarker.engines.base import Form
from benchmarker.engines.external.llama_cpp import LlamaCppEngine, LlamaCppOptions
from benchmarker.engines.external.sglang import SglangEngine, SglangOptions
from benchmarker.engines.external.vllm import VllmEngine, VllmOptions
from benchmarker.engines.registry import torch_engine
from benchmarker.hardware.device import CpuDevice
from benchmarker.quality.judge import make_plan
from benchmarker.quantization.base import FormOptions, Loaded, with_head
from benchmarker.quantization.load import load_model, load_quantized
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.model import ModelSpec, QuantSpec
from benchmarker.schema.quality import QualitySpec
from benchmarker.workloads.generation.read_architecture import describe
from tests.loading import EMBEDDING, PARAMETERS, distance, facts_of, load, logits, prepare
from tests.records import cell, compare_records, record
from tests.records import load as load_record

HEAD_BYTES = EMBEDDING + 2048 * (4 + 1)
"""One byte per weight, and per row a 32-bit scale and a one-byte zero point."""


def with_int8_head(model: Path, quant: str) -> Loaded:
    checkpoint = prepare(model, quant, lm_head="int8")
    return load_quantized(quant, checkpoint, LOADERS[quant].options(lm_head="int8"), Target("cpu", "float16"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quant", "classes"),
    [
        ("fp16", {"Int8Tensor int8": 1, "Tensor float16": 14}),
        ("int8", {"Int8Tensor int8": 15}),
        ("bnb4", {"Int8Tensor int8": 1, "Params4bit uint8": 14}),
    ],
)
def test_tied_output_layer_becomes_int8_and_the_embedding_is_kept(session_model, quant, classes):
    loaded, without_option = with_int8_head(session_model, quant), load(session_model, quant)
    facts, before = facts_of(loaded), facts_of(without_option)
    assert facts.weight_bytes == before.weight_bytes + HEAD_BYTES
    assert facts.parameters == PARAMETERS
    assert facts.weight_classes == classes
    assert (facts.lm_head_dtype, facts.lm_head_tied) == ("int8", False)
    assert facts.notes[-1].endswith("a scale a row; the embedding, which it was tied to, stays in float16")
    assert not any("not quantized" in note for note in facts.notes)
    assert facts.quantized_fraction == pytest.approx(before.quantized_fraction + EMBEDDING / PARAMETERS)
    assert 0 < distance(loaded, without_option) < 0.02
    # A decode step reads one byte per weight of the output layer, and one row of the embedding.
    assert describe(loaded.model).read_bytes == describe(without_option.model).read_bytes - 2 * EMBEDDING + HEAD_BYTES


@pytest.mark.slow
def test_untied_int8_output_layer_reduces_the_weight_bytes(shape_folder, tmp_path):
    folder = Path(shutil.copytree(shape_folder, tmp_path / "untied"))
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    sizes = {}
    for options in ({}, {"lm_head": "int8"}):
        model = load_model(str(folder), device="cpu", load_format="dummy", options=options)
        sizes[len(options)] = facts_of(Loaded(model))
    assert sizes[0].weight_bytes - sizes[1].weight_bytes == 2 * EMBEDDING - HEAD_BYTES
    assert sizes[0].parameters == sizes[1].parameters == PARAMETERS + EMBEDDING


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eager", pytest.param("compile", marks=pytest.mark.by_hand)])
def test_engine_steps_match_the_forward_with_an_int8_output_layer(session_model, name):
    checkpoint = prepare(session_model, "int8", lm_head="int8", dtype="float32")
    options = LOADERS["int8"].options(lm_head="int8")
    with torch_engine(name).open(checkpoint, Form("int8", options, "float32"), CpuDevice(), Silent()) as decoder:
        ids = list(range(10, 30))
        step, forward = decoder.step_scores(ids), decoder.forward_scores(ids)
    assert decoder.loaded is not None
    assert decoder.loaded.lm_head_dtype == "int8"
    assert step is not None
    assert forward is not None
    assert abs(step.log_probabilities - forward.log_probabilities).max() < 1e-3


def test_unsupported_output_layer_is_refused(session_model):
    loaded = load(session_model, "fp16")
    loaded.model.lm_head = torch.nn.Embedding(4, 4)
    with pytest.raises(UnsupportedError) as caught:
        with_head(loaded, FormOptions(lm_head="int8"))
    assert str(caught.value) == (
        "lm_head=int8: the output layer is Embedding with weights of Parameter already; leave the option out"
    )


def test_model_is_unchanged_without_the_option(session_model):
    loaded = load(session_model, "fp16")
    before = logits(loaded)
    assert with_head(loaded, FormOptions()) is loaded
    assert torch.equal(logits(loaded), before)


def test_missing_torchao_is_reported_before_the_model_is_searched(monkeypatch):
    def version(name: str) -> str:
        if name == "torchao":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(MissingLibraryError) as caught:
        prepare("no/such/model", "bnb4", lm_head="int8")
    assert str(caught.value) == (
        "lm_head=int8: the library 'torchao' is not installed; pip install -e '.[int8]' in benchmarker's folder"
    )


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        (LlamaCppEngine(), LlamaCppOptions()),
        (VllmEngine(), VllmOptions()),
        (SglangEngine(), SglangOptions()),
    ],
)
def test_external_engines_refuse_the_option(engine, options, session_model):
    form = Form("fp16", FormOptions(lm_head="int8"), "float16", options)
    checkpoint = prepare(session_model, "fp16")
    assert engine.why_not_taken(replace(form, options=FormOptions()), checkpoint) is None
    assert "for the engines that run here" in (engine.why_not_taken(form, checkpoint) or "")


def test_fp16_with_int8_output_layer_is_not_the_quality_baseline(session_model):
    from benchmarker.checkpoints.read_model import load_tokenizer

    checkpoint = prepare(session_model, "fp16")
    plans = [
        make_plan(
            QualitySpec(size="quick"),
            ModelSpec(id=str(session_model)),
            QuantSpec(quant="fp16", options=options),
            name="fp16",
            checkpoint=checkpoint,
            tokenizer=load_tokenizer(checkpoint),
            progress=Silent(),
        )
        for options in ({}, {"lm_head": None}, {"lm_head": "int8"})
    ]
    assert [plan.is_baseline for plan in plans] == [True, True, False]


def test_faster_fp16_with_quantized_weights_is_not_the_reference():
    ranking = ranking_of(
        compare_records(
            [
                record("fp16", cell([2.0])),
                record("fp16", cell([1.0]), name="head", load=load_record(quantized_fraction=0.2)),
            ]
        )
    )
    assert ranking.named is not None
    assert ranking.named.variant == "fp16"
    assert [row.speed_up.reference for row in ranking.rows if row.speed_up] == ["fp16"]
