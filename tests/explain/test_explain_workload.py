"""A workload that says nothing of its own time is explained all the same, and one that does is asked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from benchmarker.core.tables import unmarked
from benchmarker.explain.explain import Explanation, explain
from benchmarker.explain.waterfall import NotExplained, Timed, timed_profile
from benchmarker.report.compare import compare
from benchmarker.schema.record import CellBase, Demand, Kernel, Profile, RunRecord, SampleBase, VariantFacts
from benchmarker.schema.registry import WORKLOADS, workload_of
from benchmarker.workloads.base import Workload
from tests.explained import LIMITS
from tests.records import environment

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def naps(**fields: object) -> RunRecord:
    """A run of a workload that multiplies two matrices and copies the result: 10 ms a call."""
    kernels = (Kernel(name="nvjet_a", calls=1, total_s=0.006), Kernel(name="Memcpy DtoD", calls=1, total_s=0.003))
    times = tuple(SampleBase(latency_s=seconds) for seconds in (0.010, 0.010, 0.011))
    facts = {
        "workload": "naps",
        "benchmarker": "0.1.0",
        "run_id": "a",
        "started_at": "2026-03-01T00:00:00Z",
        "status": "complete",
        "variant": VariantFacts(name="deep"),
        "environment": environment(),
        "limits": LIMITS,
        "cells": (CellBase(status="ok", samples=times, demand=Demand(bytes=6_000_000_000, flops=1_000_000)),),
        "profile": Profile(by="device", latency_s=0.0102, kernel_s=0.009, busy_s=0.009, span_s=0.01, kernels=kernels),
        "reproduce": "benchmarker run naps",
        **fields,
    }
    return RunRecord(**facts)


class Naps(Workload):
    """A workload that overrides nothing."""

    name = "naps"
    unit = "call"
    record = RunRecord
    axes = ()
    metrics = workload_of("generation").metrics
    headline = workload_of("generation").headline


class Tossing(Naps):
    """A workload with its own unit, parts and products."""

    unit = "nap"

    def timed(self, name: str, records: Sequence[RunRecord]) -> Timed | NotExplained:
        timed = timed_profile(name, records)
        assert isinstance(timed, Timed)
        return replace(timed, parts={"copy/cast": "tossing"}, products=("matmul",))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("naps")
    module.WORKLOAD = Naps()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "naps", module)
    monkeypatch.setitem(WORKLOADS, "naps", "naps")
    return module


@pytest.mark.usefixtures("registered")
def test_the_defaults_explain_the_profiled_repeat_as_one_call() -> None:
    found = explain("deep", [naps()])
    assert isinstance(found, Explanation)
    assert {part.name: pytest.approx(1e3 * part.seconds) for part in found.waterfall} == {
        "moving the bytes": 2.0, "matrix products beyond that": 4.0, "copies and casts": 3.0,
        "gaps (launches, host)": 1.0,
    }  # fmt: skip
    assert found.verdict.bounds == ("slow products",)
    ending = " of each 10.0 ms call; the products run at 33 % of the measured bandwidth."
    assert found.verdict.reason.endswith(ending)


@pytest.mark.usefixtures("registered")
def test_without_a_profile_it_says_why() -> None:
    assert explain("deep", [naps(profile=None)]) == NotExplained(
        "deep", "no profile (left out, or the run ended before it)"
    )


def test_a_workload_may_bring_its_own_unit_parts_and_advice(registered: ModuleType) -> None:
    registered.WORKLOAD = Tossing()  # type: ignore[attr-defined]
    found = explain("deep", [naps()])
    assert isinstance(found, Explanation)
    assert [part.name for part in found.waterfall][2] == "tossing"
    assert "10.0 ms nap" in unmarked(found.verdict.reason)


@pytest.mark.parametrize("folder", ["h100-runtimes", "h200-runtimes"])
def test_the_range_that_was_predicted_for_a_graph_holds_what_was_measured(folder: str) -> None:
    results = compare(REFERENCE / folder)
    graphs = {row.quant: row for row in results.rows if row.engine == "cuda_graph"}
    ceilings = [one for one in results.explained if isinstance(one, Explanation) and one.ceiling]
    assert len(ceilings) == len(graphs) == 4
    for one in ceilings:
        assert one.ceiling is not None
        assert one.ceiling.least_per_s is not None
        measured = graphs[one.form["quant"]].decode_tokens_per_s
        assert measured is not None
        assert one.ceiling.least_per_s <= measured <= one.ceiling.per_s


WITHOUT_BOUNDS = {
    "cpu-context-parallel",  # --no-limits, and one rank by itself has no trace
    "h200-finetune-limit",  # --find-limit leaves the device's limits out
    "h200-mixers-bits",  # the same
    "h200-mixers-block",  # whole training steps: a roofline of the mixer says nothing of them
}


@pytest.mark.parametrize("folder", sorted(path.name for path in REFERENCE.iterdir()))
def test_every_profiled_variant_of_the_references_has_a_reason_and_its_shares_add_up(folder: str) -> None:
    results = compare(REFERENCE / folder)
    for one in results.explained:
        if results.workload == "generation":
            profiled = any(record.profile for record in results.members[one.variant])
            assert isinstance(one, Explanation) == profiled
        if isinstance(one, Explanation):
            assert sum(share.of_total for share in one.shares) == pytest.approx(1)
        elif folder in WITHOUT_BOUNDS or not any(
            record.cells[0].status == "ok" for record in results.members[one.variant]
        ):
            assert one.why
        else:
            assert one.allows is not None


def test_a_ring_whose_ranks_have_unequal_work_is_told_so_and_a_zigzag_is_not() -> None:
    found = compare(REFERENCE / "h100-x2-context-parallel").explained
    advice = {one.variant: unmarked(one.verdict.advice) for one in found if isinstance(one, Explanation)}
    assert "zigzag" in advice["ring"]
    assert "zigzag" not in advice["zigzag"]


def test_a_model_over_two_gpus_that_waits_for_the_host_is_not_told_to_take_an_engine_that_cannot_split_it() -> None:
    found = compare(REFERENCE / "h100-x2-generation").explained
    advice = {one.variant: unmarked(one.verdict.advice) for one in found if isinstance(one, Explanation)}
    assert "which do not split a model" in advice["two GPUs"]
    assert advice["one GPU"] == "`--engine compile` removes the host's work from each token."


def test_a_mixture_of_experts_gets_no_advice_to_use_forms_that_leave_experts_in_16_bits() -> None:
    found = compare(REFERENCE / "h200-qwen3-30b-a3b").explained
    advice = {unmarked(one.verdict.advice) for one in found if isinstance(one, Explanation) and "native" in one.variant}
    assert advice == {
        "Fewer bytes a token make it faster: `--engine vllm --engine-option quantization=fp8` reads 8 bits, "
        "experts included."
    }


def test_the_advice_for_torchs_slow_int8_product_names_the_type_that_avoids_it() -> None:
    found = compare(REFERENCE / "h200-gemma-3-4b").explained
    advice = {one.variant: unmarked(one.verdict.advice) for one in found if isinstance(one, Explanation)}
    assert advice["int8 compile"] == (
        "In bfloat16 torch.compile replaces them by `_weight_int8pack_mm`, slow for several rows: "
        "`--engine native` and `--dtype float16` do not use it."
    )
    assert "_weight_int8pack_mm" not in advice["bnb4 compile"]
