"""Does benchmarker distort what it measures? `generate` timed by hand beside our own measurement.

Both in one process and on one model, alternating by-hand, ours, ours, by-hand, so that drift hits both alike. The
hand-timed call has no streamer, no hook and none of our code in it. Prints both rates and their ratio, which should
be within 1 % of 1.

    python tests/benchmarks/hand_timed.py --model qwen3-tiny --load-format dummy --dtype bfloat16
    python tests/benchmarks/hand_timed.py --load-format dummy --quant int8
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

import torch
from transformers import PreTrainedModel

from benchmarker.device import Device, find_device
from benchmarker.loading import load_model
from benchmarker.spec import Point
from benchmarker.workloads.generation import ModelBenchmarker


def by_hand(model: PreTrainedModel, ids: torch.Tensor, new_tokens: int, device: Device) -> float:
    """Seconds of one generation, as anyone would time it."""
    device.synchronize()
    started = time.perf_counter()
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False,
        temperature=None, top_p=None, top_k=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    device.synchronize()
    elapsed_s = time.perf_counter() - started
    assert output.shape[1] == ids.shape[1] + new_tokens
    return elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--quant", default="fp16")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompt-tokens", type=int, default=26)
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5, help="each has two timings of either kind")
    given = parser.parse_args()

    device = find_device(given.device)
    model = load_model(
        given.model, given.quant, device=device.torch_name, dtype=given.dtype, load_format=given.load_format
    )
    benchmarker = ModelBenchmarker(model, device=device)
    point = Point(given.prompt_tokens, None, given.new_tokens, 1)
    ids = torch.tensor([benchmarker.prompt(point).ids], device=model.device)
    step = benchmarker.step(point)

    hand: list[float] = []
    ours: list[float] = []
    for _ in range(3):
        by_hand(model, ids, given.new_tokens, device)
        step()
    gc.collect()
    gc.disable()
    for _ in range(given.rounds):
        hand.append(by_hand(model, ids, given.new_tokens, device))
        ours.append(step().latency_s)
        ours.append(step().latency_s)
        hand.append(by_hand(model, ids, given.new_tokens, device))
    rates = [given.new_tokens / statistics.median(times) for times in (hand, ours)]
    print(
        f"{given.model} {given.quant}: by hand {rates[0]:.2f} tok/s, benchmarker {rates[1]:.2f} tok/s, "
        f"ratio {rates[1] / rates[0]:.4f} (median of {len(hand)} each; spread by hand "
        f"{100 * (max(hand) / min(hand) - 1):.1f} %)"
    )


if __name__ == "__main__":
    main()
