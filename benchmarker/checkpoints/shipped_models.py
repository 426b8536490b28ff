"""Models that ship with benchmarker and need no hub: shapes (config and tokenizer), and one small one with weights."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

SHIPPED = {
    "qwen3-4b": "qwen3-4b",
    "Qwen/Qwen3-4B": "qwen3-4b",
    "qwen3-tiny": "qwen3-tiny",
    "qwen3-small": "qwen3-small",
}
"""What a user may call it, and the folder under benchmarker/models."""


def shape_names() -> tuple[str, ...]:
    """What the shipped shapes are called, each once."""
    return tuple(sorted(set(SHIPPED.values())))


def shipped_shape(model_id: str) -> Path | None:
    """Folder of a shipped shape, or None where none goes by that name."""
    name = SHIPPED.get(model_id)
    return _folder(name) if name else None


def only_shipped(model_id: str) -> bool:
    """Whether the name means a shipped shape and nothing on the hub."""
    return model_id in SHIPPED and "/" not in model_id


def models_with_weights() -> tuple[str, ...]:
    """Names of those that can be run as they are."""
    return tuple(name for name in shape_names() if (_folder(name) / "model.safetensors").is_file())


def _folder(name: str) -> Path:
    return Path(str(files("benchmarker") / "models" / name))


def shipped_text(name: str) -> str:
    """A text that ships with benchmarker: `prompts.txt`, `calibration.txt` or `evaluation.txt`."""
    return (files("benchmarker") / "text" / name).read_text(encoding="utf-8")
