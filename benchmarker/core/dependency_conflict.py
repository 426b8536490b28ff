"""Installed libraries that cannot be imported together, said in one line: pip does not prevent it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarker.core.errors import MissingLibraryError
from benchmarker.core.packages import installed_version

OURS = "benchmarker"


@contextmanager
def fitting_libraries() -> Iterator[None]:
    """Around imports of libraries.

    Raises:
        MissingLibraryError: One of them asks another for what that does not have, or which is not there.
    """
    try:
        yield
    except ImportError as error:
        conflict = misfit(error)
        if conflict is None:
            raise
        raise MissingLibraryError(conflict) from error


def misfit(error: ImportError) -> str | None:
    """Who asks whom in vain; None where the mistake is our own."""
    while isinstance(error.__cause__, ImportError):
        # transformers hides the first error behind one of its own.
        error = error.__cause__
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    # The import machinery stands between the two.
    names = [name.split(".")[0] for name in frames if not name.startswith("importlib")]
    asking, lacking = names[-1] if names else OURS, (error.name or "").split(".")[0]
    if OURS in (asking, lacking) or not lacking:
        return None
    version, asker = installed_version(lacking), f"{asking} {installed_version(asking) or ''}"
    if version is None:
        return f"{asker} needs {lacking}, which is not installed; pip install {lacking}"
    lack = f"{asker} asks {lacking} {version} for what it does not have"
    reason = error.msg.split(" (")[0]
    remedy = f"upgrade {lacking}, or install the versions of script/constraints.txt"
    return f"the installed libraries do not fit together: {lack} ({reason}); {remedy}"
