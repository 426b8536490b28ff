"""Token batches: windows of the shipped text, all different, the same for every variant.

The loss on one constant batch falls with any recipe, so the steps alternate over several batches. Without a tokenizer
the ids come from a seeded generator, which the record states.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.files import shipped_text
from benchmarker.workloads.finetune.spec import FinetunePoint

if TYPE_CHECKING:
    from torch import Tensor

TEXT = "calibration.txt"
BATCHES = 8
BASE_LOSS_WINDOWS = 256, 4, 2
"""Length, batch size and batches of the tokens on which the first loss is compared with the unquantized model's."""
HELD_OUT_SHARE = 0.1
"""Share of the text, at its end, that no step trains on."""
RANDOM_IDS = 2**20
"""Random ids: at least as many as the longest step reads."""


@dataclass(frozen=True)
class TokenText:
    train: tuple[int, ...]
    held_out: tuple[int, ...]
    """Empty for random ids."""
    source: str

    def batches(self, point: FinetunePoint, *, count: int = BATCHES) -> list[list[list[int]]]:
        return windows(self.train, point.seq_len, point.batch_size, count)


def token_text(tokenizer: Any | None, vocabulary: int, *, seed: int) -> TokenText:
    """Return the text for a model.

    Args:
        tokenizer: The model's tokenizer, or None if it has none.
        vocabulary: Number of token ids.
    """
    if tokenizer is None:
        ids = tuple(random.Random(seed).choices(range(vocabulary), k=RANDOM_IDS))
        return TokenText(ids, (), "random ids (no tokenizer)")
    ids = tuple(tokenizer.encode(shipped_text(TEXT), add_special_tokens=False))
    end = round(len(ids) * (1 - HELD_OUT_SHARE))
    return TokenText(ids[:end], ids[end:], "shipped text")


def windows(ids: Sequence[int], length: int, batch_size: int, count: int) -> list[list[list[int]]]:
    total = length * batch_size * count
    repeated = list(ids) * -(-total // len(ids))
    rows = [repeated[start : start + length] for start in range(0, total, length)]
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def on_device(batches: Sequence[Sequence[Sequence[int]]], device: str) -> list[Tensor]:
    import torch

    return [torch.tensor(batch, device=device) for batch in batches]


def inputs_sha256(batches: Sequence[Sequence[Sequence[int]]]) -> str:
    """Return the SHA-256 of the shape of a batch and of all ids in their order."""
    digest = hashlib.sha256(f"{len(batches[0])} x {len(batches[0][0])}:".encode())
    for batch in batches:
        for row in batch:
            digest.update(",".join(map(str, row)).encode() + b";")
    return digest.hexdigest()
