"""Text for quality measurements, from a file or a data set of the hub, and its windows.

The first 256 tokens of a window are context, the others are scored (as in llama.cpp). Windows do not overlap. Every
scored token takes one step of the engine, so `quick` scores few tokens in each of many windows: tokens of different
windows give more information than as many tokens of one window.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarker.checkpoints.files import shipped_text
from benchmarker.core.errors import MissingLibraryError, SpecError, did_you_mean, install_hint, read_problem
from benchmarker.schema.quality import WINDOW_TOKENS, Quality, QualitySize

SHIPPED = "evaluation.txt"
REMEDY = "give a text file, or leave --eval-text out for the shipped text"
SPLITS = ("test", "validation", "train")
LEAST_BYTES = 289
SCORED_FROM = 256
QUICK_WINDOWS = 64
"""Number of windows of `quick`, with 2,048 scored tokens. For bnb4 of a small model, the divergence has an error of
3.5 % (3.2 % with 32 windows of 255 scored tokens), and the ratio of perplexities an error of 0.5 % (0.3 %)."""


@dataclass(frozen=True)
class Text:
    name: str
    content: str
    source: str | None = None  # Value of `--eval-text`; None for the shipped text.

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()


def read_text(source: str | None) -> Text:
    """Return the text of a file or data set (NAME:CONFIG:SPLIT). Raises SpecError or MissingLibraryError."""
    if source is None:
        return Text(f"benchmarker {SHIPPED}", shipped_text(SHIPPED))
    path = Path(source).expanduser()
    if not path.is_file():
        text = _read_dataset(source)
    else:
        try:
            text = Text(path.name, path.read_bytes().decode())
        except OSError as error:
            raise SpecError(read_problem(f"--eval-text {path}", error)) from error
        except UnicodeDecodeError:
            text = Text(path.name, "\0")
        if "\0" in text.content:
            raise SpecError(f"--eval-text {path}: not a text file in UTF-8")
    if not text.content.strip():
        raise SpecError(f"--eval-text {source}: there is no text in it; give a text of at least a few kB")
    return replace(text, source=source)


def check_text(source: str | None) -> None:
    """Check a text without tokenizing it or downloading a data set. Raises the errors of `read_text`."""
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
    """Return True if `quality` was measured on this text: a file of equal content, or a data set of the same name."""
    if source is None or Path(source).expanduser().is_file():
        return read_text(source).sha256 == quality.text_sha256
    return source == quality.text_asked


def _check_dataset(source: str) -> None:
    name = source.partition(":")[0]
    is_path = name.startswith(("/", ".", "~")) and not Path(name).expanduser().is_dir()
    if is_path or source.endswith((".txt", ".md")) or source.count(":") > 2:
        raise SpecError(f"--eval-text {source}: no such file; a data set is written NAME:CONFIG:SPLIT; or {REMEDY}")
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
        problem = f"no such file, and no data set that can be read: {reason}"
        raise SpecError(f"--eval-text {source}: {problem}; {REMEDY}") from error
    split = split or next((name for name in SPLITS if name in parts), "")
    if split not in parts:
        raise SpecError(f"--eval-text {source}: no split '{split}'{did_you_mean(split, list(parts))}")
    rows = parts[split]
    strings = ("string", "large_string")
    columns = [column for column, kind in rows.features.items() if getattr(kind, "dtype", None) in strings]
    column = "text" if "text" in columns else columns[0] if len(columns) == 1 else None
    if column is None:
        raise SpecError(f"--eval-text {source}: no column named 'text' in it; there is {', '.join(rows.features)}")
    content = "\n\n".join(text for text in rows[column] if text and text.strip())
    return Text(f"data set {name}{config and f':{config}'}:{split}", content)


@dataclass(frozen=True)
class Windows:
    ids: NDArray[np.int64]  # [windows, tokens]
    text_tokens: int
    begins_with: int | None  # BOS token in place of each window's first token; None if the tokenizer adds no BOS.

    @property
    def targets(self) -> NDArray[np.int64]:
        return self.ids[:, SCORED_FROM + 1 :]

    @property
    def scored(self) -> int:
        return self.targets.shape[1]


def spread(count: int, total: int) -> NDArray[np.int64]:
    return np.arange(min(count, total)) * total // min(count, total)


def cut(text: Text, tokenizer: Any, *, size: QualitySize) -> Windows:
    """Cut a text into windows; for `quick`, return 64 evenly spaced windows. Raises SpecError for a short text."""
    tokens: list[int] = tokenizer(text.content, add_special_tokens=False, verbose=False)["input_ids"]
    length = WINDOW_TOKENS[size]
    count = len(tokens) // length
    if not count:
        raise SpecError(
            f"{text.name}: {len(tokens)} tokens, fewer than one window of {length}; give a longer --eval-text"
        )
    ids: NDArray[np.int64] = np.array(tokens[: count * length], dtype=np.int64).reshape(count, length)
    if size == "quick":
        ids = ids[spread(QUICK_WINDOWS, count)]
    # A tokenizer that puts a BOS token before a text puts it before every window.
    bos: int | None = tokenizer.bos_token_id
    first = bos if bos is not None and tokenizer("a", verbose=False)["input_ids"][:1] == [bos] else None
    if first is not None:
        ids[:, 0] = first
    return Windows(ids, len(tokens), first)
