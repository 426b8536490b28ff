"""Names that users and models choose, made fit for a file name."""

from __future__ import annotations

import hashlib
import re


def slug(name: str) -> str:
    """A short file-safe form: letters, digits, dot, dash and underscore.

    Where the name had anything else (or was long), eight digits of its hash keep two names apart that would
    otherwise look alike: `gptq kernel=triton` becomes `gptq-kernel-triton-5c1d0f2a`.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60]
    if plain == name:
        return plain
    return f"{plain or 'unnamed'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
