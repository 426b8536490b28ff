"""Random tensors of the stored formats: compressed-tensors, FP8 in blocks, and AutoRound.

Names, shapes and types of compressed-tensors are computed by the library itself, on torch's meta device. The codes are
random, since quantizing random weights takes minutes and gives as many bytes to read. The scales give the weights the
standard deviation of the model's initialization.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Fill, Packing, PlannedLinear, PlannedTensor
from benchmarker.checkpoints.dummy import plain_tensor
from benchmarker.checkpoints.read_model import import_libraries
from benchmarker.core.errors import SpecError
from benchmarker.quantization.base import require
from benchmarker.quantization.gptqmodel_kernels import deviation, packed_tensors, random_words, zero_words

if TYPE_CHECKING:
    import torch

COMPRESSED = "compressed-tensors"
SCHEMES = ("w4a16", "w8a16", "w8a8", "fp8-dynamic", "nvfp4", "nvfp4a16")
"""Schemes of compressed-tensors for dummies. The library spells them W4A16, FP8_DYNAMIC, ..."""
FP8_BLOCK = [128, 128]  # Weights that share a scale in most FP8 checkpoints.
FP8_STD = 448 / 5  # Standard deviation of FP8 codes: a fifth of the largest float8_e4m3fn.
FP4_STD = math.sqrt((0.5**2 + 1 + 1.5**2 + 2**2 + 3**2 + 4**2 + 6**2) / 8)
FP4_SCALE = 256.0  # Scale of a group of NVFP4 weights, in FP8, before the division by the global scale.
AUTOROUND_GROUP = 128


def compressed_config(options: Any) -> dict[str, Any]:
    """Return the library's own `quantization_config` of a scheme; SpecError if the scheme is not in SCHEMES."""
    scheme = _library_scheme(options.scheme)
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.quantization import QuantizationConfig
    from torch import nn

    stored = infer_module_format(nn.Linear, scheme).value
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, ignore=["lm_head"], format=stored, quantization_status="compressed"
    )
    written: dict[str, Any] = config.model_dump(mode="json")
    return written


def compressed_tensors(linear: PlannedLinear, options: Any) -> tuple[PlannedTensor, ...]:
    from compressed_tensors.compressors import compress_module
    from compressed_tensors.quantization import initialize_module_for_quantization
    from torch import nn

    scheme = _library_scheme(options.scheme)
    group = scheme.weights.group_size or 1
    if linear.in_features % group:
        raise SpecError(
            f"{options.scheme}: {linear.name} has {linear.in_features} inputs; groups of {group} do not divide that, "
            "so there is no dummy of it"
        )
    module: Any = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
    module.half()
    initialize_module_for_quantization(module, scheme)
    compress_module(module)
    fills = _compressed_fills(linear, scheme.weights)
    return tuple(
        plain_tensor(f"{linear.name}.{name}", _type_name(tensor), tuple(tensor.shape), fills[name, _type_name(tensor)])
        for name, tensor in module.state_dict().items()
    )


def _library_scheme(name: str) -> Any:
    if name not in SCHEMES:
        given = f"'{name}' is no scheme;" if name else "random weights need a scheme:"
        raise SpecError(f"{COMPRESSED}: {given} --quant {', '.join(SCHEMES)}")
    require(COMPRESSED, COMPRESSED)
    import_libraries(COMPRESSED)
    from compressed_tensors.quantization import preset_name_to_scheme

    return preset_name_to_scheme(name.upper().replace("-", "_"), ["Linear"])


def _type_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _compressed_fills(linear: PlannedLinear, weights: Any) -> dict[tuple[str, str], Fill]:
    bits, shape = weights.num_bits, (linear.out_features, linear.in_features)
    code_std = FP8_STD if weights.type == "float" else deviation(bits)
    return {
        ("weight_packed", "int32"): lambda tensor, generator: random_words(tensor, generator, bits),
        ("weight_packed", "uint8"): lambda tensor, generator: tensor.random_(0, 256, generator=generator),
        ("weight", "int8"): lambda tensor, generator: tensor.random_(-127, 128, generator=generator),
        ("weight", "float8_e4m3fn"): random_fp8,
        ("weight_shape", "int64"): lambda tensor, _: tensor.copy_(tensor.new_tensor(shape)),
        ("weight_scale", "float16"): lambda tensor, _: tensor.fill_(linear.std / code_std),
        ("weight_scale", "float8_e4m3fn"): lambda tensor, _: tensor.fill_(FP4_SCALE),
        # compressed-tensors divides by the global scale.
        ("weight_global_scale", "float32"): lambda tensor, _: tensor.fill_(FP4_SCALE * FP4_STD / linear.std),
        ("input_global_scale", "float32"): lambda tensor, _: tensor.fill_(FP4_SCALE),
    }


def random_fp8(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    import torch

    values = torch.empty(tensor.shape, dtype=torch.float16, device=tensor.device)
    return values.normal_(0.0, FP8_STD, generator=generator).clamp_(-448, 448).to(tensor.dtype)


def fp8_config(options: Any) -> dict[str, Any]:  # noqa: ARG001
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": FP8_BLOCK,
        "modules_to_not_convert": ["lm_head"],
    }


def fp8_tensors(linear: PlannedLinear, options: Any) -> tuple[PlannedTensor, ...]:  # noqa: ARG001
    name, shape = f"{linear.name}.weight", (linear.out_features, linear.in_features)
    scales = tuple(math.ceil(size / block) for size, block in zip(shape, FP8_BLOCK, strict=True))
    return (
        plain_tensor(name, "float8_e4m3fn", shape, random_fp8),
        plain_tensor(f"{name}_scale_inv", "float32", scales, lambda tensor, _: tensor.fill_(linear.std / FP8_STD)),
    )


def autoround_config(options: Any) -> dict[str, Any]:  # noqa: ARG001
    return {
        "quant_method": "auto-round",
        "packing_format": "auto_round:auto_gptq",
        "bits": 4,
        "group_size": AUTOROUND_GROUP,
        "sym": True,
        "data_type": "int",
    }


def autoround_tensors(linear: PlannedLinear, options: Any) -> tuple[PlannedTensor, ...]:  # noqa: ARG001
    """Return a dummy layer's tensors in AutoRound's default export format: GPTQ's format without `g_idx`."""
    inputs, outputs, word = linear.in_features, linear.out_features, 8
    if inputs % AUTOROUND_GROUP or outputs % word:
        raise SpecError(
            f"autoround: {linear.name} is {inputs} x {outputs}; groups of {AUTOROUND_GROUP} inputs and words of {word} "
            "codes do not divide that, so there is no dummy of it"
        )
    groups = inputs // AUTOROUND_GROUP
    return packed_tensors(linear, 4, qweight=(inputs // word, outputs), groups=groups, zeros=zero_words(4))


COMPRESSED_PACKING = Packing(config=compressed_config, tensors=compressed_tensors)
FP8_PACKING = Packing(config=fp8_config, tensors=fp8_tensors)
AUTOROUND_PACKING = Packing(config=autoround_config, tensors=autoround_tensors)
