"""CUDA kernels compiled for the CPU of this machine, with one CPU thread per thread of a block."""

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarker.kernels import cuda_source
from benchmarker.kernels.cuda_source import TensorMap

SHIMS = Path(__file__).parent / "cuda_on_cpu"
STAND_INS = {"tensor_ptx.cuh": SHIMS / "cuda.h", "hopper_ptx.cuh": SHIMS / "hopper.h"}
"""Replacements of the headers with GPU instructions."""
MULTIPROCESSORS = 3
OPTIONS = ["-std=c++20", "-Og", "-fno-strict-aliasing", "-shared", "-fPIC", "-w", "-Wno-psabi"]
CONCURRENT = {"prefill_gemm"}
"""Kernels whose blocks wait for each other. Their blocks run concurrently; other kernels run one block at a time."""
RUN = """
static void __syncthreads() {{ named_barrier_sync(0, THREADS); }}
extern "C" void run(int blocks, void** at, int* sizes, float* numbers) {{
    gridDim.x = blocks;
    const int together = {are_together} ? blocks : 1;
    for (int last = blocks - 1; last >= 0; last -= together)
        run_blocks(last, together, THREADS, [&] {{ {symbol}({arguments}); }});
}}
"""
POINTERS = {
    "gemv_nf4": ("u16", "uint4", "float", "float", "u16", "u16", "u16"),
    "gemv_gptq": ("u16", *("u32", "u32", "u16") * 3, "u16", "u16", "u16"),
    "w4a16_gemm": ("u16", "unsigned char", "unsigned char", "float", "float", "int", "u16"),
    "prefill_gemm": (*("TensorMap",) * 4, "u16", "float", "float", "int", "u16"),
    "permute_rows": ("uint4", "uint4"),
}
"""Pointer types of each kernel. A tensor map is passed by value."""
NUMBERS = {
    "gemv_nf4": (1, 1),
    "gemv_gptq": (4, 1),
    "w4a16_gemm": (2, 0),
    "prefill_gemm": (4, 0),
    "permute_rows": (2, 0),
}
"""Number of integer arguments after the pointers, and of float arguments after the integers."""


@cache
def compiled(name: str, macros: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    """Compile a kernel's source for the CPU and load the library."""
    lines = [*_lines(STAND_INS["tensor_ptx.cuh"]), *_lines(cuda_source.FOLDER / f"{name}.cu")]
    arguments = [f"{'*' * (kind == 'TensorMap')}({kind}*)at[{index}]" for index, kind in enumerate(POINTERS[name])]
    for array, count in zip(("sizes", "numbers"), NUMBERS[name], strict=True):
        arguments += [f"{array}[{index}]" for index in range(count)]
    source = Path(mkstemp(".cpp", dir=precompiled_headers().name)[1])
    library = source.with_suffix(".so")
    run_source = RUN.format(
        symbol=cuda_source.symbol(name), are_together=int(name in CONCURRENT), arguments=", ".join(arguments)
    )
    source.write_text("\n".join(lines) + run_source)
    headers = str(Path(precompiled_headers().name) / "standard.h")
    defined = [f"-D{macro}={value}" for macro, value in macros]
    subprocess.run(["g++", *OPTIONS, *defined, "-include", headers, "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


@cache
def precompiled_headers() -> TemporaryDirectory[str]:
    """Return a folder with precompiled standard headers, which halve the compile time of a library."""
    folder = TemporaryDirectory()
    header = Path(folder.name) / "standard.h"
    lines = [line for shim in STAND_INS.values() for line in _lines(shim)]
    header.write_text("\n".join(line for line in lines if line.startswith("#include <")) + "\n")
    subprocess.run(["g++", *OPTIONS, "-x", "c++-header", "-o", f"{header}.gch", str(header)], check=True)
    return folder


@dataclass(frozen=True)
class OnProcessorKernel:
    """Replacement of a `CudaKernel` that runs on the CPU."""

    name: str
    library: ctypes.CDLL
    registers: int = 255

    def __call__(self, blocks: int, arguments: Sequence[Any]) -> None:
        first, last = len(POINTERS[self.name]), len(POINTERS[self.name]) + NUMBERS[self.name][0]
        tensors = [_described(value) if isinstance(value, TensorMap) else value for value in arguments[:first]]
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        self.library.run(
            blocks,
            (ctypes.c_void_p * first)(*pointers),
            (ctypes.c_int * (last - first))(*arguments[first:last]),
            (ctypes.c_float * (len(arguments) - last))(*arguments[last:]),
        )


def _lines(source: Path) -> list[str]:
    """Return the lines of a file and its includes, without cuda.h, which precedes them."""
    lines: list[str] = []
    for line in source.read_text().splitlines():
        included = line.startswith('#include "') and line.split('"')[1]
        if not included and not line.startswith("extern __shared__"):
            lines.append(line)
        elif included and included != "tensor_ptx.cuh":
            lines += _lines(STAND_INS.get(included, cuda_source.FOLDER / included))
    return lines


def _described(tensor_map: TensorMap) -> Tensor:
    """Return a tensor map in the layout of hopper.h."""
    tensor = tensor_map.tensor
    shape = [*tensor_map.sizes, *tensor_map.pitches, *tensor_map.box_sizes]
    return torch.tensor([tensor.data_ptr(), tensor.element_size(), *shape, int(tensor_map.swizzled), *[0] * 5])


def run_on_processor(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the kernels of a module with `cuda_kernel` by their sources compiled for the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ is installed")
    properties = type("Properties", (), {"multi_processor_count": MULTIPROCESSORS})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(
        module, "cuda_kernel", lambda name, macros, *_: OnProcessorKernel(name, compiled(name, tuple(macros)))
    )
