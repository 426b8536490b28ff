"""Statistics over the scores of single tokens, as in llama.cpp, with standard errors over windows.

perplexity = exp(mean nats)            nats = -ln p(token)
ln ratio   = mean(nats - baseline's)   paired: the same words are hard for both models
KL         = sum over the vocabulary of p_base (ln p_base - ln p)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarker.schema.quality import Divergence, WindowMeans

LEAST_BEYOND = 5
"""Minimum number of tokens beyond a reported percentile: fewer would describe single tokens."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Scores:
    """Scores of two models at the same tokens, as in `PositionScores`; every array is [windows, positions]."""

    nats: Floats
    baseline_nats: Floats
    kl: Floats
    same_top: Bools

    @property
    def probability_change(self) -> Floats:
        change: Floats = np.exp(-self.nats) - np.exp(-self.baseline_nats)
        return change


def perplexity(nats: Floats) -> tuple[float, float | None]:
    """Return perplexity and its standard error."""
    value = math.exp(nats.mean())
    error = standard_error(nats)
    return value, None if error is None else value * error


def divergence(scores: Scores) -> Divergence:
    median, ninety, ninety_nine = np.quantile(scores.kl, (0.5, 0.9, 0.99))
    same_top = scores.same_top.astype(np.float64)
    paired = scores.nats - scores.baseline_nats
    return Divergence(
        ln_ratio=float(paired.mean()),
        ln_ratio_error=standard_error(paired),
        kl_mean=float(scores.kl.mean()),
        kl_mean_error=standard_error(scores.kl),
        kl_median=float(median),
        kl_90=float(ninety),
        kl_99=float(ninety_nine),
        kl_999=_outermost(scores.kl, 0.999),
        change_low=_outermost(scores.probability_change, 0.001),
        change_high=_outermost(scores.probability_change, 0.999),
        kl_max=float(scores.kl.max()),
        same_top=float(same_top.mean()),
        same_top_error=standard_error(same_top),
        probability_rms=math.sqrt(np.square(scores.probability_change).mean()),
    )


def _outermost(values: Floats, share: float) -> float | None:
    """Return a quantile; None if too few tokens lie beyond it."""
    beyond = values.size * min(share, 1 - share)
    return float(np.quantile(values, share)) if beyond >= LEAST_BEYOND else None


def standard_error(values: Floats) -> float | None:
    """Return that of the mean, with windows as the independent units; None for a single window."""
    means = values.mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else None


def window_means(scores: Scores) -> tuple[WindowMeans, ...]:
    squared = np.square(scores.probability_change)
    return tuple(
        WindowMeans(
            nats=float(scores.nats[window].mean()),
            baseline_nats=float(scores.baseline_nats[window].mean()),
            kl=float(scores.kl[window].mean()),
            same_top=float(scores.same_top[window].mean()),
            squared_change=float(squared[window].mean()),
        )
        for window in range(len(scores.nats))
    )
