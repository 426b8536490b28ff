"""Does benchmarker distort what it measures? `generate` timed by hand beside our own measurement.

Both in one process and on one model, alternating by-hand, ours, ours, by-hand, so that drift hits both alike. The
hand-timed call has no streamer, no hook and none of our code in it; in the other runtimes, whose loop is ours, it is
the prefill and the prepared steps with the clock read at both ends and nowhere else. Each such block of four gives one
ratio; printed are both rates, and the median ratio with its 95 % interval, which should lie within 1 % of 1. (The
median, and its interval from the ranks: on a shared machine some blocks are hit by something that has nothing to do
with either way of timing. The more noise, the more `--rounds`.)

    python tests/benchmarks/hand_timed.py --model qwen3-tiny --load-format dummy --dtype bfloat16
    python tests/benchmarks/hand_timed.py --load-format dummy --quant int8
    python tests/benchmarks/hand_timed.py --load-format dummy --runtime graph
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

import torch
from scipy.stats import binom
from transformers import PreTrainedModel

from benchmarker.engines.decoders.prefill_decode import likeliest_token, prefill
from benchmarker.engines.decoders.static_decoder import StaticCacheDecoder
from benchmarker.hardware.device import Device, find_device
from benchmarker.quantization.load import load_model
from benchmarker.workloads.generation.source_benchmarker import ModelBenchmarker
from benchmarker.workloads.generation.spec import Point


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


def steps_by_hand(runtime: StaticCacheDecoder, ids: torch.Tensor, new_tokens: int, device: Device) -> float:
    """The same for a runtime that has set this shape up: what it repeats, and nothing between."""
    shape = runtime.shape
    assert shape is not None
    shape.cache.go_to(0)
    device.synchronize()
    started = time.perf_counter()
    with torch.no_grad():
        shape.token.copy_(likeliest_token(prefill(runtime.model, ids, shape.cache)))
        shape.cache.begin_decoding()
        for _ in range(new_tokens - 1):
            shape.step()
    device.synchronize()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--quant", default="fp16")
    parser.add_argument("--runtime", default="eager")
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
    benchmarker = ModelBenchmarker(model, device=device, engine=given.runtime)
    point = Point(given.prompt_tokens, None, given.new_tokens, 1)
    ids = torch.tensor([benchmarker.prompts(point)[0].ids], device=model.device)
    step = benchmarker.step(point)

    def timed_by_hand() -> float:
        source = benchmarker.source
        if isinstance(source, StaticCacheDecoder):
            return steps_by_hand(source, ids, given.new_tokens, device)
        return by_hand(model, ids, given.new_tokens, device)

    hand: list[float] = []
    ours: list[float] = []
    for _ in range(3):
        step()
        timed_by_hand()
    gc.collect()
    gc.disable()
    for _ in range(given.rounds):
        first_s = timed_by_hand()
        ours.append((step().latency_s + step().latency_s) / 2)
        hand.append((first_s + timed_by_hand()) / 2)
    rates = [given.new_tokens / statistics.median(times) for times in (hand, ours)]
    ratios = [by_hand_s / ours_s for by_hand_s, ours_s in zip(hand, ours, strict=True)]
    quartiles = statistics.quantiles(hand, n=4)
    print(
        f"{given.model} {given.quant} {given.runtime}: by hand {rates[0]:.2f} tok/s, benchmarker {rates[1]:.2f} tok/s, "
        f"ratio {statistics.median(ratios):.4f}{between(ratios)} over {given.rounds} blocks of two each; half of the "
        f"blocks by hand lie within {100 * (quartiles[2] / quartiles[0] - 1):.1f} %"
    )


def between(ratios: list[float]) -> str:
    """The 95 % interval of their median, from the ranks; nothing for fewer than six, which have none."""
    rank = int(binom.ppf(0.025, len(ratios), 0.5))
    ranked = sorted(ratios)
    return f" [{ranked[rank - 1]:.4f}, {ranked[-rank]:.4f}]" if rank > 0 else ""


if __name__ == "__main__":
    main()
