"""Records of attention are explained and compared."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarker.core import tables
from benchmarker.core.console import Terminal
from benchmarker.execution.single_run import Run
from benchmarker.explain.explain import Explanation, explain
from benchmarker.explain.waterfall import NotExplained
from benchmarker.report.compare import to_markdown
from benchmarker.report.explanations import explained_blocks
from benchmarker.workloads.attention.record import AttentionRecord
from benchmarker.workloads.operation.record import OperationSample, SeenKernel
from tests.explained import LIMITS
from tests.jobs import read_job
from tests.records import compare_records

LENGTHS = (64, 128, 256, 512)
FLASH = SeenKernel(name="void pytorch_flash::flash_fwd_kernel<Traits>", calls=1, total_s=0.9e-3)
SOFTMAX = SeenKernel(name="void softmax_warp_forward<float>", calls=1, total_s=0.9e-3)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> AttentionRecord:
    """Return a real record. The tests replace its times."""
    folder = tmp_path_factory.mktemp("records")
    options = "--variant naive --heads 1 --head-dim 16 --dtype float32 --device cpu --mode forward --runs 1 --warmup 1"
    lengths = ",".join(map(str, LENGTHS))
    job = read_job(["attention", *options.split(), "--warmup-limit", "1", "--no-limits", "--seq-len", lengths])
    return Run(job.model_copy(update={"output": folder}), Terminal(quiet=True)).execute()


def with_times(record, name, times, *, kernel=None, limits=LIMITS, round_number=0, batches=(1, 1, 1, 1)):
    """Return the record as that of another variant on a GPU with the given times."""
    cells = tuple(
        cell.model_copy(
            update={
                "samples": (OperationSample(latency_s=time_s),),
                "kernels": (kernel,) if kernel else (),
                "batch_size": batch,
            }
        )
        for cell, time_s, batch in zip(record.cells, times, batches, strict=True)
    )
    device = record.environment.device.model_copy(update={"kind": "cuda"})
    return record.model_copy(
        update={
            "run_id": f"{name}-{round_number}",
            "cells": cells,
            "limits": limits,
            "round": round_number,
            "sweep": "one",
            "environment": record.environment.model_copy(update={"device": device}),
            "variant": record.variant.model_copy(update={"name": name, "variant": name}),
        }
    )


def at_share(record, share):
    """Return times at which the FLOPs reach this share of the matmul rate."""
    return [cell.demand.flops / LIMITS.matmul_flops_per_s / share for cell in record.cells]


def explained(record) -> Explanation:
    explanation = explain(record.variant.name, [record])
    assert isinstance(explanation, Explanation)
    return explanation


def test_cpu_call_without_limits_is_not_explained(measured):
    explanation = explain("naive", [measured.model_copy(update={"cells": undisturbed_cells(measured)})])
    assert isinstance(explanation, NotExplained)
    assert explanation.why == "on a CPU the operators of a call cannot be identified, and no limits were measured"


def undisturbed_cells(record):
    return tuple(cell.model_copy(update={"flags": ()}) for cell in record.cells)


def test_naive_is_bound_by_the_bandwidth_of_its_scores(measured):
    cell = measured.cells[-1]
    moving_s = (8 * cell.demand.scores_bytes + cell.demand.bytes) / LIMITS.bytes_per_s
    kernel = SOFTMAX.model_copy(update={"total_s": moving_s / 0.77})
    explanation = explained(with_times(measured, "naive", [moving_s / 0.77] * 4, kernel=kernel))
    assert explanation.verdict.bound == "bandwidth"
    assert explanation.verdict.reason.startswith("moving data at the measured bandwidth (the floor) 77 %")
    assert explanation.verdict.advice.startswith("A fused kernel never writes the scores")


def test_call_with_90_percent_gaps_is_bound_by_the_host(measured):
    kernel = FLASH.model_copy(update={"total_s": 5e-6})
    explanation = explained(with_times(measured, "flash", [50e-6] * 4, kernel=kernel))
    assert explanation.verdict.bound == "host"
    assert "gaps 90 % (10.00x without)" in explanation.verdict.reason


def test_power_limited_device_has_no_gaps(measured):
    record = with_times(measured, "flash", [1e-3] * 4, kernel=FLASH)
    cells = tuple(cell.model_copy(update={"flags": ("power_limited",)}) for cell in record.cells)
    limited = explained(record.model_copy(update={"cells": cells}))
    gaps_s = [
        sum(part.seconds for part in explanation.waterfall if part.name == "gaps (launches, host)")
        for explanation in (explained(record), limited)
    ]
    assert gaps_s == [pytest.approx(0.1e-3), 0]


@pytest.mark.parametrize(("share", "bound"), [(0.86, "compute"), (0.36, "slow products")])
def test_fused_kernel_is_compared_with_the_matmul_rate(measured, share, bound):
    fast = LIMITS.model_copy(update={"read_bytes_per_s": 1e15})
    times = at_share(measured, share)
    kernel = FLASH.model_copy(update={"total_s": times[-1]})
    explanation = explained(with_times(measured, "flash", times, kernel=kernel, limits=fast))
    assert explanation.verdict.bound == bound
    assert f"it reaches {share:.0%} of the measured float16 matmul rate".replace("%", " %") in explanation.notes


def test_rate_above_the_ceiling_is_reported_as_impossible(measured):
    explanation = explained(with_times(measured, "flash", at_share(measured, 1.14), kernel=FLASH))
    assert "impossible: 114 % of the measured float16 matmul rate" in explanation.notes


def test_cpu_call_is_explained_without_gaps(measured):
    record = measured.model_copy(update={"limits": LIMITS})
    explanation = explained(record)
    assert [share.name for share in explanation.shares] == ["floor", "excess"]
    assert sum(share.seconds for share in explanation.shares) == pytest.approx(
        median(sample.latency_s for sample in record.cells[-1].samples)
    )


def test_variant_without_a_measured_cell_is_not_explained(measured):
    cells = tuple(cell.model_copy(update={"status": "unsupported", "samples": ()}) for cell in measured.cells)
    explanation = explain("flash", [measured.model_copy(update={"cells": cells})])
    assert isinstance(explanation, NotExplained)
    assert explanation.why == "no cell of it was measured"


def both(measured, **fields):
    """Return three rounds of naive, whose time is quadratic, and of flash, which is faster from 256 on."""
    naive, flash = [1e-3, 4e-3, 16e-3, 64e-3], [2e-3, 6e-3, 8e-3, 16e-3]
    return [
        with_times(measured, name, [(1 + 0.001 * number) * time_s for time_s in times], round_number=number, **fields)
        for number in range(3)
        for name, times in (("naive", naive), ("flash", flash))
    ]


def test_comparison_reports_the_crossing_and_the_growth_of_time(measured):
    page = to_markdown(compare_records(both(measured), baseline="naive"))
    assert "- forward, batch of 1: flash is faster than naive from between 128 and 256 on." in page
    assert "- forward, batch of 1: the time of naive grows as S^2.00 from 64 to 128, S^2.00 from 128 to 256" in page
    assert "S^2.00 over 4 lengths, at most 0.0 % off." in page


def test_lengths_with_equal_tokens_are_a_separate_series(measured):
    page = to_markdown(compare_records(both(measured, batches=(8, 4, 2, 1)), baseline="naive"))
    assert "- forward, 512 tokens: flash is faster than naive from between 128 and 256 on." in page
    assert "grows as" not in page
    assert "batch of" not in page.split("**Why**")[0].split("Every cell")[1]


def test_explain_prints_a_verdict_and_the_kernels_of_each_variant(measured):
    page = tables.to_markdown(explained_blocks(compare_records(both(measured, kernel=FLASH), baseline="naive")))
    assert "**naive and flash** are bound by" in page
    assert "one profiled call ran `pytorch_flash::flash_fwd_kernel" in page
    assert "flash is faster than naive (4.00x [4.00, 4.00])" in page
