"""The decode step compiled by torch.compile over a fixed KV cache, and captured as a graph on a GPU.

On a GPU one decoder layer is compiled and all of the model's layers run it: in Qwen3-4B that is a 36th of the work of
compiling them all. torch guards compiled code on every number it read, including a layer's own index, by which the
layer finds its part of the cache. Each layer would then be compiled anew, until torch gives up after eight and silently
runs the rest uncompiled. So each layer is given its own part of the cache. On a CPU, without a capture, the whole step
is compiled at once: one layer at a time took up to twice as long there.

A graph break is an error, and so is a recompilation while timing: a row labelled `compile` was compiled. Prefill stays
uncompiled, except that `native` compiles `prompt_layer` for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from transformers import PreTrainedModel
from transformers.cache_utils import LinearAttentionLayer

from benchmarker.checkpoints.read_model import decoder_layers
from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders.graph_capture import Capture, capture_for
from benchmarker.engines.decoders.prefill_decode import LibraryStep, attending_step, likeliest_token
from benchmarker.engines.decoders.static_cache_layers import StateView
from benchmarker.engines.decoders.static_decoder import StaticCacheDecoder
from benchmarker.engines.decoders.static_kv_cache import SequenceLengths, StaticKVCache, cache_attention
from benchmarker.hardware.device import Device
from benchmarker.kernels.opaque_linear import make_opaque

Function = Callable[..., Any]

ON_GPU = {
    # A GEMV becomes a reduction by inductor, tuned step by step: cuBLAS leaves a third of the bandwidth unused there
    # (205 to 249 tok/s for fp16 on an H100).
    "coordinate_descent_tuning": True,
    # Small independent kernels become one, but not GEMMs: combined, they are tuned as one too, and int8's query, key
    # and value took 19 us instead of 12 (H100).
    "combo_kernels": True,
    "combo_kernels_pointwise_only": True,
    # Short sums need no reduction.
    "unroll_reductions_threshold": 16,
    # Otherwise torch 2.11 times a second block size next to the one that an earlier process chose and kept. If it then
    # chooses the second, sums round differently, and random weights give another text.
    "dynamic_scale_rblock": False,
    # A kernel is launched while the previous one ends (Hopper and newer).
    "triton.enable_pdl": True,
    "triton.unique_kernel_names": True,
}
BESIDE_OUR_PRODUCTS = ON_GPU | {"coordinate_descent_tuning": False, "max_autotune_pointwise": True}
"""Settings for a model in which inductor compiles only short kernels, and no GEMV: candidates are compiled in parallel.
Set-up of Qwen3-4B with empty caches (H100, 2026-11-25) took 10 s instead of 29 in fp16, and 14 instead of 41 in GPTQ.
"""
TIMES_THE_CACHE = 5
"""Bytes written before each timing, as a multiple of the cache: 90 us on an H100. A host launches a kernel in 30 us."""
REPEATS = {"memory_warmup_iters": 5, "benchmark_iters": 40}
"""Inductor's default is 100 each. Fewer keep set-up as short as without the larger overwrite."""

SHORT_SUM = 256  # Maximum length of a sum whose numbers one program of a GPU kernel holds at once: an attention head's.


def compile_decoder(model: PreTrainedModel, device: Device, *, capture: Capture | None = None) -> StaticCacheDecoder:
    capture = capture or capture_for(device)
    step = CompiledStep(model, device, is_captured=capture is not None)
    return StaticCacheDecoder(step, device, capture=capture)


class CompiledStep(LibraryStep):
    """A compiled decode step: whole, or one layer that is run as often as the model has layers."""

    name = "compile"
    is_compiled = True
    native_attention = False

    def __init__(self, model: PreTrainedModel, device: Device, *, is_captured: bool) -> None:
        super().__init__(model)
        self._on_cpu = device.kind == "cpu"
        self._is_captured = is_captured
        self.settings: dict[str, Any] = {}  # Settings of inductor that override those chosen here.
        make_opaque(model)
        self._functions: dict[str, Function] = {}
        self._frames = 0
        self._recompilations = 0
        self._cache_misses = 0
        self._layers = decoder_layers(model) if is_captured else []

    def run(self, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
        with cache_attention(self.model, native=self.native_attention):
            if not self._is_captured:
                following, logits = self.run_compiled(attending_step, self.model, token, cache)
                return following, logits
            hidden, norm = self.through_layers(decode_layer, token, cache, cache.sequence_lengths)
            cache.advance()
            return self.run_head(norm, hidden)

    def through_layers(
        self, layer: Function, ids: Tensor, cache: StaticKVCache, sequence_lengths: SequenceLengths
    ) -> tuple[Tensor, nn.Module | None]:
        """Run tokens, [batch, tokens], through all decoder layers by the compiled form of `layer`. Return the hidden
        states, [batch, tokens, hidden], and the norm that must still be applied to them."""
        name, norm = type(self.model).__name__, getattr(self.model.base_model, "norm", None)
        ran = 0
        left: Tensor | None = None

        def run_layer(index: int, hidden_states: Tensor, *rest: Any, **arguments: Any) -> Any:
            nonlocal ran
            cached = arguments.get("past_key_values")
            if cached is None:
                raise UnsupportedError(
                    f"{name} hands its cache to a layer in a way of its own; use --engine eager or cuda_graph"
                )
            part = cached.layers[index] if index < len(cached.layers) else None
            arguments["past_key_values"] = StateView(part) if isinstance(part, LinearAttentionLayer) else part
            ran += 1
            return self.run_compiled(layer, self._layers[index], hidden_states, rest, arguments)

        def leave_last_norm(forward: Function, hidden: Tensor) -> Tensor:
            nonlocal left
            # Some models apply the same norm before their layers too.
            if ran < len(self._layers):
                applied: Tensor = forward(hidden)
                return applied
            left = hidden
            return hidden

        with ExitStack() as stack:
            for index, module in enumerate(self._layers):
                stack.enter_context(_forward_of(module, partial(run_layer, index)))
            if norm is not None:
                stack.enter_context(_forward_of(norm, partial(leave_last_norm, norm.forward)))
            hidden = self.model.base_model(
                input_ids=ids, past_key_values=cache.layers, use_cache=True, sequence_lengths=sequence_lengths
            ).last_hidden_state
        if ran != len(self._layers):
            raise UnsupportedError(
                f"{name} runs {ran} of its {len(self._layers)} decoder layers in a decode step; "
                "use --engine eager or cuda_graph"
            )
        if left is not None and left is not hidden:
            raise UnsupportedError(f"{name} does something behind its last norm; use --engine eager or cuda_graph")
        return hidden, None if left is None else norm

    def run_head(self, norm: nn.Module | None, hidden: Tensor) -> tuple[Tensor, Tensor]:
        token, logits = self.run_compiled(head, norm, self.model.get_output_embeddings(), hidden)
        return token, logits

    def run_compiled(self, function: Function, *arguments: Any) -> Any:
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
        return known_settings(({} if self._on_cpu else self.settings_on_gpu()) | self.settings)

    def settings_on_gpu(self) -> dict[str, Any]:
        return ON_GPU

    def tuning(self) -> AbstractContextManager[None]:
        return nullcontext() if self._on_cpu else kernels_timed_alone()

    def forget(self) -> None:
        # Guards of an earlier shape would be tried first at every step, and would count as recompilations.
        torch.compiler.reset()
        self._functions = {}

    def timed(self) -> AbstractContextManager[None]:
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
        return True

    def check(self) -> None:
        if self._frames == 0 and self.needs_compiler:
            raise UnsupportedError("torch.compile compiled nothing: the step ran in eager mode")

    def facts(self, *, has_shape: bool) -> dict[str, Any]:
        is_compiled = self._frames or not has_shape or self.needs_compiler
        return {
            "frames_compiled": self._frames,
            # fullgraph makes a break an error before anything is timed.
            "graph_breaks": 0 if self._frames else None,
            "recompilations": self._recompilations,
            "setup_cache": ("cold" if self._cache_misses else "warm") if self._frames else None,
            "compiled": ("layer" if self._is_captured else "step") if is_compiled else None,
        }


def decode_layer(layer: nn.Module, hidden: Tensor, rest: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    forward: Function = type(layer).forward
    return forward(layer, hidden, *rest, **arguments)


def prompt_layer(layer: nn.Module, hidden: Tensor, rest: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    """Do the same as `decode_layer`. The compiler keeps compiled code by function."""
    forward: Function = type(layer).forward
    return forward(layer, hidden, *rest, **arguments)


def head(norm: nn.Module | None, output_layer: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the last norm and the output layer; return the likeliest token, [batch, 1], and the logits."""
    if norm is not None:
        forward: Function = type(norm).forward
        hidden = forward(norm, hidden)
    logits: Tensor = output_layer(hidden)
    return likeliest_token(logits), logits


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


@contextmanager
def kernels_timed_alone() -> Iterator[None]:
    """Make inductor overwrite five times the last-level cache before it times a candidate, as Triton's `do_bench` does.

    By default it overwrites as much as the cache, which takes less time on an H100 than the host needs to launch the
    candidate, so that the measured time is the launch.
    """
    from torch._inductor.runtime import benchmarking

    timer: Any = benchmarking.benchmarker
    attributes = dict(vars(timer))
    if isinstance(timer, benchmarking.InductorBenchmarker):
        vars(timer).update(
            L2_cache_size=timer.L2_cache_size * TIMES_THE_CACHE,
            benchmark_gpu=partial(timer.benchmark_gpu, **REPEATS),
        )
    try:
        yield
    finally:
        vars(timer).clear()
        vars(timer).update(attributes)


@contextmanager
def short_sums() -> Iterator[None]:
    """Make inductor keep the numbers of a short sum in registers instead of reading them twice.

    By default it does so up to 64 numbers, and up to 1,024 if all rows are contiguous. After the joined GEMM of query,
    key and value, heads are not: their norm in Qwen3-4B at 512 tokens took 20 us instead of 4 (H100, 2026-11-25).
    """
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V
    from torch.compiler import config

    class Choices(InductorChoices):
        @staticmethod
        def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
            is_short = V.graph.sizevars.statically_known_leq(features.reduction_numel, SHORT_SUM)
            usual: bool = InductorChoices.should_use_persistent_reduction(features, cooperative_reduction)
            return usual or (bool(is_short) and not cooperative_reduction)

    # torch's caches ignore the handler: the tag separates code that was compiled without it.
    compiler: Any = config
    tag = f"{compiler.cache_key_tag}, sums of {SHORT_SUM} at once"
    with V.set_choices_handler(Choices()), compiler.patch(cache_key_tag=tag):
        yield


def known_settings(wanted: dict[str, Any]) -> dict[str, Any]:
    from torch._inductor import config

    has: dict[str, Any] = config.get_config_copy()
    settings = {name: value for name, value in wanted.items() if name in has}
    if "combo_kernels_pointwise_only" not in settings:
        settings.pop("combo_kernels", None)
    return settings
