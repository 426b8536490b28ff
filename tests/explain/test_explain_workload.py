"""`explain` on a workload with the default parts, on one with overridden parts, and on all reference records."""

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


def advice_of(folder: str) -> dict[str, str]:
    """Return the advice for each explained variant of a reference folder."""
    return {
        explanation.variant: unmarked(explanation.verdict.advice)
        for explanation in compare(REFERENCE / folder).explained
        if isinstance(explanation, Explanation)
    }


def naps(**fields: object) -> RunRecord:
    """Return a run of 10 ms per call with one matrix product and one copy."""
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
    """Workload without overrides."""

    name = "naps"
    unit = "call"
    record = RunRecord
    axes = ()
    metrics = workload_of("generation").metrics
    headline = workload_of("generation").headline


class Tossing(Naps):
    """Workload that overrides unit, parts and products."""

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
def test_default_workload_explains_the_profiled_repeat_as_one_call() -> None:
    explained = explain("deep", [naps()])
    assert isinstance(explained, Explanation)
    assert {part.name: pytest.approx(1e3 * part.seconds) for part in explained.waterfall} == {
        "moving the bytes": 2.0, "matrix products beyond that": 4.0, "copies and casts": 3.0,
        "gaps (launches, host)": 1.0,
    }  # fmt: skip
    assert explained.verdict.bounds == ("slow products",)
    ending = " of each 10.0 ms call; the products run at 33 % of the measured bandwidth."
    assert explained.verdict.reason.endswith(ending)


@pytest.mark.usefixtures("registered")
def test_run_without_profile_has_a_reason() -> None:
    assert explain("deep", [naps(profile=None)]) == NotExplained(
        "deep", "no profile (left out, or the run ended before it)"
    )


def test_workload_can_override_unit_and_parts(registered: ModuleType) -> None:
    registered.WORKLOAD = Tossing()  # type: ignore[attr-defined]
    explained = explain("deep", [naps()])
    assert isinstance(explained, Explanation)
    assert [part.name for part in explained.waterfall][2] == "tossing"
    assert "10.0 ms nap" in unmarked(explained.verdict.reason)


@pytest.mark.parametrize("folder", ["h100-runtimes", "h200-runtimes"])
def test_measured_graph_rate_lies_within_the_predicted_range(folder: str) -> None:
    results = compare(REFERENCE / folder)
    graphs = {row.quant: row for row in results.rows if row.engine == "cuda_graph"}
    ceilings = [
        explanation for explanation in results.explained if isinstance(explanation, Explanation) and explanation.ceiling
    ]
    assert len(ceilings) == len(graphs) == 4
    for explanation in ceilings:
        assert explanation.ceiling is not None
        assert explanation.ceiling.least_per_s is not None
        measured = graphs[explanation.form["quant"]].decode_tokens_per_s
        assert measured is not None
        assert explanation.ceiling.least_per_s <= measured <= explanation.ceiling.per_s


WITHOUT_BOUNDS = {
    "cpu-context-parallel",  # --no-limits, and a single rank has no trace
    "h200-finetune-limit",  # --find-limit measures no device limits
    "h200-mixers-bits",  # --find-limit
    "h200-mixers-block",  # whole training steps, which the roofline of a mixer does not cover
}


@pytest.mark.parametrize("folder", sorted(path.name for path in REFERENCE.iterdir()))
def test_profiled_reference_variants_have_shares_that_sum_to_1(folder: str) -> None:
    results = compare(REFERENCE / folder)
    for explanation in results.explained:
        if results.workload == "generation":
            profiled = any(record.profile for record in results.members[explanation.variant])
            assert isinstance(explanation, Explanation) == profiled
        if isinstance(explanation, Explanation):
            assert sum(share.of_total for share in explanation.shares) == pytest.approx(1)
        elif (
            folder in WITHOUT_BOUNDS
            or explanation.why.startswith("its rounds differ too much")
            or not any(record.cells[0].status == "ok" for record in results.members[explanation.variant])
        ):
            assert explanation.why
        else:
            assert explanation.allows is not None


def test_only_unbalanced_ring_gets_the_advice_to_use_zigzag() -> None:
    advice = advice_of("h100-x2-context-parallel")
    assert "zigzag" in advice["ring"]
    assert "zigzag" not in advice["zigzag"]


def test_host_bound_split_model_gets_no_advice_to_change_engine() -> None:
    advice = advice_of("h100-x2-generation")
    assert "which do not split a model" in advice["two GPUs"]
    assert advice["one GPU"] == "`--engine compile` removes the host's work from each token."


def test_moe_gets_no_advice_for_formats_with_16_bit_experts() -> None:
    advice = advice_of("h200-qwen3-30b-a3b")
    assert {text for variant, text in advice.items() if "native" in variant} == {
        "Fewer bytes a token make it faster: `--engine vllm --engine-option quantization=fp8` reads 8 bits, "
        "experts included."
    }


def test_advice_for_slow_int8_products_names_float16() -> None:
    advice = advice_of("h200-gemma-3-4b")
    assert advice["int8 compile"] == (
        "In bfloat16 torch.compile replaces them by `_weight_int8pack_mm`, slow for several rows: "
        "`--engine native` and `--dtype float16` do not use it."
    )
    assert "_weight_int8pack_mm" not in advice["bnb4 compile"]
