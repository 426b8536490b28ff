"""Token ids on which a quantization is calibrated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.files import shipped_text
from benchmarker.checkpoints.read_model import load_tokenizer
from benchmarker.core.errors import ModelError, SpecError, read_problem
from benchmarker.schema.base import DType

REMEDY = "give a text file, or leave --calibration out for the shipped text"


def calibration_text(path: str | None) -> str:
    if path is None:
        return shipped_text("calibration.txt")
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{read_problem(f'--calibration {path}', error)}; {REMEDY}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"--calibration {path}: not a text file in UTF-8") from error


def computed_dtype(target: Target) -> DType:
    """Return the dtype for calibration: float32 on a CPU (16 bits take ten times as long), else the target's."""
    return "float32" if target.device == "cpu" else target.dtype


def calibration_ids(checkpoint: Checkpoint, quant: str, text: str, *, samples: int, length: int) -> list[list[int]]:
    """Return the requested number of pieces of `length` tokens, or as many as the text has."""
    tokenizer: Any = load_tokenizer(checkpoint)
    if tokenizer is None:
        raise ModelError(
            f"{checkpoint.model_id}: no tokenizer in its folder, and {quant} is calibrated on a text; "
            "add the tokenizer's files, or use --load-format dummy"
        )
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    starts = range(0, len(ids) - length + 1, length)[:samples]
    if not starts:
        raise SpecError(
            f"{quant.lower()}: the calibration text has {len(ids)} tokens, fewer than "
            f"options.calibration_tokens={length}; give a longer text, or set a smaller number"
        )
    return [ids[start : start + length] for start in starts]
