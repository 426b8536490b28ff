"""The server's own counters, from its `/metrics` in Prometheus' text format, read before, during and after a load."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import mean

from benchmarker.engines.external.server_process import read
from benchmarker.workloads.serving.record import ServerCounters

POLL_S = 0.25
LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)
CACHE_LABELS = {"blocks": re.compile(r'num_gpu_blocks="(\d+)"'), "size": re.compile(r'\bblock_size="(\d+)"')}
COUNTERS = {
    "queued_s": ("vllm:request_queue_time_seconds_sum", "sglang:queue_time_seconds_sum"),
    "prefill_s": ("vllm:request_prefill_time_seconds_sum", "llamacpp:prompt_seconds_total"),
    "decode_s": ("vllm:request_decode_time_seconds_sum",),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
}
"""Names of the servers' rising counters, by field of ServerCounters."""
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
KV_SHARE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")

Values = Mapping[str, float]


def parse(text: str) -> Values:
    values: dict[str, float] = {}
    for name, number in LINE.findall(text):
        values[name] = values.get(name, 0.0) + float(number)
    return values


def first(values: Values, names: tuple[str, ...]) -> float | None:
    return next((values[name] for name in names if name in values), None)


def cache_tokens(url: str) -> int | None:
    """Return the KV cache's capacity in tokens as vLLM reports it."""
    text = read(f"{url}/metrics") or ""
    found = [pattern.search(text) for pattern in CACHE_LABELS.values()]
    blocks, size = (int(match[1]) if match else 0 for match in found)
    return blocks * size or None


def counters_of(readings: Sequence[Values]) -> ServerCounters:
    before, *during, after = readings
    grown: dict[str, float | int | None] = {}
    for name, names in COUNTERS.items():
        start, end = first(before, names), first(after, names)
        grown[name] = None if end is None else max(0.0, end - (start or 0.0))
    preemptions = grown.pop("preemptions")
    queued = [
        waiting / (waiting + (first(values, RUNNING) or 0.0))
        for values in during
        if (waiting := first(values, WAITING)) is not None and waiting + (first(values, RUNNING) or 0.0) > 0
    ]
    shares = [share for values in during if (share := first(values, KV_SHARE)) is not None]
    return ServerCounters(
        **grown,
        preemptions=None if preemptions is None else round(preemptions),
        queued_share=mean(queued) if queued else None,
        peak_kv_share=min(1.0, max(shares)) if shares else None,
    )


@contextmanager
def watched(url: str) -> Iterator[list[Values]]:
    """Read a server's metrics before a block, every quarter of a second within it, and after it."""
    readings, is_over = [_read(url)], threading.Event()

    def poll() -> None:
        while not is_over.wait(POLL_S):
            readings.append(_read(url))

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield readings
    finally:
        is_over.set()
        thread.join()
    readings.append(_read(url))


def _read(url: str) -> Values:
    return parse(read(f"{url}/metrics") or "")
