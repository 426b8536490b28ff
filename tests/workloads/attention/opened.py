"""Attention bench without a job."""

from contextlib import contextmanager

from benchmarker.workloads.attention.attention_bench import AttentionBench
from benchmarker.workloads.operation.operation_bench import matmul_precision


@contextmanager
def open_attention(subject, variant, device, *, cache_bytes=None):
    with matmul_precision(variant.dtype or subject.dtype) as precision:
        yield AttentionBench(subject, variant, device, precision=precision, cache_bytes=cache_bytes)
