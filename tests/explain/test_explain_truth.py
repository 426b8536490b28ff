"""Verdicts on synthetic runs with a known decomposition, also just above and below each threshold.

The decomposition is in milliseconds per token: floor, excess, unpacking, other kernels and gaps.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from benchmarker.cli.app import app
from benchmarker.core.tables import unmarked
from benchmarker.explain import verdict as generic
from benchmarker.explain.explain import Explanation
from benchmarker.workloads.generation.reading import generation_advice as advice
from benchmarker.workloads.generation.record import GenerationRecord
from tests.explained import LIMITS, explained, kernel, run, split_profile
from tests.records import cpu_environment, load

PRODUCT = "nvjet_sm90_hsh_128x8_64x12_4x1_v_bz_TNT"
PACKED_PRODUCT = "void marlin::Marlin<__half, 4>(int4 const*)"
UNPACK = "dequantize_4bit_kernel"
NORM = "triton_red_fused_mean_rsqrt_1"
COPY = "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>"
ATTENTION = "void pytorch_flash::flash_fwd_splitkv_kernel<T>"
PACKED = load(
    weight_bytes=2_670_000_000, bits_per_weight=5.3, quantized_fraction=0.9, weight_classes={"Tensor int32": 252}
)
FULL = load(weight_bytes=8_044_936_192)


def token(
    floor: float,
    *,
    excess: float = 0.0,
    unpacking: float = 0.0,
    norms: float = 0.0,
    attention: float = 0.0,
    copies: float = 0.0,
    gaps: float = 0.0,
    packed: bool = False,
    slowed: float = 1.0,
    **fields: object,
) -> GenerationRecord:
    """Return a run with this decomposition in ms per token.

    Args:
        packed: Use 4-bit weights, which no other format makes smaller.
        slowed: Factor by which the profiler slows the kernels.
    """
    product = PACKED_PRODUCT if packed else PRODUCT
    times = {product: floor + excess, UNPACK: unpacking, NORM: norms, ATTENTION: attention, COPY: copies}
    calls = {COPY: 900, ATTENTION: 36}
    kernels = [kernel(name, ms=slowed * ms, calls=calls.get(name, 252)) for name, ms in times.items() if ms]
    return run(
        "gptq" if packed else "fp16",
        *kernels,
        tpot_ms=sum(times.values()) + gaps,
        weight_gb=floor * 1e-3 * LIMITS.bytes_per_s / 1e9,
        load=PACKED if packed else FULL,
        **fields,
    )


def percents(explanation: Explanation) -> dict[str, int]:
    return {share.name: round(100 * share.of_total) for share in explanation.shares if share.of_total > 0.001}


DECOMPOSITIONS = {
    "61 % bandwidth of 4 bits, 37 % elementwise": (
        token(6.1, norms=3.7, gaps=0.2, packed=True), ("small kernels",), {"floor": 61, "between": 37, "gaps": 2},
    ),
    "61 % bandwidth of 4 bits, 27 % unpacking": (
        token(6.1, unpacking=2.7, norms=1.0, gaps=0.2, packed=True),
        ("dequantizing",), {"floor": 61, "unpacking": 27, "between": 10, "gaps": 2},
    ),
    "gaps 45, products 44": (
        token(2.2, excess=2.2, norms=1.1, gaps=4.5), ("host",), {"floor": 22, "excess": 22, "between": 11, "gaps": 45},
    ),
    "gaps 45, products 46, nearly all above the floor": (
        token(0.1, excess=4.5, norms=0.9, gaps=4.5, packed=True),
        ("slow products", "host"), {"floor": 1, "excess": 45, "between": 9, "gaps": 45},
    ),
    "elementwise 70 % of the busy time": (
        token(2.0, excess=1.0, norms=7.0), ("small kernels",), {"floor": 20, "excess": 10, "between": 70},
    ),
    "attention 38 %": (
        token(2.5, excess=2.4, attention=3.8, norms=1.0, gaps=0.3),
        ("attention/KV",), {"floor": 25, "excess": 24, "between": 48, "gaps": 3},
    ),
    "unpacking 14 %, copies 14 %, all else at the floor": (
        token(7.2, unpacking=1.4, copies=1.4, packed=True),
        ("dequantizing", "copies"), {"floor": 72, "unpacking": 14, "between": 14},
    ),
    "unpacking 24 %, copies 25 %": (
        token(5.1, unpacking=2.4, copies=2.5, packed=True),
        ("copies", "dequantizing"), {"floor": 51, "unpacking": 24, "between": 25},
    ),
    "unpacking 16 %, products 68 %, most of it above the floor": (
        token(1.0, excess=5.8, unpacking=1.6, norms=1.6, packed=True),
        ("slow products",), {"floor": 10, "excess": 58, "unpacking": 16, "between": 16},
    ),
    "reading alone, 95 %": (
        token(9.5, gaps=0.5, packed=True), ("bandwidth",), {"floor": 95, "gaps": 5},
    ),
    "16 bits at 81 % of the bandwidth": (
        token(8.1, excess=1.4, norms=0.4, gaps=0.1),
        ("bandwidth",), {"floor": 81, "excess": 14, "between": 4, "gaps": 1},
    ),
    "16 bits at 51 %, products slow": (
        token(5.1, excess=4.2, norms=0.7), ("slow products",), {"floor": 51, "excess": 42, "between": 7},
    ),
}  # fmt: skip


ADVICE_TEXTS = [Path(advice.__file__).read_text(), Path(generic.__file__).read_text()]


@pytest.mark.parametrize("description", DECOMPOSITIONS)
def test_bounds_and_shares_equal_the_true_decomposition(description: str) -> None:
    run_record, bounds, shares = DECOMPOSITIONS[description]
    explanation = explained(run_record)
    assert explanation.verdict.bounds == bounds
    assert percents(explanation) == shares
    assert sum(share.seconds for share in explanation.shares) == pytest.approx(explanation.total_s)


@pytest.mark.parametrize("floor", [5.6, 5.8, 6.0, 6.1, 6.4])
def test_verdict_does_not_change_around_60_percent_bandwidth(floor: float) -> None:
    explanation = explained(token(floor, norms=9.8 - floor, gaps=0.2, packed=True))
    assert explanation.verdict.bounds == ("small kernels",)
    between = next(share for share in explanation.shares if share.name == "between")
    assert between.speed_up == pytest.approx(10 / (10 - (9.8 - floor)))


@pytest.mark.parametrize(
    ("gaps", "bounds"),
    [(3.4, ("slow products",)), (3.7, ("slow products", "host")), (4.3, ("host", "slow products")), (4.6, ("host",))],
)
def test_two_bounds_within_a_tenth_are_both_named(gaps: float, bounds: tuple[str, ...]) -> None:
    explanation = explained(token(1.0, excess=4.0, norms=0.5, gaps=gaps, packed=True))
    assert explanation.verdict.bounds == bounds
    assert explanation.verdict.bound == " and ".join(bounds)


@pytest.mark.parametrize(("products", "cannot_help"), [(0.45, True), (0.55, False)])
def test_quantization_cannot_help_if_products_take_under_5_percent(products: float, cannot_help: bool) -> None:
    explanation = explained(token(products, gaps=10 - products))
    assert explanation.verdict.bounds == ("host",)
    assert ("Quantization cannot help here." in unmarked(explanation.verdict.advice)) == cannot_help


def test_unpacking_counts_as_time_that_quantization_affects() -> None:
    explanation = explained(token(0.2, unpacking=0.4, gaps=9.4))
    assert "Quantization cannot help" not in unmarked(explanation.verdict.advice)


@pytest.mark.parametrize(("excess", "bound"), [(1.9, "bandwidth"), (2.1, "slow products")])
def test_floor_of_at_least_80_percent_is_bandwidth_bound(excess: float, bound: str) -> None:
    explanation = explained(token(10 - excess, excess=excess, packed=True))
    assert explanation.verdict.bounds == (bound,)


def test_kernels_slowed_by_6_percent_are_explained_with_a_note() -> None:
    explanation = explained(token(2.0, excess=1.0, norms=7.0, slowed=1.06))
    assert explanation.verdict.bounds == ("small kernels",)
    assert percents(explanation) == {"floor": 20, "excess": 10, "between": 70}
    assert any("slowed them: their shares hold" in note for note in explanation.notes)


def replayed(run_record: GenerationRecord, profiled_ms: float) -> GenerationRecord:
    """Return the run as a graph replay whose token takes `profiled_ms` under the profiler."""
    assert run_record.profile is not None
    decode = run_record.profile.sections["decode"].model_copy(update={"launches": 31, "span_s": 31e-3 * profiled_ms})
    profile = run_record.profile.model_copy(update={"sections": run_record.profile.sections | {"decode": decode}})
    return run_record.model_copy(update={"profile": profile})


def test_graph_with_slowed_kernels_has_an_unsure_verdict() -> None:
    run_record = token(1.0, excess=3.0, norms=2.0, gaps=4.0, slowed=1.5, packed=True)
    explanation = explained(replayed(run_record, profiled_ms=15.0))
    assert explanation.verdict.bound == "slow products or host"
    assert any(
        "the gaps are 10 % of the time without, or up to 40 % if it slowed the kernels too" in note
        for note in explanation.notes
    )


def test_graph_without_slowdown_has_a_sure_verdict() -> None:
    explanation = explained(replayed(token(1.0, excess=5.0, norms=3.0, gaps=1.0, packed=True), profiled_ms=10.2))
    assert explanation.verdict.bound == "slow products"


def test_slowed_host_keeps_the_verdict_and_has_a_note() -> None:
    explanation = explained(token(1.0, excess=5.0, norms=3.0, gaps=1.0, packed=True))
    assert explanation.verdict.bound == "slow products"
    assert any("or up to 85 % if it slowed the kernels too" in note for note in explanation.notes)


def test_cpu_products_without_measured_bandwidth_are_one_bound() -> None:
    kernels = (kernel("aten::mm", ms=7.0), kernel("aten::mul", ms=2.0))
    profiled = split_profile(*kernels, by="cpu")
    decode = profiled.sections["decode"].model_copy(update={"span_s": 0.31})
    profiled = profiled.model_copy(update={"sections": profiled.sections | {"decode": decode}})
    run_record = run("fp16", tpot_ms=10.0, profiled=profiled, weight_gb=None, environment=cpu_environment())
    explanation = explained(run_record)
    assert explanation.verdict.bounds == ("matrix products",)
    assert "`--no-limits`" in unmarked(explanation.verdict.advice)


def test_uncategorized_kernel_can_be_the_bound_and_is_named() -> None:
    explanation = explained(run("fp16", kernel(PRODUCT, ms=2.0), kernel("mystery", ms=7.0), tpot_ms=10.0, load=FULL))
    assert explanation.verdict.bounds == ("unknown kernels",)
    assert "`mystery`" in unmarked(explanation.verdict.reason)


def test_options_in_the_advice_exist() -> None:
    options = {name for parameter in get_command(app).commands["run"].params for name in parameter.opts}
    advised = {name for text in ADVICE_TEXTS for name in re.findall(r"--[a-z-]+", text)}
    assert {"--engine", "--quant", "--option", "--batch-size", "--no-limits"} <= advised
    assert set(advised) <= options
