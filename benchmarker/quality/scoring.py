"""Predictions of a model over the windows of the text, and their comparison with the saved ones.

QualityError is raised for predictions that are not finite.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from benchmarker.checkpoints.base import Progress
from benchmarker.core.errors import QualityError
from benchmarker.engines.base import Scorer
from benchmarker.quality.saved_predictions import PositionScores, SavedPredictions, SavedTopK
from benchmarker.quality.statistics import Scores
from benchmarker.quality.windows import SCORED_FROM, Windows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PATIENCE_S = 30.0
"""Seconds before progress is printed."""


def save_step_predictions(
    scorer: Scorer, windows: Windows, saved: SavedPredictions, progress: Progress, *, name: str, dtype: torch.dtype
) -> bool:
    """Save the predictions of an engine's decode step; return False if the engine gives none.

    The unscored part of a window is its prompt.
    """
    started = time.monotonic()
    for window, ids in enumerate(windows.ids):
        scores = scorer.step_scores(ids[:-1].tolist(), prompt_tokens=SCORED_FROM + 1)
        if scores is None:
            return False
        if not numpy.isfinite(scores.log_probabilities).all():
            raise _not_finite(name, window, len(windows.ids), dtype)
        saved.put(window, torch.from_numpy(scores.log_probabilities), torch.from_numpy(windows.targets[window]))
        if time.monotonic() - started > PATIENCE_S:
            progress.step(f"scoring {name} by its decode step", window + 1, len(windows.ids))
    return True


def save_prefill_predictions(
    scorer: Scorer, windows: Windows, saved: SavedTopK, progress: Progress, *, name: str
) -> bool:
    """Save the most likely tokens of an engine's prefill; return False if the engine gives none."""
    started = time.monotonic()
    for window, ids in enumerate(windows.ids):
        scores = scorer.prefill_scores(ids.tolist())
        if scores is None:
            return False
        rows = slice(SCORED_FROM, SCORED_FROM + windows.scored)
        order = scores.log_probabilities[rows].argsort(axis=1, kind="stable")[:, ::-1]
        logs = numpy.take_along_axis(scores.log_probabilities[rows], order, axis=1)
        tokens = numpy.take_along_axis(scores.ids[rows], order, axis=1)
        is_target = tokens == windows.targets[window][:, None]
        if not is_target.any(axis=1).all():
            raise QualityError(f"--quality: {name} does not give the probability of the text's own tokens")
        target_logs = torch.from_numpy(logs[is_target])
        saved.put_top_k(window, torch.from_numpy(tokens), torch.from_numpy(logs), target_logs)
        if time.monotonic() - started > PATIENCE_S:
            progress.step(f"scoring {name} by its prefill", window + 1, len(windows.ids))
    return True


def score_against(
    baseline: PreTrainedModel,
    windows: Windows,
    saved: SavedPredictions,
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
        nats=nats.double().numpy(),
        baseline_nats=baseline_nats.double().numpy(),
        kl=kl.double().numpy(),
        same_top=same_top.numpy(),
    )


def predictions(
    model: PreTrainedModel, windows: Windows, progress: Progress, numbers: Sequence[int], *, name: str
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield a model's predictions by its own forward: window, logits [positions, vocabulary], targets [positions]."""
    ids, targets = (torch.from_numpy(part).to(model.device) for part in (windows.ids, windows.targets))
    started = time.monotonic()
    for done, window in enumerate(numbers, start=1):
        with torch.inference_mode():
            logits = _logits(model, ids[window : window + 1], windows.scored)
            if not bool(torch.isfinite(logits).all()):
                raise _not_finite(name, window, len(ids), model.dtype)
        yield window, logits, targets[window]
        if time.monotonic() - started > PATIENCE_S:
            progress.step(f"scoring {name}", done, len(numbers))


def _not_finite(name: str, window: int, windows: int, dtype: torch.dtype) -> QualityError:
    return QualityError(
        f"--quality: {name} gives logits that are not finite in window {window + 1} of {windows}, so that "
        f"there is no perplexity; {_remedy(dtype)}"
    )


def _remedy(dtype: torch.dtype) -> str:
    if dtype == torch.float16:
        return "try --dtype bfloat16, whose range is wider"
    return f"the range of {str(dtype).removeprefix('torch.')} is wide enough, so check the weights"


def _logits(model: PreTrainedModel, ids: Tensor, scored: int) -> Tensor:
    extra: dict[str, Any] = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        extra["logits_to_keep"] = scored + 1
    logits: Tensor = model(input_ids=ids, use_cache=False, **extra).logits
    return logits[0, -scored - 1 : -1]
