"""Statistics of quality: compared with closed cases and with a second implementation in float64."""

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
    """Compute scores with the code of a run, without a model: save, then compare."""
    file = np.zeros((WINDOWS, row_values(POSITIONS, VOCABULARY, top_k)), dtype=np.float32)
    saved = SavedPredictions(file, top_k=top_k)
    targets = torch.from_numpy(TARGETS)
    for window in range(WINDOWS):
        saved.put(window, torch.tensor(model[window], dtype=dtype), targets[window])
    found = [
        saved.compare(window, torch.tensor(base[window], dtype=dtype), targets[window]) for window in range(WINDOWS)
    ]
    return PositionScores(*map(np.stack, zip(*found, strict=True)))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Compute the softmax in float64."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def second_implementation(model: np.ndarray, base: np.ndarray) -> dict[str, float]:
    """Compute the statistics from their definitions, token by token."""
    p, q = softmax(base), softmax(model)
    own_p, own_q, kl, same = [], [], [], []
    for window in range(WINDOWS):
        for at in range(POSITIONS):
            before, after = p[window, at], q[window, at]
            own_p.append(before[TARGETS[window, at]])
            own_q.append(after[TARGETS[window, at]])
            kl.append(sum(one * (math.log(one) - math.log(other)) for one, other in zip(before, after, strict=True)))
            same.append(float(before.argmax() == after.argmax()))
    paired = [math.log(one) - math.log(other) for one, other in zip(own_p, own_q, strict=True)]
    by_window = [np.mean(paired[at * POSITIONS : (at + 1) * POSITIONS]) for at in range(WINDOWS)]
    ordered = sorted(kl)
    return {
        "perplexity": math.exp(-sum(map(math.log, own_q)) / len(own_q)),
        "ln_ratio": sum(paired) / len(paired),
        "ln_ratio_error": math.sqrt(
            sum((one - np.mean(by_window)) ** 2 for one in by_window) / (WINDOWS - 1) / WINDOWS
        ),
        "kl_mean": sum(kl) / len(kl),
        "kl_median": (ordered[len(kl) // 2 - 1] + ordered[len(kl) // 2]) / 2,
        "kl_max": ordered[-1],
        "same_top": sum(same) / len(same),
        "probability_rms": math.sqrt(
            sum((one - other) ** 2 for one, other in zip(own_q, own_p, strict=True)) / len(kl)
        ),
    }


def test_every_statistic_agrees_with_a_second_implementation_in_float64() -> None:
    wanted = second_implementation(MODEL, BASE)
    scores = scores_of(MODEL, BASE)
    found = divergence(scores).model_dump() | {"perplexity": perplexity(scores.nats)[0]}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-5)


def test_identical_models_have_no_divergence() -> None:
    for top_k in (None, 5):
        found = divergence(scores_of(BASE, BASE, top_k=top_k))
        assert (found.kl_mean, found.kl_max, found.ln_ratio, found.same_top) == (0, 0, 0, 1)
        assert found.probability_rms == 0


def test_a_model_agrees_with_itself_if_several_tokens_are_most_likely() -> None:
    tied = np.round(BASE)
    for top_k in (1, 2, 20):
        scores = scores_of(tied, tied, top_k=top_k)
        assert scores.same_top.all()
        assert scores.kl.max() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_logits_are_saved_without_loss(dtype: torch.dtype) -> None:
    found = divergence(scores_of(BASE, BASE, dtype=dtype))
    assert (found.kl_max, found.ln_ratio) == (0, 0)


def test_a_shifted_distribution_gives_its_known_divergence() -> None:
    """Baseline: token 0 with 1/2, the others share the rest. Model: token 0 with 1/4."""
    base, model = np.zeros_like(BASE), np.zeros_like(BASE)
    base[..., 0] = math.log((1 / 2) / (1 / 2) * (VOCABULARY - 1))
    model[..., 0] = math.log((1 / 4) / (3 / 4) * (VOCABULARY - 1))
    expected = 0.5 * math.log(2) + 0.5 * math.log((1 / 2) / (3 / 4))
    assert divergence(scores_of(model, base)).kl_mean == pytest.approx(expected, rel=1e-5)
    # Lumping tokens that keep their proportions to each other loses nothing.
    assert divergence(scores_of(model, base, top_k=1)).kl_mean == pytest.approx(expected, rel=1e-5)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary() -> None:
    value, error = perplexity(scores_of(np.zeros_like(BASE), BASE).nats)
    assert value == pytest.approx(VOCABULARY, rel=1e-6)
    assert error == pytest.approx(0, abs=1e-5)


def test_top_k_is_a_lower_bound_that_grows_with_k() -> None:
    whole = scores_of(MODEL, BASE)
    bounds = [scores_of(MODEL, BASE, top_k=count) for count in (1, 5, 20, VOCABULARY - 1)]
    means = [float(one.kl.mean()) for one in bounds]
    assert means == sorted(means)
    assert means[0] < 0.8 * whole.kl.mean()
    assert means[-1] == pytest.approx(whole.kl.mean(), rel=1e-3)
    for one in bounds:
        assert np.all(one.kl <= whole.kl + 1e-5)
        np.testing.assert_allclose(one.nats, whole.nats, rtol=1e-6)
        np.testing.assert_array_equal(one.same_top, whole.same_top)


def test_the_error_counts_windows_and_not_tokens() -> None:
    # All tokens of a window alike: 70 of them say no more than one.
    values = np.repeat([[1.0], [2.0], [4.0]], POSITIONS, axis=1)
    assert standard_error(values) == pytest.approx(np.std([1, 2, 4], ddof=1) / math.sqrt(3))
    assert standard_error(values[:1]) is None


def test_the_paired_error_is_smaller_than_either_models_own() -> None:
    scores = scores_of(BASE + 0.01 * logits_of(2), BASE)
    paired = divergence(scores).ln_ratio_error
    own = standard_error(scores.nats)
    assert paired is not None
    assert own is not None
    assert paired < own / 10


def test_an_outermost_percentile_needs_five_tokens_beyond_it() -> None:
    scores = scores_of(MODEL, BASE)
    repeated = PositionScores(*(np.tile(part, (15, 1)) for part in scores))
    few, many = divergence(scores), divergence(repeated)
    assert (few.kl_999, few.change_low, few.change_high) == (None, None, None)
    # 350 tokens, each 15 times: 5.25 lie beyond.
    assert many.kl_999 == pytest.approx(np.quantile(repeated.kl, 0.999))
    assert many.change_low is not None
    assert many.change_low < 0 < (many.change_high or 0)


def test_every_mean_can_be_computed_again_from_the_windows() -> None:
    scores = scores_of(MODEL, BASE)
    found, windows = divergence(scores), window_means(scores)
    assert math.exp(np.mean([one.nats for one in windows])) == pytest.approx(perplexity(scores.nats)[0])
    assert np.mean([one.nats - one.baseline_nats for one in windows]) == pytest.approx(found.ln_ratio)
    assert np.mean([one.kl for one in windows]) == pytest.approx(found.kl_mean)
    assert np.mean([one.same_top for one in windows]) == pytest.approx(found.same_top)
    assert math.sqrt(np.mean([one.squared_change for one in windows])) == pytest.approx(found.probability_rms)
