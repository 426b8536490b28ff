"""Context parallel attention: one sequence over several GPUs, in the ways that there are to split it."""

from benchmarker.core.named_import import lazily
from benchmarker.schema.workload import Workload
from benchmarker.workloads.context_parallel import declared
from benchmarker.workloads.context_parallel.record import ContextParallelRecord
from benchmarker.workloads.context_parallel.spec import ContextParallelExperiment, ContextParallelJob

_HOME = "benchmarker.workloads.context_parallel"

WORKLOAD = Workload(
    name="context_parallel",
    question="How do I split a long context over my GPUs, and from which length does it cost nothing?",
    unit="call",
    experiment=ContextParallelExperiment,
    job=ContextParallelJob,
    record=ContextParallelRecord,
    axes=declared.AXES,
    metrics=declared.METRICS,
    headline=declared.HEADLINE,
    opener=f"{_HOME}.context_parallel_bench:open_bench",
    spelling=f"{_HOME}.options:OPTIONS",
    resolve=lazily(f"{_HOME}.check:resolve"),
    check=lazily(f"{_HOME}.check:check"),
    check_typed=lazily(f"{_HOME}.check:check_typed"),
    look_for=lazily(f"{_HOME}.check:look_for"),
    facts=lazily(f"{_HOME}.check:record_fields"),
    cell=declared.cell_fields,
    dtype=declared.matmul_dtype,
    title=declared.title,
    comparing=f"{_HOME}.reading.comparing:COMPARING",
    reasons=f"{_HOME}.reading.reasons:REASONS",
    presentation=f"{_HOME}.reading.presentation:PRESENTATION",
)
