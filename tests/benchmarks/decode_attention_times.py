"""Time the fused decode attention with Qwen3-4B's heads by number of positions, in us per layer and GB/s.

A CUDA graph runs the kernel with the cache of one layer after the other and programmatic dependent launch, as in a
decode step. Results are checked first, against torch's attention in float32.

    python tests/benchmarks/decode_attention_times.py                               # Hopper and newer
    python tests/benchmarks/decode_attention_times.py --positions 600 4224 --all    # every split config
    python tests/benchmarks/decode_attention_times.py --positions 30 --room 640     # a partly filled cache
    TRITON_INTERPRET=1 python tests/benchmarks/decode_attention_times.py --smallest # check only, on a CPU
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from gemv_times import CACHE_BYTES, MAX_ERROR, seconds_each
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from benchmarker.kernels.fused_decode_attention import (
    Heads,
    Rotation,
    SplitConfig,
    fused_decode_attention,
    split_config_for,
)

KEY_HEADS, GROUP, HEAD_DIM = 8, 4, 128
POSITIONS = (128, 256, 384, 640, 1100, 2200, 4224, 8320, 16512, 32896)
BLOCK_CONFIGS = (
    (32, 4, 3), (64, 4, 1), (64, 4, 2), (64, 4, 3), (64, 8, 1), (64, 8, 2), (128, 8, 1), (128, 8, 2),
)  # fmt: skip
"""Positions per block, warps and stages."""
SPLIT_CONFIGS = tuple(SplitConfig(parts, *block) for parts in (1, 2, 4, 8, 16, 32) for block in BLOCK_CONFIGS)


def reference(product: Tensor, heads: Heads, rotation: Rotation, key: Tensor, value: Tensor) -> Tensor:
    """Return the attention in float32, [heads * head_dim], with the new position last in the cache."""
    query, new_key, new_value = product.float().split([GROUP * KEY_HEADS * HEAD_DIM, *[KEY_HEADS * HEAD_DIM] * 2])
    at = key.shape[1] - 1

    def rotated(part: Tensor, gain: Tensor) -> Tensor:
        normed = rms_norm(part.view(-1, HEAD_DIM), (HEAD_DIM,), gain.float(), 1e-6)
        turned = torch.cat((-normed[:, HEAD_DIM // 2 :], normed[:, : HEAD_DIM // 2]), 1)
        return normed * rotation.cosines[at] + turned * rotation.sines[at]

    keys, values = key[0].float(), value[0].float()
    keys[at], values[at] = rotated(new_key, heads.key_gain), new_value.view(KEY_HEADS, HEAD_DIM)
    past = (part.transpose(0, 1).repeat_interleave(GROUP, 0) for part in (keys, values))
    queries = rotated(query, heads.query_gain)[:, None]
    return scaled_dot_product_attention(queries, *past, scale=heads.scaling).flatten()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", nargs="+", type=int, help=f"filled positions; {' '.join(map(str, POSITIONS))}")
    parser.add_argument("--room", type=int, default=0, help="positions of the cache, if more than the filled ones")
    parser.add_argument("--all", action="store_true", help="time all split configs, and print the fastest ten")
    parser.add_argument("--smallest", action="store_true", help="short caches, checked and not timed")
    options = parser.parse_args()
    device = "cpu" if options.smallest else "cuda"
    torch.manual_seed(0)
    for positions in (100, 300, 600) if options.smallest else options.positions or POSITIONS:
        room = max(positions, options.room)
        product = torch.randn((GROUP + 2) * KEY_HEADS * HEAD_DIM, device=device).half()
        gains = (1 + torch.randn(2, HEAD_DIM, device=device) / 4).half()
        heads = Heads(gains[0], gains[1], 1e-6, HEAD_DIM**-0.5, HEAD_DIM)
        angles = torch.rand(positions, HEAD_DIM // 2, device=device).mul(6).repeat(1, 2)
        rotation = Rotation(angles.cos(), angles.sin())
        lengths = torch.tensor([positions], dtype=torch.int32, device=device)
        position_bytes = 2 * 2 * KEY_HEADS * HEAD_DIM
        layers = 1 if options.smallest else max(8, 4 * CACHE_BYTES // (room * position_bytes))
        caches = [torch.randn(2, 1, room, KEY_HEADS, HEAD_DIM, device=device).half() for _ in range(layers)]
        expected = reference(product, heads, rotation, *caches[0][:, :, :positions])
        chosen = split_config_for(room, 2 * HEAD_DIM)
        lines = []
        for config in (chosen, *(SPLIT_CONFIGS if options.all else ())):
            calls = [partial(_of_product, heads, rotation, part, lengths, config) for part in caches]
            try:
                error = float((calls[0](product).float() - expected).norm() / expected.norm())
            except Exception as problem:  # noqa: BLE001  A split config that does not fit the GPU.
                lines.append((1.0, f"{config}: {str(problem)[:60]}"))
                continue
            each_s = 0.0 if options.smallest else seconds_each(calls, product)
            rate = f"  {1e6 * each_s:7.2f} us  {positions * position_bytes / each_s / 1e9:6.0f} GB/s" if each_s else ""
            lines.append((each_s, f"error {error:.1e}{'' if error < MAX_ERROR else ' WRONG'}{rate}  {config}"))
        print(f"{positions:6} positions  {lines[0][1]}", flush=True)
        for _, line in sorted(lines[1:])[:10]:
            print(f"{'':18}{line}", flush=True)


def _of_product(
    heads: Heads, rotation: Rotation, cache: Tensor, lengths: Tensor, config: SplitConfig, product: Tensor
) -> Tensor:  # fmt: skip
    return fused_decode_attention(product, heads, rotation, cache[0], cache[1], lengths, config)


if __name__ == "__main__":
    main()
