"""What a run of token mixers records, beside what every workload's record has."""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Count, Plain, Positive, Spent, Whole
from benchmarker.schema.record import CellBase, Checked, RunRecord, VariantFacts
from benchmarker.schema.roofline import Demand
from benchmarker.workloads.attention.record import AttentionMemory, AttentionSample, SeenKernel
from benchmarker.workloads.mixers.spec import MixersSubject, Mode

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
