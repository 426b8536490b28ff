"""Time the GEMVs of Qwen3-4B's layers, in us and GB/s.

A CUDA graph runs the GEMV of several layers, whose weights together exceed the L2 cache, with programmatic dependent
launch as in a decode step. Results are checked first: errors are relative to float32, in the Frobenius norm.

    python tests/benchmarks/gemv_times.py                    # Hopper and newer
    python tests/benchmarks/gemv_times.py --forms gptq       # one form only
    TRITON_INTERPRET=1 python tests/benchmarks/gemv_times.py --smallest   # check only, on a CPU; not NF4
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarker.kernels import gemv_dense, gemv_gptq, gemv_nf4
from benchmarker.kernels.dequantize_words import CODEBOOKS
from benchmarker.kernels.gemv_fusion import GemvFusion
from benchmarker.kernels.gemv_gptq import Matrix

CACHE_BYTES = 50 * 2**20
"""L2 cache of an H100; the weights of all layers have four times this size."""
MIN_LAYERS = 8
REPLAYS = 21
GROUP = 128
MAX_ERROR = 1e-3


@dataclass(frozen=True)
class Shape:
    """Shape of a GEMV: outputs of each fused linear, and inputs."""

    name: str
    outputs: tuple[int, ...]
    inputs: int

    def fusion(self, hidden: Tensor) -> GemvFusion:
        """Return the operations that are fused with the GEMV in a layer."""
        if self.name in ("o", "down"):
            return GemvFusion(residual=torch.randn(self.outputs[0], device=hidden.device).to(hidden.dtype))
        gain = 1 + torch.randn(self.inputs, device=hidden.device) / 4
        return GemvFusion(gain.to(hidden.dtype), 1e-6, swiglu=self.name == "gate_up")


SHAPES = (
    Shape("qkv", (4096, 1024, 1024), 2560),
    Shape("o", (2560,), 4096),
    Shape("gate_up", (9728, 9728), 2560),
    Shape("down", (2560,), 9728),
)
SMALLEST = (
    Shape("qkv", (64, 32, 32), 256), Shape("o", (64,), 256), Shape("gate_up", (64, 64), 256), Shape("down", (64,), 512),
)  # fmt: skip
Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Weights:
    """Weights of one layer."""

    product: Callable[..., Tensor]
    """GEMV with these weights; arguments are the vector and the fusion."""
    size_bytes: int
    matrix: Callable[[], Tensor]
    """Function that returns the dequantized weights in float32, [outputs, inputs]."""


def weights_of(form: str, shape: Shape, device: str) -> Weights:
    """Return random weights of a layer."""
    outputs = sum(shape.outputs)
    if form == "fp16":
        rows = (torch.randn(outputs, shape.inputs, device=device) / 50).half()
        product = partial(gemv_dense.launch, weights=rows, scales=None)
        return Weights(product, rows.nbytes, rows.float)
    if form == "int8":
        numbers = torch.randint(-127, 128, (outputs, shape.inputs), device=device, dtype=torch.int8)
        row_scales = (torch.rand(outputs, 1, device=device) * 5e-4).half()
        product = partial(gemv_dense.launch, weights=numbers, scales=row_scales)
        return Weights(product, numbers.nbytes, lambda: numbers.float() * row_scales.float())
    if form == "nf4":
        codes = torch.randint(0, 256, (outputs, shape.inputs // 2), device=device, dtype=torch.uint8)
        absmax = torch.rand(outputs, shape.inputs // 64, device=device) / 50
        numbers = torch.tensor(CODEBOOKS["nf4"], device=device)
        product = partial(gemv_nf4.launch, packed=codes, scales=absmax, codebook=numbers)
        return Weights(product, codes.nbytes + absmax.nbytes, lambda: _looked_up(codes, absmax, numbers))
    matrix = _gptq(outputs, shape.inputs, device)
    # Fused linears are columns of one matrix; the kernel with SwiGLU gets gate and up separately.
    halves = zip(matrix.words.chunk(2, 1), (None, None), matrix.scales.chunk(2, 1), strict=True)
    matrices = [Matrix(*half) for half in halves] if shape.name == "gate_up" else [matrix]
    product = partial(gemv_gptq.launch, matrices=matrices)
    return Weights(product, matrix.words.nbytes + matrix.scales.nbytes, lambda: _unpacked(matrix))


def _gptq(outputs: int, inputs: int, device: str) -> Matrix:
    words = torch.randint(-(2**31), 2**31, (inputs // 8, outputs), device=device, dtype=torch.int32)
    return Matrix(words, None, (torch.rand(inputs // GROUP, outputs, device=device) / 100).half())


def _looked_up(codes: Tensor, absmax: Tensor, numbers: Tensor) -> Tensor:
    both = torch.stack((codes >> 4, codes & 15), 2).view(len(codes), -1).long()
    return numbers[both] * absmax.repeat_interleave(64, 1)


def _unpacked(matrix: Matrix) -> Tensor:
    numbers = gemv_gptq.unpacked(matrix.words, torch.full_like(matrix.scales, -2004318072, dtype=torch.int32)[:, ::8],
                                 matrix.scales.float())  # fmt: skip
    return numbers.T


def expected(hidden: Tensor, matrix: Tensor, fusion: GemvFusion) -> Tensor:
    """Return the GEMV with fused operations, computed in float32."""
    vector = hidden.float()
    if fusion.gain is not None:
        vector = vector * torch.rsqrt(vector.square().mean() + fusion.epsilon) * fusion.gain.float()
    product = matrix @ vector
    if fusion.swiglu:
        gate, up = product.chunk(2)
        product = torch.nn.functional.silu(gate) * up
    return product if fusion.residual is None else product + fusion.residual.float()


def seconds_each(products: list[Product], hidden: Tensor) -> float:
    """Return the median seconds per product of a CUDA graph of all products."""
    for product in products:
        product(hidden)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [product(hidden) for product in products]
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    del kept
    return statistics.median(times) / len(products)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", choices=["fp16", "int8", "gptq", "nf4"])
    parser.add_argument("--bandwidth", type=float, default=3.10e12, help="memory bandwidth in bytes/s")
    parser.add_argument("--smallest", action="store_true", help="tiny shapes, checked and not timed")
    options = parser.parse_args()
    device = "cpu" if options.smallest else "cuda"
    torch.manual_seed(0)
    for form in options.forms or ["fp16", "int8", "gptq", *([] if options.smallest else ["nf4"])]:
        for shape in SMALLEST if options.smallest else SHAPES:
            hidden = torch.randn(shape.inputs, device=device).half()
            fusion = shape.fusion(hidden)
            first = weights_of(form, shape, device)
            count = max(MIN_LAYERS, 4 * CACHE_BYTES // first.size_bytes)
            layers = (
                [first] if options.smallest else [first, *(weights_of(form, shape, device) for _ in range(count - 1))]
            )
            reference = expected(hidden, first.matrix(), fusion)
            error = float((first.product(hidden, fusion=fusion).float() - reference).norm() / reference.norm())
            words = f"{form:5} {shape.name:8} error {error:.1e}{'' if error < MAX_ERROR else ' WRONG'}"
            if not options.smallest:
                each_s = seconds_each([partial(layer.product, fusion=fusion) for layer in layers], hidden)
                rate = first.size_bytes / each_s
                words += f"  {1e6 * each_s:7.2f} us  {rate / 1e9:6.0f} GB/s  {rate / options.bandwidth:5.1%}"
            print(words, flush=True)


if __name__ == "__main__":
    main()
