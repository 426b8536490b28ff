"""Grid and element types of operations on sequences."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from benchmarker.core.formatting import plural
from benchmarker.schema.base import Plain
from benchmarker.schema.job import GridBase, Positive

OperationDType = Literal["float32", "tf32", "bfloat16", "float16"]
"""`tf32`: float32 tensors, multiplied with 10 bits of fraction; `float32`: multiplied in IEEE single precision."""
PassMode = Literal["forward", "forward_backward"]
ELEMENT_BYTES: dict[str, int] = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}


def mode_text(mode: str) -> str:
    return mode.replace("_", " " if mode == "training_step" else " + ")


class LengthPoint(NamedTuple):
    seq_len: int
    batch_size: int
    mode: str


class LengthGrid(GridBase):
    seq_len: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1024, 4096, 16384)
    """Positions of one sequence."""
    tokens: tuple[Positive, ...] = ()
    """Tokens of the whole batch, in place of batch_size: the batch size is tokens / seq_len."""
    batch_size: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1,)
    """Sequences per call."""
    mode: tuple[str, ...] = ("forward", "forward_backward")

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        if self.tokens and self.batch_size != (1,):
            raise ValueError("tokens: already determines the batch size; leave out batch_size or tokens")
        for tokens, seq_len in product(self.tokens, self.seq_len):
            if tokens % seq_len:
                raise ValueError(f"tokens: {tokens} is not a multiple of seq_len {seq_len}")
        return self

    def combinations(self) -> list[LengthPoint]:
        sizes = [(seq_len, tokens // seq_len) for tokens, seq_len in product(self.tokens, self.seq_len)]
        sizes = sizes or list(product(self.seq_len, self.batch_size))
        return sorted({LengthPoint(*size, mode) for size, mode in product(sizes, self.mode)})


class AttentionHeads(Plain):
    heads: Positive = 16
    """Query heads."""
    kv_heads: Positive | None = None
    """Key and value heads, each shared by heads / kv_heads query heads. Default: as many as `heads`."""
    head_dim: Positive = 128
    """Width of one head."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.heads % self.shared_heads:
            raise ValueError(f"kv_heads: {self.heads} heads cannot share {self.kv_heads} evenly; give a divisor")
        return self

    @property
    def shared_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def text(self) -> str:
        """Return `16 heads sharing 4 of 128` (heads, kv_heads, head_dim)."""
        shared = f" sharing {self.kv_heads}" if self.kv_heads not in (None, self.heads) else ""
        return f"{plural(self.heads, 'head', 'heads')}{shared} of {self.head_dim}"
