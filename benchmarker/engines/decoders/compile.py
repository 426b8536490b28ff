"""The decode step compiled by torch.compile over a fixed KV cache, and captured as a graph on a GPU.

On a GPU, one decoder layer is compiled, and its compiled code runs every layer of the model: a 36th of the compile time
for the 36 layers of Qwen3-4B. torch compiles a function again if a number in it has changed. If layers looked up
their KV cache by layer index, every layer would be compiled again, and after eight compilations torch would silently
run the remaining layers uncompiled. Therefore each layer is passed only its own KV cache. On a CPU, which has no
graphs, the whole step is compiled at once; compiled layer by layer, a step took up to twice as long.

A graph break or a recompilation in a timed run raises an error, so that every result of the engine `compile` comes from
compiled code. Prefill is not compiled, except by the engine `native` (`prompt_layer`).
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
    # Inductor writes a GEMV as a reduction and tunes it. cuBLAS leaves a third of the memory bandwidth unused in a GEMV
    # (fp16 on an H100: 205 tok/s with cuBLAS, 249 with inductor).
    "coordinate_descent_tuning": True,
    # Inductor combines small independent kernels, except GEMMs: combined GEMMs are also tuned together, and the query,
    # key and value GEMMs of int8 took 19 us instead of 12 (H100).
    "combo_kernels": True,
    "combo_kernels_pointwise_only": True,
    # Sums of fewer than 16 numbers are unrolled into additions.
    "unroll_reductions_threshold": 16,
    # If True, torch 2.11 times the cached block size against a second one in every process. The block size changes the
    # rounding of sums and thereby, with random weights, the generated text.
    "dynamic_scale_rblock": False,
    # Programmatic dependent launch: a kernel starts while the previous kernel ends (Hopper and newer).
    "triton.enable_pdl": True,
    "triton.unique_kernel_names": True,
}
BESIDE_OUR_PRODUCTS = ON_GPU | {"coordinate_descent_tuning": False, "max_autotune_pointwise": True}
"""Inductor settings for a model whose GEMVs all run our kernels: tune short kernels only, candidates in parallel.
Set-up of Qwen3-4B with empty caches (H100, 2026-11-25) took 10 s instead of 29 in fp16, and 14 instead of 41 in GPTQ.
"""
TIMES_THE_CACHE = 5
"""Bytes that inductor overwrites before each timing, as a multiple of the L2 cache; takes 90 us on an H100."""
REPEATS = {"memory_warmup_iters": 5, "benchmark_iters": 40}
"""Iterations per candidate kernel. Inductor's default is 100 each; fewer make up for the larger overwrite."""

SHORT_SUM = 256  # Maximum number of summands that a Triton program keeps in registers: head_dim of an attention head.


def compile_decoder(model: PreTrainedModel, device: Device, *, capture: Capture | None = None) -> StaticCacheDecoder:
    capture = capture or capture_for(device)
    return StaticCacheDecoder(CompiledStep(model, device, is_captured=capture is not None), device, capture=capture)


class CompiledStep(LibraryStep):
    """A compiled decode step: for a capture, one layer is compiled and runs all layers; else the whole step is."""

    name = "compile"
    is_compiled = True
    native_attention = False

    def __init__(self, model: PreTrainedModel, device: Device, *, is_captured: bool) -> None:
        super().__init__(model)
        self._on_cpu = device.kind == "cpu"
        self._is_captured = is_captured
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
        """Run token ids, [batch, tokens], through all decoder layers, each by the compiled `layer`. Return the
        hidden states, [batch, tokens, hidden], before the model's last norm, and this norm (None if not found)."""
        name, norm = type(self.model).__name__, getattr(self.model.base_model, "norm", None)
        ran = 0
        left: Tensor | None = None

        def run_layer(index: int, hidden_states: Tensor, *rest: Any, **arguments: Any) -> Any:
            nonlocal ran
            if not any(value is cache.layers for value in (*rest, *arguments.values())):
                raise UnsupportedError(
                    f"{name} hands its cache to a layer in a way of its own; use --engine eager or cuda_graph"
                )
            part = cache.layers.layers[index] if index < len(cache.layers.layers) else None
            states = part if isinstance(part, LinearAttentionLayer) else None
            own = part if states is None else StateView(states)
            rest = tuple(own if value is cache.layers else value for value in rest)
            arguments = {key: own if value is cache.layers else value for key, value in arguments.items()}
            ran += 1
            with ExitStack() as indices:
                # torch would compile code for each layer index, which `StateView` ignores.
                for module in self._layers[index].modules() if states is not None else ():
                    if hasattr(module, "layer_idx"):
                        indices.enter_context(_with_attribute(module, "layer_idx", 0))
                return self.run_compiled(layer, self._layers[index], hidden_states, rest, arguments)

        def leave_last_norm(forward: Function, hidden: Tensor) -> Tensor:
            nonlocal left
            # Some models also apply this norm before their layers.
            if ran < len(self._layers):
                applied: Tensor = forward(hidden)
                return applied
            left = hidden
            return hidden

        with ExitStack() as stack:
            for index, module in enumerate(self._layers):
                stack.enter_context(_with_attribute(module, "forward", partial(run_layer, index)))
            if norm is not None:
                stack.enter_context(_with_attribute(norm, "forward", partial(leave_last_norm, norm.forward)))
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
            # None: the first prompt length is compiled exactly, a second length compiles code for all lengths.
            dynamic = None if function is prompt_layer else False
            self._functions[name] = torch.compile(function, backend=self.backend, fullgraph=True, dynamic=dynamic)
        return self._functions[name](*arguments)

    def backend(self, graph: GraphModule, example_inputs: list[Tensor]) -> Function:
        """Compile a graph with inductor and count it: torch's counters include graphs of quantization libraries."""
        from torch._dynamo.utils import counters
        from torch._inductor.compile_fx import compile_fx

        self._frames += 1
        before = counters["inductor"]["fxgraph_cache_hit"]
        compiled = compile_fx(graph, example_inputs, config_patches=self.inductor_settings())
        self._cache_misses += counters["inductor"]["fxgraph_cache_hit"] == before
        return cast("Function", compiled)

    def inductor_settings(self) -> dict[str, Any]:
        return {} if self._on_cpu else known_settings(self.settings_on_gpu())

    def settings_on_gpu(self) -> dict[str, Any]:
        return ON_GPU

    def tuning(self) -> AbstractContextManager[None]:
        return nullcontext() if self._on_cpu else kernels_timed_alone()

    def forget(self) -> None:
        # Otherwise torch checks the guards of earlier shapes at every step and reports a new shape as a recompilation.
        torch.compiler.reset()
        self._functions = {}

    def timed(self) -> AbstractContextManager[None]:
        stance: AbstractContextManager[None] = torch.compiler.set_stance("fail_on_recompile")
        return stance

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors of the compiler into UnsupportedError with one sentence that names the operation."""
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
        from torch._inductor.exc import InductorError

        try:
            yield
        except FailOnRecompileLimitHit as error:
            # torch raises this error only with fullgraph; else it would run the remaining layers uncompiled.
            raise UnsupportedError(
                "torch.compile: the decoder layers differ in what they are compiled for, and torch hit its limit of "
                f"compilations: {_reason(error.__cause__ or error)}"
            ) from error
        except (TorchDynamoException, InductorError) as error:
            # The compiler's message quotes an UnsupportedError that our own code raised while it was traced.
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
            # With fullgraph, a graph break is an error before anything is timed.
            "graph_breaks": 0 if self._frames else None,
            "recompilations": self._recompilations,
            "setup_cache": ("cold" if self._cache_misses else "warm") if self._frames else None,
            "compiled": ("layer" if self._is_captured else "step") if is_compiled else None,
        }


def decode_layer(layer: nn.Module, hidden: Tensor, rest: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    return type(layer).forward(layer, hidden, *rest, **arguments)


def prompt_layer(layer: nn.Module, hidden: Tensor, rest: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    """Do the same as `decode_layer`. torch caches compiled code by function, so prefill needs a second function."""
    return type(layer).forward(layer, hidden, *rest, **arguments)


def head(norm: nn.Module | None, output_layer: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the last norm and the output layer; return the likeliest token, [batch, 1], and the logits."""
    if norm is not None:
        hidden = type(norm).forward(norm, hidden)
    logits: Tensor = output_layer(hidden)
    return likeliest_token(logits), logits


@contextmanager
def _with_attribute(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    attributes = vars(module)
    before = {name: attributes[name]} if name in attributes else {}
    attributes[name] = value
    try:
        yield
    finally:
        del attributes[name]
        attributes |= before


def _reason(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", None) or error
    lines = [line.strip() for line in str(inner).strip().splitlines() if line.strip()] or ["no reason given"]
    return f"{type(inner).__name__}: {lines[0]}"


@contextmanager
def kernels_timed_alone() -> Iterator[None]:
    """Make inductor overwrite five times the size of the L2 cache before it times a kernel, like Triton's `do_bench`.

    By default inductor overwrites the size of the cache once. On an H100 this takes less than the 30 us that
    the host needs to launch the kernel, so that inductor would measure the launch.
    """
    from torch._inductor.runtime import benchmarking

    timer: Any = benchmarking.benchmarker
    attributes = dict(vars(timer))
    if isinstance(timer, benchmarking.InductorBenchmarker):
        vars(timer).update(
            L2_cache_size=timer.L2_cache_size * TIMES_THE_CACHE, benchmark_gpu=partial(timer.benchmark_gpu, **REPEATS)
        )
    try:
        yield
    finally:
        vars(timer).clear()
        vars(timer).update(attributes)


@contextmanager
def short_sums() -> Iterator[None]:
    """Make inductor keep up to 256 summands in registers (persistent reduction) instead of reading them twice.

    Inductor's limit is 64 summands, or 1,024 if all rows are contiguous. After a joined query-key-value GEMM, heads are
    not contiguous: their norm in Qwen3-4B at 512 tokens took 20 us instead of 4 (H100, 2026-11-25).
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

    # The keys of torch's compile caches do not contain the choices handler; the tag makes the keys differ.
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
