"""Saved predictions of a model, and their comparison with the baseline: perplexity, KL divergence, same top token.

Logits are saved in float32, so that nothing is lost; or the k most likely log-probabilities, with the probability of
all other tokens as one number. Merging those tokens cannot increase a divergence, so the result is a lower bound.
Arithmetic is float32, a few positions at a time to save memory.

2,048 distributions over a vocabulary of 151,936 take 1.2 GiB. They are in a memory-mapped temporary file without a
name, which disappears with the process. Its space is allocated at once: a full disk is an error at the beginning
instead of a bus error later.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarker.core.errors import QualityError
from benchmarker.core.formatting import gib

File = NDArray[numpy.float32]
"""Memory-mapped file, [windows, values]."""
VALUE_BYTES = 4
CHUNK = 64
"""Positions that are compared at once."""


class PositionScores(NamedTuple):
    """Comparison of a model with the baseline at some positions; every tensor is [positions].

    nats = -ln p(token of the text); kl = sum of p_baseline * ln(p_baseline / p_model); same_top: equal most likely
    tokens.
    """

    nats: Tensor
    baseline_nats: Tensor
    kl: Tensor
    same_top: Tensor


class SavedLogits:
    """Logits of every window, [positions, vocabulary]."""

    def __init__(self, file: File) -> None:
        self._file = file

    @staticmethod
    def row_values(positions: int, vocabulary: int) -> int:
        return positions * vocabulary

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None:  # noqa: ARG002
        self._file[window] = logits.float().cpu().flatten().numpy()

    def compare(self, window: int, baseline: Tensor, targets: Tensor) -> PositionScores:
        """Compare the saved predictions at a window with the baseline's logits, [positions, vocabulary]."""
        logits = torch.from_numpy(self._file[window].copy()).view(baseline.shape)
        return _joined(self._compare(*part) for part in _in_chunks(logits, baseline, targets))

    def _compare(self, logits: Tensor, baseline: Tensor, targets: Tensor) -> PositionScores:
        logs = logits.to(baseline.device).log_softmax(-1)
        baseline_logs = baseline.float().log_softmax(-1)
        columns = targets[:, None]
        return PositionScores(
            nats=-logs.gather(-1, columns).squeeze(-1),
            baseline_nats=-baseline_logs.gather(-1, columns).squeeze(-1),
            kl=(baseline_logs.exp() * (baseline_logs - logs)).sum(-1),
            same_top=logs.argmax(-1) == baseline_logs.argmax(-1),
        )


class SavedTopK:
    """Ids (int32, as the bits of a float32) and log-probabilities of the k most likely tokens, and the target's."""

    def __init__(self, file: File, *, count: int) -> None:
        self._file, self.count = file, count

    @staticmethod
    def row_values(positions: int, count: int) -> int:
        return positions * (2 * count + 1)

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None:
        rows = []
        for part, target in _in_chunks(logits, targets):
            logs = part.float().log_softmax(-1)
            top = logs.topk(self.count)
            # topk may put a token before argmax's choice that is equally likely.
            first = logs.argmax(-1, keepdim=True)
            others = torch.where(top.indices[:, 1:] == first, top.indices[:, :1], top.indices[:, 1:])
            ids = torch.cat([first, others], dim=-1).to(torch.int32).view(torch.float32)
            rows.append(torch.cat([ids, top.values, logs.gather(-1, target[:, None])], dim=-1))
        self._file[window] = torch.cat(rows).cpu().flatten().numpy()

    def put_top_k(self, window: int, ids: Tensor, logs: Tensor, target_logs: Tensor) -> None:
        """Save an engine's most likely tokens.

        Args:
            ids: Token ids, [positions, k or more], most likely first.
            logs: Their log-probabilities, of the same shape.
            target_logs: Log-probability of the text's own token, [positions].
        """
        numbers = ids[:, : self.count].to(torch.int32).contiguous().view(torch.float32)
        row = torch.cat([numbers, logs[:, : self.count].float(), target_logs[:, None].float()], dim=-1)
        self._file[window] = row.cpu().flatten().numpy()

    def compare(self, window: int, baseline: Tensor, targets: Tensor) -> PositionScores:
        """Compare the saved predictions at a window with the baseline's logits, [positions, vocabulary]."""
        saved = torch.from_numpy(self._file[window].copy()).view(len(baseline), -1)
        return _joined(self._compare(*part) for part in _in_chunks(saved, baseline, targets))

    def _compare(self, saved: Tensor, baseline: Tensor, targets: Tensor) -> PositionScores:
        saved = saved.to(baseline.device)
        ids = saved[:, : self.count].contiguous().view(torch.int32).long()
        baseline_logs = baseline.float().log_softmax(-1)
        # float64, because the rest is a small difference from 1.
        top, baseline_top = saved[:, self.count : -1].double(), baseline_logs.gather(-1, ids).double()
        # Probability of the remaining tokens, at least 1e-9, because 0 has no logarithm.
        rest, baseline_rest = ((1 - logs.exp().sum(-1)).clamp_min(1e-9) for logs in (top, baseline_top))
        kl = (baseline_top.exp() * (baseline_top - top)).sum(-1) + baseline_rest * (baseline_rest.log() - rest.log())
        return PositionScores(
            nats=-saved[:, -1],
            baseline_nats=-baseline_logs.gather(-1, targets[:, None]).squeeze(-1),
            kl=kl,
            same_top=ids[:, 0] == baseline_logs.argmax(-1),
        )


def _in_chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.split(CHUNK) for tensor in tensors), strict=True)


def _joined(parts: Iterable[PositionScores]) -> PositionScores:
    return PositionScores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def check_room(file_bytes: int) -> None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < file_bytes:
        raise _no_room(file_bytes, f"{gib(free)} are free")


@contextmanager
def scratch_file(rows: int, row_values: int) -> Iterator[File]:
    """Yield a memory-mapped temporary file, [rows, row_values]; QualityError without space."""
    file_bytes = rows * row_values * VALUE_BYTES
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, file_bytes)
            else:
                check_room(file_bytes)
                os.ftruncate(file.fileno(), file_bytes)
            mapped: Any = numpy.memmap(file, dtype=numpy.float32, shape=(rows, row_values))
            try:
                yield mapped
            finally:
                del mapped
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise _no_room(file_bytes, os.strerror(error.errno).lower()) from error


def _no_room(file_bytes: int, why: str) -> QualityError:
    return QualityError(
        f"--quality: no room in {tempfile.gettempdir()} for {gib(file_bytes)} of distributions ({why}); "
        "set TMPDIR to a folder with room, or keep less with --quality-topk 100"
    )
