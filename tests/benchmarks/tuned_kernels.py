"""Check that processes with a common cache run inductor's kernels with the same configs and return the same tokens.

    PYTHONPATH=. python tests/benchmarks/tuned_kernels.py --quant gptq --option kernel=torch --prompt 512
    PYTHONPATH=. python tests/benchmarks/tuned_kernels.py --quant int8 --prompt 26 --batch 2 --processes 4

Each process loads the model with random weights, sets up `native` and generates. All processes share the compilers'
cache folder, which is empty at first. Each row of the output is a kernel of inductor with its config, marked if
processes differ. On a CPU, inductor tunes nothing: the script only shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from statistics import median
from typing import Any

import torch
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from benchmarker.engines.decoders.native import native_decoder
from benchmarker.hardware.device import find_device
from tests.benchmarks.random_model import decoder_of, load, parser_for

GENERATIONS = 8


def main() -> None:
    options = _arguments()
    if options.alone:
        print(json.dumps(one_process(options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        made = [_in_a_process(folder) for _ in range(options.processes)]
    for number, process in enumerate(made, 1):
        times = (
            f"set-up {process['setup_s']:5.1f} s  TTFT {process['ttft_ms']:7.3f} ms  TPOT {process['tpot_ms']:7.3f} ms"
        )
        print(f"process {number}  {times}  tokens {process['tokens']}")
    for name in sorted({name for process in made for name in process["kernels"]}):
        chosen = [process["kernels"].get(name, "-") for process in made]
        print(f"{'same   ' if len(set(chosen)) == 1 else 'DIFFERS'} {name}")
        for choice in dict.fromkeys(chosen):
            numbers = ", ".join(str(number) for number, other in enumerate(chosen, 1) if other == choice)
            print(f"          {numbers}: {choice}")


def _in_a_process(folder: str) -> dict[str, Any]:
    caches = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
    command = [sys.executable, __file__, *sys.argv[1:], "--alone"]
    done = subprocess.run(command, env=os.environ | caches, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def one_process(options: argparse.Namespace) -> dict[str, Any]:
    """Set up and generate; return the times, a digest of the tokens, and each kernel's config."""
    device = find_device(options.device)
    decoder = decoder_of(native_decoder, load(options), device)
    prompt = (torch.arange(options.prompt, device=device.torch_name) % 90 + 10)[None].repeat(options.batch, 1)
    started = time.perf_counter()
    decoder.generate(prompt, options.new_tokens)
    setup_s = time.perf_counter() - started
    made = [decoder.generate(prompt, options.new_tokens) for _ in range(GENERATIONS)]
    step_ns = [(one.last_ns - one.first_ns) / (options.new_tokens - 1) for one in made]
    return {
        "setup_s": setup_s,
        "ttft_ms": median((one.first_ns - one.start_ns) / 1e6 for one in made),
        "tpot_ms": median(step_ns) / 1e6,
        "tokens": sha256(repr(made[-1].tokens).encode()).hexdigest()[:8],
        "kernels": chosen_configurations(),
    }


def chosen_configurations() -> dict[str, str]:
    """Return the config of each of inductor's kernels in this process; kernels of the same name share an entry."""
    chosen: dict[str, set[str]] = {}
    for module in PyCodeCache.modules:
        for kernel in vars(module).values():
            # A kernel that has not run has no launcher, or one per candidate.
            if isinstance(kernel, CachingAutotuner) and len(kernel.launchers) == 1:
                chosen.setdefault(kernel.fn.__name__, set()).add(str(kernel.launchers[0].config))
    return {name: " / ".join(sorted(choices)) for name, choices in chosen.items()}


def _arguments() -> argparse.Namespace:
    parser = parser_for(__doc__ or "", new_tokens=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
