"""Record of the mixers workload."""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Count, Plain, Positive, Spent, Whole
from benchmarker.schema.record import Missing, RunRecord, VariantFacts
from benchmarker.workloads.mixers.spec import MixerMode, MixersSubject, TaskName
from benchmarker.workloads.operation.record import LengthCell, OperationChecked, OperationDemand, TensorError

MixerName = Literal["softmax", "linear", "gdn", "retention"]


class MixersDemand(OperationDemand):
    flops: Positive
    """FLOPs of the call: see `mixer.py`."""
    forward_flops: Positive
    """FLOPs of the forward pass."""
    state_floats: Positive
    """Numbers that one sequence carries through the layer; for softmax they grow with the length."""
    mixer_flops: Positive | None = None
    """FLOPs of the mixers in a training step. None for a mixer alone."""


class BlockFacts(Plain):
    parameters: Positive
    """All parameters, embedding and head included."""
    mixer_parameters: Positive
    """Parameters of one layer's mixer, with its projections."""
    mlp_width: Positive
    """Width of the MLP, chosen to match the parameters."""
    residual: float
    """Parameters relative to the softmax model whose MLP is 4 times as wide as the model, minus 1."""
    short_conv: bool


class TaskScore(Plain):
    task: TaskName
    size: Positive
    """Pairs of mqar, tokens of copy, bytes of a sequence."""
    seed: Count
    steps: Positive
    asked: Positive
    """Tokens to predict."""
    right: Count
    """Tokens that were predicted correctly."""
    chance: Spent
    """Share that guessing predicts correctly: among the values of the sequence for mqar, among all tokens for copy."""
    bits: Spent
    """Mean bits per token; for text, bits per byte."""
    parameters: Positive


class MixersTensorError(TensorError):
    tolerance: Spent
    """Largest error that passes."""


class MixersChecked(OperationChecked):
    tolerance: Spent
    """Largest error that passes for output, queries, keys and values."""
    tensors: tuple[MixersTensorError, ...] = ()
    heads: Positive
    """Heads that were compared: the first and the last, of the last sequence; all heads for softmax."""
    causal_error: Spent
    """Relative change of the outputs before the middle when all later inputs change."""
    lengths: tuple[Positive, ...] = ()
    """Lengths around the end of a chunk at which output and gradients were compared too, once per process."""
    lengths_error: Spent | None = None
    """Largest error of an output at those lengths."""


class MixersCell(LengthCell):
    mode: MixerMode
    demand: MixersDemand | None = None
    least_bytes: Positive | None = None
    """Lower bound of the memory: inputs, output, and scores if they are written to memory."""
    free_bytes: Whole | None = None
    """Free memory of the device before the cell's inputs were made."""
    checked: MixersChecked | None = None
    block: BlockFacts | None = None
    """None for a mixer alone."""


class MixersVariantFacts(VariantFacts):
    variant: str
    """Name in the registry."""
    mixer: MixerName
    implementation: str
    """Source of its kernels."""


class MixersFacts(Plain):
    versions: dict[str, str]
    """Versions of the libraries that the kernels come from."""


class MixersRecord(RunRecord):
    workload: Literal["mixers"] = "mixers"
    subject: MixersSubject
    variant: MixersVariantFacts
    built: MixersFacts | None = None
    """None if no cell was begun."""
    cells: tuple[MixersCell, ...] = ()
    tasks: tuple[TaskScore, ...] = ()
    no_tasks: Missing | None = None
    """Reason for missing tasks that were requested."""

    @property
    def form(self) -> dict[str, str]:
        return {"mixer": self.variant.mixer, "implementation": self.variant.implementation}

    @property
    def family(self) -> str:
        return self.variant.mixer

    @property
    def baseline_rank(self) -> tuple[bool, ...]:
        return (self.variant.mixer == "softmax",)
