"""Models whose shapes ship with benchmarker: config and tokenizer, no weights. They need no hub."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

SHIPPED = {
    "qwen3-4b": "qwen3-4b",
    "Qwen/Qwen3-4B": "qwen3-4b",
    "qwen3-tiny": "qwen3-tiny",
}
"""What a user may call it, and the folder under benchmarker/models."""


def shape_names() -> tuple[str, ...]:
    """What the shipped shapes are called, each once."""
    return tuple(sorted(set(SHIPPED.values())))


def shipped_shape(model_id: str) -> Path | None:
    """Folder of a shipped shape, or None where none goes by that name."""
    name = SHIPPED.get(model_id)
    return Path(str(files("benchmarker") / "models" / name)) if name else None


def only_shipped(model_id: str) -> bool:
    """Whether the name means a shipped shape and nothing on the hub."""
    return model_id in SHIPPED and "/" not in model_id


def shipped_text(name: str) -> str:
    """A text that ships with benchmarker: `prompts.txt` or `calibration.txt`."""
    return (files("benchmarker") / "text" / name).read_text(encoding="utf-8")
