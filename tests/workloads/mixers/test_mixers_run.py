"""A run of mixers in this process, its record, and remarks on several rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarker.comparison.results import to_rows
from benchmarker.comparison.speed_up import SpeedUp
from benchmarker.core.console import Terminal
from benchmarker.core.errors import SpecError
from benchmarker.core.stats import Ratio
from benchmarker.execution.single_run import Run
from benchmarker.report.compare import compare, to_markdown
from benchmarker.report.verify import verify
from benchmarker.schema.record_io import collect, write_json
from benchmarker.workloads.mixers.mixer import (
    GATED_DELTA,
    LINEAR,
    SOFTMAX,
    VARIANTS,
    demand_of,
    input_bytes,
    least_bytes,
)
from benchmarker.workloads.mixers.mixers_bench import inputs_sha256, make_inputs
from benchmarker.workloads.mixers.mixers_reading import crossing_remarks, crossing_text, kernels_text, slope
from benchmarker.workloads.mixers.record import MixersCell, MixersRecord
from benchmarker.workloads.mixers.spec import MixersSubject, shape_of
from benchmarker.workloads.operation.spec import LengthPoint
from tests.jobs import read_job
from tests.workloads.mixers.test_mixers_oracle import record_of as mixers_record

SHAPE = ("--seq-len", "96", "--heads", "2", "--head-dim", "8", "--dtype", "float32", "--device", "cpu")
SHORT = ("--runs", "2", "--warmup", "1", "--warmup-limit", "1", "--no-limits")


def job(*options):
    return read_job(["mixers", *SHAPE, *SHORT, *options])


def record_of(folder, *options) -> MixersRecord:
    Run(job("--output", str(folder), *options), Terminal(quiet=True)).execute()
    (record,) = collect([folder]).records
    return record


def shape(seq_len=1024, mode="forward", **subject):
    return shape_of(MixersSubject(**subject), LengthPoint(seq_len, 1, mode))


def test_run_writes_a_record_that_is_compared_and_verified(tmp_path):
    record = record_of(tmp_path, "--variant", "gdn-torch")
    assert (record.workload, record.status, [cell.status for cell in record.cells]) == (
        "mixers",
        "complete",
        ["ok"] * 2,
    )
    assert (record.variant.mixer, record.variant.implementation) == ("gdn", "torch, chunked")
    assert record.built.versions.keys() == {"torch"}
    forward, both = to_rows(compare([tmp_path]))
    times = [sample.latency_s for sample in record.cells[0].samples]
    assert forward["tokens_per_s"] == pytest.approx(96 / (sum(times) / 2))
    assert forward["tflops_flop_per_s"] == pytest.approx(6 * 8 * 8 * 2 * 96 / (sum(times) / 2))
    assert (forward["state"], forward["backward_s"]) == (2 * 8 * 8, None)
    assert both["forward_s"] + both["backward_s"] == pytest.approx(both["tokens_per_s"] ** -1 * 96, rel=0.5)
    assert not verify([tmp_path]).problems


def test_unsupported_variant_is_recorded_without_samples(tmp_path):
    cells = record_of(tmp_path, "--variant", "gdn-fla-chunk").cells
    assert {(cell.status, cell.samples, cell.reason) for cell in cells} == {
        ("unsupported", (), "not on CPUs; it runs on NVIDIA GPUs and AMD GPUs")
    }


def test_compiler_refused_by_the_library_is_unsupported_with_a_remedy(tmp_path, monkeypatch):
    original = VARIANTS["gdn-torch"]

    def refuse(gradient):
        raise RuntimeError("Triton >= 3.4.0 and < 3.7.1 produces incorrect results. Please upgrade Triton to >= 3.7.1")

    def open_refused(shape, where):
        operation = original.open(shape, where)

        def call(*tensors):
            output = operation.call(*tensors)
            if output.requires_grad:
                output.register_hook(refuse)
            return output

        return replace(operation, call=call)

    monkeypatch.setitem(VARIANTS, "gdn-torch", replace(original, open=open_refused))
    forward, both = record_of(tmp_path, "--variant", "gdn-torch").cells
    assert (forward.status, both.status) == ("ok", "unsupported")
    assert both.reason.startswith("fla: Triton >= 3.4.0")
    assert "upgrade Triton to >= 3.7.1" in both.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--variant", "gdn-fla-chnk"), "no mixer 'gdn-fla-chnk'; did you mean 'gdn-fla-chunk'"),
        (("--variant", "gdn-torch", "--energy"), "--energy: is not counted for mixers"),
        (("--variant", "gdn-torch", "--profile-tokens", "8"), "--profile-tokens: "),
        (("--variant", "linear-torch", "--normalize"), "normalize: needs feature_map elu"),
        (("--variant", "gdn-torch", "--tokens", "100"), "100 is not a multiple of seq_len 96"),
    ],
)
def test_invalid_values_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        job(*options)


def test_run_without_a_variant_is_refused_with_an_example():
    with pytest.raises(SpecError, match="no variant is given; for example: --variant gdn-fla-chunk"):
        read_job(["mixers", "--seq-len", "64"])


def test_flops_grow_linearly_for_mixers_and_quadratically_for_softmax():
    def flops(mixer, seq_len, mode="forward"):
        return demand_of(mixer, shape(seq_len, mode)).flops

    assert flops(LINEAR, 1024) == 1024 * 16 * 4 * 128 * 128
    assert flops(GATED_DELTA, 1024) == 1024 * 16 * 6 * 128 * 128
    assert flops(GATED_DELTA, 2048) == 2 * flops(GATED_DELTA, 1024)
    assert flops(GATED_DELTA, 1024, "forward_backward") == 3 * flops(GATED_DELTA, 1024)
    assert flops(SOFTMAX, 1024) == 4 * 16 * 128 * 1024 * 1025 // 2
    wide = demand_of(SOFTMAX, shape(1024, value_dim=256))
    assert wide.flops == 2 * 16 * (128 + 256) * 1024 * 1025 // 2


def test_only_the_state_of_softmax_grows_with_the_length():
    def floats(mixer, seq_len):
        return demand_of(mixer, shape(seq_len)).state_floats

    assert (floats(LINEAR, 1024), floats(LINEAR, 4096)) == (16 * 128 * 128,) * 2
    assert (floats(SOFTMAX, 1024), floats(SOFTMAX, 4096)) == (16 * 256 * 1024, 16 * 256 * 4096)


def test_inputs_have_the_bytes_of_the_formula_and_depend_on_the_seed():
    call_shape = shape(64, "forward_backward", heads=2, head_dim=8)
    for mixer in (SOFTMAX, LINEAR, GATED_DELTA):
        inputs = make_inputs(mixer, call_shape, "cpu", seed=0, layout="heads first")
        tensors = (*inputs.tensors, inputs.gradient)
        assert input_bytes(mixer, call_shape) == sum(tensor.nbytes for tensor in tensors)
    assert inputs_sha256(call_shape, "cpu", seed=0) == inputs_sha256(
        call_shape._replace(dtype="float16"), "cpu", seed=0
    )
    assert inputs_sha256(call_shape, "cpu", seed=0) != inputs_sha256(call_shape, "cpu", seed=1)


def test_written_scores_are_part_of_the_minimum_memory():
    call_shape = shape(4096)
    scores = 16 * 4096**2 * 2
    assert (
        least_bytes(SOFTMAX, call_shape, writes_scores=True) - least_bytes(SOFTMAX, call_shape, writes_scores=False)
        == scores
    )


def against(seq_len, value, verdict="inconclusive", softmax="softmax-cudnn"):
    return seq_len, SpeedUp(softmax, Ratio(value, 3, 0.8 * value, 1.2 * value), verdict)


def test_crossover_is_reported_with_lengths_and_softmax_variant():
    series = [against(1024, 0.3, "slower", "softmax-flash"), against(4096, 0.6), against(8192, 1.5, "faster")]
    assert crossing_text("gdn", series) == (
        "gdn is faster than the best softmax from between 1,024 and 8,192 positions on (softmax-cudnn at 8,192)"
    )


def test_equal_verdicts_at_all_lengths_are_one_sentence():
    assert crossing_text("gdn", [against(1024, 0.25, "slower"), against(4096, 0.6, "slower")]) == (
        "gdn is slower than the best softmax (softmax-cudnn) at all measured lengths, from 1,024 to 4,096 positions: "
        "0.25x [0.20, 0.30] at 1,024, 0.60x [0.48, 0.72] at 4,096"
    )
    # A ratio whose interval excludes 1 is undecided if Holm's correction leaves it inconclusive.
    undecided = [against(1024, 0.25), against(4096, 3.0)]
    assert "no crossing is decided" in crossing_text("gdn", undecided)
    assert crossing_text("gdn", undecided[:1]) is None


def test_different_crossing_of_the_kernels_is_reported():
    slower, faster = against(4096, 0.7, "slower"), against(8192, 1.5, "faster")
    assert kernels_text([slower, faster]) == "; its kernels alone are faster from between 4,096 and 8,192 on"
    assert kernels_text([faster]) == "; its kernels alone are faster at all measured lengths"
    assert kernels_text([against(4096, 1.0)]) == kernels_text([]) == ""


def test_slope_is_fitted_with_an_intercept():
    per_token_bytes, worst = slope([(1000, 60_000), (2000, 110_000), (4000, 210_000)])
    assert per_token_bytes == pytest.approx(50)
    assert worst < 1e-9
    assert slope([(1000, 60_000), (2000, 110_000)]) is None


def timed(name, mixer, milliseconds, number, misfit=None):
    """Return the record of one process with a cell for each length."""
    cells = [
        MixersCell(
            status="ok",
            seq_len=seq_len,
            batch_size=1,
            mode="forward",
            samples=tuple({"latency_s": time * 1e-3 * (1 + 0.001 * number)} for _ in range(2)),  # type: ignore[misc]
            passes={"forward_peak_bytes": 1000 * seq_len},  # type: ignore[arg-type]
        )
        for seq_len, time in milliseconds.items()
    ]
    if misfit:
        values = {"status": "oom_gpu", "error_kind": "oom_gpu", "reason": "out of memory"}
        needs = {"least_bytes": 32 * 2**30, "free_bytes": 12 * 2**30}
        cells.append(MixersCell(**values, **needs, seq_len=misfit, batch_size=1, mode="forward"))  # type: ignore[arg-type]
    return mixers_record(name, mixer, number, cells)


def test_mixers_are_compared_with_the_best_softmax(tmp_path):
    for number in range(3):
        for record in (
            timed("slow", "softmax", {1024: 5.0, 2048: 20.0, 4096: 80.0}, number, misfit=8192),
            timed("quick", "softmax", {1024: 1.0, 2048: 4.0, 4096: 16.0, 8192: 64.0}, number),
            timed("mixer", "linear", {1024: 2.0, 2048: 4.5, 4096: 9.0, 8192: 18.0}, number),
        ):
            write_json(record, tmp_path / f"{record.variant.name}-{number}.json")
    text = to_markdown(compare([tmp_path], baseline="slow"))
    crossing = "mixer is faster than the best softmax from between 2,048 and 4,096 positions on (quick at 4,096)"
    assert f"- forward, batch of 1: {crossing}." in text
    assert "- mixer has at its forward peak 1.0 KiB per token, at most 0.0 % off a straight line." in text
    assert "- at 8,192 positions slow does not fit: it needs 32.00 GiB at least, and 12.00 GiB were free." in text


def test_crossing_uses_the_verdicts_of_the_table(tmp_path):
    for number in range(3):
        for record in (
            timed("quick", "softmax", {1024: 1.0, 4096: 16.0}, number),
            # 1.3 to 1.6 times slower: the interval excludes 1 at 1,024 positions, but not after Holm's correction.
            timed("mixer", "linear", {1024: (1.3, 1.6, 1.5)[number], 4096: 9.0}, number),
            timed("noisy", "linear", {1024: (0.7, 1.0, 1.5)[number], 4096: (12.0, 16.0, 24.0)[number]}, number),
        ):
            write_json(record, tmp_path / f"{record.variant.name}-{number}.json")
    comparison = compare([tmp_path])
    (row,) = [row for row in comparison.rows if row.variant == "mixer" and row.cell["seq_len"] == 1024]
    assert row.speed_up.verdict == "inconclusive"
    assert row.speed_up.ratio.high < 1
    (remark,) = [line for line in crossing_remarks(comparison.rows) if "mixer" in line]
    assert remark.startswith(
        "forward, batch of 1: mixer relative to the best softmax (quick): 0.68x [0.53, 0.89] at 1,024"
    )
