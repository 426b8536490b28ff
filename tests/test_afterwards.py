"""What is looked at once everything is timed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarker.afterwards import kernels_counted
from benchmarker.record import RuntimeFacts
from benchmarker.workloads.generation import ModelBenchmarker
from tests.records import cell, record


def benchmarker(kernels: float | None) -> ModelBenchmarker:
    runtime = SimpleNamespace(kernels_per_token=lambda count: kernels)
    return cast("ModelBenchmarker", SimpleNamespace(device=SimpleNamespace(kind="cuda"), runtime=runtime))


def counted(in_graph: int | None, kernels: float | None) -> dict[str, Any]:
    facts = RuntimeFacts(name="graph", tokens_read="end", kv_cache="static", graph_kernels=in_graph)
    measured = record("fp16", cell(), cell(status="oom_gpu", reason="full")).model_copy(update={"runtime": facts})
    return kernels_counted(measured, benchmarker(kernels))


def test_a_graph_that_misses_kernels_makes_its_cells_invalid() -> None:
    # Seen with gptqmodel's ExLlamaV2 kernel, which ran on another stream: 929 tok/s, without a single product.
    changed = counted(1792, 2044.0)
    assert [one.status for one in changed["cells"]] == ["invalid", "oom_gpu"]
    assert changed["cells"][0].reason == "the graph holds 1,792 of the 2,044 kernels of a step"
    assert changed["runtime"].kernels_per_token == 2044.0


@pytest.mark.parametrize(("in_graph", "kernels"), [(2044, 2044.0), (None, 2044.0), (2044, None)])
def test_nothing_changes_where_all_are_there_or_nothing_is_known(in_graph: int | None, kernels: float | None) -> None:
    assert "cells" not in counted(in_graph, kernels)
