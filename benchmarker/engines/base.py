"""Interface of engines: an `Engine` opens a checkpoint as a `TokenSource`, which generates tokens.

An engine runs in this process (decoders/) or in a process of its own (external/). Importing this file needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.core.errors import UnsupportedError as UnsupportedError
from benchmarker.hardware.device import Device
from benchmarker.measure.clock import Generation
from benchmarker.quantization.base import Options
from benchmarker.schema.base import DType, Split
from benchmarker.schema.model import EngineFacts, LoadFacts, StepFacts

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from transformers import PreTrainedModel


TokenIds = Sequence[int]


NEEDS_GPU = {
    "cuda_graph": "a CPU has no graphs to capture; use --engine eager or compile there",
    "native": "native needs a CUDA GPU, for which its kernels are written; use --engine compile",
}
"""Engines that cannot run on a CPU, with the reason that is shown to the user."""


def refuse_device(engine: str, device: Device) -> None:
    """Raise UnsupportedError for a CPU if the engine needs a GPU."""
    if device.kind == "cpu" and engine in NEEDS_GPU:
        raise UnsupportedError(NEEDS_GPU[engine])


HEADS = {"num_attention_heads": "attention heads", "num_key_value_heads": "key and value heads"}


def why_uneven(checkpoint: Checkpoint, gpus: int, *, copies: bool = False) -> str | None:
    """Return why GPUs cannot share the heads equally, else None. `copies`: GPUs may share key and value heads."""
    config = checkpoint.config.get("text_config") or checkpoint.config
    counts = {words: config.get(name) or gpus for name, words in HEADS.items()}
    if copies and gpus % counts["key and value heads"] == 0:
        del counts["key and value heads"]
    uneven = next((f"{count} {words}" for words, count in counts.items() if count % gpus), None)
    reason = f"which {gpus} GPUs cannot share equally; choose a number that divides them"
    return uneven and f"{checkpoint.model_id} has {uneven}, {reason}"


@dataclass(frozen=True)
class Form:
    """Quantization, types and devices with which an engine opens a checkpoint."""

    quant: str
    options: Options
    dtype: DType  # Type of the weights that are not quantized, and of the activations.
    engine_options: Options = field(default_factory=Options)
    gpus: int = 1  # Number of GPUs that share the model; on a CPU, number of processes.
    split: Split = "tensors"
    is_share: bool = False  # True for the share of one GPU in a model that is split by tensors.


@dataclass(frozen=True)
class Scores:
    log_probabilities: NDArray[numpy.float32]
    """Natural logarithms, [positions, vocabulary], on the host. Row i predicts the token after the prompt and i further
    ids of the text; with a prompt of one id, there is one row per id."""


@dataclass(frozen=True)
class PrefillScores:
    """Likeliest tokens after each position of a text, computed by the engine's *prefill* instead of decode steps."""

    ids: NDArray[numpy.int64]  # [positions, top]; -1 if the engine returned fewer.
    log_probabilities: NDArray[numpy.float32]
    """[positions, top], natural logarithms; -inf if the engine returned fewer."""


class TokenSource:
    """A checkpoint that an engine has opened. `generate` is timed. The methods `*_scores` are used to measure quality
    and return None if the engine cannot compute the scores."""

    model: PreTrainedModel | None = None  # The torch model, if it is in this process.
    is_elsewhere: bool = False  # True if another process runs the model.
    loaded: LoadFacts | None = None
    shares: int = 1  # Number of GPUs among which every weight is divided.
    kv_value_bytes: float | None = None
    """Bytes per value of a quantized KV cache, scales included; None if the cache has the activations' type."""

    def greedy_tokens(self, ids: TokenIds, new_tokens: int) -> tuple[int, ...]:
        """Return the greedy continuation of one text, not timed, at any batch size. Raises UnsupportedError."""
        return self.generate([ids], new_tokens).tokens[0]

    def step_scores(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:  # noqa: ARG002
        """Score a text by the timed path: prefill of the first `prompt_tokens` ids, then one decode step per id."""
        return None

    def forward_scores(self, ids: TokenIds) -> Scores | None:  # noqa: ARG002
        """Score a text by one forward pass over all ids, without a cache; one row per id."""
        return None

    def prefill_scores(self, ids: TokenIds) -> PrefillScores | None:  # noqa: ARG002
        """Score a text by the engine's prefill, one row per id. None if the engine has `step_scores`."""
        return None

    def perturbed_scores(self, ids: TokenIds) -> Scores | None:  # noqa: ARG002
        """Return the scores of a forward whose modules' outputs are moved by up to one unit in the last place."""
        return None

    def generate(
        self, prompt_ids: Sequence[TokenIds], new_tokens: int, *, context: Sequence[TokenIds] | None = None
    ) -> Generation:
        """Generate exactly `new_tokens` greedily, ignoring end-of-text tokens, timed by `measure/clock.py`.

        Args:
            prompt_ids: [batch][prompt_tokens].
            context: [batch][depth]: ids before the prompt, in the KV cache when the clock starts. The first call
                with a context object fills the cache; later calls with the same object reuse it.
        """
        raise NotImplementedError

    def facts(self) -> EngineFacts:
        raise NotImplementedError

    def per_gpu_bytes(self) -> tuple[int, ...]:
        """Return the peak memory of each GPU in the newest generation; empty for a single GPU or if unknown."""
        return ()

    def peak_bytes(self) -> tuple[int, ...]:
        """Return the peak memory of the timed generations on each GPU, or on the CPU; empty if it is unknown, or if
        the caller measures it in this process."""
        return ()

    def trace(self, work: Callable[[], object], path: Path) -> None:
        """Run `work` while the engine's own process is profiled, and write the trace, in which the launches of prefill
        and decode are annotated."""
        raise NotImplementedError

    def timed(self) -> AbstractContextManager[None]:
        """Return a context manager around the timed generations; a recompilation inside raises UnsupportedError."""
        return nullcontext()

    def check(self) -> None:
        """Check after the timed generations that the engine ran as its name claims. Raises UnsupportedError."""

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:  # noqa: ARG002
        """Count the kernels of one decode step at the shape that ran last; None before a generation, or if unknown."""
        return None

    @property
    def graph_pool_bytes(self) -> int | None:
        return None

    def step_facts(self) -> StepFacts | None:
        """Return facts about the decode step at the shape that ran last; None if the engine does not record any."""
        return None


class Engine:
    name: str
    options: type[Options] = Options
    quantizing_option: str | None = None
    """Option that makes the engine quantize a 16-bit checkpoint. Its value is the quantization in a variant's name."""
    sizing_options: tuple[str, ...] = ()
    """Engine options that set limits and buffer sizes. They are not part of a variant's name."""
    has_trace = False
    """True if the engine's own process can profile a generation."""
    mixes_prefill = False
    """True if the engine prefills some sequences of a batch while decoding others: decode rates include prefill."""

    def why_not_installed(self) -> str | None:
        """Return how to install the engine; None if it is installed."""
        return None

    def why_not_split(self, form: Form) -> str | None:
        """Return why several GPUs cannot share a model in this form; None if they can."""
        raise NotImplementedError

    def why_not_taken(self, form: Form, checkpoint: Checkpoint) -> str | None:
        """Return why this engine cannot open this checkpoint in this form; None if it can."""
        raise NotImplementedError

    def open(
        self, checkpoint: Checkpoint, form: Form, device: Device, progress: Progress
    ) -> AbstractContextManager[TokenSource]:
        raise NotImplementedError
