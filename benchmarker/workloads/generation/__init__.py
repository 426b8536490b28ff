"""Text generation: what one repeat is, its prompts and what its work cannot do without."""

from benchmarker.schema.workload import Workload
from benchmarker.workloads.generation.record import GenerationRecord

WORKLOAD = Workload(
    name="generation", record=GenerationRecord, reasons="benchmarker.workloads.generation.reasons:REASONS"
)
