"""Time the quantized GEMMs of Qwen3-4B's layers, in us, with the candidates of `gemm_autotune` and cuBLAS in fp16.

The L2 cache is overwritten before each product. Candidates that fail or return a wrong result are listed with the
reason.

    python tests/benchmarks/gemm_times.py                          # Hopper and newer
    python tests/benchmarks/gemm_times.py --rows 8 512 --forms nf4 # a selection
    python tests/benchmarks/gemm_times.py --all                    # each candidate's time, not the fastest alone
    python tests/benchmarks/gemm_times.py --rows 16 --by-lane      # candidates of many rows, for few
    python tests/benchmarks/gemm_times.py --smallest               # check only, on a CPU
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarker.kernels import prefill_gemm
from benchmarker.kernels.dequantize_words import CODEBOOKS
from benchmarker.kernels.gemm_autotune import difference, graph_us, l2_flush_buffer, measure
from benchmarker.kernels.gemv_gptq import ALL_EIGHT, unpacked
from benchmarker.kernels.packed_weights import INT4_ZEROS, Packed, is_int4_by_group, order_of, pack_factor, reorder
from benchmarker.kernels.quantized_gemm import candidates_for, unpacked_candidate

FORMS = {"int8": "int8 by row", "gptq": "int4 by group", "awq": INT4_ZEROS, "nf4": "nf4"}
SHAPES = {"qkv": (2560, 6144), "o": (4096, 2560), "gate_up": (2560, 19456), "down": (9728, 2560)}
"""Inputs and outputs of the GEMMs of a layer."""
SMALLEST = {"qkv": (256, 128), "down": (512, 64)}
ROWS = (2, 8, 16, 32, 48, 64, 128, 256, 512, 1024, 2048, 4096)


def weights_of(form: str, inputs: int, outputs: int, device: str) -> tuple[Packed, Tensor]:
    """Return random weights, packed and as an fp16 matrix, [outputs, inputs]."""
    if form == "int8 by row":
        rows = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8, device=device)
        scales = (torch.rand(outputs, device=device) / 2000).half()
        return Packed(form, rows.view(torch.int32), scales), rows.half() * scales[:, None]
    if is_int4_by_group(form):
        words = torch.randint(-(2**31), 2**31, (inputs // 8, outputs), dtype=torch.int32, device=device)
        scales = (torch.rand(inputs // 128, outputs, device=device) / 100).half()
        zeros = torch.full((inputs // 128, outputs // 8), ALL_EIGHT, dtype=torch.int32, device=device)
        if form == INT4_ZEROS:
            zeros = torch.randint_like(zeros, -(2**31), 2**31 - 1)
        return Packed(form, words, scales, zeros), unpacked(words, zeros, scales).T
    codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, device=device)
    scales, table = torch.rand(outputs, inputs // 64, device=device) / 30, torch.tensor(CODEBOOKS[form], device=device)
    both = torch.stack((codes >> 4, codes & 15), 2).view(outputs, inputs).long()
    matrix = table[both] * scales.repeat_interleave(64, 1)
    return Packed(form, codes.view(torch.int16), scales, table), matrix.half()


def case(name: str, shape: tuple[int, int], rows: int, options: Any) -> tuple[str, float, float]:
    """Time one GEMM. Return a line of text, and the us of cuBLAS and of the fastest candidate; 0 if not timed."""
    device, form = "cpu" if options.smallest else "cuda", FORMS[name]
    packed, matrix = weights_of(form, *shape, device)
    hidden = torch.randn(rows, shape[0], device=device).half()
    has_prefill_gemm = prefill_gemm.why_not(hidden.device, hidden.dtype, packed) is None
    order = "by lane" if options.by_lane else order_of(form, rows, has_prefill_gemm=has_prefill_gemm)
    permuted = reorder(hidden, pack_factor(form), order)
    candidates = candidates_for(permuted, packed)
    expected = hidden.float() @ matrix.float().T
    start = f"{name:4} {shape[0]:5} x {shape[1]:5} {rows:5} rows"
    if options.smallest:
        off = difference(unpacked_candidate.launch(permuted, packed), expected)
        return f"{start}  {len(candidates)} candidates  error {off:.1e}{'' if off < 1e-3 else ' WRONG'}", 0, 0
    flush_buffer = l2_flush_buffer(hidden.device)
    choice = measure(permuted, packed, candidates, unpacked_candidate)
    cublas_us = graph_us(partial(torch.matmul, hidden, matrix.T), flush_buffer) - graph_us(lambda: None, flush_buffer)
    best_us = choice.us[choice.way]
    made = next(candidate for candidate in candidates if candidate.name == choice.way).launch(permuted, packed)
    words = f"{start}  cuBLAS {cublas_us:7.1f}  {best_us:7.1f} {cublas_us / best_us:5.2f}x  {choice.way}"
    words += f"  error {difference(made, expected):.1e}"
    shown = choice.us if options.all else {}
    words += "".join(
        f"\n    {us:8.1f}  {candidate}" for candidate, us in sorted(shown.items(), key=lambda item: item[1])
    )
    return (
        words + "".join(f"\n    refused: {candidate}: {why}" for candidate, why in choice.refused.items()),
        cublas_us,
        best_us,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--all", action="store_true", help="each candidate's time")
    parser.add_argument("--by-lane", action="store_true", help="rows in prefill_gemm's order, however few they are")
    parser.add_argument("--smallest", action="store_true", help="tiny shapes, checked and not timed")
    options = parser.parse_args()
    torch.manual_seed(0)
    sums: list[str] = []
    for name in options.forms:
        for rows in options.rows:
            shapes = SMALLEST if options.smallest else SHAPES
            cases = [case(name, shape, rows, options) for shape in shapes.values()]
            print("\n".join(words for words, _, _ in cases), flush=True)
            cublas_us, best_us = (sum(column) for column in list(zip(*cases, strict=True))[1:])
            if best_us:
                sums.append(f"{name:4} {rows:5} rows  {cublas_us:8.1f} {best_us:8.1f} {cublas_us / best_us:5.2f}x")
    print("\n".join(["all four: cuBLAS in fp16, ours, us", *sums] if sums else []))


if __name__ == "__main__":
    main()
