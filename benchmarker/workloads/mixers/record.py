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
    """FLOPs of the call, by the formulas in `mixer.py`."""
    forward_flops: Positive
    """FLOPs of the forward pass."""
    state_floats: Positive
    """Numbers in the state of one sequence; for softmax, in its keys and values."""
    mixer_flops: Positive | None = None
    """FLOPs of the mixers in a training step. None for a mixer alone."""


class BlockFacts(Plain):
    parameters: Positive
    """All parameters, embedding and head included."""
    mixer_parameters: Positive
    """Parameters of one layer's mixer, with its projections."""
    mlp_width: Positive
    """Width of the MLP, chosen so that all models have equal numbers of parameters."""
    residual: float
    """Parameters / (parameters of the softmax model with an MLP of 4 times the model's width) - 1."""
    short_conv: bool


class TaskScore(Plain):
    task: TaskName
    size: Positive
    """Size of the task: pairs of mqar, tokens to copy, or bytes of a sequence."""
    seed: Count
    steps: Positive
    asked: Positive
    """Number of tokens to predict."""
    right: Count
    """Number of tokens that were predicted correctly."""
    chance: Spent
    """Expected accuracy of guessing: among the sequence's values for mqar, among all tokens for copy; 0 for bytes."""
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
    """Number of compared heads: first and last head of the last sequence, or for softmax all heads."""
    causal_error: Spent
    """Relative change of the first half of the outputs if the second half of the inputs is replaced."""
    lengths: tuple[Positive, ...] = ()
    """Lengths around the end of a chunk at which output and gradients were also compared, once per process."""
    lengths_error: Spent | None = None
    """Largest error of an output at the lengths around the end of a chunk."""


class MixersCell(LengthCell):
    mode: MixerMode
    demand: MixersDemand | None = None
    least_bytes: Positive | None = None
    """Lower bound of the memory in bytes: inputs, output, and scores if the variant writes them to memory."""
    free_bytes: Whole | None = None
    """Free memory of the device before the cell's inputs were made."""
    checked: MixersChecked | None = None
    block: BlockFacts | None = None
    """Sizes of the model in a training step. None for a mixer alone."""


class MixersVariantFacts(VariantFacts):
    variant: str
    """Name in the registry."""
    mixer: MixerName
    implementation: str
    """Library of the kernels: `torch` or `fla`."""


class MixersFacts(Plain):
    versions: dict[str, str]
    """Versions of the libraries that contain the kernels."""


class MixersRecord(RunRecord):
    baseline_family = "softmax"

    workload: Literal["mixers"] = "mixers"
    subject: MixersSubject
    variant: MixersVariantFacts
    built: MixersFacts | None = None
    """Facts about the execution. None if no cell was begun."""
    cells: tuple[MixersCell, ...] = ()
    tasks: tuple[TaskScore, ...] = ()
    no_tasks: Missing | None = None
    """Reason why requested tasks are missing."""

    @property
    def form(self) -> dict[str, str]:
        return {"mixer": self.variant.mixer, "implementation": self.variant.implementation}

    @property
    def family(self) -> str:
        return self.variant.mixer
