"""The decode step compiled by torch.compile over a fixed KV cache, and captured as a graph on a GPU.

On a GPU one decoder layer is compiled and all of the model's layers run it: in Qwen3-4B that is a 36th of the work of
compiling them all, and the capture removes the host's work between the layers. torch guards compiled code on every
number it read, including a layer's own index, by which the layer finds its part of the cache. Each layer would then be
compiled anew, until torch gives up after eight and silently runs the rest uncompiled. So each layer is given its own
part of the cache, and giving up is an error. On a CPU, without a capture, the whole step is compiled at once: one layer
at a time took up to twice as long there (four small layers on two cores, GPTQ: 5.3 ms a token instead of 2.5).

`generate` compiles only for a static cache on a GPU and for quantizers that declare support; otherwise it silently runs
uncompiled. Here a graph break is an error, and so is a recompilation while timing: a row labelled `compile` was
compiled. Prefill stays uncompiled, except that `native` compiles `prompt_layer` for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.capture.graph_capture import Capture, capture_for
from benchmarker.engines.capture.inductor import ON_GPU, kernels_timed_alone, known_settings
from benchmarker.engines.decoders.attention import decode_attention_backend
from benchmarker.engines.decoders.prefill_decode import LibraryStep, attending_step, greedy
from benchmarker.engines.decoders.static_cache import SequenceLengths, StaticKVCache
from benchmarker.engines.decoders.static_decoder import StaticCacheDecoder
from benchmarker.engines.decoders.torch_engine import linear_kernels
from benchmarker.hardware.device import Device
from benchmarker.kernels.opaque_linear import make_opaque
from benchmarker.schema.model import KernelUse

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.fx import GraphModule
    from transformers import PreTrainedModel

Function = Callable[..., Any]


def compile_decoder(
    model: PreTrainedModel, device: Device, *, capture: Capture | None = None, settings: dict[str, Any] | None = None
) -> StaticCacheDecoder:
    """Make the decoder of the engine `compile`."""
    capture = capture or capture_for(device)
    step = CompiledStep(model, device, is_captured=capture is not None, settings=settings)
    return StaticCacheDecoder(step, device, capture=capture)


class CompiledStep(LibraryStep):
    """A compiled decode step: whole, or one layer that is run as often as the model has layers."""

    name = "compile"
    native_attention = False
    """True to let this program's own attention kernel run."""

    def __init__(
        self, model: PreTrainedModel, device: Device, *, is_captured: bool, settings: dict[str, Any] | None = None
    ) -> None:
        super().__init__(model)
        self._on_cpu = device.kind == "cpu"
        self._is_captured = is_captured
        self._settings = settings or {}
        make_opaque(model)
        self._functions: dict[str, Function] = {}
        self._frames = 0
        self._recompilations = 0
        self._cache_misses = 0
        self._layers = decoder_layers(model) if is_captured else []

    def run(self, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
        with decode_attention_backend(self.model, native=self.native_attention):
            if not self._is_captured:
                step: tuple[Tensor, Tensor] = self.run_compiled(attending_step, self.model, token, cache)
                return step
            hidden, norm = self.through_layers(decode_layer, token, cache, cache.sequence_lengths)
            cache.advance()
            return self.chosen(norm, hidden)

    def through_layers(
        self, layer: Function, ids: Tensor, cache: StaticKVCache, sequence_lengths: SequenceLengths
    ) -> tuple[Tensor, nn.Module | None]:
        """Run tokens through all decoder layers.

        Args:
            layer: Function that is compiled: `decode_layer`, or one with the same arguments.
            ids: [batch, tokens].

        Returns:
            [batch, tokens, hidden], and the norm that must still be applied to it.
        """
        route = Route(self.model, self._layers, partial(self.run_compiled, layer))
        with route.taken():
            hidden = self.model.base_model(
                input_ids=ids, past_key_values=cache.layers, use_cache=True, sequence_lengths=sequence_lengths
            ).last_hidden_state
        return hidden, route.norm_left(hidden)

    def chosen(self, norm: nn.Module | None, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the likeliest token after [batch, 1, hidden], and the logits."""
        chosen: tuple[Tensor, Tensor] = self.run_compiled(head, norm, self.model.get_output_embeddings(), hidden)
        return chosen

    def run_compiled(self, function: Function, *arguments: Any) -> Any:
        """Call the compiled form of a function, which is compiled at its first call."""
        import torch

        name = function.__name__
        if name not in self._functions:
            # A prompt of a second length is compiled for any length.
            dynamic = None if function is prompt_layer else False
            self._functions[name] = torch.compile(function, backend=self.backend, fullgraph=True, dynamic=dynamic)
        return self._functions[name](*arguments)

    def backend(self, graph: GraphModule, example_inputs: list[Tensor]) -> Function:
        """Compile with inductor and count it. torch's own counters include what quantization libraries compile."""
        from torch._dynamo.utils import counters
        from torch._inductor.compile_fx import compile_fx

        self._frames += 1
        before = counters["inductor"]["fxgraph_cache_hit"]
        compiled = compile_fx(graph, example_inputs, config_patches=self.inductor_settings())
        self._cache_misses += counters["inductor"]["fxgraph_cache_hit"] == before
        return cast("Function", compiled)

    def inductor_settings(self) -> dict[str, Any]:
        """Settings that override inductor's defaults."""
        return known_settings(({} if self._on_cpu else self.settings_on_gpu()) | self._settings)

    def settings_on_gpu(self) -> dict[str, Any]:
        return ON_GPU

    def tuning(self) -> AbstractContextManager[None]:
        """Make inductor's tuning time kernels without the host."""
        return nullcontext() if self._on_cpu else kernels_timed_alone()

    def forget(self) -> None:
        """Drop compiled code: guards of an earlier shape would be tried first at every step, and would count as
        recompilations towards the limit after which torch gives up."""
        import torch

        torch.compiler.reset()
        self._functions = {}

    def timed(self) -> AbstractContextManager[None]:
        """Make a recompilation raise."""
        import torch

        stance: AbstractContextManager[None] = torch.compiler.set_stance("fail_on_recompile")
        return stance

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the compiler's errors into one sentence that names the operation."""
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
        from torch._inductor.exc import InductorError

        try:
            yield
        except FailOnRecompileLimitHit as error:
            # It is an error because of fullgraph; otherwise torch would run the rest uncompiled.
            raise UnsupportedError(
                "torch.compile: the decoder layers differ in what they are compiled for, and torch hit its limit of "
                f"compilations: {_reason(error.__cause__ or error)}"
            ) from error
        except (TorchDynamoException, InductorError) as error:
            # An error that this program raises while the compiler traces it is quoted by the compiler.
            ours = re.search(r"raised exception UnsupportedError\([^'\"]*(['\"])(.+)\1", str(error))
            raise UnsupportedError(ours[2] if ours else f"torch.compile: {_reason(error)}") from error
        except RuntimeError as error:
            if "Detected recompile" not in str(error):
                raise
            self._recompilations += 1
            raise UnsupportedError("torch.compile recompiled in a timed run") from error

    @property
    def needs_compiler(self) -> bool:
        """True if the step is wrong when nothing was compiled."""
        return True

    def check(self) -> None:
        if self._frames == 0 and self.needs_compiler:
            raise UnsupportedError("torch.compile compiled nothing: the step ran in eager mode")

    def linear_kernels(self) -> tuple[KernelUse, ...]:
        return linear_kernels(self.model, compiled=True)

    def facts(self, *, has_shape: bool) -> dict[str, Any]:
        """Count graphs over all shapes: the step, or a layer of every kind and the head."""
        is_compiled = self._frames or not has_shape or self.needs_compiler
        return {
            "frames_compiled": self._frames,
            # fullgraph makes a break an error before anything is timed.
            "graph_breaks": 0 if self._frames else None,
            "recompilations": self._recompilations,
            "setup_cache": ("cold" if self._cache_misses else "warm") if self._frames else None,
            "compiled": ("layer" if self._is_captured else "step") if is_compiled else None,
        }


def decode_layer(layer: nn.Module, hidden: Tensor, arguments: dict[str, Any]) -> Any:
    """Run a decoder layer's own forward, compiled for decode steps."""
    forward: Function = type(layer).forward
    return forward(layer, hidden, **arguments)


def prompt_layer(layer: nn.Module, hidden: Tensor, arguments: dict[str, Any]) -> Any:
    """Run a decoder layer's own forward, compiled for prompts.

    It is separate from `decode_layer` because the compiler keeps compiled code by function.
    """
    forward: Function = type(layer).forward
    return forward(layer, hidden, **arguments)


def head(norm: nn.Module | None, output_layer: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the last norm and the output layer, and choose the likeliest token.

    Returns:
        The token, [batch, 1], and the logits, [batch, 1, vocabulary].
    """
    if norm is not None:
        forward: Function = type(norm).forward
        hidden = forward(norm, hidden)
    logits: Tensor = output_layer(hidden)
    return greedy(logits), logits


RunLayer = Callable[["nn.Module", "Tensor", dict[str, Any]], Any]
"""Runs a layer on hidden states and its other arguments, which include the layer's own part of the cache."""


class Route:
    """Runs the model with its decoder layers and last norm intercepted. Afterwards the model is unchanged."""

    def __init__(self, model: PreTrainedModel, layers: Sequence[nn.Module], run: RunLayer) -> None:
        self._model = type(model).__name__
        self._layers = layers
        self._run = run
        self._norm: Any = getattr(model.base_model, "norm", None)
        self._ran = 0
        self._left: Tensor | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Intercept the layers and the norm."""
        with ExitStack() as stack:
            for index, layer in enumerate(self._layers):
                stack.enter_context(_forward_of(layer, partial(self._layer, index)))
            if self._norm is not None:
                stack.enter_context(_forward_of(self._norm, partial(self._last_norm, self._norm.forward)))
            yield

    def norm_left(self, hidden: Tensor) -> nn.Module | None:
        """Return the norm that must still be applied to the hidden states. Raises UnsupportedError."""
        if self._ran != len(self._layers):
            raise UnsupportedError(
                f"{self._model} runs {self._ran} of its {len(self._layers)} decoder layers in a decode step; "
                "use --engine eager or cuda_graph"
            )
        if self._left is None:
            return None
        if self._left is not hidden:
            raise UnsupportedError(
                f"{self._model} does something behind its last norm; use --engine eager or cuda_graph"
            )
        norm: nn.Module = self._norm
        return norm

    def _layer(self, index: int, hidden_states: Tensor, *rest: Any, **arguments: Any) -> Any:
        cache = arguments.get("past_key_values")
        if rest or cache is None:
            raise UnsupportedError(
                f"{self._model} hands its cache to a layer in a way of its own; use --engine eager or cuda_graph"
            )
        self._ran += 1
        return self._run(self._layers[index], hidden_states, {**arguments, "past_key_values": cache.layers[index]})

    def _last_norm(self, norm: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        # Some models apply the same norm before their layers too.
        if self._ran < len(self._layers):
            return norm(hidden)
        self._left = hidden
        return hidden


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the model's decoder layers, first to last. Raises UnsupportedError."""
    from torch import nn

    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise UnsupportedError(
        f"no list of {count} decoder layers in {type(model).__name__}; use --engine eager or cuda_graph"
    )


@contextmanager
def _forward_of(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    override = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if override is None:
            del module.forward
        else:
            module.forward = override


def _reason(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", None) or error
    lines = [line.strip() for line in str(inner).strip().splitlines() if line.strip()] or ["no reason given"]
    return f"{type(inner).__name__}: {lines[0]}"
