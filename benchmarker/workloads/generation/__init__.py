"""Text generation: what one repeat is, its prompts and what its work cannot do without."""

from benchmarker.core.named_import import lazily
from benchmarker.schema.workload import Workload
from benchmarker.workloads.generation import metrics, words
from benchmarker.workloads.generation.record import GenerationRecord
from benchmarker.workloads.generation.spec import Experiment, GenerationJob

_HOME = "benchmarker.workloads.generation"

WORKLOAD = Workload(
    name="generation",
    question="Which quantization of a model should I run, and in which engine?",
    unit="token",
    experiment=Experiment,
    job=GenerationJob,
    record=GenerationRecord,
    axes=words.AXES,
    metrics=metrics.METRICS,
    headline=metrics.HEADLINE,
    ranked_by=metrics.RANKED_BY,
    opener=f"{_HOME}.bench:open_bench",
    # The default model's code imports nearly all that another model's does.
    imports=("torch", "transformers.models.auto.modeling_auto", "transformers.models.qwen3.modeling_qwen3"),
    spelling=f"{_HOME}.options:OPTIONS",
    default_variant={"quant": "fp16"},
    resolve=lazily(f"{_HOME}.forms:resolve"),
    check=lazily(f"{_HOME}.check:check_split"),
    check_typed=lazily(f"{_HOME}.check:check_typed"),
    over=lazily(f"{_HOME}.check:over"),
    parts=lazily(f"{_HOME}.job_facts:key_parts"),
    facts=lazily(f"{_HOME}.job_facts:record_fields"),
    inputs=lazily(f"{_HOME}.job_facts:inputs"),
    is_same=words.same_model,
    look_for=lazily(f"{_HOME}.job_facts:look_for_model"),
    lacking=lazily(f"{_HOME}.job_facts:lacking"),
    prepare=lazily(f"{_HOME}.prepare:prepare_job"),
    processes=lazily(f"{_HOME}.job_facts:processes"),
    cell=lazily(f"{_HOME}.job_facts:cell_fields"),
    point_words=words.point_words,
    point_arguments=words.point_arguments,
    cell_words=words.cell_words,
    cell_opening="prompt of ",
    grid_heading="prompt x new tokens",
    sample_words=words.sample_words,
    repeat_s=words.guess_s,
    dtype=words.matmul_dtype,
    title=words.title,
    summary="benchmarker.cli.run_summary:say_explained",
    judging=f"{_HOME}.judging:JUDGING",
    from_log=f"{_HOME}.log_record:to_record",
    doctor=f"{_HOME}.doctor:DOCTOR",
    reasons=f"{_HOME}.reading.reasons:REASONS",
    comparing=f"{_HOME}.reading.comparing:COMPARING",
    presentation=f"{_HOME}.reading.presentation:PRESENTATION",
)
