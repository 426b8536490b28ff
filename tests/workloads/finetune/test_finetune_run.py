"""Small runs of fine-tuning in this process, from the command line to a record that is read again."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM, GPT2Config, GPT2LMHeadModel

from benchmarker.comparison.results import to_rows
from benchmarker.core.console import Terminal
from benchmarker.core.errors import SpecError, WrongResultError
from benchmarker.execution.single_run import Run
from benchmarker.hardware.device import CpuDevice
from benchmarker.measure.profile_repeat import profile_step
from benchmarker.quantization.load import load_model
from benchmarker.report.compare import compare, to_markdown
from benchmarker.report.verify import verify
from benchmarker.schema.record_io import collect
from benchmarker.workloads.finetune import finetune_bench
from benchmarker.workloads.finetune.gradient_check import check_gradients, refuse_inaccurate, unpacked_nf4
from benchmarker.workloads.finetune.record import FinetuneRecord
from benchmarker.workloads.finetune.spec import FinetuneVariant
from benchmarker.workloads.finetune.trainee import frozen_sha256, make_trainee
from benchmarker.workloads.training_step import TrainingStep
from tests.jobs import read_job

ARGUMENTS = ("--model", "qwen3-small", "--dtype", "float32", "--seq-len", "16", "--batch-size", "2", "--device", "cpu")
SHORT = ("--runs", "2", "--warmup", "1", "--warmup-limit", "1", "--no-limits", "--no-profile")


def record_of(folder, *options) -> FinetuneRecord:
    Run(read_job(["finetune", *ARGUMENTS, *SHORT, "--output", str(folder), *options]), Terminal(quiet=True)).execute()
    (record,) = collect([folder]).records
    return record


def trainee_of(recipe, **switches):
    chosen = FinetuneVariant(variant=recipe, **switches).recipe
    model = load_model("qwen3-small", chosen.quant.quant, options=chosen.quant.options, dtype="float32", device="cpu")
    return make_trainee(model, chosen, CpuDevice(), dtype="float32", seed=0)


@pytest.fixture(scope="module")
def qlora():
    return trainee_of("qlora")


def ids():
    return torch.arange(32)[None]


def step_of(trainee, **options):
    step = TrainingStep(lambda: trainee.loss(ids()), trainee.optimizer(), trainee.device, **options)
    trainee.wrap_recomputing(step)
    return step


@pytest.mark.parametrize("recipe", ["qlora", "full"])
def test_run_writes_a_record_that_is_compared_and_verified(tmp_path, recipe):
    record = record_of(tmp_path, "--variant", recipe)
    (cell,) = record.cells
    assert (record.workload, record.status, cell.status) == ("finetune", "complete", "ok")
    assert cell.checked.error < 1e-6, "float32 gradients differ from the reference"
    # The amount depends on earlier tests in this process; tests/measure/test_memory.py checks the number.
    assert cell.memory.resident_growth_bytes is not None
    assert record.built.frozen_unchanged is (None if recipe == "full" else True)
    assert abs(record.first_loss - record.base_loss) < 0.05
    (row,) = to_rows(compare([tmp_path]))
    # All weights of a full fine-tuning are trained.
    assert (" frozen GiB |" in to_markdown(compare([tmp_path]))) is (recipe != "full")
    times = [sample.latency_s for sample in cell.samples]
    assert row["tokens_per_s"] == pytest.approx(2 * 16 / (sum(times) / 2))
    weights = 2_493_184
    if recipe == "full":
        assert record.built.trained_parameters == weights
        # Weights, gradients and two moments, all in float32, and a step count for each tensor.
        assert record.built.trained_bytes == pytest.approx(16 * weights, rel=1e-4)
    else:
        # Rank 16 on q, k, v, o, gate, up and down of four layers.
        widths = [(256, 256), (256, 128), (256, 128), (256, 256), (256, 384), (256, 384), (384, 256)]
        assert record.built.trained_parameters == 4 * sum(16 * (width_in + width_out) for width_in, width_out in widths)
        assert record.built.dequantize_calls == 3 * 28
        assert record.variant.base == "nf4"
    assert not verify([tmp_path]).problems


def test_each_packed_weight_is_unpacked_in_forward_recompute_and_backward(qlora):
    step = step_of(qlora)
    step.profiled()
    profile = profile_step(step.profiled, device=CpuDevice(), trace_path=None)
    unpacking = next(kernel for kernel in profile.kernels if kernel.name == "bitsandbytes::dequantize_4bit")
    calls = {name: time.calls for name, time in unpacking.sections.items()}
    assert calls == {"forward": 28, "recompute": 28, "backward": 28}


def test_gradients_with_a_wrong_scaling_are_refused(qlora):
    adapter = qlora.base.get_decoder().layers[0].mlp.up_proj
    before = adapter.scaling["default"]
    refuse_inaccurate(check_gradients(qlora, ids()))
    try:
        # Change only the forward pass, because the reference reads the adapter's scaling.
        original = adapter.lora_A["default"].forward
        adapter.lora_A["default"].forward = lambda hidden: 3 * original(hidden)
        with pytest.raises(WrongResultError, match="wrong result: the gradients' cosine"):
            refuse_inaccurate(check_gradients(qlora, ids()))
    finally:
        adapter.lora_A["default"].forward = original
    assert adapter.scaling["default"] == before


def test_changed_frozen_weight_changes_the_hash(qlora):
    before = frozen_sha256(qlora)
    packed = qlora.base.get_decoder().layers[1].mlp.up_proj.base_layer.weight
    packed.data[0] ^= 1
    assert frozen_sha256(qlora) != before
    packed.data[0] ^= 1
    assert frozen_sha256(qlora) == before


def test_unpacked_nf4_equals_bitsandbytes(qlora):
    from bitsandbytes.functional import dequantize_4bit

    weight = qlora.base.get_decoder().layers[0].mlp.up_proj.base_layer.weight
    assert torch.allclose(unpacked_nf4(weight), dequantize_4bit(weight.data, weight.quant_state), atol=1e-6)


def test_loss_that_is_not_finite_is_invalid(tmp_path, monkeypatch):
    original = TrainingStep.__call__

    def spoilt(self):
        sample = original(self)
        self.losses = (torch.tensor(float("nan")),)
        return sample

    monkeypatch.setattr(TrainingStep, "__call__", spoilt)
    (cell,) = record_of(tmp_path, "--variant", "full").cells
    assert (cell.status, cell.error_kind, cell.samples) == ("invalid", "wrong_result", ())


def test_wrong_first_loss_invalidates_every_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(finetune_bench, "LOSS_TOLERANCE", -1.0)
    cells = record_of(tmp_path, "--variant", "full", "--seq-len", "8,16").cells
    assert [cell.status for cell in cells] == ["invalid"] * 2
    assert all(cell.reason.startswith("wrong result: the first loss is") for cell in cells)


def test_sequence_longer_than_the_models_positions_is_refused(tmp_path):
    with pytest.raises(Exception, match="--seq-len 4096: is past the 2048 positions of qwen3-small; use at most 2048"):
        record_of(tmp_path, "--variant", "lora", "--seq-len", "4096")


def test_gradient_that_is_not_finite_is_refused(qlora):
    adapter = qlora.base.get_decoder().layers[0].mlp.up_proj.lora_A["default"].weight
    hook = adapter.register_hook(lambda gradient: gradient * float("nan"))
    try:
        with pytest.raises(WrongResultError, match="wrong result: a gradient holds a number that is not finite"):
            check_gradients(qlora, ids())
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("q_proj,v_porj", "--targets v_porj: no linear layer has this name; did you mean 'v_proj'?"),
        ("lm_head", "--targets lm_head: no linear layer has this name; there is down_proj, gate_proj, k_proj, "),
    ],
)
def test_target_that_is_not_a_linear_layer_is_refused(targets, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        trainee_of("lora", targets=targets)


def test_model_without_linear_layers_is_refused():
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=16))
    with pytest.raises(SpecError, match="GPT2LMHeadModel: none of its layers holds a linear layer"):
        make_trainee(model, FinetuneVariant(variant="lora").recipe, CpuDevice(), dtype="float32", seed=0)


def test_layers_of_other_architectures_are_found():
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 32}
    model = FalconForCausalLM(FalconConfig(**shape, multi_query=False, alibi=False))
    trainee = make_trainee(model, FinetuneVariant(variant="lora").recipe, CpuDevice(), dtype="float32", seed=0)
    checked = check_gradients(trainee, ids())
    refuse_inaccurate(checked)
    assert checked.layers == 2
