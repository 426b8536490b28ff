"""Machine code that an earlier process compiled, kept in files beside the compilers' own caches.

NVRTC compiles one program at a time, whatever thread asks: 0.2 to 0.7 s for each product of a prompt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory


def kept(made_of: Sequence[str], compile_it: Callable[[], bytes]) -> bytes:
    """The machine code of a program: what is kept, or else what is compiled now, and kept where that can be written.

    Args:
        made_of: All that it depends on: options, texts, the compiler's version.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    digest = sha256("\0".join(made_of).encode()).hexdigest()
    path = Path(cache_dir()) / "benchmarker-binaries" / f"{digest}.cubin"
    with contextlib.suppress(OSError):
        return path.read_bytes()
    binary = compile_it()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another process never sees a part of it, and where the disk is full nothing is left.
        with TemporaryDirectory(dir=path.parent) as folder:
            (Path(folder) / path.name).write_bytes(binary)
            (Path(folder) / path.name).replace(path)
    return binary
