"""The ways to split by name. A new one is a line here and a file beside this one. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.workloads.attention.variants.base import Kind
from benchmarker.workloads.context_parallel.spec import ContextParallelPoint, ContextParallelSubject, KernelName
from benchmarker.workloads.context_parallel.split import Order

_HOME = "benchmarker.workloads.context_parallel.variants"
FLASH_MULTIPLE = 8
"""torch's flash kernel takes a head_dim that is a multiple; SDPA pads others first, which the ring does not."""
LONGEST_HEAD_DIM = 256


@dataclass(frozen=True)
class Splitting:
    """One entry of the registry."""

    summary: str
    opener: str
    """`module:function` that makes a `Plan` ready: see variants/base.py."""
    order: Order
    """Which positions a rank holds."""
    kinds: tuple[Kind, ...] = ("cuda", "rocm", "cpu")
    is_ring: bool = False
    """Whether keys and values are passed on from rank to rank, one step beside each block."""
    splits_heads: bool = False
    is_alone: bool = False
    """Whether rank 0 computes the whole sequence by itself."""
    is_counted: bool = True
    """Whether its exchanges are ours, which count what they send. torch's own are not."""
    not_elsewhere: str = ""
    """Why it runs on no other kind of device."""


VARIANTS: dict[str, Splitting] = {
    "zigzag": Splitting(
        "a ring of our own over the library's kernels, in zigzag order: every rank has the same work",
        f"{_HOME}.ring:open_ring",
        "zigzag",
        is_ring=True,
    ),
    "ring": Splitting(
        "the same ring in plain order: the last rank has most of the work",
        f"{_HOME}.ring:open_ring",
        "contiguous",
        is_ring=True,
    ),
    "ulysses": Splitting(
        "all-to-all over the heads, our own: each rank has the whole sequence for a part of the heads",
        f"{_HOME}.ulysses:open_ulysses",
        "contiguous",
        splits_heads=True,
    ),
    "allgather": Splitting(
        "torch's context_parallel, which gathers all keys and values at once (its default)",
        f"{_HOME}.torch_context_parallel:open_allgather",
        "zigzag",
        kinds=("cuda", "rocm"),
        is_counted=False,
        not_elsewhere="torch's context_parallel has no rule for the processor's attention; use zigzag, ring or ulysses",
    ),
    "alltoall": Splitting(
        "torch's context_parallel, which passes keys and values on by all-to-all",
        f"{_HOME}.torch_context_parallel:open_alltoall",
        "zigzag",
        kinds=("cuda", "rocm"),
        is_counted=False,
        not_elsewhere="torch's context_parallel has no rule for the processor's attention; use zigzag, ring or ulysses",
    ),
    "single": Splitting(
        "the whole sequence on one rank, as the anchor",
        f"{_HOME}.single:open_single",
        "contiguous",
        is_alone=True,
    ),
}


def splitting_of(name: str) -> Splitting:
    """The entry of a name.

    Raises:
        SpecError: There is none.
    """
    if name not in VARIANTS:
        raise SpecError(f"no way to split '{name}'{did_you_mean(name, VARIANTS)}")
    return VARIANTS[name]


def wrong_shape(name: str, kernel: KernelName, subject: ContextParallelSubject, point: ContextParallelPoint) -> str:
    """Why a variant cannot split the shape, on any device; empty where nothing is known against it."""
    splitting, ranks = splitting_of(name), point.ranks
    if splitting.is_alone:
        return ""
    parts = 2 * ranks if splitting.order == "zigzag" else ranks
    if point.seq_len % parts:
        nearest = max(1, point.seq_len // parts) * parts
        return f"seq_len: {point.seq_len} is not a multiple of {parts}, for {ranks} ranks; {nearest} is"
    if splitting.splits_heads and (subject.heads % ranks or subject.shared_heads % ranks):
        return (
            f"heads: {name} splits them over the ranks; {subject.heads} heads and {subject.shared_heads} kv_heads "
            f"are not both multiples of {ranks}"
        )
    if subject.head_dim > LONGEST_HEAD_DIM or subject.head_dim % FLASH_MULTIPLE:
        most = f"a multiple of {FLASH_MULTIPLE} up to {LONGEST_HEAD_DIM}"
        return f"head_dim: kernel {kernel} takes {most}, not {subject.head_dim}"
    if kernel == "cudnn" and subject.dtype == "float32":
        return "dtype: kernel cudnn takes bfloat16 and float16, not float32; use kernel flash"
    return ""


def not_there(name: str, kernel: KernelName, kind: Kind, dtype: str) -> str | None:
    """Why a variant cannot run on that kind of device, in the words of a table; None where it can."""
    splitting = splitting_of(name)
    if kind not in splitting.kinds:
        return splitting.not_elsewhere
    if kernel == "cudnn" and kind != "cuda":
        return "kernel cudnn runs on NVIDIA GPUs alone; use kernel flash"
    if kind != "cpu" and dtype == "float32":
        return "the GPU's flash kernel takes bfloat16 and float16, not float32"
    return None
