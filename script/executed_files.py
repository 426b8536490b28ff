"""List the package's files with a function that a command executes: `python script/executed_files.py COMMAND ...`.

A file counts if one of its functions is called after the file's import. Class bodies and calls during an import
(decorators, class construction) do not count. Example: `python script/executed_files.py compare results`.
The command runs as `benchmarker COMMAND ...` in this process; the list goes to standard error.
"""

from __future__ import annotations

import builtins
import inspect
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]


class Recorder:
    """Trace function that records the files of executed functions, without comprehensions and lambdas.

    A profile function would also be called for each return and for each call of a function in C.
    """

    def __init__(self, package: Path) -> None:
        self.prefix = f"{package}/"
        self.functions: set[tuple[str, str, int]] = set()
        """File, name and first line of each function."""
        self._imports = threading.local()

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if not code.co_filename.startswith(self.prefix):
            return None
        depth: int = getattr(self._imports, "depth", 0)
        if code.co_name == "<module>":
            self._imports.depth = depth + 1
            frame.f_trace_lines = False
            return self._end_of_import
        if depth == 0 and code.co_flags & inspect.CO_OPTIMIZED and "<" not in code.co_name:
            self.functions.add((code.co_filename.removeprefix(self.prefix), code.co_qualname, code.co_firstlineno))
        return None

    def _end_of_import(self, _frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        self._imports.depth -= event == "return"
        return self._end_of_import

    def files(self) -> list[str]:
        """Return the paths of the files, relative to the package."""
        return sorted({file for file, _, _ in self.functions})


def pause_in_library_imports() -> None:
    """Disable the hook while a library is imported, because torch and transformers make millions of calls."""
    original = builtins.__import__

    @wraps(original)
    def imported(name: str, *arguments: Any, **keywords: Any) -> Any:
        hook = sys.gettrace()
        if hook is None or name.partition(".")[0] in ("", "benchmarker"):
            return original(name, *arguments, **keywords)
        sys.settrace(None)
        try:
            return original(name, *arguments, **keywords)
        finally:
            sys.settrace(hook)

    builtins.__import__ = imported


def main(arguments: list[str]) -> int:
    """Run a command, print the list and return the command's exit status."""
    sys.path[0] = str(ROOT)
    recorder = Recorder(ROOT / "benchmarker")
    sys.argv = ["benchmarker", *arguments]
    pause_in_library_imports()
    threading.settrace(recorder)
    sys.settrace(recorder)
    status = 0
    try:
        from benchmarker.cli.app import main as benchmarker

        benchmarker()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    files = recorder.files()
    sys.stdout.flush()
    print(*files, f"{len(recorder.functions)} functions in {len(files)} files", sep="\n", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
