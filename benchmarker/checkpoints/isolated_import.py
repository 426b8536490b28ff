"""Importing a library without what it does to the process besides.

gptqmodel, when imported, sets PYTORCH_ALLOC_CONF (which changes how torch's allocator behaves, and so every memory
number), CUDA_DEVICE_ORDER (which can renumber the GPUs), HF_HOME and its relatives (a folder under /tmp), and raises
the root logger to INFO. A variant must not be measured under other settings than its neighbours.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Put environment variables, the root logger and warning filters back at the end of the block."""
    variables = dict(os.environ)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        with warnings.catch_warnings():
            yield
    finally:
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        root.setLevel(level)
        root.handlers[:] = handlers
