"""Names of quantizations in configs, checkpoints, logs and the help agree with the registry."""

from __future__ import annotations

import pytest
from typer.main import get_command

from benchmarker.cli.app import app
from benchmarker.core.errors import ModelError
from benchmarker.logs.log_runs import QUANTS, find_runs
from benchmarker.quantization.dummy_packing import SCHEMES
from benchmarker.quantization.load import check_stored
from benchmarker.quantization.registry import LOADERS, quant_named
from benchmarker.workloads.generation.generation_job import resolve
from benchmarker.workloads.generation.spec import VariantSpec

STORED = ("compressed-tensors", "fp8-checkpoint", "autoround", "mxfp4", "modelopt")
"""Formats of published checkpoints. Logs do not contain their names."""

IN_8_BIT = {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}
IN_4_BIT = {"quant_method": "bitsandbytes", "load_in_8bit": False, "load_in_4bit": True}


@pytest.mark.parametrize(("text", "quant"), [("nf4", "bnb4"), ("LLM.int8", "bnb8"), ("torchao_int4", "int4")])
def test_unambiguous_alias_is_resolved(text, quant):
    variant = resolve(VariantSpec.model_validate({"quant": text, "engine": "compile"}))
    assert (variant.quant, variant.name) == (quant, f"{quant} compile")


def test_names_and_aliases_of_quantizations_are_unique():
    names = [name for loader in LOADERS.values() for name in (loader.name, *loader.aliases)]
    assert len(names) == len(set(names))
    assert [loader.name for loader in LOADERS.values()] == list(LOADERS)
    assert all(quant_named(alias) == loader.name for loader in LOADERS.values() for alias in loader.aliases)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4bit", "no quantization '4bit'; in 4 bits: int4, gptq, bnb4"),
        ("8-bit", "no quantization '8-bit'; in 8 bits: int8, int8-dynamic, fp8, gptq, bnb8"),
        ("q4_k_m", "no quantization 'q4_k_m'; that is a format of GGUF files; in 4 bits: int4, gptq, bnb4"),
        (
            "q6_k",
            "no quantization 'q6_k'; that is a format of GGUF files; there is "
            f"{', '.join(sorted((*LOADERS, *SCHEMES)))}",
        ),
        (
            "hqq",
            "no quantization 'hqq'; transformers 5 has no HQQ yet. torchao's int4 takes its scales: --quant int4 "
            "--option scales=hqq",
        ),
        ("w4a15", "no quantization 'w4a15'; did you mean 'w4a16'?"),
        ("bnb-4", "no quantization 'bnb-4'; did you mean 'bnb4'?"),
    ],
)
def test_ambiguous_or_unknown_name_is_refused_with_candidates(text, message):
    with pytest.raises(ValueError, match="no quantization") as caught:
        quant_named(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(("stored", "supported"), [(IN_8_BIT, "bnb8"), (IN_4_BIT, "bnb4")])
def test_bitsandbytes_checkpoint_is_refused_by_all_other_loaders(stored, supported):
    config = {"quantization_config": stored}
    check_stored(supported, "some/model", config)
    for quant in LOADERS.keys() - {supported}:
        with pytest.raises(ModelError) as caught:
            check_stored(quant, "some/model", config)
        assert str(caught.value) == (
            f"some/model: quantized already (bitsandbytes), which --quant {quant} cannot take; "
            f"use --quant {supported}, or an unquantized checkpoint"
        )


def test_log_reader_covers_every_quantization():
    assert set(QUANTS) == LOADERS.keys() - set(STORED)


@pytest.mark.parametrize("quant", sorted(LOADERS.keys() - set(STORED)))
def test_first_line_of_a_benchmarker_log_determines_the_variant(quant):
    (run,) = find_runs([f"{quant} compile: Qwen/Qwen3-4B on NVIDIA H100"])
    assert run.evidence is not None
    assert run.evidence.quant == quant


def test_help_of_quant_lists_all_quantizations():
    (option,) = [parameter for parameter in get_command(app).commands["run"].params if "--quant" in parameter.opts]
    assert option.help.startswith(f"{', '.join(LOADERS)};")
