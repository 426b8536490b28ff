"""AWQ checkpoints in 4 bit, through transformers and gptqmodel's kernels.

AWQ scales the channels that meet large activations before it rounds, and leaves that scaling in the layer before; what
is stored are codes, zero points and scales, as with GPTQ. Checkpoints are made elsewhere and read here as they are. The
output layer is not quantized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from benchmarker.checkpoints.base import Checkpoint, Packing, PlannedLinear, PlannedTensor, Progress, Target
from benchmarker.checkpoints.dummy import plain_tensor
from benchmarker.core.errors import SpecError
from benchmarker.quantization.base import FormOptions, Loaded, Loader, require
from benchmarker.quantization.gptq.gptqmodel_kernels import linear_class_of, read_packed
from benchmarker.quantization.gptq.packing import balanced, deviation

if TYPE_CHECKING:
    import torch

KERNELS = {
    "torch": "AwqTorchLinear",
    "gemm": "AwqGEMMLinear",
    "gemm_triton": "AwqGEMMTritonLinear",
    "exllama_v2": "AwqExllamaV2Linear",
    "marlin": "AwqMarlinLinear",
}
"""gptqmodel's linear class for each kernel that can be asked for."""
BITS, GROUP_SIZE = 4, 128
"""Of a dummy checkpoint, and of nearly all that are published."""
IN_A_WORD = 32 // BITS
ZERO_WORD = 0x88888888 - 2**32
"""The middle code eight times, as a signed word of 32 bits."""


class AWQOptions(FormOptions):
    """AWQ. How the weights are stored, the checkpoint says itself."""

    kernel: Literal["auto", "torch", "gemm", "gemm_triton", "exllama_v2", "marlin"] = "auto"
    """What multiplies: auto is gptqmodel's choice. torch runs anywhere; the others on NVIDIA GPUs alone, and are
    compiled when first used."""


def check(options: AWQOptions, target: Target) -> None:
    """Refuse what cannot work whatever the checkpoint.

    Raises:
        MissingLibraryError: gptqmodel is not installed.
        SpecError: Not in this type, or not this kernel on a CPU.
    """
    require("awq", "gptqmodel")
    if target.dtype == "float32":
        raise SpecError("awq: its kernels know 16-bit types only; use --dtype float16 or bfloat16")
    if target.dtype == "bfloat16" and target.device != "cpu":
        # transformers would cast to float16 by itself, and the row would say bfloat16.
        raise SpecError("awq: transformers runs it in float16 on a GPU; use --dtype float16")
    if target.device == "cpu" and options.kernel not in ("auto", "torch"):
        raise SpecError(
            f"awq: the {options.kernel} kernel needs a GPU; this is the CPU. Set options.kernel to 'torch'."
        )


def load(checkpoint: Checkpoint, options: AWQOptions, target: Target, progress: Progress) -> Loaded:  # noqa: ARG001
    """Read an AWQ checkpoint.

    Raises:
        DeviceError: The kernel cannot be made ready here, or gptqmodel took another one.
    """
    from transformers import AwqConfig

    # transformers takes the backend from this one and everything else from the checkpoint.
    backend: Any = "torch_awq" if options.kernel == "torch" else options.kernel
    model = read_packed("awq", checkpoint, target, AwqConfig(backend=backend))
    linear_class = linear_class_of("awq", model, title=options.kernel, wanted=KERNELS.get(options.kernel))
    return Loaded(model, notes=(f"kernel {options.kernel}: {linear_class}",))


def reads(stored: dict[str, Any]) -> bool:
    """Whether a checkpoint is AWQ's."""
    return stored.get("quant_method") == "awq"


def quantization_config(options: AWQOptions) -> dict[str, Any]:  # noqa: ARG001
    """What config.json says of a dummy checkpoint."""
    return {"quant_method": "awq", "bits": BITS, "group_size": GROUP_SIZE, "zero_point": True, "version": "gemm"}


def packed_tensors(linear: PlannedLinear, options: AWQOptions) -> tuple[PlannedTensor, ...]:  # noqa: ARG001
    """The tensors of one layer, filled with random codes around the middle one: `qweight`, [in, out / 8], and `qzeros`,
    [groups, out / 8], with eight codes to a word along the outputs; `scales`, [groups, out].

    Raises:
        SpecError: Groups or words do not divide the layer.
    """
    inputs, outputs = linear.in_features, linear.out_features
    if inputs % GROUP_SIZE or outputs % IN_A_WORD:
        raise SpecError(
            f"awq: {linear.name} is {inputs} x {outputs}; groups of {GROUP_SIZE} inputs and words of {IN_A_WORD} codes "
            "do not divide that, so there is no dummy of it"
        )
    groups, words = inputs // GROUP_SIZE, outputs // IN_A_WORD
    scale = linear.std / deviation(BITS)

    def codes(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return balanced(tensor.random_(-(2**31), 2**31, generator=generator), BITS)

    tensors = (
        plain_tensor(f"{linear.name}.qweight", "int32", (inputs, words), codes),
        plain_tensor(f"{linear.name}.qzeros", "int32", (groups, words), lambda tensor, _: tensor.fill_(ZERO_WORD)),
        plain_tensor(f"{linear.name}.scales", "float16", (groups, outputs), lambda tensor, _: tensor.fill_(scale)),
    )
    bias = plain_tensor(f"{linear.name}.bias", "float16", (outputs,), lambda tensor, _: tensor.zero_())
    return (*tensors, bias) if linear.bias else tensors


LOADER: Loader = Loader(
    name="awq",
    summary="an AWQ checkpoint, 4 bit (gptqmodel)",
    options=AWQOptions,
    packages=("gptqmodel",),
    load=load,
    check=check,
    reads=reads,
    stored_only=(
        "not an AWQ checkpoint, which --quant awq reads; AutoAWQ or gptqmodel make one, and --quant gptq quantizes a "
        "plain one here"
    ),
    packing=Packing(config=quantization_config, tensors=packed_tensors),
    aliases=("autoawq", "auto-awq"),
    dtypes=("float16", "bfloat16"),
    kernels={
        "aten::_weight_int4pack_mm_for_cpu": "quantized matmul",
        "awq_gemm_kernel": "quantized matmul",
        "awq_dequantize_kernel": "dequantize",
        "void marlin::Marlin<__half, 256, 1, 8, 8>": "quantized matmul",
    },
)
