"""The load generator `vllm bench serve`, and its results as a `Load`.

TTFT is the time from the call until the first chunk of the answer; ITLs are the times between chunks; the time of a
request ends at its last chunk. A chunk has one token as long as server and client keep up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarker.engines.external.driver_process import Driver
from benchmarker.engines.external.environments import EngineError, environment_states, why_not_installed
from benchmarker.workloads.serving.record import Load, measured_load
from benchmarker.workloads.serving.serving_requests import Request
from benchmarker.workloads.serving.serving_statistics import ITL_STEP_S
from benchmarker.workloads.serving.spec import ServingPoint

NAME = "vllm bench serve"
IMPORT_S = 600.0
LOAD_S = 7200.0  # Longest time of one load.
TIME_CLASS_S = 1e-5
ERROR_CHARACTERS = 200
VARIABLES = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
"""Environment variables of the load generator, which uses no GPU."""


def why_no_generator() -> str | None:
    """Return how to install the load generator; None if it is installed."""
    reason = why_not_installed("vllm")
    return reason and f"the load generator '{NAME}' is part of vLLM: {reason}"


class LoadGenerator:
    def __init__(self) -> None:
        """Start the process in an environment of vLLM, built for any kind of device. Raises EngineError."""
        if reason := why_no_generator():
            raise EngineError(reason)
        states = (state for state in environment_states() if state.spec.engine == "vllm")
        marker = next(state.interpreter for state in states if state.problem is None)
        self._driver = Driver(NAME, marker.driver_command("load"), variables=VARIABLES)
        self.version = f"{NAME} {marker.version}"

    def open(self) -> None:
        """Import vLLM, which takes seconds."""
        self._driver.request("open", limit_s=IMPORT_S)

    def load(self, url: str, model: str, point: ServingPoint, requests: Sequence[Request], *, seed: int) -> Load:
        """Send all requests at the cell's concurrency or rate; return their results. Raises BenchmarkerError."""
        options = ["--request-rate", str(point.rate), "--seed", str(seed)]
        if point.concurrency:
            options = ["--max-concurrency", str(point.concurrency)]
        requested = [request.new_tokens for request in requests]
        answer = self._driver.request(
            "load",
            limit_s=LOAD_S,
            url=url,
            model=model,
            prompts=[request.prompt for request in requests],
            new_tokens=requested,
            options=options,
        )
        return load_of({**answer, "requested": requested}, point.new_tokens)

    def close(self) -> None:
        self._driver.close()


def load_of(answer: dict[str, Any], new_tokens: int) -> Load:
    """Convert the generator's answer, lists with one element for each request, to a load of a cell's `new_tokens`."""
    first_s = min(answer["start_times"])
    requests = []
    names = ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors", "requested")
    for start_s, ttft_s, itls_s, prompt_tokens, output_tokens, error, requested in zip(
        *(answer[name] for name in names), strict=True
    ):
        has_token = bool(itls_s) or ttft_s > 0
        # The generator does not record when a request failed; a time must not be 0.
        request_s = max(ttft_s + sum(itls_s), TIME_CLASS_S)
        times = (round(start_s - first_s, 4), round(ttft_s, 5) if has_token else None, round(request_s, 5))
        requests.append((*times, prompt_tokens, output_tokens if has_token else 0, _one_line(error), requested))
    requests.sort(key=lambda request: request[0])
    fields = ("start_s", "ttft_s", "request_s", "prompt_tokens", "output_tokens", "errors", "requested_tokens")
    columns = dict(zip(fields, zip(*requests, strict=True), strict=True))
    if set(columns["requested_tokens"]) == {new_tokens}:
        del columns["requested_tokens"]
    classes = Counter(round(itl_s / ITL_STEP_S) for itls_s in answer["itls"] for itl_s in itls_s)
    return measured_load(
        itl_steps=tuple(sorted(classes)), itl_counts=tuple(classes[step] for step in sorted(classes)), **columns
    )


def _one_line(error: str | None) -> str | None:
    """Return the last line of a traceback, which contains the message; None for a request without an error."""
    lines = (error or "").strip().splitlines()
    return lines[-1].strip()[:ERROR_CHARACTERS] if lines else None
