"""Predictions of a model over the windows of a text, their comparison with saved ones, and its statistics.

Statistics are those of llama.cpp, with standard errors over windows:

perplexity = exp(mean nats)            nats = -ln p(token)
ln ratio   = mean(nats - baseline's)   paired: the same words are hard for both models
KL         = sum over the vocabulary of p_base (ln p_base - ln p)
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarker.checkpoints.base import Progress
from benchmarker.core.errors import QualityError
from benchmarker.engines.base import TokenSource
from benchmarker.quality.evaluation_text import SCORED_FROM, Windows
from benchmarker.quality.saved_predictions import PositionScores, SavedLogits, SavedTopK
from benchmarker.schema.quality import Divergence, WindowMeans

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PATIENCE_S = 30.0
"""Seconds before progress is printed."""
LEAST_BEYOND = 5
"""Minimum number of tokens beyond a reported percentile: fewer would describe single tokens."""
Floats = NDArray[np.float64]


def save_step_predictions(
    source: TokenSource,
    windows: Windows,
    saved: SavedLogits | SavedTopK,
    progress: Progress,
    *,
    name: str,
    dtype: torch.dtype,
) -> bool:
    """Save the predictions of an engine's decode step; return False if the engine gives none.

    The unscored part of a window is its prompt.
    """
    for window in _with_progress(range(len(windows.ids)), progress, f"scoring {name} by its decode step"):
        scores = source.step_scores(windows.ids[window, :-1].tolist(), prompt_tokens=SCORED_FROM + 1)
        if scores is None:
            return False
        if not np.isfinite(scores.log_probabilities).all():
            raise _not_finite(name, window, len(windows.ids), dtype)
        saved.put(window, torch.from_numpy(scores.log_probabilities), torch.from_numpy(windows.targets[window]))
    return True


def save_prefill_predictions(
    source: TokenSource, windows: Windows, saved: SavedTopK, progress: Progress, *, name: str
) -> bool:
    """Save the most likely tokens of an engine's prefill; return False if the engine gives none."""
    for window in _with_progress(range(len(windows.ids)), progress, f"scoring {name} by its prefill"):
        scores = source.prefill_scores(windows.ids[window].tolist())
        if scores is None:
            return False
        rows = slice(SCORED_FROM, SCORED_FROM + windows.scored)
        order = scores.log_probabilities[rows].argsort(axis=1, kind="stable")[:, ::-1]
        logs = np.take_along_axis(scores.log_probabilities[rows], order, axis=1)
        tokens = np.take_along_axis(scores.ids[rows], order, axis=1)
        is_target = tokens == windows.targets[window][:, None]
        if not is_target.any(axis=1).all():
            raise QualityError(f"--quality: {name} does not give the probability of the text's own tokens")
        target_logs = torch.from_numpy(logs[is_target])
        saved.put_top_k(window, torch.from_numpy(tokens), torch.from_numpy(logs), target_logs)
    return True


def score_against(
    baseline: PreTrainedModel,
    windows: Windows,
    saved: SavedLogits | SavedTopK,
    progress: Progress,
    numbers: Sequence[int],
    *,
    name: str,
    replace: bool,
) -> Scores:
    """Compare the saved predictions of the windows `numbers` with the baseline's.

    With `replace`, the baseline's predictions replace the saved ones. Scores are [numbers, positions].
    """
    compared: list[PositionScores] = []
    for window, logits, targets in predictions(baseline, windows, progress, numbers, name=name):
        compared.append(saved.compare(window, logits, targets))
        if replace:
            saved.put(window, logits, targets)
    nats, baseline_nats, kl, same_top = (torch.stack(column).cpu() for column in zip(*compared, strict=True))
    return Scores(
        nats.double().numpy(), baseline_nats.double().numpy(), kl.double().numpy(), same_top.numpy().astype(np.float64)
    )


def predictions(
    model: PreTrainedModel, windows: Windows, progress: Progress, numbers: Sequence[int], *, name: str
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield a model's predictions by its own forward: window, logits [positions, vocabulary], targets [positions]."""
    ids, targets = (torch.from_numpy(part).to(model.device) for part in (windows.ids, windows.targets))
    extra: dict[str, Any] = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        extra["logits_to_keep"] = windows.scored + 1
    for window in _with_progress(numbers, progress, f"scoring {name}"):
        with torch.inference_mode():
            every: Tensor = model(input_ids=ids[window : window + 1], use_cache=False, **extra).logits
            logits = every[0, -windows.scored - 1 : -1]
            if not bool(torch.isfinite(logits).all()):
                raise _not_finite(name, window, len(ids), model.dtype)
        yield window, logits, targets[window]


def _with_progress(numbers: Sequence[int], progress: Progress, what: str) -> Iterator[int]:
    started = time.monotonic()
    for done, number in enumerate(numbers, start=1):
        yield number
        if time.monotonic() - started > PATIENCE_S:
            progress.step(what, done, len(numbers))


def _not_finite(name: str, window: int, windows: int, dtype: torch.dtype) -> QualityError:
    remedy = f"the range of {str(dtype).removeprefix('torch.')} is wide enough, so check the weights"
    if dtype == torch.float16:
        remedy = "try --dtype bfloat16, whose range is wider"
    return QualityError(
        f"--quality: {name} gives logits that are not finite in window {window + 1} of {windows}, so that "
        f"there is no perplexity; {remedy}"
    )


@dataclass(frozen=True)
class Scores:
    """Scores of two models at the same tokens, as in `PositionScores`; every array is [windows, positions]."""

    nats: Floats
    baseline_nats: Floats
    kl: Floats
    same_top: Floats

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
    paired, change = scores.nats - scores.baseline_nats, scores.probability_change
    return Divergence(
        ln_ratio=float(paired.mean()),
        ln_ratio_error=standard_error(paired),
        kl_mean=float(scores.kl.mean()),
        kl_mean_error=standard_error(scores.kl),
        kl_median=float(median),
        kl_90=float(ninety),
        kl_99=float(ninety_nine),
        kl_999=_outermost(scores.kl, 0.999),
        change_low=_outermost(change, 0.001),
        change_high=_outermost(change, 0.999),
        kl_max=float(scores.kl.max()),
        same_top=float(scores.same_top.mean()),
        same_top_error=standard_error(scores.same_top),
        probability_rms=math.sqrt(np.square(change).mean()),
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
    arrays = {
        "nats": scores.nats,
        "baseline_nats": scores.baseline_nats,
        "kl": scores.kl,
        "same_top": scores.same_top,
        "squared_change": np.square(scores.probability_change),
    }
    means = {name: values.mean(axis=1).tolist() for name, values in arrays.items()}
    windows = range(len(scores.nats))
    return tuple(WindowMeans(**{name: values[window] for name, values in means.items()}) for window in windows)
