"""Checks without a model: a planted delay on the real clock, and the verdicts of simulated sweeps."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

from benchmarker.comply.run_checks import repeated
from benchmarker.core.formatting import percent
from benchmarker.core.stats import paired_ratio, verdicts
from benchmarker.engines.base import TokenIds, TokenSource
from benchmarker.hardware.device import Device
from benchmarker.measure.clock import Generation
from benchmarker.measure.repeat import measure
from benchmarker.schema.comply_file import Finding, judged

DELAY_S, DELAY_NOISE = 0.005, 0.01  # Mean delay per token; its relative standard deviation.
TOKENS = 40
SEED = 1
WITHIN = 0.025
ROUNDS = 5
SWEEPS = 100
TWIN_SLOWER = 1.03
LEAST_FOUND = 95
ROUND_NOISE, LARGE_NOISE = 0.003, 0.01


class DelayedSource(TokenSource):
    """Token source that waits a random time for each token and computes nothing."""

    def __init__(self, mean_s: float, random_times: random.Random) -> None:
        self._mean_s = mean_s
        self._random = random_times

    def generate(
        self, prompt_ids: Sequence[TokenIds], new_tokens: int, *, context: Sequence[TokenIds] | None = None
    ) -> Generation:
        del context
        start_ns = time.perf_counter_ns()
        times_ns = [self._after_wait() for _ in range(new_tokens)]
        tokens = tuple(tuple(range(new_tokens)) for _ in prompt_ids)
        return Generation(tokens, start_ns, times_ns[0], times_ns[-1], times_ns[-1])

    def _after_wait(self) -> int:
        """Wait a random time and return the clock at its end. The last ms is polled, since sleeps end late."""
        end_ns = time.perf_counter_ns() + round(self._random.gauss(self._mean_s, self._mean_s * DELAY_NOISE) * 1e9)
        time.sleep(max(0.0, (end_ns - time.perf_counter_ns()) / 1e9 - 0.001))
        while (now_ns := time.perf_counter_ns()) < end_ns:
            pass
        return now_ns


def check_planted_delay(device: Device) -> list[Finding]:
    """Check the measured TPOT of a source with a planted delay, and its ratio to a source that is 3 % slower."""
    (reported_s, ratio), disturbance = repeated(
        lambda: _delays(device, random.Random(SEED)),
        lambda found: found[0] <= DELAY_S * (1 + WITHIN) and abs(found[1] * TWIN_SLOWER - 1) <= WITHIN,
    )
    error, end = reported_s / DELAY_S - 1, f"; {disturbance}" if disturbance else ""
    return [
        judged(
            "planted delay",
            f"{reported_s * 1e3:.4f} ms per token reported for {DELAY_S * 1e3:.4f} ms ({100 * error:+.1f} %); "
            f"limit {percent(WITHIN)}{end}",
            holds=abs(error) <= WITHIN,
            is_disturbed=bool(disturbance) and error > 0,
        ),
        judged(
            "slower twin",
            f"a twin {percent(TWIN_SLOWER - 1, places=0)} slower is reported {ratio:.4f} times as fast; "
            f"limit {percent(WITHIN)} of the planted ratio{end}",
            holds=abs(ratio * TWIN_SLOWER - 1) <= WITHIN,
            is_disturbed=bool(disturbance),
        ),
    ]


def _delays(device: Device, random_times: random.Random) -> tuple[float, float]:
    def decode_s(mean_s: float) -> float:
        source = DelayedSource(mean_s, random_times)
        samples = measure(
            lambda: source.generate([(0,)], TOKENS).sample(TOKENS), device, warmup=1, warmup_limit=1, runs=3
        ).samples
        return statistics.median(sample.tpot_s or 0.0 for sample in samples)

    plain: dict[int, float] = {}
    twin: dict[int, float] = {}
    for number in range(3):
        plain[number] = decode_s(DELAY_S)
        twin[number] = decode_s(DELAY_S * TWIN_SLOWER)
    return statistics.median(plain.values()), paired_ratio(plain, twin).value


def check_power() -> Finding:
    """Check that a variant that is 3 % slower gets the verdict "slower" in at least 95 of 100 simulated sweeps."""
    slower, noisy = found_slower(ROUND_NOISE), found_slower(LARGE_NOISE)
    return judged(
        "power of the test",
        f"called slower in {slower} of {SWEEPS} simulated sweeps of {ROUNDS} rounds with {percent(ROUND_NOISE)} noise "
        f"({noisy} with {percent(LARGE_NOISE)}); at least {LEAST_FOUND}",
        holds=slower >= LEAST_FOUND,
    )


def found_slower(noise: float) -> int:
    """Return how many of 100 simulated sweeps find a variant slower whose times are 3 % longer."""
    random_times, count = random.Random(SEED), 0
    for _ in range(SWEEPS):
        plain = {number: random_times.gauss(1, noise) for number in range(ROUNDS)}
        twin = {number: random_times.gauss(TWIN_SLOWER, TWIN_SLOWER * noise) for number in range(ROUNDS)}
        count += verdicts([paired_ratio(plain, twin)])[0] == "slower"
    return count
