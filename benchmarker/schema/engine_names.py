"""What engines were called in schema 1, where a variant had a `runtime`: for programs that read that key."""

from __future__ import annotations

OLDER_NAMES = {"cuda_graph": "graph", "native": "compile"}
"""`native` was in no row of its own: its kernels were in the rows of `compile`."""


def older_name(engine: str) -> str:
    """The `runtime` of a variant with this engine."""
    return OLDER_NAMES.get(engine, engine)
