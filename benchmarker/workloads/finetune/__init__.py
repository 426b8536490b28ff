"""Fine-tuning: one training step of a whole model, in the recipes that people choose from."""

from benchmarker.core.named_import import lazily
from benchmarker.schema.workload import Workload
from benchmarker.workloads.finetune import declared
from benchmarker.workloads.finetune.record import FinetuneRecord
from benchmarker.workloads.finetune.spec import FinetuneExperiment, FinetuneJob

_HOME = "benchmarker.workloads.finetune"

WORKLOAD = Workload(
    name="finetune",
    question="Full, LoRA or QLoRA, with which switches: what fits, how fast, and where does a step's time go?",
    unit="step",
    experiment=FinetuneExperiment,
    job=FinetuneJob,
    record=FinetuneRecord,
    axes=declared.AXES,
    metrics=declared.METRICS,
    headline=declared.HEADLINE,
    opener=f"{_HOME}.finetune_bench:open_bench",
    imports=("transformers.models.auto.modeling_auto",),
    spelling=f"{_HOME}.options:OPTIONS",
    check=lazily(f"{_HOME}.check:check"),
    check_typed=lazily(f"{_HOME}.check:check_typed"),
    parts=lazily(f"{_HOME}.check:key_parts"),
    facts=lazily(f"{_HOME}.check:record_fields"),
    inputs=lazily(f"{_HOME}.check:inputs"),
    is_same=lazily(f"{_HOME}.check:same_model"),
    look_for=lazily(f"{_HOME}.check:look_for_model"),
    repeat_s=declared.guess_s,
    dtype=declared.matmul_dtype,
    title=declared.title,
    reasons=f"{_HOME}.reading.reasons:REASONS",
    comparing=f"{_HOME}.reading.comparing:COMPARING",
)
