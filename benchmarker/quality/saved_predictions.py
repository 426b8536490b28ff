"""A model's predictions, saved until the baseline's are compared with them: perplexity, KL divergence, same top token.

They are saved as logits, in the type that the model gave them in, so that nothing is lost; or as the likeliest k
log-probabilities, with the probability of all other tokens as one number. Lumping them makes two distributions no more
different than they are, so that the divergence becomes a lower bound. Everything is computed in float32, a few
positions at a time, because the whole would need several gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from benchmarker.quality.scratch import Bytes

CHUNK = 64
"""Positions at once: with Qwen3's vocabulary, 39 MB for each float32 tensor."""


class PositionScores(NamedTuple):
    """A model against the baseline at some positions; every tensor is [positions]."""

    nats: Tensor
    """-ln of the probability that the model gives to the text's token."""
    baseline_nats: Tensor
    """-ln of the probability that the baseline gives to the text's token."""
    kl: Tensor
    """KL divergence of the model from the baseline, in nats: sum of p_baseline * ln(p_baseline / p_model)."""
    same_top: Tensor
    """Whether both find the same token likeliest."""


class SavedPredictions(Protocol):
    """The predictions of a model at every window of the text."""

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None:
        """Save the predictions at one window.

        Args:
            logits: [positions, vocabulary]
            targets: The text's own tokens, [positions].
        """

    def compare(self, window: int, baseline: Tensor, targets: Tensor) -> PositionScores:
        """Compare the saved predictions at a window with the baseline's logits, [positions, vocabulary]."""


class SavedLogits:
    """Saves every logit."""

    def __init__(self, file: Bytes, *, dtype: torch.dtype) -> None:
        self._file, self._dtype = file, dtype

    @staticmethod
    def row_bytes(positions: int, vocabulary: int, dtype: torch.dtype) -> int:
        """Bytes of one window's predictions."""
        return positions * vocabulary * dtype.itemsize

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None:  # noqa: ARG002
        self._file[window] = _bytes(logits.to(self._dtype))

    def compare(self, window: int, baseline: Tensor, targets: Tensor) -> PositionScores:
        logits = _tensor(self._file[window], self._dtype).view(baseline.shape)
        return _joined(_compare_whole(*part) for part in _in_chunks(logits, baseline, targets))


class SavedTopK:
    """Saves the log-probabilities of the likeliest k tokens and of the text's own token."""

    def __init__(self, file: Bytes, *, count: int) -> None:
        self._file, self._count = file, count

    @staticmethod
    def row_bytes(positions: int, count: int) -> int:
        """Bytes of one window: `count` ids and log-probabilities, and that of the text's token, in 32 bits each."""
        return positions * (2 * count + 1) * 4

    def put(self, window: int, logits: Tensor, targets: Tensor) -> None:
        rows = []
        for part, target in _in_chunks(logits, targets):
            logs = part.float().log_softmax(-1)
            top = logs.topk(self._count)
            ids = _argmax_first(top.indices, logs).to(torch.int32).view(torch.float32)
            rows.append(torch.cat([ids, top.values, logs.gather(-1, target[:, None])], dim=-1))
        self._file[window] = _bytes(torch.cat(rows))

    def put_likeliest(self, window: int, ids: Tensor, logs: Tensor, target_logs: Tensor) -> None:
        """Save what an engine tells of the likeliest tokens alone.

        Args:
            ids: Token ids, [positions, k or more], the likeliest first.
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
        # In float64, because the rest is a small difference from 1.
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
    """The likeliest ids with argmax's choice in front, [positions, k]: topk may put an equally likely token there.

    Their log-probabilities need no change, because those of the tokens that change places are equal.
    """
    first = logs.argmax(-1, keepdim=True)
    others = torch.where(ids[:, 1:] == first, ids[:, :1], ids[:, 1:])
    return torch.cat([first, others], dim=-1)


def _rest(logs: Tensor) -> Tensor:
    """Probability of the tokens beyond the likeliest k, [positions]; at least 1e-9, because 0 has no logarithm."""
    return (1 - logs.exp().sum(-1)).clamp_min(1e-9)


def _bytes(tensor: Tensor) -> Any:
    return tensor.contiguous().cpu().view(torch.uint8).flatten().numpy()


def _tensor(row: Bytes, dtype: torch.dtype) -> Tensor:
    """A copy: torch takes no array that could change underneath."""
    return torch.from_numpy(row.copy()).view(dtype)


def _in_chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same positions of each tensor, `CHUNK` at a time."""
    return zip(*(tensor.split(CHUNK) for tensor in tensors), strict=True)


def _joined(parts: Iterable[PositionScores]) -> PositionScores:
    return PositionScores(*(torch.cat(column) for column in zip(*parts, strict=True)))
