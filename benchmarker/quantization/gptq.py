"""GPTQ weights in 2, 3, 4 or 8 bits through optimum and gptqmodel, the successor of auto-gptq.

GPTQ rounds a layer's weights column by column, and adjusts the remaining columns to compensate each error on a
calibration text. A GPTQ checkpoint is loaded with its own config; an unquantized checkpoint is quantized once and
cached; a dummy is written in GPTQ's storage format. The output layer is not quantized.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from benchmarker.checkpoints import cache
from benchmarker.checkpoints.base import Checkpoint, Progress, Target
from benchmarker.checkpoints.dummy import COPIED, empty_model, packable_linears
from benchmarker.checkpoints.files import content_sha256, read_config
from benchmarker.checkpoints.read_model import import_libraries, read_model, undisturbed
from benchmarker.quantization.base import FormOptions, Loaded, Loader, torch_gpu
from benchmarker.quantization.calibration import calibration_ids, calibration_text, computed_dtype
from benchmarker.quantization.gptqmodel_kernels import (
    KERNELS,
    PACKING,
    GroupSize,
    KernelName,
    check_kernel,
    check_shape,
    gptq_config,
    is_group_aware,
    linear_class_of,
    read_packed,
)

LIBRARIES = ("torch", "transformers", "optimum", "gptqmodel")
FORMAT_KEYS = ("bits", "group_size", "sym", "desc_act", "damp_percent")
WEIGHT_KEYS = {*FORMAT_KEYS, "calibration_samples", "calibration_tokens"}
"""Options that determine the weights."""
SMALL = 1 << 27
"""Number of parameters below which gptqmodel packs in Python. Packing takes seconds, compiling its C++ extension 40."""


class GPTQOptions(FormOptions):
    """Options of GPTQ. All but `kernel` and `lm_head` determine the quantized checkpoint."""

    bits: Literal[2, 3, 4, 8] = 4
    """Bits per weight."""
    group_size: GroupSize = 128
    """Input channels that share a scale; -1 for a whole row."""
    sym: bool = True
    """Make zero the middle code; otherwise each group has its own zero point."""
    desc_act: bool = False
    """Quantize columns in order of their activations: slightly more accurate, and slower."""
    damp_percent: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the Hessian's mean diagonal that is added to it, for stability."""
    kernel: KernelName = "auto"
    """Kernel of the linears: auto is gptqmodel's choice. torch runs on any device, torch_aten on CPUs, triton on GPUs,
    exllama_v2 and marlin on NVIDIA GPUs (marlin from compute capability 8.0), compiled at first use. On Hopper auto is
    Machete, which downloads CUTLASS to compile. gptqmodel compiles the dequantization of its torch kernel even in eager
    runs."""
    calibration: str | None = None
    """Text file for calibration; None for the text that ships with benchmarker."""
    calibration_samples: Annotated[int, Field(gt=0)] = 64
    """Number of calibration samples, consecutive pieces of the text."""
    calibration_tokens: Annotated[int, Field(gt=0)] = 512
    """Tokens per calibration sample."""


def check(options: GPTQOptions, target: Target) -> None:
    check_kernel(options.kernel, options.model_dump(), torch_gpu(target.device))
    calibration_text(options.calibration)


def load(checkpoint: Checkpoint, options: GPTQOptions, target: Target) -> Loaded:
    own = checkpoint.quantization or {}
    stored = {key: own.get(key, value) for key, value in options.model_dump(include=set(FORMAT_KEYS)).items()}
    check_kernel(options.kernel, stored, torch_gpu(target.device))
    from transformers import GPTQConfig

    # transformers takes the backend from this config and everything else from the checkpoint.
    backend = "auto" if options.kernel == "auto" else f"gptq_{options.kernel}"
    quantization = GPTQConfig(bits=stored["bits"], group_size=stored["group_size"], backend=backend)
    model = read_packed("gptq", checkpoint, target, quantization)
    expected = KERNELS[options.kernel].linear_class if options.kernel in KERNELS else None
    linear_class = linear_class_of("gptq", model, kernel=options.kernel, expected=expected)
    return Loaded(model, notes=(f"kernel {options.kernel}: {linear_class}", *_own_config_wins(own, options)))


def _own_config_wins(own: dict[str, Any], options: GPTQOptions) -> tuple[str, ...]:
    meta = own.get("meta")
    if isinstance(meta, dict) and "benchmarker" in meta:
        return (str(meta["benchmarker"]),)
    choices = options.model_dump(include=options.model_fields_set - {"kernel", "lm_head"})
    unused = [f"{key}={value}" for key, value in choices.items() if key not in own or own[key] != value]
    if not unused:
        return ()
    format_words = ", ".join(f"{key}={own[key]}" for key in FORMAT_KEYS if key in own)
    return (f"the checkpoint is GPTQ already; its own config ({format_words}) won over {', '.join(unused)}",)


def prepare(checkpoint: Checkpoint, options: GPTQOptions, target: Target, progress: Progress) -> Checkpoint:
    """Return a GPTQ checkpoint unchanged; quantize an unquantized one, unless the cache has the result."""
    if checkpoint.quantization is not None:
        return checkpoint
    text = calibration_text(options.calibration)
    commit = checkpoint.revision and f"{checkpoint.model_id}@{checkpoint.revision}"
    key = cache.key_of(
        {
            "kind": "gptq",
            "model": commit or content_sha256(checkpoint.folder),
            "options": options.model_dump(include=WEIGHT_KEYS),
            "calibration": _sha256(text),
            "dtype": target.dtype,
            "device": target.device.partition(":")[0],
            **({"computed": "float32"} if computed_dtype(target) != target.dtype else {}),
            "libraries": {name: version(name) for name in LIBRARIES},
        }
    )
    if cache.find(key) is None:
        _make(key, checkpoint, options, target, text, progress)
    folder = cache.whole(key)
    return replace(checkpoint, folder=folder, config=read_config(folder), is_text_part=False)


def _make(
    key: str, checkpoint: Checkpoint, options: GPTQOptions, target: Target, text: str, progress: Progress
) -> None:
    linears = packable_linears(empty_model(checkpoint.folder, trusted=checkpoint.trust_remote_code))
    for name, linear in linears.items():
        check_shape(name, linear.in_features, linear.out_features, group_size=options.group_size)
    samples, length = options.calibration_samples, options.calibration_tokens
    pieces = calibration_ids(checkpoint, "GPTQ", text, samples=samples, length=length)
    size = f"{len(pieces)} pieces of {length} tokens"
    progress.note(f"quantizing with GPTQ: {size} to calibrate on")
    described = options.model_dump(include=WEIGHT_KEYS) | {"dtype": target.dtype}
    needed_bytes = checkpoint.weight_file_bytes  # Upper limit: the size of the unquantized weights.
    with cache.new_entry(
        key, kind="gptq", model=checkpoint.model_id, options=described, needed_bytes=needed_bytes
    ) as draft:
        _quantize(checkpoint, options, target, pieces, draft, progress)
        config = _config(checkpoint, options, target, f"quantized here: {size}, text sha256 {_sha256(text)[:16]}")
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for name in COPIED:
            if (checkpoint.folder / name).is_file() and not (draft / name).exists():
                shutil.copyfile(checkpoint.folder / name, draft / name)


def _quantize(
    checkpoint: Checkpoint,
    options: GPTQOptions,
    target: Target,
    pieces: list[list[int]],
    folder: Path,
    progress: Progress,
) -> None:
    import_libraries("gptqmodel")
    import torch
    from optimum.gptq import GPTQQuantizer

    quantizer = GPTQQuantizer(
        bits=options.bits,
        dataset=[{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in torch.tensor(pieces).split(1)],
        group_size=options.group_size,
        damp_percent=options.damp_percent,
        desc_act=options.desc_act,
        act_group_aware=is_group_aware(options),
        sym=options.sym,
        # The torch kernel uses the layout of the GPTQ format; other kernels rearrange the weights at loading.
        backend="torch",
    )
    model = read_model(checkpoint, replace(target, dtype=computed_dtype(target)))
    # Without hf_device_map, optimum moves the blocks to the first GPU.
    vars(model)["hf_device_map"] = {"": target.device}
    with undisturbed(), _blocks_reported(progress):
        if sum(parameter.numel() for parameter in model.parameters()) < SMALL:
            os.environ["GPTQMODEL_DISABLE_PACK_EXT"] = "1"
        quantizer.quantize_model(model)
        # The dataset consists of tensors, which `save` could not write as JSON.
        quantizer.dataset = None
        # Parameters are the unquantized tensors; packed weights and scales are buffers.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(getattr(torch, target.dtype))
        del model.config.quantization_config
        del vars(model)["hf_device_map"]
        quantizer.save(model, str(folder))
    (folder / "quantize_config.json").unlink()
    del model, quantizer
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _blocks_reported(progress: Progress) -> Iterator[None]:
    logger = logging.getLogger("optimum.gptq.quantizer")
    level = logger.level

    def report(record: logging.LogRecord) -> bool:
        if match := re.search(r"Start quantizing block .* (\d+)/(\d+)", record.getMessage()):
            progress.step("quantizing blocks", int(match[1]), int(match[2]))
        return True

    logger.addFilter(report)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeFilter(report)
        logger.setLevel(level)


def _config(checkpoint: Checkpoint, options: GPTQOptions, target: Target, note: str) -> dict[str, Any]:
    """Return config.json's content. optimum's own config has an older format version and contains the dataset."""
    quantization = gptq_config(options) | {
        "format": "gptq" if options.sym else "gptq_v2",
        "meta": {"quantizer": [f"{name}:{version(name)}" for name in LIBRARIES[2:]], "benchmarker": note},
    }
    plain = {key: value for key, value in checkpoint.config.items() if key != "torch_dtype"}
    return plain | {"dtype": target.dtype, "quantization_config": quantization}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


LOADER: Loader = Loader(
    name="gptq",
    summary="GPTQ 4 bit (gptqmodel)",
    options=GPTQOptions,
    packages=("optimum", "gptqmodel"),
    load=load,
    check=check,
    prepare=prepare,
    reads=lambda stored: stored.get("quant_method") == "gptq",
    stored_options=lambda stored: {key: stored[key] for key in FORMAT_KEYS if key in stored},
    packing=PACKING,
    aliases=("gptqmodel", "auto-gptq", "autogptq"),
    dtypes=("float16", "bfloat16"),
    bits=(2, 3, 4, 8),
)
