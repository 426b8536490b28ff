"""Checks of one variant, run in a new process: tokens, caching, clock and memory of the weights."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from benchmarker.core.console import Terminal, quiet_libraries
from benchmarker.core.errors import BenchmarkerError, UnsupportedError, WrongTokenCountError, sentence_of
from benchmarker.core.formatting import gib, percent
from benchmarker.core.stats import MIN_ROUNDS
from benchmarker.execution.jobs import read_job_file
from benchmarker.execution.single_run import Run
from benchmarker.hardware.monitor import HostGauge, why_disturbed
from benchmarker.quantization.load import weight_bytes
from benchmarker.schema.comply_file import Finding, judged, not_applicable
from benchmarker.schema.record_io import read_record
from benchmarker.schema.registry import workload_of
from benchmarker.workloads.generation.prompts import Prompt, distinct_count, inputs_sha256
from benchmarker.workloads.generation.spec import GenerationJob, Point

if TYPE_CHECKING:
    from benchmarker.engines.base import TokenIds, TokenSource
    from benchmarker.hardware.device import Device
    from benchmarker.measure.clock import Generation
    from benchmarker.schema.record import RunRecord
    from benchmarker.workloads.generation.generation_bench import GenerationBench
    from benchmarker.workloads.generation.record import GenerationRecord

Result = TypeVar("Result")
WITHIN = 0.02
PROCESSES_WITHIN = 0.05
"""Limit if fewer than MIN_ROUNDS processes were timed: their range does not contain the differences between processes.
Two processes of vLLM differed by 4.4 %, and two of llama.cpp by 3.4 % (26 + 100 tokens on an H200)."""
TIE = 0.01  # A generated token within this many nats of the likeliest token counts as equally likely.
PREFILL_TIE = 0.25
"""`TIE` if the engine's prefill scores the tokens. Logits of bfloat16 between 16 and 32 are 0.125 apart."""
EARLIEST = 0.8  # Least ratio of TTFT to the time of a generation of one token.
REPEATS, LEAST_REPEATS = 5, 2
TRIES = 5  # Maximum number of repeats of a check whose time is outside its limits.
OPENED = "opened"  # Title of the finding that a variant could not be checked.
GENERATIONS_S = 150.0  # Time for all generations of the repeats, about six for each.


def check_variant(job: GenerationJob, records: Sequence[RunRecord]) -> Iterator[Finding]:
    """Load the model of a saved job and check its generations; yield an error of the job as a finding."""
    name = job.variant.name
    try:
        with opened(job, records) as subject:
            yield from _findings(subject)
    except UnsupportedError as error:
        yield not_applicable(OPENED, sentence_of(error), name)
    except BenchmarkerError as error:
        yield judged(OPENED, sentence_of(error), holds=False, variant=name)


@contextmanager
def opened(job: GenerationJob, records: Sequence[RunRecord]) -> Iterator[Subject]:
    """Open a job at the first point of the records, as a run does. Raises BenchmarkerError."""
    quiet = job.procedure.model_copy(update={"limits": False, "profile": False, "energy": False})
    run = Run(job.model_copy(update={"procedure": quiet, "part": None, "output": None}), Terminal(quiet=True))
    point = measured_point(job, records)
    with workload_of(job.workload).open(run.job, run.device, run) as bench:
        tokens = cast("GenerationBench", bench)
        # Prompts of REPEATS + 1 batches. The first batch is that of `point`.
        wider = point._replace(batch_size=point.batch_size * (REPEATS + 1), has_distinct_prompts=True)
        prompts = tokens.prompts(point), tokens.prompts(wider)
        opened_bytes = weight_bytes_of(tokens.source)
        yield Subject(tokens.source, run.device, point, *prompts, job.variant.name, records, opened_bytes)


def _findings(subject: Subject) -> Iterator[Finding]:
    try:
        for _ in range(3):
            warm_up = subject.generate(subject.own)
        fitting = int(GENERATIONS_S / 6 / seconds_of(warm_up))
        subject = replace(subject, repeats=max(LEAST_REPEATS, min(REPEATS, fitting)))
        for check in CHECKS.values():
            yield check(subject)
    except WrongTokenCountError as error:
        yield subject.judged("length and end", sentence_of(error), holds=False)


def measured_point(job: GenerationJob, records: Sequence[RunRecord]) -> Point:
    """Return the first point that has a time in the records; the job's first point if none has."""
    cells = [cell for record in records for cell in record.cells if cell.status == "ok"]
    shapes = {shape_of(cell) for cell in cells}
    points = job.points()
    return cast("Point", next((point for point in points if shape_of(point) in shapes), points[0]))


def shape_of(cell: Any) -> tuple[int, int, int]:
    return cell.new_tokens, cell.batch_size, cell.depth


@dataclass(frozen=True)
class Subject:
    """Loaded engine and one point of its job: `own` is one batch of prompts, `prompts` are REPEATS + 1 batches."""

    source: TokenSource
    device: Device
    point: Point
    own: Sequence[Prompt]
    prompts: Sequence[Prompt]
    variant: str = ""
    records: Sequence[RunRecord] = ()
    opened_bytes: int | None = None
    """Weights before the first generation, as `weight_bytes_of` counts them."""
    repeats: int = REPEATS

    def generate(self, prompts: Sequence[Prompt], new_tokens: int | None = None) -> Generation:
        context = [prompt.context for prompt in prompts] if self.point.depth else None
        return self.source.generate(
            [prompt.ids for prompt in prompts], new_tokens or self.point.new_tokens, context=context
        )

    def judged(self, check: str, text: str, *, holds: bool) -> Finding:
        return judged(check, text, holds=holds, variant=self.variant)

    def not_applicable(self, check: str, reason: str) -> Finding:
        return not_applicable(check, reason, self.variant)


def seconds_of(generation: Generation) -> float:
    return (generation.end_ns - generation.start_ns) / 1e9


def check_timed_output(subject: Subject) -> Finding:
    """Check that a timed generation has the likeliest tokens, and takes as long as the runs in the records."""
    key = (*shape_of(subject.point), inputs_sha256(subject.own))
    good = [cell for record in subject.records for cell in record.cells if cell.status == "ok"]
    cells = [cell for cell in good if (*shape_of(cell), cell.inputs_sha256) == key]
    times = [sample.latency_s for cell in cells for sample in cell.samples] or [0.0, math.inf]
    within = WITHIN if len(cells) >= MIN_ROUNDS else PROCESSES_WITHIN
    low, high = min(times) * (1 - within), max(times) * (1 + within)
    generation, disturbance = repeated(
        lambda: subject.generate(subject.own), lambda made: low <= seconds_of(made) <= high
    )
    tokens, ids = generation.tokens[0], (*subject.own[0].context, *subject.own[0].ids)
    scored = gaps_of(subject.source, ids, tokens)
    if scored is None:
        return subject.not_applicable("timed output", "the engine gives no predictions of its step")
    gaps, scorer, tie = scored
    ties = [number for number, gap in enumerate(gaps) if 0 < gap <= tie]
    wrong = [number for number, gap in enumerate(gaps) if gap > tie]
    text = f"{len(tokens) - len(wrong)} of {len(tokens)} tokens are the likeliest of the {scorer}"
    if ties:
        text += f", {len(ties)} of them ties within {tie} nats (positions {', '.join(map(str, ties[:8]))})"
    time_s = seconds_of(generation)
    if cells:
        last = "" if low <= time_s <= high else f"in the last of {TRIES} tries "
        widened = f"(widened by {percent(within, places=0)})"
        text += f"; {last}it took {time_s:.4f} s, the timed runs {low:.4f} to {high:.4f} s {widened}"
    # Other programs lengthen a time, and neither shorten it nor change tokens.
    if disturbance and time_s > high and not wrong:
        text += f"; {disturbance}"
        return judged("timed output", text, holds=False, variant=subject.variant, is_disturbed=True)
    return subject.judged("timed output", text, holds=not wrong and low <= time_s <= high)


def repeated(run: Callable[[], Result], is_final: Callable[[Result], bool]) -> tuple[Result, str | None]:
    """Run until `is_final`, at most TRIES times; return the last result, and the disturbance if all tries had one."""
    host, disturbances = HostGauge(os.getpid()), []
    for _ in range(TRIES):
        host.read()
        began_s = time.time()
        result = run()
        if is_final(result):
            return result, None
        host.read()
        load = host.between(began_s, time.time())
        disturbances.append(why_disturbed(load) if load else None)
    return result, f"{disturbances[-1]}, in each of {TRIES} tries" if all(disturbances) else None


def gaps_of(source: TokenSource, ids: TokenIds, tokens: TokenIds) -> tuple[list[float], str, float] | None:
    """Return each token's gap in nats to the likeliest token, the name of the scorer, and the largest gap of a tie.

    vLLM and SGLang cannot feed given tokens to their decode step; their prefill scores these. None without scores.
    """
    text, count = (*ids, *tokens[:-1]), len(tokens)
    if scores := source.step_scores(text, prompt_tokens=len(ids)):
        rows = scores.log_probabilities[-count:]
        return [float(row.max() - row[token]) for row, token in zip(rows, tokens, strict=True)], "scored step", TIE
    if (prefill := source.prefill_scores(text)) is None:
        return None
    likeliest = zip(prefill.ids[-count:], prefill.log_probabilities[-count:], tokens, strict=True)
    gaps = [float(row.max() - max(row[top == token], default=-math.inf)) for top, row, token in likeliest]
    return gaps, "engine's prefill, which stands in for its decode step", PREFILL_TIE


def check_no_caching(subject: Subject) -> Finding:
    """Check that repeated prompts are not faster than new ones; a batch of copies is timed but not judged."""
    if distinct_count(subject.prompts) == 1:
        return subject.not_applicable("no caching", "the prompt is a given text, and there is no other")
    size = subject.point.batch_size
    batches = [subject.prompts[start : start + size] for start in range(0, len(subject.prompts), size)]
    first, *distinct = batches[: subject.repeats + 1]
    if subject.generate(first).accepted_tokens is not None:
        reason = "with speculative decoding, the time depends on the text"
        return subject.not_applicable("no caching", reason)
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
    return subject.judged("no caching", text, holds=max(repeated_s) >= min(distinct_s) * (1 - WITHIN))


def check_length(subject: Subject) -> Finding:
    lengths = {len(row) for row in subject.generate(subject.own).tokens}
    wanted = subject.point.new_tokens
    text = f"sequences of {', '.join(map(str, sorted(lengths)))} tokens for {wanted}"
    return subject.judged("length and end", text, holds=lengths == {wanted})


def check_first_token(subject: Subject) -> Finding:
    """Check that the first token and TTFT agree with generations of a single token."""
    # In turns, so that drift affects both.
    pairs = [(subject.generate(subject.own), subject.generate(subject.own, 1)) for _ in range(subject.repeats)]
    many, short = zip(*pairs, strict=True)
    ttft_s = min((generation.first_ns - generation.start_ns) / 1e9 for generation in many)
    alone_s = min(map(seconds_of, short))
    same = [row[0] for row in many[0].tokens] == [row[0] for row in short[0].tokens]
    text = (
        f"TTFT {ttft_s * 1e3:.3f} ms; a generation of one token takes {alone_s * 1e3:.3f} ms and has "
        f"{'the same' if same else 'another'} token; TTFT at least {EARLIEST} of that time"
    )
    return subject.judged("first token", text, holds=same and ttft_s >= alone_s * EARLIEST)


def check_clock(subject: Subject) -> Finding:
    """Compare the engine's latency with a host timer around the call and, on a GPU, with CUDA events."""
    if subject.source.is_elsewhere:
        return _check_distant_clock(subject)
    ratios: dict[str, list[float]] = {"the loop by hand": []}
    for _ in range(subject.repeats):
        generation, by_hand_s = timed_by_hand(subject.device, lambda: subject.generate(subject.own))
        ratios["the loop by hand"].append(seconds_of(generation) / by_hand_s)
        if subject.device.kind != "cpu":
            generation, events_s = timed_by_events(lambda: subject.generate(subject.own))
            ratios.setdefault("device events", []).append(seconds_of(generation) / events_s)
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    text = "; ".join(f"{value:.4f} of {name}" for name, value in medians.items())
    holds = all(abs(value - 1) <= WITHIN for value in medians.values())
    return subject.judged("clock", f"the engine's latency is {text}; limit {percent(WITHIN, places=0)}", holds=holds)


def _check_distant_clock(subject: Subject) -> Finding:
    """Compare time differences between two generation lengths: the time of messages between processes cancels."""
    if subject.point.new_tokens == 1:
        reason = "a call of one token from another process includes the message between the processes"
        return subject.not_applicable("clock", reason)

    def medians(new_tokens: int) -> tuple[float, float]:
        """Return the median latency by the engine's clock, and the median of the call's additional time."""
        timed = [
            timed_by_hand(subject.device, lambda: subject.generate(subject.own, new_tokens))
            for _ in range(subject.repeats)
        ]
        latencies_s = [seconds_of(generation) for generation, _ in timed]
        further_s = [seconds - seconds_of(generation) for generation, seconds in timed]
        return statistics.median(latencies_s), statistics.median(further_s)

    long_s, long_further_s = medians(subject.point.new_tokens)
    short_s, short_further_s = medians(1)
    ratio = (long_s - short_s) / (long_s - short_s + long_further_s - short_further_s)
    text = (
        f"the engine's latency is {ratio:.4f} of the loop by hand, by the difference between "
        f"{subject.point.new_tokens} tokens and one token; limit {percent(WITHIN, places=0)}"
    )
    return subject.judged("clock", text, holds=abs(ratio - 1) <= WITHIN)


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


def check_weights(subject: Subject) -> Finding:
    """Compare the weight bytes after generations with the record: some libraries unpack weights on first use."""
    now_bytes = weight_bytes_of(subject.source)
    if now_bytes is None:
        reason = "the engine has the weights in a process of its own, which does not count them after loading"
        return subject.not_applicable("weights", reason)
    loads = [record.load for record in cast("Sequence[GenerationRecord]", subject.records) if record.load]
    sizes = [load.weight_bytes for load in loads] or [subject.opened_bytes or now_bytes]
    # The record that differs most.
    expected = max(sizes, key=lambda size: abs(now_bytes / size - 1))
    ratio = now_bytes / expected
    owner = "the record's" if loads else "the loaded"
    after = f"after {subject.point.new_tokens} tokens; limit {percent(WITHIN, places=0)}"
    text = f"{ratio:.4f} of {owner} {gib(expected)} {after}"
    return subject.judged("weights", text, holds=abs(ratio - 1) <= WITHIN)


def weight_bytes_of(source: TokenSource) -> int | None:
    """Return the present bytes of the weights; None for an external engine that does not count them."""
    if source.model is not None:
        return weight_bytes(source.model)
    external = source.facts().external
    # Only vLLM's driver inspects the layers, and thus counts the weights, at each call.
    return external.weight_bytes if external and external.linear_methods else None


CHECKS: dict[str, Callable[[Subject], Finding]] = {
    "length and end": check_length,
    "first token": check_first_token,
    "timed output": check_timed_output,
    "no caching": check_no_caching,
    "clock": check_clock,
    "weights": check_weights,
}


def main() -> None:
    """Print the findings of a saved job (first argument) and its records (other arguments), each as a line of JSON."""
    with quiet_libraries(verbose=False) as streams:
        job, records = read_job_file(Path(sys.argv[1])), [read_record(Path(path)) for path in sys.argv[2:]]
        for finding in check_variant(cast("GenerationJob", job), records):
            print(finding.model_dump_json(), file=streams.out, flush=True)


if __name__ == "__main__":
    main()
