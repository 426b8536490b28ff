"""AWQ checkpoints in 4 bits, through transformers and gptqmodel's kernels.

AWQ scales channels with large activations before rounding, and folds the scaling into the previous layer. benchmarker
makes no AWQ checkpoints, except dummies. The output layer is not quantized.
"""

from __future__ import annotations

from typing import Any, Literal

from benchmarker.checkpoints.base import Checkpoint, Packing, PlannedLinear, PlannedTensor, Target
from benchmarker.core.errors import SpecError
from benchmarker.quantization.base import FormOptions, Loaded, Loader
from benchmarker.quantization.gptqmodel_kernels import linear_class_of, packed_tensors, read_packed

KERNELS = {
    "torch": "AwqTorchLinear",
    "gemm": "AwqGEMMLinear",
    "gemm_triton": "AwqGEMMTritonLinear",
    "exllama_v2": "AwqExllamaV2Linear",
    "marlin": "AwqMarlinLinear",
}
"""gptqmodel's linear class by kernel."""
BITS, GROUP_SIZE = 4, 128  # Format of dummy checkpoints and of nearly all published ones.
IN_A_WORD = 32 // BITS


class AWQOptions(FormOptions):
    kernel: Literal["auto", "torch", "gemm", "gemm_triton", "exllama_v2", "marlin"] = "auto"
    """Kernel of the linears: auto is gptqmodel's choice. torch runs on any device; the others run on NVIDIA GPUs only
    and are compiled at first use."""


def check(options: AWQOptions, target: Target) -> None:
    """Raise SpecError if the dtype is not supported, or the kernel does not run on the device."""
    if target.dtype == "bfloat16" and target.device != "cpu":
        # transformers would compute in float16, and the table would report bfloat16.
        raise SpecError("awq: transformers runs it in float16 on a GPU; use --dtype float16")
    if target.device == "cpu" and options.kernel not in ("auto", "torch"):
        raise SpecError(
            f"awq: the {options.kernel} kernel needs a GPU; this is the CPU. Set options.kernel to 'torch'."
        )


def load(checkpoint: Checkpoint, options: AWQOptions, target: Target) -> Loaded:
    from transformers import AwqConfig

    # transformers takes the backend from this config and everything else from the checkpoint.
    backend: Any = "torch_awq" if options.kernel == "torch" else options.kernel
    model = read_packed("awq", checkpoint, target, AwqConfig(backend=backend))
    linear_class = linear_class_of("awq", model, kernel=options.kernel, expected=KERNELS.get(options.kernel))
    return Loaded(model, notes=(f"kernel {options.kernel}: {linear_class}",))


def quantization_config(options: AWQOptions) -> dict[str, Any]:  # noqa: ARG001
    return {"quant_method": "awq", "bits": BITS, "group_size": GROUP_SIZE, "zero_point": True, "version": "gemm"}


def awq_tensors(linear: PlannedLinear, options: AWQOptions) -> tuple[PlannedTensor, ...]:  # noqa: ARG001
    """Return a dummy layer's tensors; `qweight` [in, out / 8] and `qzeros` [groups, out / 8] pack 8 codes per word."""
    inputs, outputs = linear.in_features, linear.out_features
    if inputs % GROUP_SIZE or outputs % IN_A_WORD:
        raise SpecError(
            f"awq: {linear.name} is {inputs} x {outputs}; groups of {GROUP_SIZE} inputs and words of {IN_A_WORD} codes "
            "do not divide that, so there is no dummy of it"
        )
    qweight, groups = (inputs, outputs // IN_A_WORD), inputs // GROUP_SIZE
    return packed_tensors(linear, BITS, qweight=qweight, groups=groups, zeros=None)


LOADER: Loader = Loader(
    name="awq",
    summary="an AWQ checkpoint, 4 bit (gptqmodel)",
    options=AWQOptions,
    packages=("gptqmodel",),
    load=load,
    check=check,
    reads=lambda stored: stored.get("quant_method") == "awq",
    stored_only=(
        "not an AWQ checkpoint, which --quant awq reads; AutoAWQ or gptqmodel make one, and --quant gptq quantizes a "
        "plain one here"
    ),
    packing=Packing(config=quantization_config, tensors=awq_tensors),
    aliases=("autoawq", "auto-awq"),
    dtypes=("float16", "bfloat16"),
    bits=(BITS,),
)
