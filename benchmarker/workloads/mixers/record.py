"""What a run of token mixers records, beside what every workload's record has."""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Count, Plain, Positive, Spent, Whole
from benchmarker.schema.record import CellBase, Checked, Missing, RunRecord, VariantFacts
from benchmarker.schema.roofline import Demand
from benchmarker.workloads.attention.record import AttentionMemory, AttentionSample, SeenKernel
from benchmarker.workloads.mixers.spec import MixersSubject, Mode, TaskName

MixerName = Literal["softmax", "linear", "gdn", "retention"]
TensorName = Literal["o", "dq", "dk", "dv", "dg", "dbeta"]


class MixersDemand(Demand):
    """What one call cannot do without, by formula."""

    flops: Positive
    """Of the whole call: see `demand.py`."""
    forward_flops: Positive
    """Of its forward pass alone."""
    bytes: Positive
    """Inputs read and outputs written once."""
    state_floats: Positive
    """Numbers that one sequence carries through the layer; for softmax they grow with the length."""
    mixer_flops: Positive | None = None
    """What of the operations of a training step is the mixers'. None for a mixer alone."""


class BlockFacts(Plain):
    """The model whose training step was timed."""

    parameters: Positive
    """All of them, embedding and head included."""
    mixer_parameters: Positive
    """Of one layer's mixer, with its projections."""
    mlp_width: Positive
    """Of the feed-forward's middle: what the parameters are matched by."""
    residual: float
    """Parameters over those of the softmax model whose feed-forward is 4 times as wide as the model, less 1."""
    short_conv: bool


class TaskScore(Plain):
    """One training on one task, judged on data that was not trained on."""

    task: TaskName
    size: Positive
    """Pairs of mqar, tokens of copy, bytes of a sequence."""
    seed: Count
    steps: Positive
    asked: Positive
    """Tokens to be told."""
    right: Count
    """Of these, those that the model found likeliest."""
    chance: Spent
    """Share that guessing gets right: among the values of the sequence for mqar, among all tokens for copy. 0 for text,
    where it says nothing."""
    bits: Spent
    """Mean bits a token: of the text, bits a byte."""
    parameters: Positive


class TensorError(Plain):
    """How far one result is from float64."""

    tensor: TensorName
    error: Spent
    """Frobenius norm of the difference over that of the float64 result."""
    tolerance: Spent
    """A larger error is wrong."""


class MixersChecked(Checked):
    """What one call's results were held against before anything was timed."""

    error: Spent
    """The largest of the tensors' errors."""
    tolerance: Spent
    """Of the output, the queries, the keys and the values."""
    tensors: tuple[TensorError, ...] = ()
    rows: Positive
    """Positions of each head that were compared."""
    heads: Positive
    """Heads that were compared, the first and the last, of the last sequence; all of them for softmax."""
    causal_error: Spent
    """Change of the outputs before the middle when everything behind it is changed, over their size."""
    lengths: tuple[Positive, ...] = ()
    """Lengths on either side of a chunk's end at which output and gradients were compared too, once in each process.
    Empty for softmax, which has no chunks."""
    lengths_error: Spent | None = None
    """The largest error of an output there."""


class MixersCell(CellBase):
    """One length, batch size and mode."""

    seq_len: Positive
    batch_size: Positive
    mode: Mode
    inputs_sha256: str | None = None
    """Of the shapes, the seed and the first random numbers, before a mixer's own scaling and rounding."""
    demand: MixersDemand | None = None
    least_bytes: Positive | None = None
    """What the device must hold at once at least: inputs, output, and scores that are written to memory."""
    free_bytes: Whole | None = None
    """Free memory of the device before the cell's inputs were made."""
    checked: MixersChecked | None = None
    passes: AttentionMemory | None = None
    block: BlockFacts | None = None
    """None for a mixer alone."""
    kernels: tuple[SeenKernel, ...] = ()
    """What ran in one profiled call, longest first."""
    input_copies: Count | None = None
    """Copies of the inputs that the calls take turns over."""
    warmup: tuple[AttentionSample, ...] = ()
    samples: tuple[AttentionSample, ...] = ()


class MixersVariantFacts(VariantFacts):
    """Which implementation of which mixer."""

    variant: str
    """As asked for."""
    mixer: MixerName
    implementation: str
    """Where its kernels are from."""


class MixersFacts(Plain):
    """What was built."""

    versions: dict[str, str]
    """Of the libraries that the implementation's kernels come from."""


class MixersRecord(RunRecord):
    """One process, one implementation."""

    workload: Literal["mixers"] = "mixers"
    subject: MixersSubject
    variant: MixersVariantFacts
    built: MixersFacts | None = None
    """None where no cell was begun."""
    cells: tuple[MixersCell, ...] = ()
    tasks: tuple[TaskScore, ...] = ()
    no_tasks: Missing | None = None
    """Why there are none although they were asked for."""
