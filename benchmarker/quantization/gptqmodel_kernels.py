"""gptqmodel's kernels and storage formats: checks of a kernel before and after loading of GPTQ and AWQ layers.

If the requested kernel is not suitable, gptqmodel silently uses another; here that is an error.

A GPTQ layer has four tensors: `qweight`, codes in 32-bit words along the inputs; `scales`, a 16-bit number per group
and output; `qzeros`, the codes of zero along the outputs (minus one in version 1 of the format); `g_idx`, each input's
group. Dummy checkpoints are filled with random codes.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from benchmarker.checkpoints.base import Checkpoint, Packing, PlannedLinear, PlannedTensor, Target
from benchmarker.checkpoints.dummy import plain_tensor
from benchmarker.checkpoints.read_model import import_libraries, read_model, undisturbed
from benchmarker.core.errors import DeviceError, ModelError, SpecError
from benchmarker.hardware.device import error_kind_of, find_device

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from benchmarker.quantization.base import TorchGpu

KernelName = Literal["auto", "torch", "torch_aten", "triton", "exllama_v2", "marlin"]
GroupSize = Literal[-1, 16, 32, 64, 128, 256, 512, 1024]
GROUPS: tuple[int, ...] = get_args(GroupSize)
WORD_BITS = 32
NOT_STORED = ("input_perm",)
"""Machete's order of the inputs: a buffer that no checkpoint has, reported as missing by transformers."""


@dataclass(frozen=True)
class Kernel:
    linear_class: str
    needs: Literal["anything", "cpu", "gpu", "nvidia"]
    bits: tuple[int, ...]
    group_sizes: tuple[int, ...]
    capability: tuple[int, int] = (0, 0)  # Lowest compute capability.
    symmetric_only: bool = False


KERNELS: dict[str, Kernel] = {
    "torch": Kernel("TorchLinear", "anything", (2, 3, 4, 8), GROUPS),
    "torch_aten": Kernel("TorchAtenLinear", "cpu", (4,), (16, 32, 64, 128)),
    "triton": Kernel("TritonV2Linear", "gpu", (2, 4, 8), GROUPS),
    "exllama_v2": Kernel("ExllamaV2Linear", "nvidia", (4,), (-1, 32, 64, 128)),
    "marlin": Kernel("MarlinLinear", "nvidia", (4, 8), (-1, 32, 64, 128), (8, 0), symmetric_only=True),
}
"""Kernels and their limits, from gptqmodel's declarations (SUPPORTS_BITS, ...); gptqmodel does not enforce all."""


def check_kernel(name: KernelName, quantization: dict[str, Any], gpu: TorchGpu | None) -> None:
    """Raise DeviceError or SpecError if the kernel does not support format (bits, group_size, sym) or device."""
    if name == "auto":
        if gpu is None and quantization["bits"] == 4 and quantization["group_size"] == -1:
            # gptqmodel chooses TorchFusedLinear, whose operator fails in the first forward pass.
            raise SpecError(
                "gptq: the kernel that gptqmodel chooses on CPUs cannot run 4 bits with group_size=-1. "
                "Set options.kernel to 'torch'."
            )
        return
    kernel = KERNELS[name]
    if problem := _device_problem(kernel, gpu):
        other = "triton" if gpu else "torch"
        raise DeviceError(f"gptq: the {name} kernel {problem}. Set options.kernel to '{other}'.")
    for key, supported in (("bits", kernel.bits), ("group_size", kernel.group_sizes)):
        if quantization[key] not in supported:
            raise SpecError(
                f"gptq: the {name} kernel supports {key} {', '.join(map(str, supported))}, "
                f"not {quantization[key]}. Set options.kernel to 'auto'."
            )
    if kernel.symmetric_only and not quantization["sym"]:
        raise SpecError(f"gptq: the {name} kernel needs sym=true. Set options.kernel to 'auto'.")


def _device_problem(kernel: Kernel, gpu: TorchGpu | None) -> str | None:
    if gpu is None:
        return "needs a GPU; this is the CPU" if kernel.needs in ("gpu", "nvidia") else None
    if kernel.needs == "cpu":
        return f"runs on CPUs; this is {gpu.name}"
    if kernel.needs == "nvidia" and not gpu.nvidia:
        return f"needs an NVIDIA GPU; this is {gpu.name}"
    if gpu.nvidia and gpu.capability < kernel.capability:
        return f"needs compute capability {'.'.join(map(str, kernel.capability))}; this is {gpu}"
    return None


def check_shape(name: str, inputs: int, outputs: int, *, group_size: int) -> None:
    """Raise SpecError if the group size or 32 does not divide the inputs and outputs of a linear layer."""
    if group_size != -1 and inputs % group_size:
        raise SpecError(
            f"gptq: options.group_size={group_size} does not divide the {inputs} inputs of {name}; "
            "choose one that does, or -1 for one group per row"
        )
    if inputs % 32 or outputs % 32:
        raise SpecError(f"gptq: {name} is {inputs} x {outputs}; its kernels need multiples of 32")


def read_packed(quant: str, checkpoint: Checkpoint, target: Target, quantization: Any) -> PreTrainedModel:
    """Load a model with gptqmodel's linear layers; `quantization` is transformers' config with the kernel's name."""
    import_libraries("gptqmodel")
    try:
        with undisturbed():
            return read_model(checkpoint, target, quantization=quantization, not_stored=NOT_STORED)
    except Exception as error:
        first = error.__cause__ or error  # `read_model` replaces errors of quantized weights.
        linear = _unready_kernel(first)
        if linear is None or error_kind_of(first, find_device(target.device)) in ("oom_gpu", "oom_host"):
            raise
        reason = " ".join(f"{type(first).__name__}: {first}".split())[:200]
        raise DeviceError(
            f"{quant}: gptqmodel could not build {linear}, which it compiles or downloads at first use "
            f"({reason}). Set options.kernel to 'torch', which needs neither; --verbose shows the whole error"
        ) from error


def _unready_kernel(error: BaseException) -> str | None:
    """Return gptqmodel's linear class whose method raised the error, None if there is no such class."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        linear = type(frame.f_locals.get("self"))
        if linear.__module__.startswith("gptqmodel.nn_modules."):
            return linear.__name__
    return None


def linear_class_of(quant: str, model: PreTrainedModel, *, kernel: str, expected: str | None) -> str:
    """Return the linear class that gptqmodel used; DeviceError if another one is expected."""
    from gptqmodel.nn_modules.qlinear import BaseQuantLinear

    classes = Counter(type(module).__name__ for module in model.modules() if isinstance(module, BaseQuantLinear))
    if not classes:
        raise ModelError(
            f"{quant}: the loaded model has no {quant.upper()} layer; is the checkpoint's quantization_config right?"
        )
    if expected is not None and set(classes) != {expected}:
        used = ", ".join(f"{count} {kind}" for kind, count in sorted(classes.items()))
        raise DeviceError(
            f"{quant}: requested the {kernel} kernel, gptqmodel used {used}. "
            "Set options.kernel to 'auto' to accept that, or see why with --verbose."
        )
    return ", ".join(sorted(classes))


def gptq_config(options: Any) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        # Version 1 stores zero points minus one.
        "format": "gptq_v2" if _has_random_zeros(options) else "gptq",
        "bits": options.bits,
        "group_size": options.group_size,
        "sym": options.sym,
        "desc_act": options.desc_act,
        "damp_percent": options.damp_percent,
        "true_sequential": True,
        "act_group_aware": is_group_aware(options),
    }


def _has_random_zeros(options: Any) -> bool:
    # 3-bit zero points cross the boundaries of words.
    return not options.sym and WORD_BITS % options.bits == 0


def is_group_aware(options: Any) -> bool:
    """Return whether groups are quantized in order of their activations, gptqmodel's default."""
    return options.group_size != -1 and not options.desc_act


def gptq_tensors(linear: PlannedLinear, options: Any) -> tuple[PlannedTensor, ...]:
    check_shape(linear.name, linear.in_features, linear.out_features, group_size=options.group_size)
    bits, inputs = options.bits, linear.in_features
    group = inputs if options.group_size == -1 else options.group_size

    def input_groups(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        import torch

        order = torch.arange(inputs, device=tensor.device)
        if options.desc_act:
            # With activation order, a group's inputs are scattered, which slows kernels down.
            order = torch.randperm(inputs, generator=generator, device=tensor.device)
        return (order // group).to(tensor.dtype)

    g_idx = plain_tensor(f"{linear.name}.g_idx", "int32", (inputs,), input_groups)
    qweight = (inputs * bits // WORD_BITS, linear.out_features)
    zeros = None if _has_random_zeros(options) else zero_words(bits)
    return (*packed_tensors(linear, bits, qweight=qweight, groups=inputs // group, zeros=zeros), g_idx)


def packed_tensors(
    linear: PlannedLinear, bits: int, *, qweight: tuple[int, int], groups: int, zeros: Sequence[int] | None
) -> tuple[PlannedTensor, ...]:
    """Return the codes, zero points and scales of one layer, with random codes.

    Args:
        zeros: Packed int32 words of zero points, repeated for every group and output; None: random zero points.
    """
    name, outputs, scale = linear.name, linear.out_features, linear.std / deviation(bits)

    def zero_points(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        if zeros is None:
            return random_zeros(tensor, generator, bits)
        return tensor.new_tensor(zeros).repeat(groups, tensor.shape[1] // len(zeros))

    return (
        plain_tensor(f"{name}.qweight", "int32", qweight, lambda tensor, source: random_words(tensor, source, bits)),
        plain_tensor(f"{name}.qzeros", "int32", (groups, outputs * bits // WORD_BITS), zero_points),
        plain_tensor(f"{name}.scales", "float16", (groups, outputs), lambda tensor, _: tensor.fill_(scale)),
    )


def random_words(tensor: torch.Tensor, generator: torch.Generator, bits: int) -> torch.Tensor:
    return balanced(tensor.random_(-(2**31), 2**31, generator=generator), bits)


def random_zeros(tensor: torch.Tensor, generator: torch.Generator, bits: int) -> torch.Tensor:
    """Fill words with random zero points, the middle code or one beside it, as in asymmetric checkpoints."""
    import torch

    middle, count = 2 ** (bits - 1), WORD_BITS // bits
    shape = (*tensor.shape, count)
    codes = torch.randint(middle - 1, middle + 2, shape, generator=generator, device=tensor.device)
    shifts = bits * torch.arange(count, device=tensor.device)
    return tensor.copy_((codes << shifts).sum(-1).to(torch.int32))


def balanced(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Replace code 0 (the lowest weight) by the middle code (weight 0), so that the weights' mean is 0.

    With a mean of a tenth of their standard deviation, all outputs of a layer would share the sum of its inputs, and
    the model would repeat one token. 3-bit codes cross the boundaries of words and are not changed.
    """
    if WORD_BITS % bits:
        return words
    used = words
    for shift in range(1, bits):
        used = used | (words >> shift)
    lowest_bits = sum(1 << position for position in range(0, WORD_BITS, bits))
    return words | ((~used & lowest_bits) << (bits - 1))


def deviation(bits: int) -> float:
    if WORD_BITS % bits:
        return math.sqrt((4**bits - 1) / 12)
    half = 2 ** (bits - 1)
    return math.sqrt((half - 1) * (2 * half - 1) / 6)


def zero_words(bits: int) -> list[int]:
    """Return 32 zero points, the middle code minus one (format version 1), packed in signed 32-bit words."""
    stored = 2 ** (bits - 1) - 1
    stream = sum(stored << (bits * position) for position in range(WORD_BITS))
    words = [(stream >> (WORD_BITS * word)) & 0xFFFFFFFF for word in range(bits)]
    return [word - 2**32 if word >= 2**31 else word for word in words]


PACKING = Packing(config=gptq_config, tensors=gptq_tensors)
