"""Reading a checkpoint whose linear layers are gptqmodel's, GPTQ's and AWQ's alike, and saying which kernel it took.

gptqmodel takes another kernel where the one asked for does not fit. A table that names one kernel and measured
another is worse than an error, so neither passes here.
"""

from __future__ import annotations

import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.isolated_import import undisturbed
from benchmarker.checkpoints.read_model import import_libraries, read_model
from benchmarker.core.errors import DeviceError, ModelError
from benchmarker.hardware.device import find_device, kind_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOT_STORED = ("input_perm",)
"""Machete's own order of the inputs: a buffer that no checkpoint has, so that transformers reports it as missing."""


def read_packed(form: str, checkpoint: Checkpoint, target: Target, quantization: Any) -> PreTrainedModel:
    """The model with gptqmodel's linear layers.

    Args:
        form: The quantization's name, for messages.
        quantization: transformers' config, which names the kernel.

    Raises:
        DeviceError: The kernel cannot be made ready here.
        ModelError: As for `read_model`.
    """
    import_libraries("gptqmodel")
    try:
        with undisturbed():
            return read_model(checkpoint, target, quantization=quantization, not_stored=NOT_STORED)
    except Exception as error:
        linear = unready_kernel(error)
        if linear is None or kind_of(error, find_device(target.device)) in ("oom_gpu", "oom_host"):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DeviceError(
            f"{form}: gptqmodel could not make {linear} ready, which it builds or downloads when first used "
            f"({reason}). Set options.kernel to 'torch', which needs neither; --verbose shows the whole error"
        ) from error


def linear_class_of(form: str, model: PreTrainedModel, *, title: str, wanted: str | None) -> str:
    """The linear class that gptqmodel put in, checked against the kernel asked for.

    Args:
        title: The kernel's name, for messages.
        wanted: Its class; None where gptqmodel chooses.

    Raises:
        DeviceError: Another kernel took its place.
        ModelError: No layer is packed.
    """
    from gptqmodel.nn_modules.qlinear import BaseQuantLinear

    classes = Counter(type(module).__name__ for module in model.modules() if isinstance(module, BaseQuantLinear))
    if not classes:
        raise ModelError(
            f"{form}: the loaded model has no {form.upper()} layer; is the checkpoint's quantization_config right?"
        )
    if wanted is not None and set(classes) != {wanted}:
        got = ", ".join(f"{count} {kind}" for kind, count in sorted(classes.items()))
        raise DeviceError(
            f"{form}: asked for the {title} kernel, gptqmodel gave {got}. "
            "Set options.kernel to 'auto' to accept that, or see why with --verbose."
        )
    return ", ".join(sorted(classes))


def unready_kernel(error: BaseException) -> str | None:
    """The linear class that gptqmodel could not make ready, for want of a compiler or a download; None for others."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        linear = type(frame.f_locals.get("self"))
        if linear.__module__.startswith("gptqmodel.nn_modules."):
            return linear.__name__
    return None
