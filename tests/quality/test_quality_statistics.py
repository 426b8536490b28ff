"""Compare the statistics of quality with closed forms and with a second implementation in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from benchmarker.quality.scoring import (
    PositionScores,
    SavedPredictions,
    divergence,
    perplexity,
    row_values,
    standard_error,
    window_means,
)

WINDOWS, POSITIONS, VOCABULARY = 5, 70, 37


def logits_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(WINDOWS, POSITIONS, VOCABULARY)) * 3


BASE = logits_of(1)
MODEL = BASE + 0.3 * logits_of(2)
TARGETS = np.random.default_rng(3).integers(VOCABULARY, size=(WINDOWS, POSITIONS))


def scores_of(model: np.ndarray, base: np.ndarray, *, top_k: int | None = None, dtype=torch.float32) -> PositionScores:
    """Compute scores of given logits as a run does: save predictions, then compare."""
    file = np.zeros((WINDOWS, row_values(POSITIONS, VOCABULARY, top_k)), dtype=np.float32)
    saved = SavedPredictions(file, top_k=top_k)
    targets = torch.from_numpy(TARGETS)
    for window in range(WINDOWS):
        saved.put(window, torch.tensor(model[window], dtype=dtype), targets[window])
    scores = [
        saved.compare(window, torch.tensor(base[window], dtype=dtype), targets[window]) for window in range(WINDOWS)
    ]
    return PositionScores(*map(np.stack, zip(*scores, strict=True)))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Compute the softmax in float64."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def second_implementation(model: np.ndarray, base: np.ndarray) -> dict[str, float]:
    """Compute the statistics from their definitions, token by token."""
    p, q = softmax(base), softmax(model)
    target_p, target_q, kl, same = [], [], [], []
    for window in range(WINDOWS):
        for position in range(POSITIONS):
            p_row, q_row = p[window, position], q[window, position]
            target_p.append(p_row[TARGETS[window, position]])
            target_q.append(q_row[TARGETS[window, position]])
            kl.append(
                sum(first * (math.log(first) - math.log(second)) for first, second in zip(p_row, q_row, strict=True))
            )
            same.append(float(p_row.argmax() == q_row.argmax()))
    paired = [math.log(first) - math.log(second) for first, second in zip(target_p, target_q, strict=True)]
    by_window = [np.mean(paired[index * POSITIONS : (index + 1) * POSITIONS]) for index in range(WINDOWS)]
    ordered = sorted(kl)
    return {
        "perplexity": math.exp(-sum(map(math.log, target_q)) / len(target_q)),
        "ln_ratio": sum(paired) / len(paired),
        "ln_ratio_error": math.sqrt(
            sum((mean - np.mean(by_window)) ** 2 for mean in by_window) / (WINDOWS - 1) / WINDOWS
        ),
        "kl_mean": sum(kl) / len(kl),
        "kl_median": (ordered[len(kl) // 2 - 1] + ordered[len(kl) // 2]) / 2,
        "kl_max": ordered[-1],
        "same_top": sum(same) / len(same),
        "probability_rms": math.sqrt(
            sum((first - second) ** 2 for first, second in zip(target_q, target_p, strict=True)) / len(kl)
        ),
    }


def test_every_statistic_matches_the_second_implementation() -> None:
    expected = second_implementation(MODEL, BASE)
    scores = scores_of(MODEL, BASE)
    statistics = divergence(scores).model_dump() | {"perplexity": perplexity(scores.nats)[0]}
    assert {name: statistics[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_identical_models_have_no_divergence() -> None:
    for top_k in (None, 5):
        statistics = divergence(scores_of(BASE, BASE, top_k=top_k))
        assert (statistics.kl_mean, statistics.kl_max, statistics.ln_ratio, statistics.same_top) == (0, 0, 0, 1)
        assert statistics.probability_rms == 0


def test_tied_most_likely_tokens_count_as_agreement() -> None:
    tied = np.round(BASE)
    for top_k in (1, 2, 20):
        scores = scores_of(tied, tied, top_k=top_k)
        assert scores.same_top.all()
        assert scores.kl.max() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_logits_are_saved_without_loss(dtype: torch.dtype) -> None:
    statistics = divergence(scores_of(BASE, BASE, dtype=dtype))
    assert (statistics.kl_max, statistics.ln_ratio) == (0, 0)


def test_shifted_distribution_has_its_closed_form_divergence() -> None:
    """Token 0 has probability 1/2 in the baseline and 1/4 in the model; the remaining tokens are uniform."""
    base, model = np.zeros_like(BASE), np.zeros_like(BASE)
    base[..., 0] = math.log((1 / 2) / (1 / 2) * (VOCABULARY - 1))
    model[..., 0] = math.log((1 / 4) / (3 / 4) * (VOCABULARY - 1))
    expected = 0.5 * math.log(2) + 0.5 * math.log((1 / 2) / (3 / 4))
    assert divergence(scores_of(model, base)).kl_mean == pytest.approx(expected, rel=1e-5)
    # Merging tokens with unchanged relative probabilities does not change the divergence.
    assert divergence(scores_of(model, base, top_k=1)).kl_mean == pytest.approx(expected, rel=1e-5)


def test_perplexity_of_a_uniform_model_is_its_vocabulary_size() -> None:
    value, error = perplexity(scores_of(np.zeros_like(BASE), BASE).nats)
    assert value == pytest.approx(VOCABULARY, rel=1e-6)
    assert error == pytest.approx(0, abs=1e-5)


def test_top_k_divergence_is_a_lower_bound_that_grows_with_k() -> None:
    full = scores_of(MODEL, BASE)
    bounds = [scores_of(MODEL, BASE, top_k=count) for count in (1, 5, 20, VOCABULARY - 1)]
    means = [float(truncated.kl.mean()) for truncated in bounds]
    assert means == sorted(means)
    assert means[0] < 0.8 * full.kl.mean()
    assert means[-1] == pytest.approx(full.kl.mean(), rel=1e-3)
    for truncated in bounds:
        assert np.all(truncated.kl <= full.kl + 1e-5)
        np.testing.assert_allclose(truncated.nats, full.nats, rtol=1e-6)
        np.testing.assert_array_equal(truncated.same_top, full.same_top)


def test_standard_error_counts_windows_and_not_tokens() -> None:
    # All tokens of a window are equal, so that 70 carry no more information than one.
    values = np.repeat([[1.0], [2.0], [4.0]], POSITIONS, axis=1)
    assert standard_error(values) == pytest.approx(np.std([1, 2, 4], ddof=1) / math.sqrt(3))
    assert standard_error(values[:1]) is None


def test_paired_error_is_smaller_than_the_models_error() -> None:
    scores = scores_of(BASE + 0.01 * logits_of(2), BASE)
    paired = divergence(scores).ln_ratio_error
    unpaired = standard_error(scores.nats)
    assert paired is not None
    assert unpaired is not None
    assert paired < unpaired / 10


def test_outermost_percentiles_require_five_tokens_beyond_them() -> None:
    scores = scores_of(MODEL, BASE)
    repeated = PositionScores(*(np.tile(scores_by_token, (15, 1)) for scores_by_token in scores))
    few, many = divergence(scores), divergence(repeated)
    assert (few.kl_999, few.change_low, few.change_high) == (None, None, None)
    # 350 tokens, 15 times each; 5.25 lie beyond the percentile.
    assert many.kl_999 == pytest.approx(np.quantile(repeated.kl, 0.999))
    assert many.change_low is not None
    assert many.change_low < 0 < (many.change_high or 0)


def test_means_follow_from_the_windows() -> None:
    scores = scores_of(MODEL, BASE)
    statistics, windows = divergence(scores), window_means(scores)
    assert math.exp(np.mean([window.nats for window in windows])) == pytest.approx(perplexity(scores.nats)[0])
    assert np.mean([window.nats - window.baseline_nats for window in windows]) == pytest.approx(statistics.ln_ratio)
    assert np.mean([window.kl for window in windows]) == pytest.approx(statistics.kl_mean)
    assert np.mean([window.same_top for window in windows]) == pytest.approx(statistics.same_top)
    assert math.sqrt(np.mean([window.squared_change for window in windows])) == pytest.approx(
        statistics.probability_rms
    )
