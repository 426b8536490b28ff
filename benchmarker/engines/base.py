"""The contract of an engine: it opens a checkpoint, and the open checkpoint makes tokens.

An engine runs in this process (decoders/) or in a process of its own (external/). `TokenSource.generate` is timed. The
methods of `Scorer` are for quality and are never timed. Importing this file needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.core.errors import UnsupportedError as UnsupportedError
from benchmarker.measure.clock import Generation
from benchmarker.quantization.base import Options
from benchmarker.schema.base import DType, Split
from benchmarker.schema.model import EngineFacts, LoadFacts, StepFacts

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from benchmarker.hardware.device import Device

TokenIds = Sequence[int]


NEEDS_GPU = {
    "cuda_graph": "a CPU has no graphs to capture; use --engine eager or compile there",
    "native": "native needs a CUDA GPU, for which its kernels are written; use --engine compile",
}
"""Engines that a CPU cannot run, with the remedy."""


@dataclass(frozen=True)
class Form:
    """Quantization, types and devices with which an engine opens a checkpoint."""

    quant: str
    options: Options
    dtype: DType
    """Type of the weights that are not quantized, and of the activations."""
    engine_options: Options = field(default_factory=Options)
    gpus: int = 1
    """GPUs that share the model; on a CPU, processes."""
    split: Split = "tensors"


@dataclass(frozen=True)
class Scores:
    """Distribution of each next token of a given text."""

    log_probabilities: NDArray[numpy.float32]
    """Natural logarithms, [positions, vocabulary], on the host. Row i is the distribution of the token that follows
    the prompt and i further ids; a prompt of one id gives as many rows as ids."""


@dataclass(frozen=True)
class PrefillScores:
    """Likeliest tokens after each position of a text, computed by the engine's *prefill*.

    They do not check the decode step, which is what is timed. A divergence computed from them is a lower bound.
    """

    ids: NDArray[numpy.int64]
    """[positions, top]; -1 if the engine returned fewer."""
    log_probabilities: NDArray[numpy.float32]
    """[positions, top], natural logarithms; -inf if the engine returned fewer."""


class Scorer:
    """Predictions of an open checkpoint, used for quality. None stands for a score that the engine cannot compute."""

    @property
    def is_library_step(self) -> bool:
        """True if `step_scores` already runs the libraries' own decode step, with nothing captured or compiled."""
        return False

    def greedy_tokens(self, ids: TokenIds, new_tokens: int) -> tuple[int, ...]:
        """Return the greedy continuation of one text, at any shape that is ready. Raises UnsupportedError."""
        raise NotImplementedError

    def step_scores(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        """Score a text by the path that is timed: prefill of `prompt_tokens` ids, then one decode step for each further
        id, regardless of the step's own choice."""
        del ids, prompt_tokens
        return None

    def forward_scores(self, ids: TokenIds) -> Scores | None:
        """Score a text by one forward pass over all ids, without a cache; one row per id."""
        del ids
        return None

    def prefill_scores(self, ids: TokenIds) -> PrefillScores | None:
        """Score a text by the engine's prefill, one row per id. None if `step_scores` works instead."""
        del ids
        return None

    def library_step_scores(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        """Score a text by the libraries' own decode step, whose rounding is the ordinary one of this quantization.

        None if `is_library_step`, and if the libraries' kernels have been replaced.
        """
        del ids, prompt_tokens
        return None


class TokenSource(Scorer):
    """A checkpoint that an engine has opened: the calls that are timed, and the facts about them."""

    model: PreTrainedModel | None = None
    """The torch model, if it is in this process. Quality, kernel counts and the roofline need it."""
    is_elsewhere: bool = False
    """True if another process makes the tokens."""
    loaded: LoadFacts | None = None
    """Cost and result of loading; None if the engine does not report it."""
    shares: int = 1
    """Number of GPUs among which every weight is divided."""
    kv_value_bytes: float | None = None
    """Bytes of a value in a quantized KV cache, scales included; None if the cache has the activations' type."""

    def generate(
        self, prompt_ids: Sequence[TokenIds], new_tokens: int, *, context: Sequence[TokenIds] | None = None
    ) -> Generation:
        """Generate exactly `new_tokens` greedily, ignoring end-of-text tokens. `measure/clock.py` times it. Raises
        UnsupportedError.

        Args:
            prompt_ids: [batch][prompt_tokens].
            new_tokens: At least 1.
            context: [batch][depth]: ids before the prompt, in the KV cache when the clock starts. Filling the cache
                happens only at the first call with the same object.
        """
        raise NotImplementedError

    def facts(self) -> EngineFacts:
        """Return proof of what ran, for the record."""
        raise NotImplementedError

    def per_gpu_bytes(self) -> tuple[int, ...]:
        """Return the peak of each of several GPUs in the newest generation; empty for one GPU, and if unknown."""
        return ()

    def peak_bytes(self) -> int | None:
        """Return the peak memory of the timed generations; None if this process's own peaks measure it."""
        return None

    def timed(self) -> AbstractContextManager[None]:
        """Surround the timed repeats: a recompilation there raises UnsupportedError."""
        return nullcontext()

    def check(self) -> None:
        """Check, after the timed repeats, that the engine ran as the row claims. Raises UnsupportedError."""

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:
        """Return the kernels of one decode step at the shape that ran last; None before that, and if unknown."""
        del count
        return None

    @property
    def graph_pool_bytes(self) -> int | None:
        """See Memory.graph_pool_bytes."""
        return None

    def step_facts(self) -> StepFacts | None:
        """Return facts about the step of the shape that ran last; None if no step is kept between calls."""
        return None


class Engine:
    """One way of producing tokens. A method that returns `str | None` returns the reason for a refusal."""

    name: str
    summary: str
    """Half a line for --help and the documents."""
    options: type[Options] = Options
    """Options that `--engine-option key=value` sets."""

    def installed(self) -> str | None:
        """Return None, or how to install the engine."""
        return None

    def splits(self, form: Form) -> str | None:
        """Return None, or why several GPUs cannot share this form. Called only for several GPUs."""
        raise NotImplementedError

    def takes(self, form: Form, checkpoint: Checkpoint) -> str | None:
        """Return None, or why this engine cannot open this checkpoint in this form."""
        raise NotImplementedError

    def open(
        self, checkpoint: Checkpoint, form: Form, device: Device, progress: Progress
    ) -> AbstractContextManager[TokenSource]:
        """Load the checkpoint and yield a TokenSource, which is closed at the end. Raises BenchmarkerError."""
        raise NotImplementedError
