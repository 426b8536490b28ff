"""Simulate sweeps with a known effect: `python -m tests.benchmarks.statistics_power`.

A sweep compares one variant with its baseline, with one median per process. The table has a row per kind of noise, with
5 fixed rounds, or with further rounds until the interval is under 4 %, at most 10. docs/statistics.md has its output.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarker.core.stats import Ratio, paired_ratio, verdicts
from benchmarker.sweep.sweep_plan import NARROW

SWEEPS, FIRST, MOST = 1000, 5, 10
Noise = Callable[[np.random.Generator], np.ndarray]
"""Logarithms of the factors by which each process is slower, [rounds, 2]."""


def normal(random: np.random.Generator) -> np.ndarray:
    return random.normal(0, 0.01, (MOST, 2))


def tails(random: np.random.Generator) -> np.ndarray:
    return random.standard_t(3, (MOST, 2)) * 0.01 / np.sqrt(3)


def drift(random: np.random.Generator) -> np.ndarray:
    """Return a drift of 0.5 % per process, in the sweep's order: every second round runs in reverse."""
    slots = np.arange(2 * MOST).reshape(MOST, 2)
    slots[1::2] = slots[1::2, ::-1]
    return normal(random) + 0.005 * slots


def polluted(random: np.random.Generator) -> np.ndarray:
    """Return noise in which one process in ten is 1.1 to 1.6 times as slow."""
    hit = random.random((MOST, 2)) < 0.1
    return normal(random) + hit * np.log(random.uniform(1.1, 1.6, (MOST, 2)))


def repaired(random: np.random.Generator) -> np.ndarray:
    """Return the noise of `polluted` if 80 % of such processes are detected and repeated, at most twice."""
    logs = polluted(random)
    for _ in range(2):
        seen = (logs > np.log(1.08)) & (random.random((MOST, 2)) < 0.8)
        logs = np.where(seen, polluted(random), logs)
    return logs


NOISES: dict[str, Noise] = {
    "normal, 1 %": normal,
    "tails (t, 3)": tails,
    "drift, 0.5 % a process": drift,
    "10 % polluted": polluted,
    "the same, seen and repeated": repaired,
}


def sweep(noise: Noise, effect: float, random: np.random.Generator, *, most: int) -> Ratio:
    """Return the ratio that a sweep reports for a variant that is faster by the factor `effect`."""
    times = np.exp(noise(random)) / np.array([1.0, effect])
    for rounds in range(FIRST, most + 1):
        first, second = (dict(enumerate(map(float, times[:rounds, side]))) for side in (0, 1))
        ratio = paired_ratio(first, second)
        if ratio.low and ratio.high and (ratio.high - ratio.low) / ratio.value < NARROW:
            break
    return ratio


def main() -> None:
    print("| noise | rounds | false % | coverage % | power at 3 / 5 / 10 % |")
    print("| :-- | --: | --: | --: | :-- |")
    for name, noise in NOISES.items():
        for most in (FIRST, MOST):
            random = np.random.default_rng(7)
            found = {}
            covered = []
            for effect in (1.0, 1.03, 1.05, 1.10):
                ratios = [sweep(noise, effect, random, most=most) for _ in range(SWEEPS)]
                words = [verdicts([ratio])[0] for ratio in ratios]
                found[effect] = 100 * np.mean([word in ("faster", "slower") for word in words])
                covered += [(ratio.low or 0) <= effect <= (ratio.high or 0) for ratio in ratios]
            power = " / ".join(f"{found[effect]:.0f}" for effect in (1.03, 1.05, 1.10))
            rounds = "5" if most == FIRST else "5 to 10"
            print(f"| {name} | {rounds} | {found[1.0]:.1f} | {100 * np.mean(covered):.1f} | {power} |", flush=True)


if __name__ == "__main__":
    main()
