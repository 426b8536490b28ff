"""Boxes of a tensor that Hopper's copy engine brings to shared memory: what a kernel is told of the tensor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

BYTES = 128
"""Size of the driver's CUtensorMap."""
ALIGNMENT = 64
ELEMENT_TYPES = {1: 0, 2: 1, 4: 2}
"""CU_TENSOR_MAP_DATA_TYPE_UINT8, UINT16 and UINT32, by an element's bytes."""
SWIZZLES = {False: 0, True: 3}
"""CU_TENSOR_MAP_SWIZZLE_NONE and _128B"""
NOT_INTERLEAVED = ZEROS_OUTSIDE = 0
"""CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"""
PROMOTED_TO_256_BYTES = 3
"""CU_TENSOR_MAP_L2_PROMOTION_L2_256B"""


DIMENSIONS = 3
"""Of every map; those that a tensor lacks have the size 1."""


@dataclass(frozen=True)
class TensorMap:
    """A tensor, and the boxes of it that are copied."""

    tensor: Tensor
    """[..., width], three dimensions at most. The numbers of a row lie together. It begins at a multiple of 16 bytes,
    and its strides are such."""
    box: tuple[int, ...]
    """Size of a box, the width first, 256 at most in each direction."""
    swizzled: bool = False
    """Whether 16 bytes of a line of 128 are exchanged with others by the line, so that eight lines fill all banks."""

    @property
    def sizes(self) -> list[int]:
        """Numbers in each direction, the width first."""
        return [*reversed(self.tensor.shape), 1][:DIMENSIONS]

    @property
    def box_sizes(self) -> list[int]:
        """The same of a box."""
        return [*self.box, 1][:DIMENSIONS]

    @property
    def pitches(self) -> list[int]:
        """Bytes from one number to the next in all directions but the first."""
        size = self.tensor.element_size()
        strides = [stride * size for stride in reversed(self.tensor.stride()[:-1])]
        return [*strides, self.tensor.nbytes][: DIMENSIONS - 1]

    def encoded(self, encode: Callable[..., int], check: Callable[[int], None]) -> Any:
        """The driver's form of it, as bytes for a kernel's argument.

        Args:
            encode: The driver's cuTensorMapEncodeTiled.
            check: Raises where the driver refuses.
        """
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
