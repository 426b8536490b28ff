"""Token mixers: softmax attention, and what replaces it with a state that does not grow."""

from benchmarker.core.named_import import lazily
from benchmarker.schema.workload import Workload
from benchmarker.workloads.mixers import declared
from benchmarker.workloads.mixers.record import MixersRecord
from benchmarker.workloads.mixers.spec import MixersExperiment, MixersJob

_HOME = "benchmarker.workloads.mixers"

WORKLOAD = Workload(
    name="mixers",
    question="At which length does a linear mixer pay, against the best softmax, and can it recall?",
    unit="call",
    experiment=MixersExperiment,
    job=MixersJob,
    record=MixersRecord,
    axes=declared.AXES,
    metrics=declared.METRICS,
    headline=declared.HEADLINE,
    opener=f"{_HOME}.mixers_bench:open_bench",
    spelling=f"{_HOME}.options:OPTIONS",
    resolve=lazily(f"{_HOME}.check:resolve"),
    check=lazily(f"{_HOME}.check:check"),
    check_typed=lazily(f"{_HOME}.check:check_typed"),
    over=lazily("benchmarker.workloads.attention.check:over"),
    facts=lazily(f"{_HOME}.check:record_fields"),
    title=declared.title,
    judging=f"{_HOME}.judging:JUDGING",
    reasons=f"{_HOME}.reading.reasons:REASONS",
    comparing=f"{_HOME}.reading.comparing:COMPARING",
    presentation=f"{_HOME}.reading.presentation:PRESENTATION",
)
