"""CUDA C++ kernels, compiled at run time by the NVRTC that torch ships, and launched with PDL.

In Triton, the compiler assigns numbers to the lanes of a warp. Kernels that need a certain assignment, as for operands
of tensor cores, are `.cu` files in this folder. Their constants are macros, so each shape is compiled separately. No
CUDA toolkit is needed. NVRTC takes 0.2 to 0.7 s per kernel, so machine code is stored next to the compilers' caches.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

FOLDER = Path(__file__).parent
HOPPER = (9, 0)  # Compute capability of Hopper.
HOPPER_ALONE = ("prefill_gemm",)
"""Sources with instructions that only Hopper has (wgmma). They are compiled for its architecture sm_90a."""
SHARED_BYTES_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
REGISTERS_ATTRIBUTE = 4  # CU_FUNC_ATTRIBUTE_NUM_REGS
PDL_ATTRIBUTE = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

SYMBOLS = {
    "prefill_gemm": "prompt_matmul_kernel",
    "w4a16_gemm": "matmul_4bit_kernel",
    "permute_rows": "rows_by_lane_kernel",
}
"""Names of kernels by file, if they differ: recorded profiles contain these older names."""


def symbol(name: str) -> str:
    return SYMBOLS.get(name, f"{name}_kernel")


class CudaSourceError(RuntimeError):
    """NVRTC or the CUDA driver reported an error. The message contains its text."""


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("_pad", ctypes.c_int), ("value", ctypes.c_int), ("_rest", ctypes.c_char * 60))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


@dataclass(frozen=True)
class CudaKernel:
    function: ctypes.c_void_p
    threads: int
    shared_bytes: int
    registers: int  # Number of registers per thread at the start of the kernel.
    device: torch.device

    def __call__(self, blocks: int, arguments: Sequence[Tensor | TensorMap | int | float | None]) -> None:
        """Launch on torch's current stream. Tensors and None are passed as pointers, TensorMaps as 128 bytes, and
        numbers as 32 bits."""
        values = [_argument(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        pdl = _Attribute(id=PDL_ATTRIBUTE, value=1)
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream().cuda_stream
            block, attributes = (self.threads, 1, 1), ctypes.pointer(pdl)
            launch = _Launch((blocks, 1, 1), block, self.shared_bytes, stream, attributes, 1)
            _check_driver(_driver().cuLaunchKernelEx(ctypes.byref(launch), self.function, pointers, None))


@cache
def cuda_kernel(
    name: str, macros: tuple[tuple[str, int], ...], threads: int, shared_bytes: int, device: torch.device
) -> CudaKernel:
    """Return the kernel of the file `name`.cu, compiled with these macros and loaded once per process and device."""
    with torch.cuda.device(device):
        binary = _binary(name, macros, torch.cuda.get_device_capability(device))
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check_driver(_driver().cuModuleLoadData(ctypes.byref(module), binary))
        _check_driver(_driver().cuModuleGetFunction(ctypes.byref(function), module, symbol(name).encode()))
        _check_driver(_driver().cuFuncSetAttribute(function, SHARED_BYTES_ATTRIBUTE, shared_bytes))
        registers = ctypes.c_int()
        _check_driver(_driver().cuFuncGetAttribute(ctypes.byref(registers), REGISTERS_ATTRIBUTE, function))
    return CudaKernel(function, threads, shared_bytes, registers.value, device)


def compile_only(name: str, macros: tuple[tuple[str, int], ...], device: torch.device) -> None:
    """Compile a kernel without loading it. Several threads may call this at once."""
    _binary(name, macros, torch.cuda.get_device_capability(device))


@cache
def _binary(name: str, macros: tuple[tuple[str, int], ...], capability: tuple[int, int]) -> bytes:
    headers = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.cuh"))}
    source = Source(f"{name}.cu", (FOLDER / f"{name}.cu").read_text(), headers)
    options = _options(name, macros, capability)
    key_parts = [_version(), *options, source.text, *headers, *headers.values()]
    return load_or_compile(key_parts, partial(compiled, source, options))


def _options(name: str, macros: tuple[tuple[str, int], ...], capability: tuple[int, int]) -> list[str]:
    architecture = f"sm_{capability[0]}{capability[1]}{'a' if name in HOPPER_ALONE else ''}"
    defined = [f"-D{macro}={value}" for macro, value in macros]
    return [f"--gpu-architecture={architecture}", "--std=c++17", *defined]


@dataclass(frozen=True)
class Source:
    name: str
    text: str
    headers: Mapping[str, str]  # Texts of the headers by file name.


def compiled(source: Source, options: Sequence[str]) -> bytes:
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    count = len(source.headers)
    texts = (ctypes.c_char_p * count)(*(text.encode() for text in source.headers.values()))
    names = (ctypes.c_char_p * count)(*(name.encode() for name in source.headers))
    text, name = source.text.encode(), source.name.encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, count, texts, names)
    try:
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), words)
        if failed:
            log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise CudaSourceError(f"NVRTC does not compile {source.name}: {log.decode(errors='replace')[:400]}")
        return _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(size_of: Any, read: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    read(program, text)
    return text.raw


@cache
def why_no_source() -> str | None:
    """Return why CUDA kernels cannot be compiled or loaded on this machine; None if they can."""
    try:
        _nvrtc()
        _driver()
    except CudaSourceError as error:
        return str(error)
    return None


@cache
def _nvrtc() -> Any:
    major = (torch.version.cuda or "").split(".")[0]
    for name in (f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaSourceError(f"no NVRTC of CUDA {major} is found")


def _version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise CudaSourceError("no libcuda.so.1 is found") from None


def _argument(argument: Tensor | TensorMap | int | float | None) -> Any:
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, TensorMap):
        return argument.encoded(_driver().cuTensorMapEncodeTiled, _check_driver)
    return ctypes.c_int(argument) if isinstance(argument, int) else ctypes.c_float(argument)


def _check_driver(status: int) -> None:
    if status:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(name))
        raise CudaSourceError(f"the driver says {(name.value or b'unknown').decode()}")


def load_or_compile(key_parts: Sequence[str], compile_source: Callable[[], bytes]) -> bytes:
    """Return the machine code stored under `key_parts` (sources, options, compiler), or compile and store it."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    digest = sha256("\0".join(key_parts).encode()).hexdigest()
    path = Path(cache_dir()) / "benchmarker-binaries" / f"{digest}.cubin"
    with contextlib.suppress(OSError):
        return path.read_bytes()
    binary = compile_source()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written in a temporary folder and then renamed, so that no process reads an incomplete file.
        with TemporaryDirectory(dir=path.parent) as folder:
            (Path(folder) / path.name).write_bytes(binary)
            (Path(folder) / path.name).replace(path)
    return binary


BYTES = 128  # Bytes of the driver's CUtensorMap.
ALIGNMENT = 64
ELEMENT_TYPES = {1: 0, 2: 1, 4: 2}  # CU_TENSOR_MAP_DATA_TYPE_UINT8, UINT16 and UINT32, by bytes per element.
SWIZZLES = {False: 0, True: 3}  # CU_TENSOR_MAP_SWIZZLE_NONE and _128B
NOT_INTERLEAVED = ZEROS_OUTSIDE = 0  # CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
PROMOTED_TO_256_BYTES = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B
DIMENSIONS = 3  # Dimensions of every map; a tensor with fewer is padded with dimensions of size 1.


@dataclass(frozen=True)
class TensorMap:
    """Description of a tensor for Hopper's copy engine (TMA), which copies boxes of the tensor to shared memory."""

    tensor: Tensor  # At most three dimensions, contiguous rows; start and strides are multiples of 16 bytes.
    box: tuple[int, ...]  # Size of a box, innermost dimension first, at most 256 each.
    swizzled: bool = False
    """True to permute units of 16 bytes in lines of 128 bytes, so that reads of eight lines have no bank conflicts."""

    @property
    def sizes(self) -> list[int]:
        return [*reversed(self.tensor.shape), 1][:DIMENSIONS]

    @property
    def box_sizes(self) -> list[int]:
        return [*self.box, 1][:DIMENSIONS]

    @property
    def pitches(self) -> list[int]:
        """Strides in bytes of all dimensions except the innermost."""
        size = self.tensor.element_size()
        strides = [stride * size for stride in reversed(self.tensor.stride()[:-1])]
        return [*strides, self.tensor.nbytes][: DIMENSIONS - 1]

    def encoded(self, encode: Callable[..., int], check: Callable[[int], None]) -> Any:
        """Return the 128 bytes written by `encode` (cuTensorMapEncodeTiled); `check` raises for its error codes."""
        room = ctypes.create_string_buffer(BYTES + ALIGNMENT)
        encoded = (ctypes.c_char * BYTES).from_buffer(room, -ctypes.addressof(room) % ALIGNMENT)
        sizes, pitches = (ctypes.c_uint64 * 3)(*self.sizes), (ctypes.c_uint64 * 2)(*self.pitches)
        box, each = (ctypes.c_uint32 * 3)(*self.box_sizes), (ctypes.c_uint32 * 3)(1, 1, 1)
        status = encode(
            encoded, ELEMENT_TYPES[self.tensor.element_size()], DIMENSIONS, ctypes.c_void_p(self.tensor.data_ptr()),
            sizes, pitches, box, each, NOT_INTERLEAVED, SWIZZLES[self.swizzled], PROMOTED_TO_256_BYTES, ZEROS_OUTSIDE,
        )  # fmt: skip
        check(status)
        return encoded
