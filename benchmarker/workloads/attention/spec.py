"""Specification of the attention workload: one layer's shape, the grid, and the implementations to compare."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from benchmarker.schema.job import ExperimentBase, Job, Positive, VariantBase
from benchmarker.workloads.operation import spec as operation


class AttentionSubject(operation.AttentionHeads):
    """One attention layer, without its projections."""

    dtype: operation.OperationDType = "bfloat16"
    """Type of queries, keys and values: float32, tf32, bfloat16 or float16."""
    causal: bool = True
    """Each position attends to itself and earlier positions only."""
    window: Positive | None = None
    """Sliding window: maximum number of positions that a query attends to, its own included. Default: no limit."""
    seed: int = 0
    """Seed of the random inputs."""

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if self.window is not None and not self.causal:
            raise ValueError("window: needs causal: true; a window to both sides is not measured")
        return self


class AttentionSubjectAsked(AttentionSubject):
    """The layer, with an option that only the command line can set: a config file must not permit its own code."""

    trust_code: bool = False
    """Import and run the `module:function` of a variant."""


class AttentionVariant(VariantBase):
    variant: Annotated[str, Field(min_length=1)]
    """Name of an implementation, or `module:function` for your own function (needs --trust-code)."""
    dtype: operation.OperationDType | None = None
    """Overrides the subject's dtype, so that one table can compare float32, tf32 and bfloat16."""


class AttentionGrid(operation.LengthGrid):
    mode: Annotated[tuple[operation.PassMode, ...], Field(min_length=1)] = ("forward", "forward_backward")
    """`forward` as in inference; `forward_backward` adds the gradients of queries, keys and values."""


class AttentionExperiment(ExperimentBase):
    workload: Literal["attention"] = "attention"
    subject: AttentionSubject = AttentionSubject()
    grid: AttentionGrid = AttentionGrid()
    variants: Annotated[tuple[AttentionVariant, ...], Field(min_length=1)]


class AttentionJob(Job):
    subject: AttentionSubjectAsked
    variant: AttentionVariant
    grid: AttentionGrid

    @property
    def dtype(self) -> operation.OperationDType:
        return self.variant.dtype or self.subject.dtype

    @property
    def title(self) -> str:
        subject = self.subject
        mask = f", window {subject.window}" if subject.window else ", causal" if subject.causal else ""
        return f"attention of {subject.text}{mask}"

    @property
    def matmul_dtype(self) -> str:
        # TF32 is a setting of matrix products of float32 tensors.
        return "float32" if self.dtype == "tf32" else self.dtype


class AttentionShape(NamedTuple):
    """Everything that determines the work of one call. Tensors are [batch_size, heads, seq_len, head_dim]."""

    batch_size: int
    seq_len: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    window: int | None
    dtype: operation.OperationDType
    mode: str

    @property
    def element_bytes(self) -> int:
        return operation.ELEMENT_BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of the queries of one head in all sequences; keys and values have the same size."""
        return self.batch_size * self.seq_len * self.head_dim * self.element_bytes

    @property
    def is_backward(self) -> bool:
        return self.mode == "forward_backward"


def shape_of(subject: AttentionSubject, variant: AttentionVariant, point: operation.LengthPoint) -> AttentionShape:
    return AttentionShape(
        **point._asdict(),
        heads=subject.heads,
        kv_heads=subject.shared_heads,
        head_dim=subject.head_dim,
        causal=subject.causal,
        window=subject.window,
        dtype=variant.dtype or subject.dtype,
    )
