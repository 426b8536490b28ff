"""The decode step compiled by torch.compile, over a fixed KV cache, and captured as a graph too where there is a GPU.

Where the step is captured, one decoder layer is compiled and all of the model's layers run it: in Qwen3-4B that is a
36th of the work of compiling them all, and the host's work between the layers is gone after the capture. torch guards
compiled code on every number it saw, also on a layer's own index, by which it finds its part of the cache: then each
layer is compiled anew, until after eight torch gives up and runs the rest uncompiled, without a word. So each layer is
handed its own part of the cache, and giving up is an error. On a CPU, where nothing is captured, the whole step is
compiled as one: calling a layer at a time took up to twice as long there (four small layers on two cores, GPTQ: 5.3 ms
a token against 2.5).

`generate` compiles by itself only for a static cache on a GPU and for quantizers that say they can; elsewhere it runs
uncompiled without a word. Here a graph break is an error, and so is a recompilation while timing: a row that says
`compile` was compiled. Prefill stays uncompiled, but for `native`, which compiles `prompt_layer` for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.capture.compile_layers import Route, decoder_layers
from benchmarker.engines.capture.graph_capture import Capture, capture_for
from benchmarker.engines.capture.inductor import ON_GPU, kernels_timed_alone, known_settings
from benchmarker.engines.decoders.attention import decode_attention_backend
from benchmarker.engines.decoders.cache_shape import Shape
from benchmarker.engines.decoders.decode_loop import StaticCacheDecoder
from benchmarker.engines.decoders.linear_kernels import linear_kernels
from benchmarker.engines.decoders.prefill_decode import attending_step, greedy
from benchmarker.engines.decoders.static_cache import SequenceLengths, StaticKVCache
from benchmarker.hardware.device import Device
from benchmarker.kernels.custom_op import make_opaque
from benchmarker.schema.engine_facts import EngineFacts
from benchmarker.schema.kernels_used import KernelUse

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.fx import GraphModule
    from transformers import PreTrainedModel

Function = Callable[..., Any]


class CompileDecoder(StaticCacheDecoder):
    """A fixed cache, and a compiled decode step: whole, or a layer that is run as often as the model has layers."""

    name = "compile"

    def __init__(
        self,
        model: PreTrainedModel,
        device: Device,
        *,
        capture: Capture | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Args:
        capture: In place of the device's own.
        settings: Of inductor, over those for the device.
        """
        super().__init__(model, device, capture=capture or capture_for(device))
        self._settings = settings or {}
        make_opaque(model)
        self._functions: dict[str, Function] = {}
        self._frames = 0
        self._recompilations = 0
        self._cache_misses = 0
        self._layers = decoder_layers(model) if self._capture else []

    def _prepare(self, batch: int, length: int) -> tuple[Shape, bool]:
        """Set a shape up as `StaticCacheDecoder` does; while inductor tunes, its kernels are timed without the host."""
        with self._tuning():
            return super()._prepare(batch, length)

    def _tuning(self) -> AbstractContextManager[None]:
        """Surrounds what is compiled and run for the first time."""
        return nullcontext() if self._device.kind == "cpu" else kernels_timed_alone()

    def _decode(self, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
        """See `decode_step`."""
        with decode_attention_backend(self._model, native=self.native_attention):
            if self._capture is None:
                step: tuple[Tensor, Tensor] = self._run(attending_step, self._model, token, cache)
                return step
            hidden, norm = self._through_layers(_layer, token, cache, cache.sequence_lengths)
            cache.advance()
            return self._chosen(norm, hidden)

    def _through_layers(
        self, layer: Function, ids: Tensor, cache: StaticKVCache, sequence_lengths: SequenceLengths
    ) -> tuple[Tensor, nn.Module | None]:
        """Tokens through all decoder layers.

        Args:
            layer: What is compiled of a decoder layer: `_layer`, or a function of the same arguments.
            ids: [batch, tokens].

        Returns:
            [batch, tokens, hidden], and the norm that is still to be applied to it.
        """
        route = Route(self._model, self._layers, partial(self._run, layer))
        with route.taken():
            hidden = self._model.base_model(
                input_ids=ids, past_key_values=cache.layers, use_cache=True, sequence_lengths=sequence_lengths
            ).last_hidden_state
        return hidden, route.norm_left(hidden)

    def _chosen(self, norm: nn.Module | None, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest token after [batch, 1, hidden], and the logits; see `_head`."""
        chosen: tuple[Tensor, Tensor] = self._run(_head, norm, self._model.get_output_embeddings(), hidden)
        return chosen

    def _run(self, function: Function, *arguments: Any) -> Any:
        """Call the compiled form of a function, which is compiled at its first call."""
        import torch

        name = function.__name__
        if name not in self._functions:
            # A prompt of a second length is compiled for any length.
            dynamic = None if function is prompt_layer else False
            self._functions[name] = torch.compile(function, backend=self._compile, fullgraph=True, dynamic=dynamic)
        return self._functions[name](*arguments)

    def _compile(self, graph: GraphModule, example_inputs: list[Tensor]) -> Function:
        """Inductor, counted: torch's own counters also hold what a quantization library compiles for itself."""
        from torch._dynamo.utils import counters
        from torch._inductor.compile_fx import compile_fx

        self._frames += 1
        before = counters["inductor"]["fxgraph_cache_hit"]
        compiled = compile_fx(graph, example_inputs, config_patches=self._inductor_settings())
        self._cache_misses += counters["inductor"]["fxgraph_cache_hit"] == before
        return cast("Function", compiled)

    def _inductor_settings(self) -> dict[str, Any]:
        """What inductor compiles with, in place of its defaults."""
        own = {} if self._device.kind == "cpu" else self._settings_on_gpu()
        return known_settings(own | self._settings)

    def _settings_on_gpu(self) -> dict[str, Any]:
        return ON_GPU

    def _forget(self) -> None:
        """One shape at a time: guards of an earlier one would be tried first at every step, and count as
        recompilations towards the limit after which torch gives up."""
        import torch

        torch.compiler.reset()
        self._functions = {}

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A recompilation in here raises."""
        import torch

        with super().timed(), torch.compiler.set_stance("fail_on_recompile"):
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the compiler's errors into one sentence that names the operation."""
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
        from torch._inductor.exc import InductorError

        try:
            yield
        except FailOnRecompileLimitHit as error:
            # With fullgraph it is an error; without, torch would run the rest uncompiled.
            raise UnsupportedError(
                "torch.compile: the decoder layers differ in what they are compiled for, and torch hit its limit of "
                f"compilations: {_reason(error.__cause__ or error)}"
            ) from error
        except (TorchDynamoException, InductorError) as error:
            # What we raise while the compiler looks at it comes out in its words.
            ours = re.search(r"raised exception UnsupportedError\([^'\"]*(['\"])(.+)\1", str(error))
            raise UnsupportedError(ours[2] if ours else f"torch.compile: {_reason(error)}") from error
        except RuntimeError as error:
            if "Detected recompile" not in str(error):
                raise
            self._recompilations += 1
            raise UnsupportedError("torch.compile recompiled in a timed run") from error

    def check(self) -> None:
        """See TokenSource.check."""
        super().check()
        if self._frames == 0 and self._needs_compiler():
            raise UnsupportedError("torch.compile compiled nothing: the step ran in eager mode")

    def _needs_compiler(self) -> bool:
        """Whether the step that ran last is wrong where nothing was compiled."""
        return True

    def facts(self) -> EngineFacts:
        """Graphs compiled over all shapes: the step, or a layer of every kind and the head."""
        part = "layer" if self._capture else "step"
        return (
            super()
            .facts()
            .model_copy(
                update={
                    "frames_compiled": self._frames,
                    # fullgraph makes a break an error before anything is timed.
                    "graph_breaks": 0 if self._frames else None,
                    "recompilations": self._recompilations,
                    "setup_cache": self._setup_cache(),
                    "compiled": part if self._frames or self._needs_compiler() else None,
                }
            )
        )

    def _linear_kernels(self) -> tuple[KernelUse, ...]:
        return linear_kernels(self._model, compiled=True)

    def _setup_cache(self) -> Literal["cold", "warm"] | None:
        if self._frames == 0:
            return None
        return "cold" if self._cache_misses else "warm"


def _layer(layer: nn.Module, hidden: Tensor, arguments: dict[str, Any]) -> Any:
    """What is compiled: a decoder layer as its class has it."""
    forward: Function = type(layer).forward
    return forward(layer, hidden, **arguments)


def prompt_layer(layer: nn.Module, hidden: Tensor, arguments: dict[str, Any]) -> Any:
    """A decoder layer as its class has it, compiled for prompts.

    It is a function of its own beside `_layer`, because the compiler keeps what it compiled by function.
    """
    forward: Function = type(layer).forward
    return forward(layer, hidden, **arguments)


def _head(norm: nn.Module | None, head: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """What is compiled: the last norm, the output layer, and the choice of the likeliest token.

    Returns:
        The token, [batch, 1], and the logits, [batch, 1, vocabulary].
    """
    if norm is not None:
        forward: Function = type(norm).forward
        hidden = forward(norm, hidden)
    logits: Tensor = head(hidden)
    return greedy(logits), logits


def _reason(error: BaseException) -> str:
    """The error beneath the wrapping, and the first line that it says."""
    inner = getattr(error, "inner_exception", None) or error
    lines = [line.strip() for line in str(inner).strip().splitlines() if line.strip()] or ["no reason given"]
    return f"{type(inner).__name__}: {lines[0]}"
