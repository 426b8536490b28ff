"""safetensors files, written as a stream and checked without being read.

A file is eight bytes with the header's length, the header (JSON: each tensor's type, shape and place), then the
tensors. safetensors' own writer takes all tensors at once; a dummy of many gigabytes is written tensor by tensor here,
without ever holding more than one in memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import ModelError

if TYPE_CHECKING:
    import torch

    from benchmarker.checkpoints.base import PlannedTensor

DTYPES = {
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int32": ("I32", 4),
}
"""torch's name of a type to the format's name and the bytes of one element."""
LENGTH = struct.Struct("<Q")
POINTER = b"version https://git-lfs"
"""How git-lfs begins the text that stands for a file which it has not fetched."""


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
            values = tensor.make(generator)
            assert tuple(values.shape) == tensor.shape, f"{tensor.name}: {tuple(values.shape)}"
            file.write(_raw(values))
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
    """Check, without reading a weight, that the file is a safetensors file and as long as its header says.

    Raises:
        ModelError: It is cut short, damaged, or no safetensors file at all.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np"):
            return
    except SafetensorError as error:
        with path.open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                raise ModelError(
                    f"{path}: a git-lfs pointer, not the weights themselves; run 'git lfs pull' in its folder"
                ) from error
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise ModelError(
            f"{path}: {path.stat().st_size:,} bytes that are not a whole safetensors file ({reason}); "
            "copy or download it again"
        ) from error
