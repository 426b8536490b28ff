"""Saved predictions of a model, and their comparison with the baseline: perplexity, KL divergence, same top token.

Logits are saved in the model's type, so that nothing is lost; or the k most likely log-probabilities, with the
probability of all other tokens as one number. Merging those tokens cannot increase a divergence, so the result is a
lower bound. Arithmetic is float32, a few positions at a time to save memory.

2,048 distributions over a vocabulary of 151,936 take 1.2 GiB in float32. They are in a memory-mapped temporary file
without a name, which disappears with the process. Its space is allocated at once: a full disk is an error at the
beginning instead of a bus error later.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarker.core.errors import QualityError
from benchmarker.core.formatting import gib

Bytes = NDArray[numpy.uint8]

CHUNK = 64


class PositionScores(NamedTuple):
    """Comparison of a model with the baseline at some positions; every tensor is [positions].

    nats = -ln p(token of the text); kl = sum of p_baseline * ln(p_baseline / p_model); same_top: equal most likely
    tokens.
    """

    nats: Tensor
    baseline_nats: Tensor
    kl: Tensor
    same_top: Tensor


class SavedPredictions(Protocol):
    """Predictions of a model at every window. Logits are [positions, vocabulary], targets [positions]."""

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None: ...

    def compare(self, window: int, baseline: Tensor, targets: Tensor) -> PositionScores:
        """Compare the saved predictions at a window with the baseline's logits."""


class SavedLogits:
    def __init__(self, file: Bytes, *, dtype: torch.dtype) -> None:
        self._file, self._dtype = file, dtype

    @staticmethod
    def row_bytes(positions: int, vocabulary: int, dtype: torch.dtype) -> int:
        return positions * vocabulary * dtype.itemsize

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None:  # noqa: ARG002
        self._file[window] = _bytes(logits.to(self._dtype))

    def compare(self, window: int, baseline: Tensor, targets: Tensor) -> PositionScores:
        logits = _tensor(self._file[window], self._dtype).view(baseline.shape)
        return _joined(_compare_whole(*part) for part in _in_chunks(logits, baseline, targets))


class SavedTopK:
    """Log-probabilities of the k most likely tokens and of the text's own token."""

    def __init__(self, file: Bytes, *, count: int) -> None:
        self._file, self._count = file, count

    @staticmethod
    def row_bytes(positions: int, count: int) -> int:
        return positions * (2 * count + 1) * 4

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None:
        rows = []
        for part, target in _in_chunks(logits, targets):
            logs = part.float().log_softmax(-1)
            top = logs.topk(self._count)
            ids = _argmax_first(top.indices, logs).to(torch.int32).view(torch.float32)
            rows.append(torch.cat([ids, top.values, logs.gather(-1, target[:, None])], dim=-1))
        self._file[window] = _bytes(torch.cat(rows))

    def put_top_k(self, window: int, ids: Tensor, logs: Tensor, target_logs: Tensor) -> None:
        """Save an engine's most likely tokens.

        Args:
            ids: Token ids, [positions, k or more], most likely first.
            logs: Their log-probabilities, of the same shape.
            target_logs: Log-probability of the text's own token, [positions].
        """
        count = self._count
        numbers = ids[:, :count].to(torch.int32).contiguous().view(torch.float32)
        self._file[window] = _bytes(torch.cat([numbers, logs[:, :count].float(), target_logs[:, None].float()], dim=-1))

    def compare(self, window: int, baseline: Tensor, targets: Tensor) -> PositionScores:
        saved = _tensor(self._file[window], torch.float32).view(len(baseline), -1)
        return _joined(self._compare(*part) for part in _in_chunks(saved, baseline, targets))

    def _compare(self, saved: Tensor, baseline: Tensor, targets: Tensor) -> PositionScores:
        saved = saved.to(baseline.device)
        ids = saved[:, : self._count].contiguous().view(torch.int32).long()
        baseline_logs = baseline.float().log_softmax(-1)
        # float64, because the rest is a small difference from 1.
        top, baseline_top = saved[:, self._count : -1].double(), baseline_logs.gather(-1, ids).double()
        rest, baseline_rest = _rest(top), _rest(baseline_top)
        kl = (baseline_top.exp() * (baseline_top - top)).sum(-1) + baseline_rest * (baseline_rest.log() - rest.log())
        return PositionScores(
            nats=-saved[:, -1],
            baseline_nats=-baseline_logs.gather(-1, targets[:, None]).squeeze(-1),
            kl=kl,
            same_top=ids[:, 0] == baseline_logs.argmax(-1),
        )


def _compare_whole(logits: Tensor, baseline: Tensor, targets: Tensor) -> PositionScores:
    logs = logits.to(baseline.device).float().log_softmax(-1)
    baseline_logs = baseline.float().log_softmax(-1)
    columns = targets[:, None]
    return PositionScores(
        nats=-logs.gather(-1, columns).squeeze(-1),
        baseline_nats=-baseline_logs.gather(-1, columns).squeeze(-1),
        kl=(baseline_logs.exp() * (baseline_logs - logs)).sum(-1),
        same_top=logs.argmax(-1) == baseline_logs.argmax(-1),
    )


def _argmax_first(ids: Tensor, logs: Tensor) -> Tensor:
    """Return the ids with argmax's choice first, [positions, k]; topk may put an equally likely token first."""
    first = logs.argmax(-1, keepdim=True)
    others = torch.where(ids[:, 1:] == first, ids[:, :1], ids[:, 1:])
    return torch.cat([first, others], dim=-1)


def _rest(logs: Tensor) -> Tensor:
    """Return the probability of the remaining tokens, [positions]; at least 1e-9, because 0 has no logarithm."""
    return (1 - logs.exp().sum(-1)).clamp_min(1e-9)


def _bytes(tensor: Tensor) -> Any:
    return tensor.contiguous().cpu().view(torch.uint8).flatten().numpy()


def _tensor(row: Bytes, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(row.copy()).view(dtype)


def _in_chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.split(CHUNK) for tensor in tensors), strict=True)


def _joined(parts: Iterable[PositionScores]) -> PositionScores:
    return PositionScores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def check_room(file_bytes: int) -> None:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < file_bytes:
        raise QualityError(_no_room(file_bytes, f"{gib(free)} are free"))


@contextmanager
def scratch_file(rows: int, row_bytes: int) -> Iterator[Bytes]:
    """Yield an array of bytes in a temporary file, [rows, row_bytes]; QualityError without space."""
    try:
        with tempfile.TemporaryFile() as file:
            _take_room(file.fileno(), rows * row_bytes)
            mapped: Any = numpy.memmap(file, dtype=numpy.uint8, shape=(rows, row_bytes))
            try:
                yield mapped
            finally:
                del mapped
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise QualityError(_no_room(rows * row_bytes, os.strerror(error.errno).lower())) from error


def _take_room(handle: int, file_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, file_bytes)
    else:
        check_room(file_bytes)
        os.ftruncate(handle, file_bytes)


def _no_room(file_bytes: int, why: str) -> str:
    return (
        f"--quality: no room in {tempfile.gettempdir()} for {gib(file_bytes)} of distributions ({why}); "
        "set TMPDIR to a folder with room, or keep less with --quality-topk 100"
    )
