"""Fingerprints of the files that a job reads, so that a file which changes during a sweep does not pass unseen.

A file of up to 64 MiB is known by the SHA-256 of its content, which makes a copy equal to its original. A larger one
(a shard of weights) would take seconds to read in each process, so that it is known by its size, its time of change,
and its first and last MiB; the first holds the header of a safetensors file, with every tensor's name, type and shape.
A model on the hub is known by its commit instead, which `job.Origin` holds.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path

from benchmarker.checkpoints.shipped_models import shipped_shape
from benchmarker.schema.experiment import ModelSpec, QualitySpec, VariantSpec

WHOLE_BYTES = 64 << 20
END_BYTES = 1 << 20
MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".jinja", ".py")
"""Endings of the files that are read of a model's folder."""
NOT_THERE = "not there"


def fingerprints(model: ModelSpec, variant: VariantSpec, quality: QualitySpec | None = None) -> dict[str, str]:
    """Fingerprint of each file or folder that is read, by what it is: `calibration text my.txt`.

    Args:
        quality: Whose text and baseline are read too; None where no quality is measured.
    """
    prints = {f"model {model.id}": _model_fingerprint(model.id)}
    calibration = variant.options.get("calibration")
    if isinstance(calibration, str):
        prints[f"calibration text {calibration}"] = _fingerprint(Path(calibration).expanduser())
    if quality and quality.text:
        # A data set is no file here, and its name is all that is known of it.
        text = Path(quality.text).expanduser()
        prints[f"evaluation text {quality.text}"] = _fingerprint(text) if text.is_file() else None
    if quality and quality.baseline:
        prints[f"quality baseline {quality.baseline}"] = _model_fingerprint(quality.baseline)
    return {name: fingerprint for name, fingerprint in prints.items() if fingerprint}


def changed_inputs(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of what is there now and was something else before."""
    return [name for name, fingerprint in now.items() if before.get(name, NOT_THERE) != fingerprint]


def _model_fingerprint(model_id: str) -> str | None:
    """Of a model's folder, or of a shape that ships with benchmarker; None for a model from the hub."""
    # A name as long as no folder's is an error to ask about; it is not a folder here.
    with contextlib.suppress(OSError, ValueError):
        folder = Path(model_id).expanduser()
        if not folder.is_dir():
            shipped = shipped_shape(model_id)
            return _folder_fingerprint(shipped) if shipped else None
        return _folder_fingerprint(folder)
    return None


def _folder_fingerprint(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in MODEL_FILES and path.is_file():
            total.update(f"{path.name} {_fingerprint(path)}\n".encode())
    return total.hexdigest()


def _fingerprint(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = path.stat()
            if status.st_size <= WHOLE_BYTES:
                return hashlib.file_digest(file, "sha256").hexdigest()
            total = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns} ".encode())
            total.update(file.read(END_BYTES))
            file.seek(-END_BYTES, 2)
            total.update(file.read())
            return total.hexdigest()
    except OSError:
        return NOT_THERE
