"""Eight consecutive numbers of a vector as 32-bit floats: what a word of eight 4-bit weights is multiplied by.

Read as one load of 16 bytes and converted in the same place. Written as eight loads of Triton's, they are eight
instructions of the GPU too, a third of all in a GEMV over packed words.
"""

from torch import Tensor

from benchmarker.kernels.triton_if_present import tl, triton


def _ptx(*, bf16: bool) -> str:
    """$8 is the address, $9 is 0 where nothing is to be read; then the numbers are 0."""
    lines = ["mov.b32 w0, 0;", "mov.b32 w1, 0;", "mov.b32 w2, 0;", "mov.b32 w3, 0;", "setp.ne.b32 inside, $9, 0;"]
    lines.append("@inside ld.global.v4.b32 {w0, w1, w2, w3}, [$8];")
    for word in range(4):
        low, high = f"${2 * word}", f"${2 * word + 1}"
        if bf16:
            lines += [f"shl.b32 bits, w{word}, 16;", f"mov.b32 {low}, bits;"]
            lines += [f"and.b32 bits, w{word}, 0xFFFF0000;", f"mov.b32 {high}, bits;"]
        else:
            lines += [f"mov.b32 {{first, second}}, w{word};", f"cvt.f32.f16 {low}, first;"]
            lines += [f"cvt.f32.f16 {high}, second;"]
    registers = ".reg .b32 w0, w1, w2, w3, bits;\n.reg .b16 first, second;\n.reg .pred inside;"
    return "{\n" + registers + "\n" + "\n".join(lines) + "\n}"


READ_F16, READ_BF16 = tl.constexpr(_ptx(bf16=False)), tl.constexpr(_ptx(bf16=True))
REGISTERS = tl.constexpr("=f," * 8 + "l,r")


def is_aligned(tensor: Tensor) -> bool:
    """Whether a tensor begins at a multiple of 16 bytes, so that it can be read 16 bytes at a time."""
    return tensor.data_ptr() % 16 == 0


def aligned(tensor: Tensor) -> Tensor:
    """The same numbers one after another, from a multiple of 16 bytes on; a copy only where they lie otherwise."""
    tensor = tensor.contiguous()
    return tensor if is_aligned(tensor) else tensor.clone()


def can_read_by_ptx(*vectors: Tensor | None) -> bool:
    """Whether `read_eight` may read all of these by its PTX: floating point of 16 bits from a multiple of 16 bytes on.

    Args:
        vectors: None where there is nothing to read.
    """
    return all(vector is None or (vector.element_size() == 2 and is_aligned(vector)) for vector in vectors)


@triton.jit  # type: ignore[untyped-decorator]
def read_eight(vector, place, inside, by_ptx: tl.constexpr):  # type: ignore[no-untyped-def]
    """The numbers from each place on, a multiple of 8, as eight tensors; 0 where not `inside`.

    Args:
        by_ptx: Whether the GPU is NVIDIA's, and `can_read_by_ptx` allows it.
    """
    kind: tl.constexpr = vector.dtype.element_ty
    if by_ptx:
        # Not pure: a load that the compiler moves before the wait for the kernel before this one reads nothing.
        numbers = tl.inline_asm_elementwise(
            READ_BF16 if kind == tl.bfloat16 else READ_F16, REGISTERS,
            [(vector + place).to(tl.int64), inside.to(tl.int32)], dtype=(tl.float32,) * 8, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        numbers = (
            tl.load(vector + place, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 1, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 2, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 3, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 4, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 5, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 6, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 7, mask=inside, other=0.0).to(tl.float32),
        )
    return numbers
