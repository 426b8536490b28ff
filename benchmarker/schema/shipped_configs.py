"""The configs that come with the program, found by name wherever it is installed."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

FOLDER = Path(str(files("benchmarker") / "configs"))


def shipped_configs() -> tuple[str, ...]:
    """Their names, without the ending."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def find_config(path: Path) -> Path:
    """The file itself, or the shipped one that it names: `quickstart`, or `configs/quickstart.yaml` anywhere.

    A file of the user's always comes first; where there is neither, the path as it was given.
    """
    if path.exists() or path.parent.name not in ("", "configs") or path.is_absolute():
        return path
    shipped = FOLDER / f"{path.name.removesuffix('.yaml')}.yaml"
    return shipped if shipped.is_file() else path
