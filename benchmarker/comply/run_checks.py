"""Checks of one variant, run in a new process: tokens, caching, clock and memory of the weights."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from benchmarker.core.console import Terminal, quiet_libraries
from benchmarker.core.errors import BenchmarkerError, sentence_of
from benchmarker.core.formatting import gib
from benchmarker.execution.jobs import read_job_file
from benchmarker.execution.single_run import Run
from benchmarker.quantization.load import weight_bytes
from benchmarker.schema.comply_file import Finding, judged, not_applicable
from benchmarker.schema.registry import workload_of
from benchmarker.workloads.generation.prompts import Prompt, distinct_count, inputs_sha256
from benchmarker.workloads.generation.spec import GenerationJob, Point

if TYPE_CHECKING:
    from benchmarker.engines.base import TokenSource
    from benchmarker.hardware.device import Device
    from benchmarker.measure.clock import Generation
    from benchmarker.schema.record import RunRecord
    from benchmarker.workloads.generation.generation_bench import GenerationBench
    from benchmarker.workloads.generation.record import GenerationRecord

WITHIN = 0.02
TIE = 0.01  # Largest gap (nats) of a generated token's log-probability to the highest that counts as a tie.
EARLIEST = 0.8  # Least ratio of TTFT to the time of a generation of one token.
REPEATS = 5
CHECKS = ("timed output", "no caching", "length and end", "first token", "clock", "weights")


def check_variant(job_path: Path, records: Sequence[RunRecord]) -> list[Finding]:
    """Load the model of a saved job and check its generations; return an error of the job as a failed finding."""
    job = read_job_file(job_path)
    name = job.variant.name
    if not isinstance(job, GenerationJob):
        return [not_applicable(check, f"a check of generated tokens, not of {job.workload}", name) for check in CHECKS]
    try:
        return list(_checked(job, records))
    except BenchmarkerError as error:
        return [judged("opened", sentence_of(error), holds=False, variant=name)]


def _checked(job: GenerationJob, records: Sequence[RunRecord]) -> Iterator[Finding]:
    quiet = job.procedure.model_copy(update={"limits": False, "profile": False, "energy": False})
    run = Run(job.model_copy(update={"procedure": quiet, "part": None, "output": None}), Terminal(quiet=True))
    point = job.points()[0]
    with workload_of(job.workload).open(run.job, run.device, run) as bench:
        tokens = cast("GenerationBench", bench)
        # Prompts of REPEATS + 1 batches. The first batch is that of `point`.
        wider = point._replace(batch_size=point.batch_size * (REPEATS + 1), has_distinct_prompts=True)
        subject = Subject(tokens.source, run.device, point, tokens.prompts(point), tokens.prompts(wider))
        for _ in range(3):
            subject.generate(subject.own)
        name = job.variant.name
        yield check_timed_output(subject, records, name)
        yield check_no_caching(subject, name)
        yield check_length(subject, name)
        yield check_first_token(subject, name)
        yield check_clock(subject, name)
        yield check_weights(subject, records, name)


@dataclass(frozen=True)
class Subject:
    """Loaded engine and one point of its job: `own` is one batch of prompts, `prompts` are REPEATS + 1 batches."""

    source: TokenSource
    device: Device
    point: Point
    own: Sequence[Prompt]
    prompts: Sequence[Prompt]

    def generate(self, prompts: Sequence[Prompt], new_tokens: int | None = None) -> Generation:
        context = [prompt.context for prompt in prompts] if self.point.depth else None
        return self.source.generate(
            [prompt.ids for prompt in prompts], new_tokens or self.point.new_tokens, context=context
        )


def seconds_of(generation: Generation) -> float:
    return (generation.end_ns - generation.start_ns) / 1e9


def check_timed_output(subject: Subject, records: Sequence[RunRecord], variant: str) -> Finding:
    """Check that a timed generation has the likeliest tokens, and takes as long as the runs in the records."""
    generation = subject.generate(subject.own)
    tokens, ids = generation.tokens[0], (*subject.own[0].context, *subject.own[0].ids)
    scores = subject.source.step_scores((*ids, *tokens[:-1]), prompt_tokens=len(ids))
    if scores is None:
        return not_applicable("timed output", "the engine gives no predictions of its step", variant)
    rows = scores.log_probabilities[-len(tokens) :]
    gaps = [float(row.max() - row[token]) for row, token in zip(rows, tokens, strict=True)]
    ties = [number for number, gap in enumerate(gaps) if 0 < gap <= TIE]
    wrong = [number for number, gap in enumerate(gaps) if gap > TIE]
    text = f"{len(tokens) - len(wrong)} of {len(tokens)} tokens are the likeliest of the scored step"
    if ties:
        text += f", {len(ties)} of them ties within {TIE} nats (positions {', '.join(map(str, ties[:8]))})"
    cells = [cell for record in records for cell in record.cells if is_cell_of(subject, cell)]
    times = [sample.latency_s for cell in cells for sample in cell.samples]
    if not times:
        return judged("timed output", text, holds=not wrong, variant=variant)
    low, high, taken = min(times) * (1 - WITHIN), max(times) * (1 + WITHIN), seconds_of(generation)
    text += f"; it took {taken:.4f} s, the timed runs {low:.4f} to {high:.4f} s (widened by {WITHIN:.0%})"
    return judged("timed output", text, holds=not wrong and low <= taken <= high, variant=variant)


def is_cell_of(subject: Subject, cell: Any) -> bool:
    """Return whether a record's cell has the status "ok" and the subject's point and prompts."""
    point = subject.point
    shape = cell.new_tokens, cell.batch_size, cell.depth, cell.inputs_sha256
    expected = point.new_tokens, point.batch_size, point.depth, inputs_sha256(subject.own)
    return cell.status == "ok" and shape == expected


def check_no_caching(subject: Subject, variant: str) -> Finding:
    """Check that repeated prompts are not faster than new ones; a batch of copies is timed but not judged."""
    if distinct_count(subject.prompts) == 1:
        return not_applicable("no caching", "the prompt is a given text, and there is no other", variant)
    size = subject.point.batch_size
    first, *distinct = (subject.prompts[start : start + size] for start in range(0, len(subject.prompts), size))
    distinct_s, repeated_s = [], []
    # New and repeated batches alternate, so that drift affects both. A cache can hold the batch that runs twice.
    for batch in distinct:
        distinct_s.append(seconds_of(subject.generate(batch)))
        subject.generate(first)
        repeated_s.append(seconds_of(subject.generate(first)))
    ratio = statistics.median(repeated_s) / statistics.median(distinct_s)
    text = f"a repeated prompt takes {ratio:.3f} times as long as distinct ones"
    if size > 1:
        # Copies may be faster without a cache: they use the same experts of a MoE layer.
        copies_s = min(seconds_of(subject.generate([batch[0]] * size)) for batch in distinct)
        text += f"; copies in a batch take {copies_s / min(distinct_s):.3f} times as long"
    return judged("no caching", text, holds=max(repeated_s) >= min(distinct_s) * (1 - WITHIN), variant=variant)


def check_length(subject: Subject, variant: str) -> Finding:
    lengths = {len(row) for row in subject.generate(subject.own).tokens}
    wanted = subject.point.new_tokens
    text = f"sequences of {', '.join(map(str, sorted(lengths)))} tokens for {wanted}"
    return judged("length and end", text, holds=lengths == {wanted}, variant=variant)


def check_first_token(subject: Subject, variant: str) -> Finding:
    """Check that the first token and TTFT agree with generations of a single token."""
    many = [subject.generate(subject.own) for _ in range(REPEATS)]
    one = [subject.generate(subject.own, 1) for _ in range(REPEATS)]
    ttft_s = min((generation.first_ns - generation.start_ns) / 1e9 for generation in many)
    alone_s = min(map(seconds_of, one))
    same = [row[0] for row in many[0].tokens] == [row[0] for row in one[0].tokens]
    text = (
        f"TTFT {ttft_s * 1e3:.3f} ms; a generation of one token takes {alone_s * 1e3:.3f} ms and has "
        f"{'the same' if same else 'another'} token; TTFT at least {EARLIEST} of that time"
    )
    return judged("first token", text, holds=same and ttft_s >= alone_s * EARLIEST, variant=variant)


def check_clock(subject: Subject, variant: str) -> Finding:
    """Compare the engine's latency with a host timer around the call and, on a GPU, with CUDA events."""
    ratios: dict[str, list[float]] = {"the loop by hand": []}
    for _ in range(REPEATS):
        generation, by_hand_s = timed_by_hand(subject.device, lambda: subject.generate(subject.own))
        ratios["the loop by hand"].append(seconds_of(generation) / by_hand_s)
        if subject.device.kind != "cpu" and not subject.source.is_elsewhere:
            generation, events_s = timed_by_events(lambda: subject.generate(subject.own))
            ratios.setdefault("device events", []).append(seconds_of(generation) / events_s)
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    text = "; ".join(f"{value:.4f} of {name}" for name, value in medians.items())
    holds = all(abs(value - 1) <= WITHIN for value in medians.values())
    return judged("clock", f"the engine's latency is {text}; limit {WITHIN:.0%}", holds=holds, variant=variant)


def timed_by_hand(device: Device, generate: Callable[[], Generation]) -> tuple[Generation, float]:
    device.synchronize()
    start = time.monotonic()
    generation = generate()
    device.synchronize()
    return generation, time.monotonic() - start


def timed_by_events(generate: Callable[[], Generation]) -> tuple[Generation, float]:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    generation = generate()
    end.record()
    torch.cuda.synchronize()
    return generation, begin.elapsed_time(end) / 1e3


def check_weights(subject: Subject, records: Sequence[RunRecord], variant: str) -> Finding:
    """Compare the weight bytes after generations with the record: some libraries unpack weights on first use."""
    model: Any = getattr(subject.source, "model", None)
    loads = [record.load for record in cast("Sequence[GenerationRecord]", records) if record.load]
    if model is None or not loads:
        return not_applicable("weights", "the engine has the weights in a process of its own", variant)
    recorded = loads[0].weight_bytes
    ratio = weight_bytes(model) / recorded
    text = f"{ratio:.4f} of the record's {gib(recorded)} after {subject.point.new_tokens} tokens; limit {WITHIN:.0%}"
    return judged("weights", text, holds=abs(ratio - 1) <= WITHIN, variant=variant)


def main() -> None:
    """Print the findings of a saved job (first argument) and its records (other arguments) as JSON."""
    from benchmarker.schema.record_io import read_record

    with quiet_libraries(verbose=False):
        findings = check_variant(Path(sys.argv[1]), [read_record(Path(path)) for path in sys.argv[2:]])
    print(json.dumps([finding.model_dump() for finding in findings]))


if __name__ == "__main__":
    main()
