"""Test GPTQ with its real libraries on a random two-layer Qwen3: random, quantized and stored weights."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch

from benchmarker.core.errors import DeviceError, ModelError, SpecError
from benchmarker.quantization.gptqmodel_kernels import linear_class_of
from benchmarker.schema.base import Scalar
from tests.loading import EMBEDDING, LINEARS, NORMS, PARAMETERS, Log, distance, facts_of, load, logits, prepare


class Interrupting(Log):
    """Progress that raises KeyboardInterrupt after the first block."""

    def step(self, what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "linear"), [("auto", "TorchAtenLinear"), ("torch", "TorchLinear"), ("torch_aten", "TorchAtenLinear")]
)
@pytest.mark.usefixtures("traced_only")
def test_random_gptq_weights_run_on_the_requested_kernel(shape_folder, kernel, linear):
    loaded = load(shape_folder, "gptq", dummy=True, kernel=kernel)
    facts = facts_of(loaded)
    assert facts.linear_classes == {"Linear": 1, linear: 14}
    assert facts.notes == (f"kernel {kernel}: {linear}",)
    assert facts.parameters == PARAMETERS
    assert facts.quantized_fraction == pytest.approx(LINEARS / PARAMETERS)
    assert LINEARS // 2 < facts.weight_bytes - 2 * (EMBEDDING + NORMS) < LINEARS * 0.6
    assert torch.isfinite(logits(loaded)).all()


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_output_layer_of_a_gptq_checkpoint_is_no_unused_option(shape_folder):
    loaded = load(shape_folder, "gptq", dummy=True, kernel="torch", lm_head="int8")
    assert [note.split(",")[0] for note in loaded.notes] == ["kernel torch: TorchLinear", "lm_head is int8 by torchao"]


@pytest.mark.slow
def test_kernel_other_than_the_requested_one_raises(shape_folder):
    loaded = load(shape_folder, "gptq", dummy=True, kernel="torch")
    with pytest.raises(DeviceError) as caught:
        linear_class_of("gptq", loaded.model, kernel="torch_aten", expected="TorchAtenLinear")
    assert str(caught.value) == (
        "gptq: requested the torch_aten kernel, gptqmodel used 14 TorchLinear. "
        "Set options.kernel to 'auto' to accept that, or see why with --verbose."
    )


@pytest.mark.slow
def test_importing_gptqmodel_does_not_change_environment_variables(shape_folder):
    variables = dict(os.environ)
    load(shape_folder, "gptq", dummy=True)
    assert dict(os.environ) == variables


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_unquantized_checkpoint_is_quantized_once_and_cached(session_model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("A measurement is a question put to the world. " * 40)
    options: dict[str, Scalar] = {
        "calibration": str(text),
        "calibration_samples": 4,
        "calibration_tokens": 64,
        "bits": 8,
    }
    log = Log()
    quantized = prepare(session_model, "gptq", log, **options)
    assert log.steps == [("quantizing blocks", 1, 2), ("quantizing blocks", 2, 2)]
    assert log.notes == ["quantizing with GPTQ: 4 pieces of 64 tokens to calibrate on"]
    assert quantized.quantization is not None
    assert (quantized.quantization["bits"], quantized.quantization["format"]) == (8, "gptq")
    second_log = Log()
    assert prepare(session_model, "gptq", second_log, **options) == quantized
    assert (second_log.steps, second_log.notes) == ([], [])
    loaded = load(session_model, "gptq", **options)
    assert loaded.notes[1].startswith("quantized here: 4 pieces of 64 tokens, text sha256 ")
    assert distance(loaded, load(session_model, "fp16")) < 0.05
    text.write_text("Another text altogether, of about the same length. " * 40)
    # Another text starts another calibration, which the first block already shows.
    with pytest.raises(KeyboardInterrupt):
        prepare(session_model, "gptq", Interrupting(), **options)

    copied = Path(shutil.copytree(quantized.folder, tmp_path / "copied"))
    (copied / "benchmarker.json").unlink()
    config = json.loads((copied / "config.json").read_text())
    del config["quantization_config"]["meta"]
    (copied / "config.json").write_text(json.dumps(config))
    assert load(copied, "gptq", bits=4, calibration_samples=9).notes[1] == (
        "the checkpoint is GPTQ already; its own config (bits=8, group_size=128, sym=True, desc_act=False, "
        "damp_percent=0.1) won over bits=4, calibration_samples=9"
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"sym": False, "desc_act": True}, {"group_size": -1, "kernel": "torch"}])
@pytest.mark.usefixtures("traced_only")
def test_gptq_quantizes_with_nondefault_options(session_model, options):
    loaded = load(session_model, "gptq", calibration_samples=4, calibration_tokens=64, **options)
    assert distance(loaded, load(session_model, "fp16")) < 0.5


@pytest.mark.slow
def test_too_short_calibration_text_is_refused(session_model, tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("too short")
    with pytest.raises(SpecError) as caught:
        prepare(session_model, "gptq", calibration=str(text))
    assert str(caught.value) == (
        "gptq: the calibration text has 4 tokens, fewer than options.calibration_tokens=512; "
        "give a longer text, or set a smaller number"
    )


@pytest.mark.slow
def test_calibration_requires_a_tokenizer(model_folder):
    (model_folder / "tokenizer.json").unlink()
    (model_folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError) as caught:
        prepare(model_folder, "gptq")
    assert str(caught.value) == (
        f"{model_folder}: no tokenizer in its folder, and GPTQ is calibrated on a text; "
        "add the tokenizer's files, or use --load-format dummy"
    )


@pytest.mark.slow
def test_interrupted_quantization_leaves_no_files(session_model, cache_folder):
    with pytest.raises(KeyboardInterrupt):
        prepare(session_model, "gptq", Interrupting(), calibration_samples=2, calibration_tokens=64)
    assert list(cache_folder.iterdir()) == []


@pytest.mark.slow
def test_kernel_that_cannot_be_built_is_named_with_an_alternative(shape_folder, monkeypatch):
    """Simulate Machete, gptqmodel's choice on Hopper, which downloads its sources at its first use."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    def unreachable(self: TorchLinear) -> None:
        raise URLError("name resolution failed")

    monkeypatch.setattr(TorchLinear, "post_init", unreachable)
    with pytest.raises(DeviceError, match=r"build TorchLinear.*URLError.*name resolution.*options\.kernel to 'torch'"):
        load(shape_folder, "gptq", dtype="bfloat16", dummy=True, kernel="torch")


@pytest.mark.slow
def test_out_of_memory_while_a_kernel_is_built_is_not_replaced(shape_folder, monkeypatch):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    def allocate(self: TorchLinear) -> None:
        torch.empty(2**46, dtype=torch.uint8)

    monkeypatch.setattr(TorchLinear, "post_init", allocate)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        load(shape_folder, "gptq", dtype="bfloat16", dummy=True, kernel="torch")


@pytest.mark.slow
def test_only_known_kernel_buffers_may_be_missing_in_the_checkpoint(shape_folder, monkeypatch):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    def with_buffer(name: str) -> Any:
        original = TorchLinear.__init__

        def init(self: TorchLinear, *args: Any, **keywords: Any) -> None:
            original(self, *args, **keywords)
            self.register_buffer(name, torch.empty(0, dtype=torch.int32))

        return init

    with monkeypatch.context() as patch:
        patch.setattr(TorchLinear, "__init__", with_buffer("input_perm"))
        loaded = load(shape_folder, "gptq", dtype="bfloat16", dummy=True, kernel="torch")
        assert facts_of(loaded).quantized_fraction > 0
    with monkeypatch.context() as patch:
        patch.setattr(TorchLinear, "__init__", with_buffer("other"))
        with pytest.raises(ModelError, match="lacks"):
            load(shape_folder, "gptq", dtype="bfloat16", dummy=True, kernel="torch")
