"""Text for quality measurements: the shipped one, a file, or a data set from the hub."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarker.checkpoints.files import shipped_text
from benchmarker.core.errors import MissingLibraryError, SpecError, did_you_mean, install_hint, read_problem
from benchmarker.schema.quality import Quality

SHIPPED = "evaluation.txt"
SPLITS = ("test", "validation", "train")
LEAST_BYTES = 289


@dataclass(frozen=True)
class Text:
    name: str
    content: str
    source: str | None = None
    """Value of `--eval-text`; None for the shipped text."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()


def read_text(source: str | None) -> Text:
    """Return the text that `--eval-text` names: a file, or a data set as NAME, NAME:CONFIG or NAME:CONFIG:SPLIT.

    Raises:
        SpecError: No such file or data set, or no text in it.
        MissingLibraryError: The library for data sets is not installed.
    """
    if source is None:
        return Text(f"benchmarker {SHIPPED}", shipped_text(SHIPPED))
    path = Path(source).expanduser()
    text = _read_file(path) if path.is_file() else _read_dataset(source)
    if not text.content.strip():
        raise SpecError(f"--eval-text {source}: there is no text in it; give a text of at least a few kB")
    return replace(text, source=source)


def check_text(source: str | None) -> None:
    """Check a text as far as possible without a tokenizer and the hub. Raises as `read_text`."""
    if source is None:
        return
    if not Path(source).expanduser().is_file():
        _check_dataset(source)
        return
    size = len(read_text(source).content.encode())
    if size < LEAST_BYTES:
        raise SpecError(
            f"--eval-text {source}: {size} bytes, which is less than one window of {LEAST_BYTES} tokens; "
            "give a text of at least a few kB"
        )


def is_text(source: str | None, quality: Quality) -> bool:
    """Return whether a quality was measured on the text that `--eval-text` names.

    Files are compared by content, data sets by name, because reading those requires the hub.
    """
    if source is None or Path(source).expanduser().is_file():
        return read_text(source).sha256 == quality.text_sha256
    return source == quality.text_asked


def _read_file(path: Path) -> Text:
    try:
        content = path.read_bytes().decode()
    except OSError as error:
        raise SpecError(read_problem(f"--eval-text {path}", error)) from error
    except UnicodeDecodeError:
        content = "\0"
    if "\0" in content:
        raise SpecError(f"--eval-text {path}: not a text file in UTF-8")
    return Text(path.name, content)


def _check_dataset(source: str) -> None:
    name = source.partition(":")[0]
    is_path = name.startswith(("/", ".", "~")) and not Path(name).expanduser().is_dir()
    if is_path or source.endswith((".txt", ".md")) or source.count(":") > 2:
        raise SpecError(f"--eval-text {source}: no such file; a data set is written NAME:CONFIG:SPLIT")
    if importlib.util.find_spec("datasets") is None:
        raise MissingLibraryError(
            f"--eval-text {source}: no such file, and for a data set of that name the library 'datasets' is not "
            f"installed; {install_hint('quality')}"
        )


def _read_dataset(source: str) -> Text:
    _check_dataset(source)
    name, config, split = [*source.split(":"), "", ""][:3]
    try:
        import datasets

        parts: Any = datasets.load_dataset(name, config or None)
    # RuntimeError: the data set is a program, which the library no longer runs. ImportError: a library for its format
    # is not installed.
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SpecError(f"--eval-text {source}: no such file, and no data set that can be read: {reason}") from error
    split = split or next((name for name in SPLITS if name in parts), "")
    if split not in parts:
        raise SpecError(f"--eval-text {source}: no split '{split}'{did_you_mean(split, list(parts))}")
    return Text(f"data set {name}{config and f':{config}'}:{split}", "\n\n".join(_texts(parts[split], source)))


def _texts(rows: Any, source: str) -> list[str]:
    columns = [
        name for name, kind in rows.features.items() if getattr(kind, "dtype", None) in ("string", "large_string")
    ]
    column = "text" if "text" in columns else columns[0] if len(columns) == 1 else None
    if column is None:
        raise SpecError(f"--eval-text {source}: no column named 'text' in it; there is {', '.join(rows.features)}")
    return [text for text in rows[column] if text and text.strip()]
