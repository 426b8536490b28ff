"""Formats of published checkpoints that transformers loads by itself: compressed-tensors, FP8, AutoRound and MXFP4.

benchmarker does not make these checkpoints. transformers has kernels for packed weights on some devices only. On others
it unpacks the weights to 16 bits, while loading or in the first forward pass, and the model then has the speed and the
memory of 16 bits. The weights are therefore examined after a first forward pass (coverage.py).
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.read_model import read_model
from benchmarker.core.errors import ModelError, SpecError, UnsupportedError
from benchmarker.quantization import dummy_packing
from benchmarker.quantization.base import FP8_CAPABILITY, FormOptions, Loaded, Loader, check_nvidia, require, torch_gpu
from benchmarker.quantization.dummy_packing import COMPRESSED, FP8_BLOCK, SCHEMES
from benchmarker.quantization.stored_kernels import has_fp8_blocks, lacks_fp8, multiplies_fp8_blocks, replace_stored
from benchmarker.schema.model import QuantSpec, WeightCoverage

if TYPE_CHECKING:
    from transformers import PreTrainedModel

QuantT = TypeVar("QuantT", bound=QuantSpec)

MIXED = "mixed"
GPU_KERNELS = ("kernels",)  # Package that downloads kernels from a hub.


class StoredOptions(FormOptions):
    """Options of a stored format: read from the checkpoint's config, or given by the user for a dummy."""

    scheme: str = ""
    """Number format of weights and activations, and name of the variant: `w4a16`, `fp8-dynamic`."""


def with_scheme(form: QuantT) -> QuantT:
    """Replace a scheme's name by its loader: `w4a16` becomes `compressed-tensors` with the option `scheme=w4a16`."""
    scheme = form.quant.lower().replace("_", "-")
    if scheme not in SCHEMES:
        return form
    return form.model_copy(update={"quant": COMPRESSED, "options": {"scheme": scheme, **form.options}})


def compressed_scheme(stored: Mapping[str, Any]) -> str:
    """Return the scheme of a compressed-tensors config: `w4a16`, `w8a8`, `fp8-dynamic`, `nvfp4`; or `mixed`."""
    groups = (stored.get("config_groups") or {}).values()
    schemes = {_group_scheme(group) for group in groups if isinstance(group, dict) and group.get("weights")}
    return schemes.pop() if len(schemes) == 1 else MIXED


def _group_scheme(group: Mapping[str, Any]) -> str:
    weights, activations = group["weights"], group.get("input_activations")
    bits = weights.get("num_bits")
    if weights.get("type") != "float":
        return f"w{bits}a{activations.get('num_bits') if activations else 16}"
    if bits == 4:
        is_micro = "mxfp4" in str(group.get("format"))
        return f"{'mx' if is_micro else 'nv'}fp4{'' if activations else 'a16'}"
    if bits == 8 and activations:
        return "fp8-dynamic" if activations.get("dynamic") else "fp8-static"
    return f"fp{bits}a16"


def _fp8_options(stored: dict[str, Any]) -> dict[str, Any]:
    block = stored.get("weight_block_size")
    return {"scheme": "fp8-tensor" if not block else "fp8" if block == FP8_BLOCK else f"fp8-{block[0]}x{block[1]}"}


def load(checkpoint: Checkpoint, options: StoredOptions, target: Target) -> Loaded:
    """Load a stored checkpoint with packed kernels of transformers, if any, or benchmarker's linear layers."""
    if "fp4" in options.scheme and target.dtype != "bfloat16":
        raise SpecError(
            f"{options.scheme}: transformers unpacks it to bfloat16, so that it is not measured; use --engine vllm"
        )
    model = _read(checkpoint, target)
    replaced = ", ".join(f"{count} {name}" for name, count in replace_stored(model).items())
    if has_fp8_blocks(model):
        require("fp8-checkpoint", *GPU_KERNELS)
    own = f"linear layers by benchmarker, which keep the weights packed: {replaced}" if replaced else ""
    return Loaded(model, notes=(own,) if own else ())


def _read(checkpoint: Checkpoint, target: Target) -> PreTrainedModel:
    import torch

    stored = checkpoint.quantization or {}
    try:
        model = read_model(checkpoint, target, quantization=packed_switch(stored))
    except ModelError as error:
        if not _is_asymmetric(stored):
            raise
        raise ModelError(
            f"{checkpoint.model_id}: transformers and compressed-tensors cannot load packed zero points "
            "(symmetric: false); use --engine vllm"
        ) from error
    for name, parameter in model.named_parameters():
        # transformers loads the unquantized weights of an FP8 checkpoint in the file's type.
        if name.endswith((".weight", ".bias")) and parameter.dtype in (torch.float16, torch.bfloat16, torch.float32):
            parameter.data = parameter.data.to(getattr(torch, target.dtype))
    return model


def _is_asymmetric(stored: Mapping[str, Any]) -> bool:
    groups = (stored.get("config_groups") or {}).values()
    return any(isinstance(group, dict) and (group.get("weights") or {}).get("symmetric") is False for group in groups)


def unpacked_words(loader: Loader, coverage: WeightCoverage) -> str:
    """Return `ran in bfloat16: ...` for a quantized checkpoint that ran unpacked, with the reason."""
    sizes: Counter[str] = Counter()
    for weights in coverage.kinds.values():
        sizes.update(weights.bytes_by_type)
    (dtype, _), *_ = sizes.most_common(1)
    if any(weights.quantized_parameters for weights in coverage.kinds.values()):
        return f"ran mostly in {dtype}: transformers keeps fused experts and other layers unpacked; {coverage.words}"
    kernels = f"its kernels for packed weights are for {loader.unpacked_unless}"
    return f"ran in {dtype}: transformers unpacked the checkpoint, {kernels}; {coverage.words}"


def packed_switch(stored: dict[str, Any]) -> Any:
    """Return a config that requests packed kernels for compressed-tensors; None if transformers has no such option."""
    if stored.get("quant_method") != COMPRESSED:
        return None
    from transformers import CompressedTensorsConfig

    if "use_optimized_inference" not in inspect.signature(CompressedTensorsConfig.__init__).parameters:
        return None
    return CompressedTensorsConfig(use_optimized_inference=True)


def _stored_loader(
    name: str,
    summary: str,
    stored_options: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    method: str | None = None,
    is_read: bool = True,
    bits: tuple[int, ...] = (4, 8),
    **fields: Any,
) -> Loader:
    """Return the loader of all checkpoints with one `quant_method` in config.json, by default the loader's name.

    Args:
        is_read: False if transformers cannot read the format.
        fields: Further fields of Loader.
    """

    def check(options: StoredOptions, target: Target) -> None:
        if not is_read:
            raise UnsupportedError(f"{name}: transformers does not read this format; use --engine vllm")
        gpu = torch_gpu(target.device)
        if options.scheme == "fp8-dynamic" and lacks_fp8(gpu):
            instead = "w8a8, and int8-dynamic of the unquantized model, run here"
            check_nvidia(options.scheme, target.device, FP8_CAPABILITY, instead=instead)
        if gpu and not (options.scheme == "fp8" and multiplies_fp8_blocks(gpu)):
            require(name, *STORED_LOADERS[name].gpu_packages)

    return Loader(
        name=name,
        summary=summary,
        options=StoredOptions,
        load=load,
        check=check,
        reads=lambda stored: stored.get("quant_method") == (method or name),
        stored_options=stored_options,
        stored_only=f"not quantized, and --quant {name} reads {summary}; leave --quant out",
        bits=bits,
        **fields,
    )


_LOADERS = (
    _stored_loader(
        COMPRESSED,
        "a compressed-tensors checkpoint",
        lambda stored: {"scheme": compressed_scheme(stored)},
        packages=(COMPRESSED,),
        unpacked_unless="W4A16, W8A8 and FP8 with a scale per row",
        packing=dummy_packing.COMPRESSED_PACKING,
    ),
    _stored_loader(
        "fp8-checkpoint",
        "an FP8 checkpoint with scales per block or tensor",
        _fp8_options,
        method="fp8",
        gpu_packages=GPU_KERNELS,
        unpacked_unless="NVIDIA GPUs of compute capability 8.9 and above",
        bits=(8,),
        packing=dummy_packing.FP8_PACKING,
    ),
    _stored_loader(
        "autoround",
        "an AutoRound checkpoint",
        lambda stored: {"scheme": f"w{stored.get('bits')}a16-autoround"},
        method="auto-round",
        packages=("auto-round",),
        unpacked_unless="CPUs and GPUs",
        bits=(2, 3, 4, 8),
        packing=dummy_packing.AUTOROUND_PACKING,
    ),
    _stored_loader(
        "mxfp4",
        "an MXFP4 checkpoint of gpt-oss",
        lambda stored: {"scheme": "mxfp4"},
        gpu_packages=GPU_KERNELS,
        unpacked_unless="NVIDIA GPUs of compute capability 7.5 and above",
        bits=(4,),
    ),
    _stored_loader(
        "modelopt",
        "a checkpoint of NVIDIA's ModelOpt, for the engine vllm",
        lambda stored: {"scheme": str(stored.get("quant_algo", "modelopt")).lower()},
        is_read=False,
    ),
)
STORED_LOADERS: dict[str, Loader] = {loader.name: loader for loader in _LOADERS}
