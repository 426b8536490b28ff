"""`benchmarker checkpoint make -o FOLDER`: write a checkpoint to a folder of the user."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.cache import DESCRIPTION
from benchmarker.checkpoints.files import TOKENIZER_FILES
from benchmarker.core.errors import SpecError
from benchmarker.quantization.base import Options
from benchmarker.quantization.load import load_quantized


def check_new(folder: Path) -> None:
    """Raise SpecError if `folder` is a file or is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"-o {folder}: exists already; give a new folder")


def save_checkpoint(quant: str, checkpoint: Checkpoint, options: Options, target: Target, folder: Path) -> None:
    """Copy a checkpoint if it is quantized already or `quant` is fp16; else quantize it and save the result."""
    if checkpoint.quantization is not None or quant == "fp16":
        shutil.copytree(checkpoint.folder, folder, ignore=shutil.ignore_patterns(DESCRIPTION), dirs_exist_ok=True)
    else:
        load_quantized(quant, checkpoint, options, target).model.save_pretrained(folder)
    # benchmarker.json marks random weights.
    for name in (*TOKENIZER_FILES, *([DESCRIPTION] if checkpoint.dummy else [])):
        if (checkpoint.folder / name).is_file():
            shutil.copyfile(checkpoint.folder / name, folder / name)
