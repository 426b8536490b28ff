"""Quantized checkpoints of unquantized models, made by llm-compressor and AutoRound in an environment of their own.

Both pin other versions of transformers and compressed-tensors than benchmarker. A driver in that environment
writes a folder that is measured like any downloaded checkpoint.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from pathlib import Path

from benchmarker.checkpoints.base import Checkpoint, Progress, Target
from benchmarker.checkpoints.cache import DESCRIPTION
from benchmarker.checkpoints.files import TOKENIZER_FILES
from benchmarker.checkpoints.find import local_folder, stored_quantization
from benchmarker.core.errors import SpecError
from benchmarker.engines.external.driver_process import Driver
from benchmarker.engines.external.environments import LLM_COMPRESSOR, environment_state
from benchmarker.quantization.calibration import calibration_ids, calibration_text, computed_dtype
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.model import ModelSpec, QuantSpec

METHODS = {
    "w4a16": "W4A16 with GPTQ",
    "w8a8": "W8A8 with SmoothQuant and GPTQ",
    "fp8-dynamic": "FP8 with a scale per row",
    "awq": "W4A16 of compressed-tensors (symmetric) with AWQ's scales",
    "autoround": "W4A16 of AutoRound",
}
"""Description by name."""
WITHOUT_CALIBRATION = ("fp8-dynamic",)
SAMPLES, LENGTH = 64, 512  # Pieces of the calibration text and their tokens, as for GPTQ.
LIMIT_S = 48 * 3600.0


def method_of(model: ModelSpec, variant: QuantSpec) -> str | None:
    """Return the method of METHODS for an unquantized model; None if benchmarker itself makes the checkpoint."""
    if not LOADERS[variant.quant].stored_only or model.load_format == "dummy" or stored_quantization(model):
        return None
    method = str(variant.options.get("scheme", variant.quant))
    if method not in METHODS:
        raise SpecError(
            f"--quant {method}: {model.id} is not quantized, and 'checkpoint make' quantizes to {', '.join(METHODS)} "
            "alone"
        )
    return method


def check_made(method: str, model: ModelSpec, folder: Path | None) -> None:
    """Raise an error if the model, the environment or the folder is missing, before a model is downloaded."""
    local_folder(model)
    if folder is None:
        raise SpecError(f"--quant {method}: add -o FOLDER, the new folder of the quantized checkpoint")
    _ = environment_state(LLM_COMPRESSOR).interpreter


def quantize(method: str, checkpoint: Checkpoint, target: Target, folder: Path, progress: Progress) -> None:
    marker = environment_state(LLM_COMPRESSOR).interpreter
    pieces: list[list[int]] = []
    if method not in WITHOUT_CALIBRATION:
        pieces = calibration_ids(checkpoint, method, calibration_text(None), samples=SAMPLES, length=LENGTH)
    size = f": {len(pieces)} pieces of {LENGTH} tokens to calibrate on" if pieces else ""
    progress.note(f"quantizing {checkpoint.model_id} to {METHODS[method]}{size}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as parent:
        draft = Path(parent) / folder.name
        command, variables = marker.driver_command("llm_compressor"), {"HF_HUB_OFFLINE": "1"}
        with closing(
            Driver(LLM_COMPRESSOR.name, command, on_gpu=target.device != "cpu", variables=variables)
        ) as driver:
            driver.request(
                "quantize",
                limit_s=LIMIT_S,
                source=str(checkpoint.folder),
                target=str(draft),
                method=method,
                dtype=target.dtype,
                computed=computed_dtype(target),
                device=target.device,
                pieces=pieces,
            )
        # The libraries rewrite tokenizer files in another version's format; DESCRIPTION marks random weights.
        for name in (*TOKENIZER_FILES, *([DESCRIPTION] if checkpoint.dummy else [])):
            (draft / name).unlink(missing_ok=True)
            if (checkpoint.folder / name).is_file():
                shutil.copyfile(checkpoint.folder / name, draft / name)
        draft.rename(folder)
