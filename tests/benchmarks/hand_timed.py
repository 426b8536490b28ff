"""Compare benchmarker's timing with `generate` timed by hand.

Both run in one process on one model, in blocks of four: by hand, benchmarker, benchmarker, by hand, so that drift has
the same effect on both. The hand-timed call has no streamer, hook or code of benchmarker. For the other engines, whose
loop is benchmarker's, it runs the prefill and the prepared steps and reads the clock only at both ends. Each block has
one ratio. The script prints both rates, the median ratio and its 95 % interval by ranks, which should lie within 1 % of
1. On a noisy machine, increase `--rounds`.

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
    """Return the seconds of one `generate` call."""
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
    """Return the seconds of prefill and prepared steps of an engine that has set up this shape."""
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
    parser.add_argument("--rounds", type=int, default=5, help="blocks of two timings of each kind")
    options = parser.parse_args()

    device = find_device(options.device)
    model = load_model(
        options.model, options.quant, device=device.torch_name, dtype=options.dtype, load_format=options.load_format
    )
    benchmarker = ModelBenchmarker(model, device=device, engine=options.runtime)
    point = Point(options.prompt_tokens, None, options.new_tokens, 1)
    ids = torch.tensor([benchmarker.prompts(point)[0].ids], device=model.device)
    step = benchmarker.step(point)

    def timed_by_hand() -> float:
        source = benchmarker.source
        if isinstance(source, StaticCacheDecoder):
            return steps_by_hand(source, ids, options.new_tokens, device)
        return by_hand(model, ids, options.new_tokens, device)

    hand: list[float] = []
    ours: list[float] = []
    for _ in range(3):
        step()
        timed_by_hand()
    gc.collect()
    gc.disable()
    for _ in range(options.rounds):
        first_s = timed_by_hand()
        ours.append((step().latency_s + step().latency_s) / 2)
        hand.append((first_s + timed_by_hand()) / 2)
    rates = [options.new_tokens / statistics.median(times) for times in (hand, ours)]
    ratios = [by_hand_s / ours_s for by_hand_s, ours_s in zip(hand, ours, strict=True)]
    quartiles = statistics.quantiles(hand, n=4)
    print(
        f"{options.model} {options.quant} {options.runtime}: by hand {rates[0]:.2f} tok/s, "
        f"benchmarker {rates[1]:.2f} tok/s, "
        f"ratio {statistics.median(ratios):.4f}{between(ratios)} over {options.rounds} blocks of two each; half of the "
        f"blocks by hand lie within {100 * (quartiles[2] / quartiles[0] - 1):.1f} %"
    )


def between(ratios: list[float]) -> str:
    """Return the 95 % interval of the median by ranks, as text; empty for fewer than six ratios."""
    rank = int(binom.ppf(0.025, len(ratios), 0.5))
    ranked = sorted(ratios)
    return f" [{ranked[rank - 1]:.4f}, {ranked[-rank]:.4f}]" if rank > 0 else ""


if __name__ == "__main__":
    main()
