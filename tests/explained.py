"""Runs with a given profile and time per token, and their explanations."""

from __future__ import annotations

import pytest

from benchmarker.explain.explain import Explanation, explain
from benchmarker.schema.record import Kernel, KernelTime, Limits, Section
from benchmarker.workloads.generation.record import GenerationDemand, GenerationProfile, GenerationRecord
from tests.records import cell, load, profile, record

COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::Iter&)"
TOKENS = 31
"""Decode steps of the profiled generation of 32 tokens."""

LIMITS = Limits(
    read_bytes_per_s=3e12,
    copy_bytes_per_s=2.8e12,
    array_bytes=2**30,
    matmul_flops_per_s=600e12,
    matmul_dtype="float16",
    matmul_size=8192,
    launch_s=2e-6,
    operator_s=6e-6,
    graph_kernel_s=1.5e-6,
)


def kernel(name: str, *, ms: float, calls: int = 252) -> Kernel:
    """Return a kernel with milliseconds and calls per decoded token, and equally many in the prefill."""
    return Kernel(
        name=name,
        calls=calls * (TOKENS + 1),
        total_s=ms * (TOKENS + 1) / 1e3,
        sections={
            "prefill": KernelTime(calls=calls, total_s=ms / 1e3),
            "decode": KernelTime(calls=calls * TOKENS, total_s=ms * TOKENS / 1e3),
        },
    )


def decode_time_s(kernel: Kernel) -> float:
    return kernel.sections["decode"].total_s


def split_profile(*kernels: Kernel, busy_ms: float | None = None, **fields: object) -> GenerationProfile:
    """Return a profile that separates prefill and decode."""
    kernel_s = sum(kernel.total_s for kernel in kernels)
    decode_s = busy_ms * TOKENS / 1e3 if busy_ms is not None else sum(decode_time_s(kernel) for kernel in kernels)
    return profile(
        kernels=kernels,
        kernel_s=kernel_s,
        busy_s=decode_s * (TOKENS + 1) / TOKENS,
        span_s=2.0,
        latency_s=2.0,
        sections={"prefill": Section(busy_s=decode_s / TOKENS), "decode": Section(busy_s=decode_s, span_s=1.86)},
        **fields,
    )


def demand(weight_gb: float = 8.0, **fields: object) -> GenerationDemand:
    facts = {
        "weight_bytes": round(weight_gb * 1e9),
        "kv_bytes_per_token": 147_456,
        "context_tokens": 76.0,
        "kv_bytes": 11_000_000,
        "decode_flops": 8_100_000_000,
        "prefill_flops": 200_000_000_000,
        **fields,
    }
    return GenerationDemand(**facts)


def run(
    quant: str,
    *kernels: Kernel,
    tpot_ms: float,
    weight_gb: float | None = 8.0,
    profiled: GenerationProfile | None = None,
    **fields: object,
) -> GenerationRecord:
    """Return a run with the given time per token, and the device's limits unless `weight_gb` is None."""
    times = [tpot_ms * 100 / 1e3] * 5
    return record(
        quant,
        cell(times, prompt_tokens=26, new_tokens=100, demand=demand(weight_gb) if weight_gb else None),
        profile=profiled or split_profile(*kernels),
        limits=LIMITS if weight_gb else None,
        **fields,
    )


def explained(run_record: GenerationRecord, *further_records: GenerationRecord) -> Explanation:
    explanation = explain(run_record.variant.name, [run_record, *further_records])
    assert isinstance(explanation, Explanation), explanation
    return explanation


def parts(explanation: Explanation) -> dict[str, float]:
    """Return milliseconds per token."""
    return {part.name: pytest.approx(1e3 * part.seconds) for part in explanation.waterfall}


FP16 = (
    kernel("nvjet_sm90_hsh_128x8_64x12_4x1_v_bz_TNT", ms=3.6),
    kernel("void at::native::reduce_kernel<512, 1, MeanOps<float>>", ms=1.0, calls=145),
    kernel("void at::native::vectorized_elementwise_kernel<4, MulFunctor<float>>", ms=1.4, calls=700),
    kernel(COPY, ms=0.7, calls=290),
    kernel("fmha_cutlassF_f16_aligned_64x128_rf_sm80", ms=0.3, calls=36),
)

INT8 = (
    kernel(COPY, ms=10.0),
    kernel("nvjet_sm90_hsh_128x8_64x12_4x1_v_bz_TNT", ms=3.4, calls=253),
    kernel("void at::native::vectorized_elementwise_kernel<4, MulFunctor<float>>", ms=1.6, calls=700),
)
INT8_LOAD = load(
    weight_bytes=4_417_150_464,
    quantized_fraction=0.9,
    weight_classes={"Int8Tensor int8": 252, "Tensor float16": 1},
)
