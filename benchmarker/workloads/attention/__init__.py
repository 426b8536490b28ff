"""Attention: one layer's call, in the implementations that there are of it."""

from benchmarker.core.named_import import lazily
from benchmarker.schema.workload import Workload
from benchmarker.workloads.attention import declared
from benchmarker.workloads.attention.record import AttentionRecord
from benchmarker.workloads.attention.spec import AttentionExperiment, AttentionJob

_HOME = "benchmarker.workloads.attention"

WORKLOAD = Workload(
    name="attention",
    question="Which attention implementation for my shapes, and is it worth replacing mine?",
    unit="call",
    experiment=AttentionExperiment,
    job=AttentionJob,
    record=AttentionRecord,
    axes=declared.AXES,
    metrics=declared.METRICS,
    headline=declared.HEADLINE,
    opener=f"{_HOME}.attention_bench:open_bench",
    spelling=f"{_HOME}.options:OPTIONS",
    resolve=lazily(f"{_HOME}.check:resolve"),
    check=lazily(f"{_HOME}.check:check"),
    check_typed=lazily(f"{_HOME}.check:check_typed"),
    over=lazily(f"{_HOME}.check:over"),
    parts=lazily(f"{_HOME}.check:key_parts"),
    facts=lazily(f"{_HOME}.check:record_fields"),
    inputs=lazily(f"{_HOME}.check:inputs"),
    dtype=declared.matmul_dtype,
    title=declared.title,
    comparing=f"{_HOME}.reading.comparing:COMPARING",
    reasons=f"{_HOME}.reading.reasons:REASONS",
    presentation=f"{_HOME}.reading.presentation:PRESENTATION",
)
