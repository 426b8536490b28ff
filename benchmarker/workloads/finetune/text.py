"""Token batches: windows of the shipped text, no two alike, the same for every variant.

A loss on one constant batch falls whatever the recipe does, so the steps take turns over several batches. Without a
tokenizer (a bare shape) the ids come from a seeded generator, and the record says so.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.shipped_models import shipped_text
from benchmarker.workloads.finetune.spec import FinetunePoint

if TYPE_CHECKING:
    from torch import Tensor

TEXT = "calibration.txt"
BATCHES = 8
JUDGED = 256, 4, 2
"""Length, sequences and batches of the tokens whose loss is held against the unquantized model's."""
HELD_OUT = 0.1
"""Share of the text, its end, that no step is ever trained on."""


@dataclass(frozen=True)
class TokenText:
    """The shipped text as one model's token ids."""

    train: tuple[int, ...]
    held_out: tuple[int, ...]
    """Empty for random ids."""
    source: str

    def batches(self, point: FinetunePoint, *, count: int = BATCHES) -> list[list[list[int]]]:
        """That many batches of windows in the order of the text, which begins again where it ends."""
        return windows(self.train, point.seq_len, point.batch_size, count)


def token_text(tokenizer: Any | None, vocabulary: int, *, seed: int) -> TokenText:
    """The text for a model.

    Args:
        tokenizer: The model's own, or None if it has none.
        vocabulary: Number of token ids.
    """
    if tokenizer is None:
        generator = random.Random(seed)
        # As many as the longest step could read of a text: 2^20.
        return TokenText(tuple(generator.choices(range(vocabulary), k=2**20)), (), "random ids (no tokenizer)")
    ids = tokenizer.encode(shipped_text(TEXT), add_special_tokens=False)
    end = round(len(ids) * (1 - HELD_OUT))
    return TokenText(tuple(ids[:end]), tuple(ids[end:]), "shipped text")


def windows(ids: Sequence[int], length: int, batch_size: int, count: int) -> list[list[list[int]]]:
    """Batches of consecutive windows."""
    wanted = length * batch_size * count
    ring = list(ids) * -(-wanted // len(ids))
    rows = [ring[start : start + length] for start in range(0, wanted, length)]
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def on_device(batches: Sequence[Sequence[Sequence[int]]], where: str) -> list[Tensor]:
    """Each batch as ids, [batch, length]."""
    import torch

    return [torch.tensor(batch, device=where) for batch in batches]


def inputs_sha256(batches: Sequence[Sequence[Sequence[int]]]) -> str:
    """Of all ids in their order, with the shape of a batch."""
    digest = hashlib.sha256(f"{len(batches[0])} x {len(batches[0][0])}:".encode())
    for batch in batches:
        for row in batch:
            digest.update(",".join(map(str, row)).encode() + b";")
    return digest.hexdigest()
