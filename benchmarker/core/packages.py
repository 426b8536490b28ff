"""Installed packages: their versions, and one line for a missing package or two packages that do not fit together.

Imports nothing but Python's library, so that `benchmarker` can report that the others are missing.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from benchmarker.core.errors import MissingLibraryError

COMPUTING = (
    "torch",
    "transformers",
    "accelerate",
    "torchao",
    "bitsandbytes",
    "optimum",
    "gptqmodel",
    "triton",
    "pytorch-triton-rocm",
    "triton-rocm",
)
"""Packages whose code runs while a model is loaded or generates."""
OWN_NAME = "benchmarker"


def installed_version(package: str) -> str | None:
    """Return the version of a pip package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def install_hint(extra: str) -> str:
    return f"pip install -e '.[{extra}]' in benchmarker's folder"


@contextmanager
def exit_if_libraries_are_missing() -> Iterator[None]:
    """Exit with one line instead of a traceback if a module of another package cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(OWN_NAME):
            raise
        sys.exit(
            f"error: {error.name} is not installed for {sys.executable}; activate the environment "
            "(. .venv/bin/activate), or set one up with bash script/environment.sh"
        )


@contextmanager
def report_library_conflicts() -> Iterator[None]:
    """Turn an ImportError between two installed libraries, which pip does not prevent, into MissingLibraryError."""
    try:
        yield
    except ImportError as error:
        conflict = _library_conflict(error)
        if conflict is None:
            raise
        raise MissingLibraryError(conflict) from error


def _library_conflict(error: ImportError) -> str | None:
    """Describe the conflict; None if the faulty import is in this package."""
    while isinstance(error.__cause__, ImportError):
        # transformers hides the first error behind one of its own.
        error = error.__cause__
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Frames of the import machinery lie between the two libraries.
    names = [name.split(".")[0] for name in frames if not name.startswith("importlib")]
    importer, imported = names[-1] if names else OWN_NAME, (error.name or "").split(".")[0]
    if OWN_NAME in (importer, imported) or not imported:
        return None
    version, needing = installed_version(imported), f"{importer} {installed_version(importer) or ''}"
    if version is None:
        return f"{needing} needs {imported}, which is not installed; pip install {imported}"
    reason = error.msg.split(" (")[0]
    return (
        f"the installed libraries do not fit together: {needing} imports a name that {imported} {version} lacks "
        f"({reason}); upgrade {imported}, or install the versions of script/constraints.txt"
    )
