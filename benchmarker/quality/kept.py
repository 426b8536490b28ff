"""Predictions that are kept until another model's are held against them.

Both are there as logits; everything is computed from them in float32, a few positions at a time, because the whole
would need several gigabytes. Kept whole, logits are kept in the type that the model gave them in, so that nothing is
lost on the way. Kept as the likeliest k, the probability of all others is one number: lumping makes two distributions
no more different than they are, so that the divergence becomes a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from benchmarker.quality.scratch import Bytes

CHUNK = 64
"""Positions at once: with Qwen3's vocabulary, 39 MB for each float32 tensor."""


class Compared(NamedTuple):
    """A kept model against a fresh baseline at some positions; every tensor is [positions]."""

    nats: Tensor
    baseline_nats: Tensor
    kl: Tensor
    same_top: Tensor


class Kept(Protocol):
    """Somewhere to keep the predictions of all windows."""

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None:
        """Keep one window's.

        Args:
            logits: [positions, vocabulary]
            targets: The text's own tokens, [positions].
        """

    def compare(self, window: int, baseline: Tensor, targets: Tensor) -> Compared:
        """Hold what was kept of a window against the baseline's logits, [positions, vocabulary]."""


class Whole:
    """Keeps every logit."""

    def __init__(self, file: Bytes, *, dtype: torch.dtype) -> None:
        self._file, self._dtype = file, dtype

    @staticmethod
    def row_bytes(positions: int, vocabulary: int, dtype: torch.dtype) -> int:
        """Size of one window's."""
        return positions * vocabulary * dtype.itemsize

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None:  # noqa: ARG002
        self._file[window] = _bytes(logits.to(self._dtype))

    def compare(self, window: int, baseline: Tensor, targets: Tensor) -> Compared:
        kept = _tensor(self._file[window], self._dtype).view(baseline.shape)
        return _joined(_compare_whole(*part) for part in _in_chunks(kept, baseline, targets))


class Top:
    """Keeps the likeliest k and the text's own token."""

    def __init__(self, file: Bytes, *, count: int) -> None:
        self._file, self._count = file, count

    @staticmethod
    def row_bytes(positions: int, count: int) -> int:
        """Size of one window's: an id and a logarithm in 32 bits each, and the own token's."""
        return positions * (2 * count + 1) * 4

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None:
        rows = []
        for part, target in _in_chunks(logits, targets):
            logs = part.float().log_softmax(-1)
            top = logs.topk(self._count)
            ids = _argmax_first(top.indices, logs).to(torch.int32).view(torch.float32)
            rows.append(torch.cat([ids, top.values, logs.gather(-1, target[:, None])], dim=-1))
        self._file[window] = _bytes(torch.cat(rows))

    def put_likeliest(self, window: int, ids: Tensor, logs: Tensor, own: Tensor) -> None:
        """Keep what an engine tells of the likeliest alone.

        Args:
            ids: [positions, at least the count], the likeliest first.
            logs: Their log-probabilities, likewise.
            own: Log-probability of the text's own token, [positions].
        """
        count = self._count
        numbers = ids[:, :count].to(torch.int32).contiguous().view(torch.float32)
        self._file[window] = _bytes(torch.cat([numbers, logs[:, :count].float(), own[:, None].float()], dim=-1))

    def compare(self, window: int, baseline: Tensor, targets: Tensor) -> Compared:
        kept = _tensor(self._file[window], torch.float32).view(len(baseline), -1)
        return _joined(self._compare(*part) for part in _in_chunks(kept, baseline, targets))

    def _compare(self, kept: Tensor, baseline: Tensor, targets: Tensor) -> Compared:
        kept = kept.to(baseline.device)
        ids = kept[:, : self._count].contiguous().view(torch.int32).long()
        logs = baseline.float().log_softmax(-1)
        # In float64, because the rest is what is missing to 1.
        ours, theirs = kept[:, self._count : -1].double(), logs.gather(-1, ids).double()
        rest, their_rest = _rest(ours), _rest(theirs)
        kl = (theirs.exp() * (theirs - ours)).sum(-1) + their_rest * (their_rest.log() - rest.log())
        return Compared(
            nats=-kept[:, -1],
            baseline_nats=-logs.gather(-1, targets[:, None]).squeeze(-1),
            kl=kl,
            same_top=ids[:, 0] == logs.argmax(-1),
        )


def _compare_whole(kept: Tensor, baseline: Tensor, targets: Tensor) -> Compared:
    ours = kept.to(baseline.device).float().log_softmax(-1)
    theirs = baseline.float().log_softmax(-1)
    columns = targets[:, None]
    return Compared(
        nats=-ours.gather(-1, columns).squeeze(-1),
        baseline_nats=-theirs.gather(-1, columns).squeeze(-1),
        kl=(theirs.exp() * (theirs - ours)).sum(-1),
        same_top=ours.argmax(-1) == theirs.argmax(-1),
    )


def _argmax_first(ids: Tensor, logs: Tensor) -> Tensor:
    """The likeliest ids, with argmax's choice at the front: of tokens that are as likely, topk may choose another.

    Their values stay as they are, because those that change places are equal.
    """
    first = logs.argmax(-1, keepdim=True)
    others = torch.where(ids[:, 1:] == first, ids[:, :1], ids[:, 1:])
    return torch.cat([first, others], dim=-1)


def _rest(logs: Tensor) -> Tensor:
    """Probability of all other tokens; never quite nothing, which has no logarithm."""
    return (1 - logs.exp().sum(-1)).clamp_min(1e-9)


def _bytes(tensor: Tensor) -> Any:
    return tensor.contiguous().cpu().view(torch.uint8).flatten().numpy()


def _tensor(row: Bytes, dtype: torch.dtype) -> Tensor:
    """A copy: torch takes no array that could change underneath."""
    return torch.from_numpy(row.copy()).view(dtype)


def _in_chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same positions of each, a few at a time."""
    return zip(*(tensor.split(CHUNK) for tensor in tensors), strict=True)


def _joined(parts: Iterable[Compared]) -> Compared:
    return Compared(*(torch.cat(column) for column in zip(*parts, strict=True)))
