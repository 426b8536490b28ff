"""Cache of dummy and quantized checkpoints, which take minutes to make.

Each checkpoint is a folder under `$BENCHMARKER_CACHE` (else `$XDG_CACHE_HOME/benchmarker` or `~/.cache/benchmarker`),
named after a hash of all inputs that determine its content. A folder has a temporary name until it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from benchmarker.checkpoints.files import check_weights
from benchmarker.core.errors import ModelError, write_problem
from benchmarker.core.formatting import gib
from benchmarker.schema.base import Plain
from benchmarker.schema.model import ModelFacts, ModelSpec

DESCRIPTION = "benchmarker.json"
KEY_DIGITS = 16
DRAFT = re.compile(r"\.[^.]+\.(?P<host>.+)\.(?P<process>[0-9]+)\.[0-9a-f]+\.tmp")
"""Names of incomplete folders. Host names may contain dots."""


class Description(Plain):
    """Content of `benchmarker.json` in a cached checkpoint."""

    kind: Literal["dummy", "gptq", "gguf"]
    model: str
    options: dict[str, str | int | float | bool | None]
    created: str
    made_s: float | None = None


@dataclass(frozen=True)
class Entry:
    key: str
    folder: Path
    description: Description
    size_bytes: int


def cache_folder() -> Path:
    if chosen := os.environ.get("BENCHMARKER_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "benchmarker"


def key_of(parts: dict[str, Any]) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def find(key: str) -> Path | None:
    folder = cache_folder() / key
    return folder if (folder / DESCRIPTION).is_file() else None


def whole(key: str, check: Callable[[Path], object] = check_weights) -> Path:
    """Return the folder of a finished checkpoint, or raise ModelError if `check` finds a damaged file."""
    folder = cache_folder() / key
    try:
        check(folder)
    except ModelError as error:
        raise ModelError(f"{error}: 'benchmarker checkpoint remove {key}' makes room for a new one") from error
    return folder


def quantize_s(folder: Path) -> float | None:
    """Return how many seconds the quantization of a cached checkpoint took; None for dummies and other folders."""
    entry = _entry(folder)
    return entry.description.made_s if entry and entry.description.kind != "dummy" else None


def has_random_weights(model: ModelSpec) -> bool:
    """Return whether a model is a dummy, or a folder with random weights that `checkpoint make` wrote."""
    entry = _entry(Path(model.id).expanduser())
    return model.load_format == "dummy" or (entry is not None and entry.description.kind == "dummy")


def expected_model(subject: ModelSpec, checkpoint: ModelSpec) -> ModelFacts:
    """Return the facts for a record before the checkpoint is loaded."""
    load_format = "dummy" if has_random_weights(checkpoint) else "auto"
    name = checkpoint.id if checkpoint.id != subject.id else None
    return ModelFacts(**{**checkpoint.model_dump(), "id": subject.id, "load_format": load_format}, checkpoint=name)


def entries() -> tuple[Entry, ...]:
    """Return all finished checkpoints, oldest first."""
    candidates = [_entry(path.parent) for path in cache_folder().glob(f"[!.]*/{DESCRIPTION}")]
    return tuple(sorted((entry for entry in candidates if entry), key=lambda entry: entry.description.created))


def _entry(folder: Path) -> Entry | None:
    try:
        description = Description.model_validate_json((folder / DESCRIPTION).read_bytes())
    except (OSError, ValidationError):
        # Foreign folder, or another version: not listed and not removed.
        return None
    return Entry(folder.name, folder, description, sum(path.stat().st_size for path in folder.iterdir()))


def remove(key: str) -> Entry:
    """Delete the cached checkpoint whose key starts with `key`; ModelError unless exactly one matches."""
    matching = [entry for entry in entries() if key and entry.key.startswith(key)]
    if len(matching) != 1:
        number = "no" if not matching else "more than one"
        raise ModelError(
            f"{number} cached checkpoint '{key}' in {cache_folder()}; 'benchmarker checkpoint list' shows them"
        )
    try:
        shutil.rmtree(matching[0].folder)
    except OSError as error:
        raise ModelError(f"{matching[0].folder}: not removed: {error.strerror}") from error
    return matching[0]


@contextlib.contextmanager
def new_entry(
    key: str, *, kind: Literal["dummy", "gptq", "gguf"], model: str, options: dict[str, Any], needed_bytes: int
) -> Iterator[Path]:
    """Yield a folder that becomes the entry `key` if the block succeeds, and is deleted otherwise."""
    final = cache_folder() / key
    started_s = time.perf_counter()
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_dead_drafts(final.parent)
        free_bytes = shutil.disk_usage(final.parent).free
        if free_bytes < needed_bytes:
            raise ModelError(
                f"not enough room for the checkpoint: it needs {gib(needed_bytes)}, {final.parent} has "
                f"{gib(free_bytes)} free; make room, or set BENCHMARKER_CACHE to a folder on another disk"
            )
        # Random digits: containers can share host name and process id. tempfile's folders would exclude other users.
        draft = final.with_name(f".{key}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        draft.mkdir()
        try:
            yield draft
            created = datetime.now(UTC).isoformat(timespec="seconds")
            made_s = time.perf_counter() - started_s
            description = Description(kind=kind, model=model, options=options, created=created, made_s=made_s)
            (draft / DESCRIPTION).write_text(description.model_dump_json(indent=1) + "\n", encoding="utf-8")
            for path in draft.glob("*.safetensors"):
                # safetensors gives read permission to the owner only; other users may share the cache.
                shutil.copymode(draft / DESCRIPTION, path)
            _publish(draft, final)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        reason = write_problem(error, remedy="set BENCHMARKER_CACHE to a folder with room for it")
        raise ModelError(f"{final.parent}: the checkpoint ({gib(needed_bytes)}) was not made: {reason}") from error


def _publish(draft: Path, final: Path) -> None:
    if final.exists() and not (final / DESCRIPTION).is_file():
        shutil.rmtree(final)
    try:
        draft.rename(final)
    except OSError as error:
        # Another process finished first; its checkpoint is equal.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _remove_dead_drafts(folder: Path) -> None:
    import psutil

    # Drafts of other hosts stay, since their processes cannot be checked.
    for draft in folder.glob(".*.tmp"):
        made_by = DRAFT.fullmatch(draft.name)
        if made_by and made_by["host"] == socket.gethostname() and not psutil.pid_exists(int(made_by["process"])):
            shutil.rmtree(draft, ignore_errors=True)
