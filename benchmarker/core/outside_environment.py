"""What is said to somebody who runs this with a Python that has none of the libraries. Needs nothing but Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_line_where_libraries_are_missing() -> Iterator[None]:
    """End with one line where an import of somebody else's module fails: a traceback says that less well."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("benchmarker"):
            raise
        sys.exit(
            f"error: {error.name} is not installed for {sys.executable}; activate the environment "
            "(. .venv/bin/activate), or set one up with bash script/environment.sh"
        )
