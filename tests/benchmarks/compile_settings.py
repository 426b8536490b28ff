"""Compare settings of inductor for the compiled decode step on this machine's GPU.

    PYTHONPATH=. python tests/benchmarks/compile_settings.py --model Qwen/Qwen3-4B --quant fp16
    PYTHONPATH=. python tests/benchmarks/compile_settings.py --quant gptq --option kernel=torch --only combined

The model is loaded once; each alternative is set up again. The output has tok/s of the decode steps (best of five
generations), kernels per token and set-up time. The fastest settings belong in `engines/decoders/compile.py`.
On a CPU, the script only shows that it runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch._inductor.utils import fresh_cache
from transformers import PreTrainedModel

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders import compile as compiled
from benchmarker.hardware.device import Device, find_device
from benchmarker.kernels import decode_attention, gemv_dense, restore
from benchmarker.kernels import linear_dispatch as linears
from benchmarker.measure.profile_repeat import count_kernels
from tests.benchmarks.random_model import decoder_of, load, parser_for
from tests.loading import plain_native_decoder


@dataclass(frozen=True)
class Alternative:
    """One change of the decode step's set-up."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of inductor that override the engine's."""
    is_compiled: bool = True
    """True to compile the step instead of using the fused decode step."""
    flash_from: int = decode_attention.BEST_UNDER_POSITIONS
    fused_inputs: bool = False
    """True to let the compiler fuse the computation of a GEMV's input into the GEMV."""
    by_inductor: bool = False
    """True to let inductor compile the GEMVs."""
    activation_apart: bool = False
    """True for SwiGLU as a separate kernel."""
    attention_waits: bool = False
    """True to launch attention without programmatic dependent launch."""
    timed_by_inductor: bool = False
    """True to time candidates by inductor's own method."""


STEP_BY_STEP = {"coordinate_descent_tuning": True, "max_autotune_pointwise": False}
ALTERNATIVES = {
    "as it is": Alternative(is_compiled=False),
    "compiled": Alternative(),
    "inputs fused into products": Alternative(fused_inputs=True),
    "products by inductor": Alternative(by_inductor=True),
    "activation apart": Alternative(activation_apart=True),
    "attention waits": Alternative(attention_waits=True),
    "kernels one after another": Alternative({"triton.enable_pdl": False}),
    "products combined too": Alternative({"combo_kernels_pointwise_only": False}),
    "nothing combined": Alternative({"combo_kernels": False}),
    "flash at every length": Alternative(flash_from=0),
    "timed by inductor": Alternative(timed_by_inductor=True),
    "fewer candidates": Alternative({"max_autotune_pointwise": False}),
    "tuned step by step": Alternative(STEP_BY_STEP),
    "in all directions": Alternative(STEP_BY_STEP | {"coordinate_descent_check_all_directions": True}),
    "max autotune": Alternative({"max_autotune": True}),
    "cooperative reductions": Alternative({"triton.cooperative_reductions": True}),
    "multi kernel": Alternative({"triton.multi_kernel": 1}),
    "longer sums unrolled": Alternative({"unroll_reductions_threshold": 33}),
}


def main() -> None:
    options = _arguments()
    device = find_device(options.device)
    model = load(options)
    print(f"{'settings':28} {'tok/s':>8} {'ms':>8} {'kernels':>8} {'set-up s':>8}")
    for name, alternative in ALTERNATIVES.items():
        if not options.only or any(part in name for part in options.only):
            for _ in range(options.repeat):
                print(f"{name:28} {measure(alternative, model, device, options)}", flush=True)


def measure(alternative: Alternative, model: PreTrainedModel, device: Device, options: argparse.Namespace) -> str:
    """Set up and measure one alternative; return its columns."""
    place = device.torch_name
    prompt = torch.arange(10, 36, device=place)[None]
    context = torch.arange(options.depth, device=place).remainder(1000)[None] if options.depth else None
    with ExitStack() as stack:
        stack.enter_context(fresh_cache())
        if alternative.is_compiled:
            stack.enter_context(patch("benchmarker.engines.decoders.native.fused_decode_step", lambda *_: None))
        stack.enter_context(patch.object(decode_attention, "BEST_UNDER_POSITIONS", alternative.flash_from))
        if alternative.fused_inputs:
            stack.enter_context(patch.object(linears, "materialized", lambda hidden: hidden))
        if alternative.by_inductor:
            stack.enter_context(patch.object(gemv_dense, "why_not", lambda linear: "left to inductor"))
        if alternative.activation_apart:
            stack.enter_context(patch("benchmarker.kernels.rewrite.fuse_swiglu", lambda model: []))
        if alternative.attention_waits and device.kind != "cpu":
            stack.enter_context(patch.object(decode_attention, "supports_pdl", lambda device: False))
        if alternative.timed_by_inductor:
            stack.enter_context(patch.object(compiled, "kernels_timed_alone", nullcontext))
        restore(model)
        runtime = decoder_of(plain_native_decoder, model, device, **alternative.settings)
        started = time.perf_counter()
        try:
            with busy(options.busy):
                runtime.generate(prompt, options.new_tokens, context=context)
        except UnsupportedError as error:
            return str(error)
        setup_s = time.perf_counter() - started
        times = []
        for _ in range(5):
            made = runtime.generate(prompt, options.new_tokens, context=context)
            times.append((made.last_ns - made.first_ns) / 1e9 / (options.new_tokens - 1))
        kernels = "-"
        if device.kind != "cpu":
            kernels = f"{runtime.kernels_per_token(lambda work: count_kernels(work, device)):.0f}"
        return f"{1 / min(times):8.1f} {1e3 * min(times):8.3f} {kernels:>8} {setup_s:8.1f}"


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run a number of busy processes beside this one."""
    running = [subprocess.Popen([sys.executable, "-Sc", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def _arguments() -> argparse.Namespace:
    parser = parser_for(__doc__ or "", new_tokens=100)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--repeat", type=int, default=1, help="tune each that often")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    return parser.parse_args()


if __name__ == "__main__":
    main()
