"""What an engine is: who makes the tokens.

An engine opens a checkpoint in a form that it says it takes, in this process or in one of its own, and what it opens
is a token source. All times come from one clock, `time.perf_counter_ns`, with the device drained before the first
reading and the last. Importing this file needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.core.errors import UnsupportedError as UnsupportedError
from benchmarker.quantization.base import Options
from benchmarker.schema.base import DType, Split
from benchmarker.schema.engine_facts import EngineFacts, StepFacts
from benchmarker.schema.model_facts import LoadFacts

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
"""Engines that a CPU cannot run, with what to do."""


@dataclass(frozen=True)
class Form:
    """The form in which an engine opens a checkpoint."""

    quant: str
    """Name of the quantization."""
    options: Options
    """The quantization's own options."""
    dtype: DType
    """Type of the weights that are not quantized, and of the activations."""
    engine_options: Options = field(default_factory=Options)
    """The engine's own options, of the type that it declares."""
    gpus: int = 1
    """GPUs that share the model; on a CPU, processes."""
    split: Split = "tensors"
    """How they share it."""


@dataclass(frozen=True)
class Generation:
    """One generation: the new tokens on the host, and four readings of the clock in nanoseconds."""

    tokens: tuple[tuple[int, ...], ...]
    """[batch][new_tokens]."""
    start_ns: int
    first_ns: int
    """The first new token was known."""
    last_ns: int
    """The last new token was known."""
    end_ns: int
    """The call had returned and the device was drained."""


@dataclass(frozen=True)
class Scores:
    """What the engine's decode step thinks of each next token of a text that it is given."""

    log_probabilities: NDArray[numpy.float32]
    """Natural logarithms, float32, [positions, vocabulary], on the host. Row i is the distribution of the token that
    follows the prompt and i further ids, so that after a prompt of one id there are as many rows as ids."""


@dataclass(frozen=True)
class PrefillScores:
    """The likeliest tokens after each position of a text, as an engine's *prefill* gives them: the decode step, which
    is what is timed, was not asked. A divergence computed from them is a lower bound."""

    ids: NDArray[numpy.int64]
    """[positions, top]; -1 where an engine gave fewer."""
    log_probabilities: NDArray[numpy.float32]
    """[positions, top], natural logarithms; -inf where an engine gave fewer."""


class TokenSource(Protocol):
    """A checkpoint that an engine has opened. The methods with a body need not be written."""

    model: PreTrainedModel | None = None
    """The torch model, where there is one in this process: quality, kernel counts and the roofline ask for it."""
    is_elsewhere: bool = False
    """Whether the tokens are made in another process."""
    loaded: LoadFacts | None = None
    """What loading cost and made; None where the engine does not tell."""
    shares: int = 1
    """Among how many GPUs every weight is divided."""
    kv_value_bytes: float | None = None
    """Bytes of a value in a quantized KV cache, scales included; None where it has the activations' type."""

    def generate(
        self, prompt_ids: Sequence[TokenIds], new_tokens: int, *, context: Sequence[TokenIds] | None = None
    ) -> Generation:
        """Generate greedily, exactly `new_tokens`, whatever the end-of-text token says.

        Args:
            prompt_ids: [batch][prompt_tokens].
            new_tokens: At least 1.
            context: [batch][depth]: ids that come before the prompt and are in the KV cache when the clock starts. Of
                the same object only the first call takes the time to put them there.

        Raises:
            UnsupportedError: This variant cannot run this way.
        """

    def continued(self, ids: TokenIds, new_tokens: int) -> tuple[int, ...]:
        """Greedy tokens after one text, at whatever shape is ready: nobody times it.

        Raises:
            UnsupportedError: This variant cannot run this way.
        """
        return self.generate([ids], new_tokens).tokens[0]

    def score(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        """Score a text by the very path that is timed: a prefill of the first `prompt_tokens` ids, then the decode step
        for each further one, whatever token the step itself likes best.

        Returns:
            None where the engine cannot be asked.
        """
        del ids, prompt_tokens
        return None

    def forward(self, ids: TokenIds) -> Scores | None:
        """Score a text by the same form's own forward: all ids at once, without a cache. A row an id.

        Returns:
            None where the engine cannot be asked.
        """
        del ids
        return None

    def prefill_scores(self, ids: TokenIds) -> PrefillScores | None:
        """Scores that are of the engine's prefill, where that is all that it can be asked for. A row an id."""
        del ids
        return None

    @property
    def scores_plainly(self) -> bool:
        """Whether `score` is the libraries' own decode step already, with nothing captured or compiled."""
        return False

    def score_plainly(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        """Score a text by the libraries' own decode step, with nothing captured or compiled, and no cache quantized.

        Its rounding is the ordinary one of this form.

        Returns:
            Rows as of `score`; None where `scores_plainly`, and where the libraries' kernels are not there
            any more.
        """
        del ids, prompt_tokens
        return None

    def facts(self) -> EngineFacts:
        """Proof of what ran, for the record."""

    def per_gpu_bytes(self) -> tuple[int, ...]:
        """Peak of each of several GPUs in the newest generation; empty for one, and where it is not known."""
        return ()

    def peak_bytes(self) -> int | None:
        """Most memory that the timed generations took. None where this process's own marks tell it."""
        return None

    def timed(self) -> AbstractContextManager[None]:
        """Surrounds the timed repeats: what must not happen there, such as a recompilation, raises UnsupportedError."""
        return nullcontext()

    def check(self) -> None:
        """Called after the timed repeats.

        Raises:
            UnsupportedError: What ran is not what the row says, such as a step that was never compiled.
        """
        return None  # noqa: RET501

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:
        """Kernels of one decode step at the shape that ran last; None before the first, and where it cannot be seen.

        Args:
            count: Runs something, and says how many kernels that took on the device.
        """
        del count
        return None

    @property
    def graph_pool_bytes(self) -> int | None:
        """See Memory.graph_pool_bytes."""
        return None

    def step_facts(self) -> StepFacts | None:
        """What is ready for the shape that ran last; None where nothing is kept ready."""
        return None


class Engine(Protocol):
    """One way of producing tokens."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str:
        """For --help and the documents, in half a line."""

    @property
    def options(self) -> type[Options]:
        """What `--engine-option key=value` may say."""

    def installed(self) -> str | None:
        """None, or what to install."""

    def splits(self, form: Form) -> str | None:
        """None, or why this engine cannot have several GPUs share this form as is asked; called for several alone."""

    def takes(self, form: Form, checkpoint: Checkpoint) -> str | None:
        """None, or why this engine cannot open this checkpoint in this form."""

    def open(
        self, checkpoint: Checkpoint, form: Form, device: Device, progress: Progress
    ) -> AbstractContextManager[Any]:
        """Load the checkpoint; the value is a TokenSource, which is closed at the end.

        Raises:
            BenchmarkerError: It cannot be loaded.
        """
