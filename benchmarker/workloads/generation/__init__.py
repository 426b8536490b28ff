"""Text generation: what one repeat is, its prompts and what its work cannot do without."""

from benchmarker.schema.workload import Workload
from benchmarker.workloads.generation import metrics, words
from benchmarker.workloads.generation.record import GenerationRecord

WORKLOAD = Workload(
    name="generation",
    record=GenerationRecord,
    axes=words.AXES,
    metrics=metrics.METRICS,
    headline=metrics.HEADLINE,
    comparing="benchmarker.workloads.generation.reading.comparing:COMPARING",
    presentation="benchmarker.workloads.generation.reading.presentation:PRESENTATION",
)
