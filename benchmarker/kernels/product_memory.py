"""Choices of earlier processes, kept in a file beside the compilers' own caches.

Where two ways of a product take nearly the same time, two processes that measure may choose differently; then sums
round differently, and random weights make another text. So the first measurement is kept, for all that share the
compilers' caches. A file is of one kind of card, one version of torch and Triton and one text of this package's files:
with another of them all is measured anew.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from benchmarker.kernels.triton_if_present import triton


def kept(name: str, path: Path, fields: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """What is kept under a name.

    Args:
        fields: What to keep if nothing is kept yet. So the first of several processes decides for all.

    Returns:
        None where nothing is kept, and where the file cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            found = _parsed(file.read())
            if name not in found and fields is not None:
                found[name] = dict(fields)
                file.truncate(0)
                file.write(json.dumps(found, indent=1))
    except OSError:
        return None
    known = found.get(name)
    return known if isinstance(known, dict) else None


def file_for(device: torch.device) -> Path:
    """Where choices for a card like this one are kept."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "benchmarker-products" / f"{_fingerprint(torch.cuda.get_device_name(device))}.json"


@cache
def _fingerprint(card: str) -> str:
    files = [path for path in Path(__file__).parent.iterdir() if path.suffix in (".py", ".cu", ".cuh")]
    sources = [path.read_text() for path in sorted(files)]
    parts = [card, torch.__version__, str(triton.__version__), *sources]
    return sha256("\0".join(parts).encode()).hexdigest()[:16]


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
