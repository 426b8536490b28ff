"""How long does attention of one query take behind so many positions? Qwen3-4B's heads, us a layer and GB/s.

Each kernel has a cache of its own, and stands in a graph behind another of its kind, so that it reads its first block
while that one fusion, as in a step. It is checked first, against torch's attention in float32.

    python tests/benchmarks/decode_attention_times.py                               # NVIDIA's Hopper and newer
    python tests/benchmarks/decode_attention_times.py --positions 600 4224 --all    # every cut
    python tests/benchmarks/decode_attention_times.py --positions 30 --room 640     # a cache that is filled in part
    TRITON_INTERPRET=1 python tests/benchmarks/decode_attention_times.py --smallest # right or wrong, anywhere
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from gemv_times import CACHE_BYTES, WRONG, seconds_each
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
FORMS_OF_A_PART = (
    (32, 4, 3), (64, 4, 1), (64, 4, 2), (64, 4, 3), (64, 8, 1), (64, 8, 2), (128, 8, 1), (128, 8, 2),
)  # fmt: skip
"""Positions of a block, warps and stages."""
TRIED = tuple(SplitConfig(parts, *form) for parts in (1, 2, 4, 8, 16, 32) for form in FORMS_OF_A_PART)


def right(product: Tensor, heads: Heads, rotation: Rotation, key: Tensor, value: Tensor) -> Tensor:
    """Attention in float32 with the new position last in the cache, [heads * head_dim]."""
    query, new_key, new_value = product.float().split([GROUP * KEY_HEADS * HEAD_DIM, *[KEY_HEADS * HEAD_DIM] * 2])
    at = key.shape[1] - 1

    def placed(part: Tensor, gain: Tensor) -> Tensor:
        normed = rms_norm(part.view(-1, HEAD_DIM), (HEAD_DIM,), gain.float(), 1e-6)
        turned = torch.cat((-normed[:, HEAD_DIM // 2 :], normed[:, : HEAD_DIM // 2]), 1)
        return normed * rotation.cosines[at] + turned * rotation.sines[at]

    keys, values = key[0].float(), value[0].float()
    keys[at], values[at] = placed(new_key, heads.key_gain), new_value.view(KEY_HEADS, HEAD_DIM)
    past = (part.transpose(0, 1).repeat_interleave(GROUP, 0) for part in (keys, values))
    queries = placed(query, heads.query_gain)[:, None]
    return scaled_dot_product_attention(queries, *past, scale=heads.scaling).flatten()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", nargs="+", type=int, help=f"filled ones; {' '.join(map(str, POSITIONS))}")
    parser.add_argument("--room", type=int, default=0, help="positions of the cache; those that are filled if fewer")
    parser.add_argument("--all", action="store_true", help="other cuts too, the fastest ten of each length")
    parser.add_argument("--smallest", action="store_true", help="short caches, checked and not timed")
    given = parser.parse_args()
    device = "cpu" if given.smallest else "cuda"
    torch.manual_seed(0)
    for positions in (100, 300, 600) if given.smallest else given.positions or POSITIONS:
        room = max(positions, given.room)
        product = torch.randn((GROUP + 2) * KEY_HEADS * HEAD_DIM, device=device).half()
        gains = (1 + torch.randn(2, HEAD_DIM, device=device) / 4).half()
        heads = Heads(gains[0], gains[1], 1e-6, HEAD_DIM**-0.5, HEAD_DIM)
        angles = torch.rand(positions, HEAD_DIM // 2, device=device).mul(6).repeat(1, 2)
        rotation = Rotation(angles.cos(), angles.sin())
        lengths = torch.tensor([positions], dtype=torch.int32, device=device)
        position_bytes = 2 * 2 * KEY_HEADS * HEAD_DIM
        layers = 1 if given.smallest else max(8, 4 * CACHE_BYTES // (room * position_bytes))
        caches = [torch.randn(2, 1, room, KEY_HEADS, HEAD_DIM, device=device).half() for _ in range(layers)]
        expected = right(product, heads, rotation, *caches[0][:, :, :positions])
        taken = split_config_for(room, 2 * HEAD_DIM)
        lines = []
        for cut in (taken, *(TRIED if given.all else ())):
            calls = [partial(_of_product, heads, rotation, part, lengths, cut) for part in caches]
            try:
                error = float((calls[0](product).float() - expected).norm() / expected.norm())
            except Exception as problem:  # noqa: BLE001  A cut that does not fit the card.
                lines.append((1.0, f"{cut}: {str(problem)[:60]}"))
                continue
            each_s = 0.0 if given.smallest else seconds_each(calls, product)
            rate = f"  {1e6 * each_s:7.2f} us  {positions * position_bytes / each_s / 1e9:6.0f} GB/s" if each_s else ""
            lines.append((each_s, f"error {error:.1e}{'' if error < WRONG else ' WRONG'}{rate}  {cut}"))
        print(f"{positions:6} positions  {lines[0][1]}", flush=True)
        for _, line in sorted(lines[1:])[:10]:
            print(f"{'':18}{line}", flush=True)


def _of_product(
    heads: Heads, rotation: Rotation, cache: Tensor, lengths: Tensor, cut: SplitConfig, product: Tensor
) -> Tensor:  # fmt: skip
    return fused_decode_attention(product, heads, rotation, cache[0], cache[1], lengths, cut)


if __name__ == "__main__":
    main()
