"""The baseline: the checkpoint's weights in 16 bit (or 32), nothing quantized."""

from __future__ import annotations

from benchmarker.errors import ModelError
from benchmarker.loaders.base import Checkpoint, Loaded, Loader, Options, Progress, Target


class FP16Options(Options):
    """There are none; the type is chosen with `--dtype`."""


def load(checkpoint: Checkpoint, options: FP16Options, target: Target, progress: Progress) -> Loaded:
    """Read the weights straight onto the device."""
    import torch
    from transformers import AutoModelForCausalLM

    if checkpoint.quantization is not None:
        method = checkpoint.quantization.get("quant_method", "some method")
        raise ModelError(
            f"fp16: {checkpoint.model_id} is quantized already ({method}); use --quant {method} or an unquantized checkpoint"
        )
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint.folder,
        dtype=getattr(torch, target.dtype),
        device_map=target.device,
        use_safetensors=True,
        trust_remote_code=checkpoint.trust_remote_code,
    )
    return Loaded(model)


LOADER = Loader(name="fp16", summary="16-bit weights, the baseline", options=FP16Options, packages=(), load=load)
