"""Server with a simulated clock, planted times, slots and a queue, and records of its loads.

A request waits for one of `slots`, receives its first token after `prefill_s` and each further token after `step_s`.
Both times may grow with the number of requests in the server.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarker.schema.model import ModelFacts
from benchmarker.schema.record_io import write_json
from benchmarker.workloads.serving import serving_statistics as statistics
from benchmarker.workloads.serving.record import (
    Load,
    ServerCounters,
    ServerFacts,
    ServingCell,
    ServingRecord,
    ServingVariantFacts,
    measured_load,
    outcome,
)
from benchmarker.workloads.serving.slo import DEFAULT_SLO
from tests.records import environment

PROMPT_TOKENS, NEW_TOKENS = 512, 128


@dataclass(frozen=True)
class SimulatedServer:
    prefill_s: float = 0.1
    step_s: float = 0.02
    per_request: float = 0.0
    """Relative growth of both times per further request in the server."""
    slots: int = 1_000
    slowness: float = 1.0

    def load(self, *, concurrency: int = 0, rate: float = 0.0, requests: int = 200, seed: int = 0) -> Load:
        arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, requests)) if rate else None
        ends: list[float] = []
        starts, firsts, durations, queued_s, itls = [], [], [], 0.0, Counter[int]()
        for number in range(requests):
            if arrivals is not None:
                start_s = float(arrivals[number] - arrivals[0])
            else:
                start_s = heapq.heappop(ends) if len(ends) >= concurrency else 0.0
            busy = sorted(end_s for end_s in ends if end_s > start_s)
            start_of_service_s = start_s if len(busy) < self.slots else busy[len(busy) - self.slots]
            running = min(concurrency or len(busy) + 1, self.slots)
            factor = self.slowness * (1 + self.per_request * (running - 1))
            step_s = round(self.step_s * factor, 4)
            first_s = round(start_of_service_s - start_s + self.prefill_s * factor, 5)
            whole_s = round(first_s + (NEW_TOKENS - 1) * step_s, 5)
            starts.append(round(start_s, 4))
            firsts.append(first_s)
            durations.append(whole_s)
            itls[round(step_s / statistics.ITL_STEP_S)] += NEW_TOKENS - 1
            queued_s += start_of_service_s - start_s
            heapq.heappush(ends, start_s + whole_s)
        prefill_s = sum(firsts) - queued_s
        return measured_load(
            start_s=tuple(starts),
            ttft_s=tuple(firsts),
            request_s=tuple(durations),
            prompt_tokens=(PROMPT_TOKENS,) * requests,
            output_tokens=(NEW_TOKENS,) * requests,
            errors=(None,) * requests,
            itl_steps=tuple(sorted(itls)),
            itl_counts=tuple(itls[step] for step in sorted(itls)),
            counters=ServerCounters(
                queued_s=queued_s, prefill_s=prefill_s, decode_s=sum(durations) - sum(firsts), preemptions=0
            ),
        )


def cell_of_load(load: Load, *, concurrency: int = 0, rate: float = 0.0) -> ServingCell:
    cell = ServingCell(
        status="ok",
        prompt_tokens=PROMPT_TOKENS,
        new_tokens=NEW_TOKENS,
        concurrency=concurrency,
        rate=rate,
        inputs_sha256="6f3c" * 16,
        samples=(load,),
    )
    return cell.model_copy(update=outcome((load,), NEW_TOKENS))


def serving_record(
    variant: str, cells: Sequence[ServingCell], *, round_number: int = 0, requests: int = 200, **fields: Any
) -> ServingRecord:
    defaults = {
        "benchmarker": "1.0",
        "run_id": f"{variant}-{round_number}",
        "started_at": f"2026-11-26T10:{round_number:02}:00+00:00",
        "status": "complete",
        "round": round_number,
        "sweep": "20261126-100000",
        "variant": ServingVariantFacts(name=variant, quant=variant.split()[0], engine="vllm"),
        "model": ModelFacts(id="Qwen/Qwen3-4B", load_format="dummy"),
        "environment": environment(),
        "procedure": {"requests": requests, "seed": 0, "slo": DEFAULT_SLO, "runs": 1, "warmup": 1},
        "server": ServerFacts(version="0.24.0", start_s=41.0, weight_bytes=8 * 10**9, kv_capacity_tokens=400_000),
        "cells": tuple(cells),
        "reproduce": "benchmarker run serving",
    }
    return ServingRecord(**{**defaults, **fields})


def measured(
    variant: str,
    server: SimulatedServer,
    *,
    concurrencies: Sequence[int] = (),
    rates: Sequence[float] = (),
    round_number: int = 0,
    requests: int = 200,
) -> ServingRecord:
    cells = [
        cell_of_load(server.load(concurrency=users, requests=max(requests, 4 * users)), concurrency=users)
        for users in concurrencies
    ]
    cells += [cell_of_load(server.load(rate=rate, requests=requests), rate=rate) for rate in rates]
    return serving_record(variant, cells, round_number=round_number, requests=requests)


def save(folder: Path, *records: ServingRecord) -> Path:
    for record in records:
        write_json(record, folder / f"{record.run_id.replace(' ', '-')}.json")
    return folder
