"""Which of inductor's settings make the compiled step fastest, on the GPU at hand.

    PYTHONPATH=. python tests/benchmarks/compile_settings.py --model Qwen/Qwen3-4B --quant fp16
    PYTHONPATH=. python tests/benchmarks/compile_settings.py --quant gptq --option kernel=exllama_v2 --only combo

The model is loaded once; each combination is set up anew and measured as a cell is: tok/s of the decode steps alone,
the best of five generations, kernels a token, and the time of setting up. What wins belongs into `compiled.ON_GPU`.
On a CPU it runs too, to see that it runs.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from benchmarker.device import find_device, torch_device
from benchmarker.loading import load_model
from benchmarker.profiling.capture import count_kernels
from benchmarker.runtimes import attention
from benchmarker.runtimes.base import UnsupportedError
from benchmarker.runtimes.compiled import ON_GPU, CompiledRuntime
from benchmarker.specfile import parse_option

ALWAYS_FLASH, NEVER_FLASH = 0, 2**40
ALTERNATIVES: dict[str, tuple[dict[str, Any], int]] = {
    "as it is": (ON_GPU, attention.FLASH_FROM_POSITIONS),
    "inductor's defaults": ({}, attention.FLASH_FROM_POSITIONS),
    "flash at every length": (ON_GPU, ALWAYS_FLASH),
    "sums at every length": (ON_GPU, NEVER_FLASH),
    "combo kernels": ({**ON_GPU, "combo_kernels": True}, attention.FLASH_FROM_POSITIONS),
    "combo kernels, flash": ({**ON_GPU, "combo_kernels": True}, ALWAYS_FLASH),
    "max autotune": ({**ON_GPU, "max_autotune": True}, attention.FLASH_FROM_POSITIONS),
    "all directions": (
        {**ON_GPU, "coordinate_descent_check_all_directions": True},
        attention.FLASH_FROM_POSITIONS,
    ),
    "cooperative reductions": ({**ON_GPU, "triton.cooperative_reductions": True}, attention.FLASH_FROM_POSITIONS),
    "multi kernel": ({**ON_GPU, "triton.multi_kernel": 1}, attention.FLASH_FROM_POSITIONS),
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
    print(f"{'settings':24} {'tok/s':>8} {'ms':>8} {'kernels':>8} {'set-up s':>8}")
    for name, (settings, flash_from) in ALTERNATIVES.items():
        if given.only and not any(part in name for part in given.only):
            continue
        with ExitStack() as stack:
            stack.enter_context(patch.object(attention, "FLASH_FROM_POSITIONS", flash_from))
            runtime = CompiledRuntime(model, device, settings=settings)
            started = time.perf_counter()
            try:
                runtime.generate(prompt, given.new_tokens, context=context)
            except (UnsupportedError, AttributeError) as error:
                print(f"{name:24} {error}")
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
            print(f"{name:24} {1 / best_s:8.1f} {1e3 * best_s:8.3f} {kernels:>8} {setup_s:8.1f}", flush=True)


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
