"""Which of inductor's settings make the compiled step fastest, on the GPU at hand.

    PYTHONPATH=. python tests/benchmarks/compile_settings.py --model Qwen/Qwen3-4B --quant fp16
    PYTHONPATH=. python tests/benchmarks/compile_settings.py --quant gptq --option kernel=torch --only combined

The model is loaded once; each combination is set up anew and measured as a cell is: tok/s of the decode steps alone,
the best of five generations, kernels a token, and the time of setting up. What wins belongs into `compiled.ON_GPU`.
On a CPU it runs too, to see that it runs.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from transformers import PreTrainedModel

from benchmarker.device import find_device, torch_device
from benchmarker.loading import load_model
from benchmarker.profiling.capture import count_kernels
from benchmarker.runtimes import attention, linears
from benchmarker.runtimes.base import UnsupportedError
from benchmarker.runtimes.compiled import ON_GPU, CompiledRuntime, known_settings
from benchmarker.specfile import parse_option


@dataclass(frozen=True)
class Alternative:
    """One way of setting the step up; everything else stays as it is."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Of inductor, beside ON_GPU's."""
    flash_from: int = attention.FLASH_FROM_POSITIONS
    fused_inputs: bool = False
    """Leave it to the compiler where the input of a product is computed."""


ALTERNATIVES = {
    "as it is": Alternative(),
    "inputs fused into products": Alternative(fused_inputs=True),
    "kernels one after another": Alternative({"triton.enable_pdl": False}),
    "products combined too": Alternative({"combo_kernels_pointwise_only": False}),
    "nothing combined": Alternative({"combo_kernels": False}),
    "flash at every length": Alternative(flash_from=0),
    "no descent": Alternative({"coordinate_descent_tuning": False}),
    "all directions": Alternative({"coordinate_descent_check_all_directions": True}),
    "max autotune": Alternative({"max_autotune": True}),
    "more configurations": Alternative({"max_autotune_pointwise": True}),
    "cooperative reductions": Alternative({"triton.cooperative_reductions": True}),
    "multi kernel": Alternative({"triton.multi_kernel": 1}),
    "longer sums unrolled": Alternative({"unroll_reductions_threshold": 33}),
}


def main() -> None:
    given = _arguments()
    device = find_device(given.device)
    model = load_model(
        given.model,
        given.quant,
        device=given.device,
        dtype=given.dtype,
        load_format="dummy",
        options=dict(parse_option(one) for one in given.option),
    )
    prompt = torch.arange(10, 36, device=torch_device(device))[None]
    context = torch.arange(given.depth, device=torch_device(device)).remainder(1000)[None] if given.depth else None
    print(f"{'settings':28} {'tok/s':>8} {'ms':>8} {'kernels':>8} {'set-up s':>8}")
    for name, tried in ALTERNATIVES.items():
        if given.only and not any(part in name for part in given.only):
            continue
        with ExitStack() as stack:
            stack.enter_context(patch.object(attention, "FLASH_FROM_POSITIONS", tried.flash_from))
            if tried.fused_inputs:
                stack.enter_context(patch.object(linears, "apart", lambda hidden: hidden))
            undo_routes(model)
            runtime = CompiledRuntime(model, device, settings=known_settings(ON_GPU | tried.settings))
            started = time.perf_counter()
            try:
                runtime.generate(prompt, given.new_tokens, context=context)
            except UnsupportedError as error:
                print(f"{name:28} {error}")
                continue
            setup_s = time.perf_counter() - started
            times = []
            for _ in range(5):
                made = runtime.generate(prompt, given.new_tokens, context=context)
                times.append((made.last_ns - made.first_ns) / 1e9 / (given.new_tokens - 1))
            kernels = "-"
            if device.kind != "cpu":
                kernels = f"{runtime.kernels_per_token(lambda work: count_kernels(work, device)):.0f}"
            best_s = min(times)
            print(f"{name:28} {1 / best_s:8.1f} {1e3 * best_s:8.3f} {kernels:>8} {setup_s:8.1f}", flush=True)


def undo_routes(model: PreTrainedModel) -> None:
    """Take back what an earlier runtime has put before the layers and the last norm."""
    for module in model.modules():
        module.__dict__.pop("forward", None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--quant", default="fp16")
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--only", action="append", default=[])
    return parser.parse_args()


if __name__ == "__main__":
    main()
