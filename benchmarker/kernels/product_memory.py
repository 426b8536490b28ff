"""Choices of earlier processes, kept in a file beside the compilers' own caches.

Where two ways of a product take nearly the same time, two processes that measure may choose differently; then sums
round differently, and random weights make another text. So the first measurement on a machine is kept. A file is of one
kind of card, one version of torch and Triton and one text of these kernels: with another of them all is measured anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from benchmarker.kernels.triton_if_present import triton

SOURCES = ("packed_matmul.py", "packed_products.py", "product_choice.py", "unpack_words.py")
"""Files of this folder that decide what a candidate is and how long it takes."""


def recalled(name: str, path: Path) -> dict[str, Any] | None:
    """What was kept under a name; None for nothing, and where the file cannot be read."""
    fields = _read(path).get(name)
    return fields if isinstance(fields, dict) else None


def remember(name: str, fields: Mapping[str, Any], path: Path) -> None:
    """Keep fields under a name, for the processes that come. Where nothing can be written, nothing is kept.

    Of two processes that write at the same time one loses what it added, and measures it again the next time.
    """
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps({**_read(path), name: dict(fields)}, indent=1))
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)


def file_for(device: torch.device) -> Path:
    """Where choices for a card like this one are kept."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "benchmarker-products" / f"{_fingerprint(torch.cuda.get_device_name(device))}.json"


@cache
def _fingerprint(card: str) -> str:
    sources = [Path(__file__).with_name(name).read_text() for name in SOURCES]
    return sha256("\0".join([card, torch.__version__, str(triton.__version__), *sources]).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
