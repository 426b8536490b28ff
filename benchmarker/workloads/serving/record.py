"""Record of serving: every request of every load, and the server's own facts.

All numbers of the tables follow from the arrays of a load, which have one element for each request in the order of
their starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from benchmarker.core.errors import ErrorKind, status_of
from benchmarker.core.formatting import percent
from benchmarker.schema.base import Count, Joules, Number, Plain, Positive, Spent, Whole
from benchmarker.schema.model import ModelFacts
from benchmarker.schema.record import CellBase, RunRecord, SampleBase
from benchmarker.workloads.generation.record import GenerationVariant
from benchmarker.workloads.serving.serving_statistics import (
    LARGEST_BACKLOG,
    attained,
    backlog,
    failed,
    problem_of,
    truncated,
)
from benchmarker.workloads.serving.slo import Slo, parse_slo

UNQUANTIZED = (None, "F16", "BF16", "F32")
"""Values of the option `gguf` for files without quantized weights. None stands for the default."""

LOAD_UNITS = {"concurrency": "requests at once", "rate": "requests per second"}

Share = Annotated[float, Field(ge=0, le=1)]


class ServerCounters(Plain):
    """Change of the server's own counters during a load. None for a counter that the server lacks."""

    queued_s: Spent | None = None
    """Time in the server's queue, sum over requests."""
    prefill_s: Spent | None = None
    """Time from the queue's end to the first token, sum over requests."""
    decode_s: Spent | None = None
    """Time from the first token to the last, sum over requests."""
    preemptions: Count | None = None
    """Requests that lost their KV cache to others and were computed again."""
    queued_share: Share | None = None
    """Requests that waited in the queue, as a share of those in the server, mean over the load."""
    peak_kv_share: Share | None = None
    """Largest used share of the KV cache."""


class Load(SampleBase):
    """All requests of one load of a cell. `latency_s` is the mean of `request_s`; its part `first token` is the mean of
    `ttft_s`."""

    start_s: tuple[Spent, ...]
    """Seconds from the start of the first request to the start of each request, rounded to 0.1 ms."""
    ttft_s: tuple[Spent | None, ...]
    """Time to first token, rounded to 10 us. None if no token arrived."""
    request_s: tuple[Spent, ...]
    """Time from the start to the last token, or to the error, rounded to 10 us."""
    prompt_tokens: tuple[Count, ...]
    """Tokens of the prompt, as the server counted them."""
    output_tokens: tuple[Count, ...]
    """Generated tokens, as the server counted them."""
    requested_tokens: tuple[Positive, ...] = ()
    """New tokens that each request requires. Empty if all requests require the cell's `new_tokens`."""
    errors: tuple[str | None, ...]
    """First line of the error of a failed request, at most 200 characters. None for other requests."""
    itl_steps: tuple[Count, ...] = ()
    """Inter-token latencies that occurred, as rounded multiples of 0.1 ms, in rising order."""
    itl_counts: tuple[Positive, ...] = ()
    """Number of occurrences of each latency in `itl_steps`, all requests together."""
    counters: ServerCounters = ServerCounters()
    energy_j: Joules | None = None
    """Energy of the whole GPU from before the first request until after the last, idle power included."""

    @model_validator(mode="after")
    def _equal_lengths(self) -> Self:
        arrays = (self.ttft_s, self.request_s, self.prompt_tokens, self.output_tokens, self.errors)
        if any(len(array) != len(self.start_s) for array in (*arrays, self.requested_tokens or arrays[0])):
            raise ValueError("the arrays of a load have one element for each request")
        if len(self.itl_steps) != len(self.itl_counts):
            raise ValueError("itl_steps and itl_counts have one element for each class")
        return self


def measured_load(**arrays: Any) -> Load:
    return Load(latency_s=fmean(arrays["request_s"]), parts_s=first_token_part(arrays["ttft_s"]), **arrays)


def first_token_part(ttft_s: Sequence[float | None]) -> dict[str, float]:
    known = [time_s for time_s in ttft_s if time_s is not None]
    return {"first token": fmean(known)} if known else {}


class ServingCell(CellBase):
    prompt_tokens: Count
    """Tokens of each prompt, without the shared prefix. 0 for a dataset."""
    new_tokens: Positive
    """Tokens that each request requires; with a length spread, the mean of the drawn lengths."""
    length_spread: Share = 0.0
    """Relative half-width of the uniform distribution of both lengths."""
    shared_prefix: Count = 0
    """Tokens before each prompt that all requests share."""
    dataset: str = ""
    """File of the prompts, with the start of its SHA-256. Empty for random token ids."""
    concurrency: Count
    """Requests in flight at once. 0 for an open loop."""
    rate: Spent
    """Mean arrivals per second. 0 for a closed loop."""
    warmup: tuple[SampleBase, ...] = ()
    samples: tuple[Load, ...] = ()


class OutputCheck(Plain):
    """Check of the server's predictions of a text, before its loads. A server whose output is wrong gets no load."""

    tokens: Positive
    perplexity: Number
    frequency_perplexity: Number
    """Perplexity of the text by the frequencies of its tokens alone. The perplexity of correct output is lower."""


class ServerFacts(Plain):
    version: str | None = None
    command: str | None = None
    """Command line that started the server. None for a server that was already running."""
    url: str | None = None
    """Address of a server that was already running. Its quantization is as the user named it, without a check."""
    model: str | None = None
    """Model that a server that was already running reports; it need not be the record's model."""
    start_s: Spent | None = None
    """Time from the start of the process until the server was ready."""
    weight_bytes: Positive | None = None
    kv_bytes: Positive | None = None
    kv_capacity_tokens: Positive | None = None
    """Tokens of all requests together that fit into the KV cache."""
    device_bytes: Whole | None = None
    """Growth of the device's used memory that the server's start caused."""
    max_requests: Positive | None = None
    """Maximum number of requests that the server computes at once."""
    prefix_caching: bool | None = None
    """True if the cache of prompt prefixes is on. None for a server that was already running."""
    output: OutputCheck | None = None
    """Check of the output. None for random weights, short requests, and a server without predictions or tokenizer."""
    client: str | None = None
    """Load generator with its version."""


class ServingVariantFacts(GenerationVariant):
    url: str | None = None
    """Address of a server that was already running."""


class ServingRecord(RunRecord):
    workload: Literal["serving"] = "serving"
    model: ModelFacts
    variant: ServingVariantFacts
    server: ServerFacts | None = None
    """Facts about the server. None if no server became ready."""
    cells: tuple[ServingCell, ...] = ()

    @model_validator(mode="after")
    def _check_procedure(self) -> Self:
        requests = self.procedure.get("requests")
        if isinstance(requests, bool) or not isinstance(requests, int) or not 0 < requests < 10**9:
            raise ValueError(f"procedure.requests: must be the number of requests of a cell, not {requests!r}"[:120])
        parse_slo(str(self.procedure.get("slo", "")))
        return self

    @property
    def subject_name(self) -> str:
        return self.model.id

    @property
    def setup_s(self) -> float | None:
        return self.server.start_s if self.server else None

    @property
    def knows_subject(self) -> bool:
        return self.server is not None

    @property
    def form(self) -> dict[str, str]:
        url = {"url": self.variant.url} if self.variant.url else {}
        return self.variant.form(self.model.dtype) | url

    @property
    def family(self) -> str:
        return self.variant.quant

    @property
    def is_unquantized(self) -> bool:
        options = self.variant.engine_options
        return self.variant.quant == "fp16" and not options.get("quantization") and options.get("gguf") in UNQUANTIZED

    @property
    def is_of_own_model(self) -> bool:
        """True if the benchmark started the server with the subject's own model, not with another checkpoint of it."""
        return self.model.checkpoint is None and self.variant.url is None

    @property
    def baseline_rank(self) -> tuple[bool, ...]:
        return (self.is_unquantized,)

    @property
    def slo(self) -> Slo:
        return parse_slo(str(self.procedure["slo"]))

    @property
    def why_unfit(self) -> str | None:
        cell = self.cells[-1] if self.cells else None
        share = attained([(load, cell.new_tokens) for load in cell.samples], self.slo) if cell else None
        if cell is None or share is None:
            return None
        unfinished = max(map(backlog, cell.samples)) if cell.rate else 0.0
        if cell.status == "ok" and share.verdict == "passes" and unfinished > LARGEST_BACKLOG:
            return f"undecided: {percent(unfinished)} of the requests were unfinished when the last one arrived"
        if cell.status != "ok" or share.verdict == "passes":
            return cell.reason
        undecided = "undecided: " if share.verdict == "undecided" else ""
        return f"{undecided}{share.text} of {share.requests} requests are good"

    def limit_unit(self, axis: str) -> str:
        return f"{LOAD_UNITS.get(axis, axis.replace('_', ' '))} within {self.slo.words}"


def outcome(loads: Sequence[Load], new_tokens: int) -> dict[str, Any]:
    """Return the status fields of a cell with a load that has no speed; empty for other cells."""
    reason = next((problem for load in loads if (problem := problem_of(load, new_tokens))), None)
    if reason is None:
        return {}
    is_short = any(truncated(load, new_tokens) for load in loads)
    kind: ErrorKind = "other" if any(map(failed, loads)) else "wrong_token_count" if is_short else "merged_tokens"
    return {"status": status_of(kind), "error_kind": kind, "reason": reason}
