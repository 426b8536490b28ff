"""The decode step compiled by torch.compile, over a static KV cache. Prefill stays uncompiled.

`generate` compiles by itself only for a static cache on a GPU and for quantizers that say they can; elsewhere it runs
uncompiled without a word. So the step is compiled here, as one whole graph (a graph break is an error), and a
recompilation while timing is an error too: a row that says `compile` was compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from benchmarker.device import Device
from benchmarker.record import RuntimeFacts
from benchmarker.runtimes.base import Generation, UnsupportedError
from benchmarker.runtimes.opaque import make_opaque
from benchmarker.runtimes.static import cache_length, decode_step, new_cache, prefill

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule
    from transformers import PreTrainedModel, StaticCache

StepFunction = Callable[["PreTrainedModel", "Tensor", "StaticCache"], "Tensor"]


class CompiledRuntime:
    """A static cache and one torch.compile'd decode step per cache shape."""

    def __init__(self, model: PreTrainedModel, device: Device) -> None:
        self._model = model
        self._device = device
        make_opaque(model)
        self._shape: tuple[int, int] | None = None
        self._cache: StaticCache | None = None
        self._step: StepFunction | None = None
        self._setup_s: float | None = None
        self._steps = 0
        self._frames = 0
        self._recompilations = 0

    def generate(self, prompt: Tensor, new_tokens: int) -> Generation:
        """See Runtime.generate. The first call at a new cache shape compiles."""
        import torch

        called_at = time.perf_counter()
        shape = self._shape
        cache, step = self._prepare(batch=prompt.shape[0], length=cache_length(prompt.shape[1] + new_tokens))
        cache.reset()
        with torch.no_grad(), self._explained():
            self._device.synchronize()
            start_ns = time.perf_counter_ns()
            token = prefill(self._model, prompt, cache)
            self._device.synchronize()
            first_ns = time.perf_counter_ns()
            tokens = [token]
            # Prefill already made the first token, so N tokens are N - 1 steps.
            for _ in range(new_tokens - 1):
                token = step(self._model, token, cache)
                tokens.append(token)
            self._device.synchronize()
            end_ns = time.perf_counter_ns()
        if self._shape != shape:
            self._setup_s = max(self._setup_s or 0.0, time.perf_counter() - called_at)
        return Generation(
            tokens=torch.cat(tokens, dim=1).cpu(), start_ns=start_ns, first_ns=first_ns, last_ns=end_ns, end_ns=end_ns
        )

    def _prepare(self, *, batch: int, length: int) -> tuple[StaticCache, StepFunction]:
        """The cache and the step for this shape; made anew when the shape changes."""
        import torch

        if self._cache is None or self._step is None or self._shape != (batch, length):
            # One shape at a time: guards of an earlier one would be tried first at every step, and count as
            # recompilations towards a limit after which torch falls back to eager.
            torch.compiler.reset()
            self._shape = (batch, length)
            self._cache = new_cache(self._model, length)
            self._steps += 1
            self._step = torch.compile(decode_step, backend=self._compile, fullgraph=True, dynamic=False)
        return self._cache, self._step

    def _compile(self, graph: GraphModule, example_inputs: list[Tensor]) -> Callable[..., object]:
        """Inductor, counted: torch's own counters also hold what a quantization library compiles for itself."""
        from torch._inductor.compile_fx import compile_fx

        self._frames += 1
        return cast("Callable[..., object]", compile_fx(graph, example_inputs))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A recompilation in here raises."""
        import torch

        with torch.compiler.set_stance("fail_on_recompile"):
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the compiler's errors into one sentence that names the operation."""
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor.exc import InductorError

        try:
            yield
        except (TorchDynamoException, InductorError) as error:
            text = str(error).strip().splitlines() or ["no reason given"]
            raise UnsupportedError(f"torch.compile: {type(error).__name__}: {text[0]}") from error
        except RuntimeError as error:
            if "Detected recompile" not in str(error):
                raise
            self._recompilations += 1
            raise UnsupportedError("torch.compile recompiled in a timed run") from error

    def check(self) -> None:
        """See Runtime.check."""
        if self._frames == 0:
            raise UnsupportedError("torch.compile compiled nothing: the step ran in eager mode")

    def facts(self) -> RuntimeFacts:
        """Graphs compiled over all shapes; a step that became more than one was broken up."""
        return RuntimeFacts(
            name="compile",
            tokens_read="end",
            kv_cache="static",
            setup_s=self._setup_s,
            frames_compiled=self._frames,
            graph_breaks=max(0, self._frames - self._steps),
            recompilations=self._recompilations,
        )
