"""safetensors files, written as a stream and checked without being read.

A file is eight bytes with the header's length, the header (JSON: each tensor's type, shape and place), then the
tensors. So one glance at the header tells how long the file must be, and a file can be written tensor by tensor
without ever holding more than one in memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import ModelError
from benchmarker.quantization.base import PlannedTensor

if TYPE_CHECKING:
    import torch

DTYPES = {
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int32": ("I32", 4),
}
"""torch's name of a type to the format's name and the bytes of one element."""
LENGTH = struct.Struct("<Q")
LONGEST_HEADER = 100_000_000
"""The format's own limit."""


def tensor_bytes(tensor: PlannedTensor) -> int:
    """Size on disk."""
    count = 1
    for extent in tensor.shape:
        count *= extent
    return count * DTYPES[tensor.dtype][1]


def write_tensors(
    path: Path, tensors: tuple[PlannedTensor, ...], generator: torch.Generator
) -> Iterator[PlannedTensor]:
    """Write one file, making each tensor just before it is written and yielding it afterwards."""
    with path.open("wb") as file:
        header = _header(tensors)
        file.write(LENGTH.pack(len(header)) + header)
        for tensor in tensors:
            made = tensor.make(generator)
            assert tuple(made.shape) == tensor.shape, f"{tensor.name}: {tuple(made.shape)}"
            file.write(_raw(made))
            yield tensor


def _header(tensors: tuple[PlannedTensor, ...]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor_bytes(tensor)
        header[tensor.name] = {
            "dtype": DTYPES[tensor.dtype][0],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    # Padded so that the tensors begin at a multiple of eight bytes, as the format asks.
    return text + b" " * (-len(text) % 8)


def _raw(tensor: torch.Tensor) -> memoryview:
    import torch

    return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data


def check_tensors(path: Path) -> None:
    """Check that the file is as long as its header says.

    Raises:
        ModelError: It is cut short, or no safetensors file at all.
    """
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(LENGTH.size)
        if start.startswith(b"version "):
            raise ModelError(f"{path}: a git-lfs pointer, not the weights themselves; run 'git lfs pull' in its folder")
        if len(start) < LENGTH.size:
            raise ModelError(f"{path}: only {size_bytes} bytes long: the file was cut short; copy or download it again")
        length = LENGTH.unpack(start)[0]
        if length > LONGEST_HEADER:
            raise ModelError(f"{path}: not a safetensors file (its header claims {length} bytes)")
        text = file.read(length)
    try:
        header = json.loads(text)
        end = max((tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        if len(text) < length:
            raise ModelError(_cut_short(path, LENGTH.size + length, size_bytes)) from error
        raise ModelError(f"{path}: not a safetensors file: its header is damaged; copy or download it again") from error
    if size_bytes != LENGTH.size + length + end:
        raise ModelError(_cut_short(path, LENGTH.size + length + end, size_bytes))


def _cut_short(path: Path, expected_bytes: int, size_bytes: int) -> str:
    return (
        f"{path}: {size_bytes:,} bytes long where its header says {expected_bytes:,}: "
        "the file is incomplete; copy or download it again"
    )
