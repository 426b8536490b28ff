"""Baseline perplexity of a bigram model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


def bigram_perplexity(learned: Tokens, judged: Tokens, *, vocabulary: int) -> float:
    """Return the perplexity of `judged`, each token predicted from the previous one.

    Counts of pairs are mixed with counts of single tokens, and these with one for every token (Witten & Bell 1991: the
    weight of a context is the number of different tokens that followed it), so that every token has a probability.
    """
    single = np.bincount(learned, minlength=vocabulary) + 1.0
    single /= single.sum()
    pairs = np.zeros((vocabulary, vocabulary))
    np.add.at(pairs, (learned[:-1], learned[1:]), 1.0)
    followers = (pairs > 0).sum(axis=1)
    before, after = judged[:-1], judged[1:]
    total = pairs.sum(axis=1)[before] + followers[before]
    hidden = np.where(total > 0, followers[before] / np.maximum(total, 1.0), 1.0)
    seen = np.where(total > 0, pairs[before, after] / np.maximum(total, 1.0), 0.0)
    return float(np.exp(-np.log(seen + hidden * single[after]).mean()))
