"""Saved predictions of a model over the windows of a text, and their comparison with the baseline's predictions.

perplexity = exp(mean nats)            nats = -ln p(token)
ln ratio   = mean(nats - baseline's)   paired: the same words are hard for both models
KL         = sum over the vocabulary of p_base (ln p_base - ln p)

Statistics are those of llama.cpp, with standard errors over windows. Either all logits are saved in float32, or with
`top_k` the k largest log-probabilities of each position. All other tokens then count as one token, which cannot
increase a divergence, so the result is a lower bound. Arithmetic is in float32, on 64 positions at a time.

2,048 distributions over a vocabulary of 151,936 take 1.2 GiB. Space for their file is allocated at once: a full disk is
an error at the beginning instead of a bus error later.
"""

from __future__ import annotations

import errno
import inspect
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarker.checkpoints.base import Progress
from benchmarker.core.errors import QualityError, WrongResultError
from benchmarker.core.formatting import gib
from benchmarker.engines.base import TokenSource
from benchmarker.quality.evaluation_text import SCORED_FROM, Windows
from benchmarker.schema.quality import Divergence, WindowMeans

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PATIENCE_S = 30.0  # Seconds before progress is printed.
LEAST_BEYOND = 5  # Minimum number of tokens beyond a reported percentile, so that it does not describe single tokens.
Floats = NDArray[np.float64]
File = NDArray[np.float32]  # Memory-mapped file, [windows, values].
VALUE_BYTES = 4
CHUNK = 64  # Positions that are compared at once.


class PositionScores(NamedTuple):
    """Comparison of a model with the baseline at the same tokens; every array is [positions] or [windows, positions].

    nats = -ln p(token of the text); kl = sum of p_baseline * ln(p_baseline / p_model); same_top: 1 for equal most
    likely tokens, else 0.
    """

    nats: Floats
    baseline_nats: Floats
    kl: Floats
    same_top: Floats

    @property
    def probability_change(self) -> Floats:
        change: Floats = np.exp(-self.nats) - np.exp(-self.baseline_nats)
        return change


def row_values(positions: int, vocabulary: int, top_k: int | None) -> int:
    return positions * (vocabulary if top_k is None else 2 * top_k + 1)


class SavedPredictions:
    """Predictions of every window: logits, [positions, vocabulary]; or, with `top_k`, ids (int32, as the bits of a
    float32) and log-probabilities of the k most likely tokens, and the target's log-probability."""

    def __init__(self, file: File, *, top_k: int | None = None) -> None:
        self._file, self.top_k = file, top_k

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None:
        if self.top_k is None:
            self._file[window] = logits.float().cpu().flatten().numpy()
            return
        rows = []
        for part, target in _in_chunks(logits, targets):
            logs = part.float().log_softmax(-1)
            top = logs.topk(self.top_k)
            # Of several equally likely tokens, topk may put another one first than argmax.
            first = logs.argmax(-1, keepdim=True)
            others = torch.where(top.indices[:, 1:] == first, top.indices[:, :1], top.indices[:, 1:])
            ids = torch.cat([first, others], dim=-1).to(torch.int32).view(torch.float32)
            rows.append(torch.cat([ids, top.values, logs.gather(-1, target[:, None])], dim=-1))
        self._file[window] = torch.cat(rows).cpu().flatten().numpy()

    def put_top_k(self, window: int, ids: Tensor, logs: Tensor, target_logs: Tensor) -> None:
        """Save ids and `logs`, [positions, k or more], most likely first, and the targets' log-probabilities."""
        numbers = ids[:, : self.top_k].to(torch.int32).contiguous().view(torch.float32)
        row = torch.cat([numbers, logs[:, : self.top_k].float(), target_logs[:, None].float()], dim=-1)
        self._file[window] = row.cpu().flatten().numpy()

    def compare(self, window: int, baseline: Tensor, targets: Tensor) -> PositionScores:
        """Compare the saved predictions at a window with the baseline's logits, [positions, vocabulary]."""
        saved = torch.from_numpy(self._file[window].copy()).view(len(baseline), -1)
        compare = self._compare_logits if self.top_k is None else self._compare_top_k
        parts = [compare(part.to(baseline.device), *others) for part, *others in _in_chunks(saved, baseline, targets)]
        return PositionScores(*(torch.cat(column).cpu().double().numpy() for column in zip(*parts, strict=True)))

    def _compare_logits(self, logits: Tensor, baseline: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        logs, baseline_logs = logits.log_softmax(-1), baseline.float().log_softmax(-1)
        nats, baseline_nats = (-each.gather(-1, targets[:, None]).squeeze(-1) for each in (logs, baseline_logs))
        kl = (baseline_logs.exp() * (baseline_logs - logs)).sum(-1)
        return nats, baseline_nats, kl, logs.argmax(-1) == baseline_logs.argmax(-1)

    def _compare_top_k(self, saved: Tensor, baseline: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        ids = saved[:, : self.top_k].contiguous().view(torch.int32).long()
        baseline_logs = baseline.float().log_softmax(-1)
        # float64, because the probability of the remaining tokens is 1 minus a sum near 1.
        top, baseline_top = saved[:, self.top_k : -1].double(), baseline_logs.gather(-1, ids).double()
        # Probability of the remaining tokens, at least 1e-9, because 0 has no logarithm.
        rest, baseline_rest = ((1 - logs.exp().sum(-1)).clamp_min(1e-9) for logs in (top, baseline_top))
        kl = (baseline_top.exp() * (baseline_top - top)).sum(-1) + baseline_rest * (baseline_rest.log() - rest.log())
        baseline_nats = -baseline_logs.gather(-1, targets[:, None]).squeeze(-1)
        return -saved[:, -1], baseline_nats, kl, ids[:, 0] == baseline_logs.argmax(-1)


def _in_chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.split(CHUNK) for tensor in tensors), strict=True)


def check_room(file_bytes: int) -> None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < file_bytes:
        raise _no_room(file_bytes, f"{gib(free)} are free")


@contextmanager
def scratch_file(rows: int, row_values: int) -> Iterator[File]:
    """Yield a memory-mapped unnamed temporary file, [rows, row_values]. Raises QualityError if the disk is full."""
    file_bytes = rows * row_values * VALUE_BYTES
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, file_bytes)
            yield np.memmap(file, dtype=np.float32, shape=(rows, row_values))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise _no_room(file_bytes, os.strerror(error.errno).lower()) from error


def _no_room(file_bytes: int, why: str) -> QualityError:
    return QualityError(
        f"--quality: no room in {tempfile.gettempdir()} for {gib(file_bytes)} of distributions ({why}); "
        "set TMPDIR to a folder with room, or keep less with --quality-topk 100"
    )


def save_step_predictions(
    source: TokenSource, windows: Windows, saved: SavedPredictions, progress: Progress, *, name: str, dtype: torch.dtype
) -> bool:
    """Save the predictions of an engine's decode step; return False if the engine does not expose predictions."""
    for window in _with_progress(range(len(windows.ids)), progress, f"scoring {name} by its decode step"):
        # The unscored part of a window is its prompt.
        scores = source.step_scores(windows.ids[window, :-1].tolist(), prompt_tokens=SCORED_FROM + 1)
        if scores is None:
            return False
        if not np.isfinite(scores.log_probabilities).all():
            raise WrongResultError(_not_finite(name, window, len(windows.ids), dtype))
        saved.put(window, torch.from_numpy(scores.log_probabilities), torch.from_numpy(windows.targets[window]))
    return True


def save_prefill_predictions(
    source: TokenSource, windows: Windows, saved: SavedPredictions, progress: Progress, *, name: str
) -> bool:
    for window in _with_progress(range(len(windows.ids)), progress, f"scoring {name} by its prefill"):
        if (scores := source.prefill_scores(windows.ids[window].tolist())) is None:
            return False
        rows = slice(SCORED_FROM, SCORED_FROM + windows.scored)
        if np.isnan(scores.log_probabilities[rows]).any():
            raise WrongResultError(f"--quality: {name} gives predictions that are not numbers")
        order = scores.log_probabilities[rows].argsort(axis=1, kind="stable")[:, ::-1]
        logs = np.take_along_axis(scores.log_probabilities[rows], order, axis=1)
        tokens = np.take_along_axis(scores.ids[rows], order, axis=1)
        is_target = tokens == windows.targets[window][:, None]
        if not is_target.any(axis=1).all():
            raise QualityError(f"--quality: {name} does not give the probability of the text's own tokens")
        saved.put_top_k(window, *map(torch.from_numpy, (tokens, logs, logs[is_target])))
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
) -> PositionScores:
    """Compare the saved predictions of the windows `numbers` with the baseline's, which `replace` saves instead."""
    compared: list[PositionScores] = []
    for window, logits, targets in predictions(baseline, windows, progress, numbers, name=name):
        compared.append(saved.compare(window, logits, targets))
        if replace:
            saved.put(window, logits, targets)
    return PositionScores(*map(np.stack, zip(*compared, strict=True)))


def predictions(
    model: PreTrainedModel, windows: Windows, progress: Progress, numbers: Sequence[int], *, name: str
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Run a forward pass over each window of `numbers`; yield (window, logits [positions, vocabulary], targets)."""
    ids, targets = (torch.from_numpy(part).to(model.device) for part in (windows.ids, windows.targets))
    extra: dict[str, Any] = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        extra["logits_to_keep"] = windows.scored + 1
    for window in _with_progress(numbers, progress, f"scoring {name}"):
        with torch.inference_mode():
            every: Tensor = model(input_ids=ids[window : window + 1], use_cache=False, **extra).logits
            logits = every[0, -windows.scored - 1 : -1]
            if not bool(torch.isfinite(logits).all()):
                raise QualityError(_not_finite(name, window, len(ids), model.dtype))
        yield window, logits, targets[window]


def _with_progress(numbers: Sequence[int], progress: Progress, what: str) -> Iterator[int]:
    started = time.monotonic()
    for done, number in enumerate(numbers, start=1):
        yield number
        if time.monotonic() - started > PATIENCE_S:
            progress.step(what, done, len(numbers))


def _not_finite(name: str, window: int, windows: int, dtype: torch.dtype) -> str:
    remedy = f"the range of {str(dtype).removeprefix('torch.')} is wide enough, so check the weights"
    if dtype == torch.float16:
        remedy = "try --dtype bfloat16, whose range is wider"
    return (
        f"--quality: {name} gives logits that are not finite in window {window + 1} of {windows}, so that "
        f"there is no perplexity; {remedy}"
    )


def perplexity(nats: Floats) -> tuple[float, float | None]:
    value, error = math.exp(nats.mean()), standard_error(nats)
    return value, None if error is None else value * error


def divergence(scores: PositionScores) -> Divergence:
    median, ninety, ninety_nine = map(float, np.quantile(scores.kl, (0.5, 0.9, 0.99)))
    paired, change = scores.nats - scores.baseline_nats, scores.probability_change
    return Divergence(
        ln_ratio=float(paired.mean()),
        ln_ratio_error=standard_error(paired),
        kl_mean=float(scores.kl.mean()),
        kl_mean_error=standard_error(scores.kl),
        kl_median=median,
        kl_90=ninety,
        kl_99=ninety_nine,
        kl_999=_outermost(scores.kl, 0.999),
        change_low=_outermost(change, 0.001),
        change_high=_outermost(change, 0.999),
        kl_max=float(scores.kl.max()),
        same_top=float(scores.same_top.mean()),
        same_top_error=standard_error(scores.same_top),
        probability_rms=math.sqrt(np.square(change).mean()),
    )


def _outermost(values: Floats, share: float) -> float | None:
    beyond = values.size * min(share, 1 - share)
    return float(np.quantile(values, share)) if beyond >= LEAST_BEYOND else None


def standard_error(values: Floats) -> float | None:
    """Return the standard error of the mean, with windows as the independent units; None for a single window."""
    means = values.mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else None


def window_means(scores: PositionScores) -> tuple[WindowMeans, ...]:
    arrays = scores._asdict() | {"squared_change": np.square(scores.probability_change)}
    rows = zip(*(values.mean(axis=1).tolist() for values in arrays.values()), strict=True)
    return tuple(WindowMeans(**dict(zip(arrays, row, strict=True))) for row in rows)
