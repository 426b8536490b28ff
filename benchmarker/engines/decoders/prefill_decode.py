"""Generation as two plain functions over a fixed KV cache: prefill once, then the same decode step again and again.

Every decode step has the same shapes and addresses, as compilers and graph captures require. `LibraryStep` runs the
functions as they are; it is the specification of the faster steps of the engines compile and native.

The prefill of 26 tokens takes a thousand launches from Python, several times as long as the work on the device.
`CapturedPrefill` records a graph for each padded length, at position 0 and later. A shorter prompt is padded on the
right. Padding changes no token: attention is causal, and decode steps overwrite a padded position before reading it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarker.checkpoints.read_model import experts_per_token
from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders.graph_capture import Capture, Captured
from benchmarker.engines.decoders.static_kv_cache import SequenceLengths, StaticKVCache, cache_attention
from benchmarker.engines.decoders.torch_engine import expert_modules, linear_kernels
from benchmarker.quantization.load import has_low_bits
from benchmarker.schema.model import KernelUse, ProductChoice, attention_use

if TYPE_CHECKING:
    from benchmarker.engines.decoders.static_decoder import Shape

PART = 128  # Vocabulary entries in one block of the two-step argmax.
STEP = 32  # Padded lengths are multiples of 32. Up to a few hundred rows, a GEMM takes as long as reading its weights.
KEEPS_PADDING = "a sliding window or a recurrent state would keep the padding of a captured prompt"
QUANTIZED_EXPERTS = (
    "quantized experts run one after the other, chosen on the host, which no graph or compiled step repeats; "
    "use --engine eager"
)
GROUPED_ON = (9, 10)  # Major compute capabilities for which torch's grouped GEMM has a bfloat16 kernel.
LONGEST_CHUNK = 4096  # Maximum tokens of a sequence in one graph.
MOST_ROWS = 16_384  # Maximum tokens of a batch in one graph. More activations would take gigabytes and save no time.


def prefill(model: PreTrainedModel, prompt: Tensor, cache: StaticKVCache) -> Tensor:
    """Run a prompt, [batch, tokens], from the cache's position on; return its last logits, [batch, 1, vocabulary]."""
    logits: Tensor = model(input_ids=prompt, past_key_values=cache.layers, use_cache=True, logits_to_keep=1).logits
    assert cache.position.on_host is not None
    cache.go_to(cache.position.on_host + prompt.shape[1])
    return logits


def decode_step(model: PreTrainedModel, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
    """Run one decode step, and return the greedy next token, [batch, 1], and its logits, [batch, 1, vocabulary]."""
    with cache_attention(model):
        return attending_step(model, token, cache)


def attending_step(model: PreTrainedModel, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
    """Do the work of `decode_step` inside `cache_attention`. torch.compile compiles this function."""
    logits = model(
        input_ids=token, past_key_values=cache.layers, use_cache=True, sequence_lengths=cache.sequence_lengths
    ).logits
    cache.advance()
    return likeliest_token(logits), logits


def likeliest_token(logits: Tensor) -> Tensor:
    """Return the likeliest token after the last position: [batch, positions, vocabulary] to [batch, 1].

    The argmax first selects a block of 128 vocabulary entries and then an entry in it, which keeps a whole GPU busy.
    """
    last = logits[:, -1]
    if last.shape[1] % PART:
        return last.argmax(dim=-1, keepdim=True)
    parts = last.view(len(last), -1, PART)
    part = parts.amax(dim=2).argmax(dim=1, keepdim=True)
    best = parts.gather(1, part.unsqueeze(2).expand(-1, -1, PART)).squeeze(1)
    return part * PART + best.argmax(dim=1, keepdim=True)


def log_probabilities(logits: Tensor) -> Tensor:
    """Return log-probabilities after the last position of the first sequence, [vocabulary], float32, on the CPU."""
    return logits[0, -1].float().log_softmax(dim=-1).cpu()


def cache_length(tokens: int) -> int:
    """Round up to a multiple of 128, so that similar shapes share one compilation."""
    return -(-tokens // 128) * 128


def captured_experts(model: PreTrainedModel, rows: int) -> str | None:
    """Return "grouped_mm" or "batched_mm", transformers' implementation of fused experts for a graph of `rows` tokens.

    `batched_mm` copies the weights of each token's experts, except in compiled code, which reads an expert of several
    tokens several times. Sorting the tokens by expert, for the L2 cache, lengthened a step from 9.35 to 12.4 ms
    (Qwen3-30B-A3B, eight sequences, H200, 2026-11-27). `grouped_mm` reads each expert once; only its bfloat16
    kernel can be captured, because the others copy sizes to the host. None if the model has no fused experts.

    Raises:
        UnsupportedError: The experts are quantized, and their library multiplies them one after the other.
    """
    modules = expert_modules(model)
    if not modules:
        return None
    weight, config = next(modules[0].parameters()), modules[0].config
    if has_low_bits(weight):
        raise UnsupportedError(QUANTIZED_EXPERTS)
    per_token = experts_per_token(config) or 1
    has_kernel = not weight.is_cuda or (
        torch.version.hip is None and torch.cuda.get_device_capability(weight.device)[0] in GROUPED_ON
    )
    can_group = weight.dtype == torch.bfloat16 and has_kernel
    return "grouped_mm" if can_group and rows * per_token > modules[0].num_experts else "batched_mm"


@contextmanager
def experts_as(model: PreTrainedModel, implementation: str | None) -> Iterator[None]:
    """Make transformers use this implementation of fused experts; None changes nothing."""
    configs = {id(module.config): module.config for module in expert_modules(model)} if implementation else {}
    before = {key: config._experts_implementation for key, config in configs.items()}
    for config in configs.values():
        config._experts_implementation = implementation
    try:
        yield
    finally:
        for key, config in configs.items():
            config._experts_implementation = before[key]


class LibraryStep:
    """The unchanged decode step of the libraries, and the base class of the compiled steps."""

    name = "cuda_graph"
    is_compiled = False

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def run(self, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
        return decode_step(self.model, token, cache)

    def run_prompt(
        self, ids: Tensor, cache: StaticKVCache, visible: SequenceLengths, last: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run a padded prompt, [batch, tokens]; return the next token and its logits, like `decode_step`. `visible`:
        lengths of the sequences with padding. `last`: index of the last real token, [1]."""
        with cache_attention(self.model):
            logits: Tensor = self.model(
                input_ids=ids,
                past_key_values=cache.layers,
                use_cache=True,
                sequence_lengths=visible,
                logits_to_keep=last,
            ).logits
        return likeliest_token(logits), logits

    def prepare(self, batch: int, length: int) -> None:
        """Prepare for a new shape, before its cache is allocated."""

    def forget(self) -> None:
        """Drop code that was compiled for the previous shape."""

    def tuning(self) -> AbstractContextManager[None]:
        return nullcontext()

    def timed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def explained(self) -> AbstractContextManager[None]:
        """Turn errors of set-up and steps into UnsupportedError."""
        return nullcontext()

    def check(self) -> None:
        """Raise UnsupportedError if a compiled step ran without compiled code."""

    def attention(self, cache: StaticKVCache) -> str:
        return cache.attention()

    def linear_kernels(self) -> tuple[KernelUse, ...]:
        return linear_kernels(self.model, compiled=self.is_compiled)

    def kernels_used(self, attention: str) -> tuple[KernelUse, ...]:
        return (*self.linear_kernels(), attention_use(attention))

    def products(self, rows: Collection[int]) -> tuple[ProductChoice, ...]:  # noqa: ARG002
        return ()

    def facts(self, *, has_shape: bool) -> dict[str, Any]:  # noqa: ARG002
        return {}


def plain_prefill(model: PreTrainedModel, shape: Shape, prompt: Tensor) -> Tensor:
    """Run the prompt, write the first new token to `shape.token` and `shape.tokens`, and return the last logits."""
    logits = prefill(model, prompt, shape.cache)
    shape.token.copy_(likeliest_token(logits))
    shape.tokens.index_copy_(1, shape.cache.position.on_device.view(1), shape.token)
    return logits


class PromptGraph(NamedTuple):
    """Key of a recorded prefill."""

    length: int  # Padded number of tokens.
    is_first: bool  # True if it starts at position 0.
    sequences: int


@dataclass(frozen=True)
class RecordedPrefill:
    """Graph of the prefill of one padded length, with the tensors that the graph reads and writes."""

    ids: Tensor
    rows: Tensor  # Sequences of the batch whose prompts these are.
    start: Tensor  # Position of the first token in the cache.
    count: Tensor  # Number of real tokens.
    logits: list[Tensor]
    """Logits after the last real token, [sequences, 1, vocabulary]; a replay writes the list's last entry."""
    captured: Captured


class CapturedPrefill:
    """Prefill by graph replays. `Shape.prefills` stores the graphs."""

    def __init__(self, step: LibraryStep, capture: Capture | None) -> None:
        self._step = step
        self._capture = capture
        self._plain_reason: str | None = None

    def prepare(self, shape: Shape, prompt_tokens: int, depth: int) -> bool:
        """Record the missing graphs for a prompt of this length. Return False if there was nothing to record."""
        before, batch = (len(shape.prefills), self._plain_reason), len(shape.token)
        if depth == 0 and (sequences := whole_prompts(prompt_tokens, batch)):
            self._recorded(shape, PromptGraph(padded(prompt_tokens), True, sequences))
        else:
            lengths = [length for _, length in chunks(prompt_tokens, batch)]
            for graph in dict.fromkeys((length, at + depth == 0) for at, length in enumerate(lengths)):
                self._recorded(shape, PromptGraph(*graph, batch))
        return before != (len(shape.prefills), self._plain_reason)

    def run(self, shape: Shape, prompt: Tensor, *, shared: bool) -> Tensor:
        """Do the work of `plain_prefill` by graphs. `shared`: pad to powers of two, so that few graphs are recorded."""
        position, start, (batch, tokens) = shape.cache.position, 0, prompt.shape
        logits: Tensor | None = None
        if position.on_host == 0 and (sequences := whole_prompts(tokens, batch)):
            recorded = self._recorded(shape, PromptGraph(padded(tokens), True, sequences))
            if recorded is not None:
                # The first sequence's logits are the last to be written.
                for first in reversed(range(0, batch, sequences)):
                    logits = _replay(recorded, prompt, 0, min(first, batch - sequences))
                position.on_host, start = tokens, tokens
        for count, exact in chunks(tokens - start, batch):
            length = max(STEP, 1 << (count - 1).bit_length()) if shared else exact
            assert position.on_host is not None
            has_room = position.on_host + length <= shape.cache.length
            graph = PromptGraph(length, position.on_host == 0, batch)
            recorded = self._recorded(shape, graph) if has_room else None
            chunk = prompt[:, start : start + count]
            if recorded is None:
                logits = plain_prefill(self._step.model, shape, chunk)
            else:
                logits = _replay(recorded, chunk, position.on_host, 0)
                position.on_host += count
            start += count
        assert logits is not None
        return logits

    def _recorded(self, shape: Shape, graph: PromptGraph) -> RecordedPrefill | None:
        is_plain = self._plain_reason is not None or not shape.cache.takes_padding
        if graph in shape.prefills or is_plain or self._capture is None:
            return shape.prefills.get(graph)
        known_position = shape.cache.position.on_host
        try:
            with self._step.explained():
                shape.prefills[graph] = self._record(shape, graph, self._capture)
        except UnsupportedError as error:
            self._plain_reason = str(error)
        shape.cache.go_to(known_position or 0)
        # Recording overwrites the context in the cache.
        shape.context = None
        return shape.prefills.get(graph)

    def _record(self, shape: Shape, graph: PromptGraph, capture: Capture) -> RecordedPrefill:
        # The graph keeps `step` alive: a reference from `step` to the shape would be a cycle that keeps the memory.
        cache, token, tokens = shape.cache, shape.token, shape.tokens
        length, is_first, sequences = graph
        device = cache.position.on_device.device
        ids = torch.zeros(sequences, length, dtype=torch.int64, device=device)
        rows = torch.arange(sequences, device=device)
        start = torch.zeros((), dtype=torch.int64, device=device)
        count = torch.ones((), dtype=torch.int64, device=device)
        starts = cache.sequence_lengths.query_starts[: sequences + 1]
        # The recorded `step` sets the lengths.
        lengths = cache.sequence_lengths.lengths[:sequences].clone()
        visible = SequenceLengths(lengths, starts * length, starts * cache.length, is_first=is_first)
        written = cache if sequences == len(token) else cache.for_prompts(rows)
        logits: list[Tensor] = []
        experts = captured_experts(self._step.model, sequences * length)
        if experts == "batched_mm":
            raise UnsupportedError("the experts of a captured prompt need bfloat16 and a Hopper or newer GPU")

        def step() -> None:
            cache.position.on_device.copy_(start)
            visible.lengths.copy_(start + length)
            cache.sequence_lengths.lengths.copy_(start + 1)
            with experts_as(self._step.model, experts):
                following, prompt_logits = self._step.run_prompt(ids, written, visible, (count - 1).view(1))
            cache.advance(count)
            token.index_copy_(0, rows, following)
            tokens.index_put_((rows, cache.position.on_device.expand(sequences)), following.squeeze(1))
            logits[:] = [prompt_logits]

        cache.go_to(0)
        cache.begin_decoding()
        return RecordedPrefill(ids, rows, start, count, logits, capture(step))

    def facts(self, shape: Shape | None) -> dict[str, Any]:
        keeps_padding = shape is not None and not shape.cache.takes_padding
        reason = KEEPS_PADDING if keeps_padding else self._plain_reason
        is_captured = bool(shape and shape.prefills) and reason is None
        return {"prefill": "captured" if is_captured else "plain", "prefill_reason": reason}


def _replay(recorded: RecordedPrefill, prompt: Tensor, position: int, first: int) -> Tensor:
    """Run the prompts of the graph's sequences from sequence `first` on; return the logits after the last token."""
    count, sequences = prompt.shape[1], len(recorded.ids)
    recorded.ids[:, :count].copy_(prompt[first : first + sequences])
    torch.arange(first, first + sequences, out=recorded.rows)
    recorded.start.fill_(position)
    recorded.count.fill_(count)
    recorded.captured.replay()
    return recorded.logits[-1]


def whole_prompts(tokens: int, batch: int) -> int | None:
    """Return the number of sequences whose whole prompts one graph prefills; None if a graph prefills a part of all.

    A prompt from position 0 on attends to itself alone, with a faster kernel than a later part of a prompt.
    """
    most = MOST_ROWS // padded(tokens)
    return None if tokens > LONGEST_CHUNK or most == 0 or batch <= most else -(-batch // -(-batch // most))


def padded(tokens: int) -> int:
    step = STEP if tokens <= 256 else 2 * STEP if tokens <= 1024 else 4 * STEP
    return -(-tokens // step) * step


def chunks(tokens: int, batch: int) -> Iterator[tuple[int, int]]:
    """Yield the number of tokens and the padded length of each chunk of a prompt."""
    longest = max(STEP, min(LONGEST_CHUNK, MOST_ROWS // batch // STEP * STEP))
    for start in range(0, tokens, longest):
        count = min(longest, tokens - start)
        yield count, min(longest, padded(count))
