"""Python interpreters of this machine, by version: an engine's wheels are often for one version alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarker.engines.external.environment_specs import EngineError

ASK = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"
FOLDERS = ("~/.pyenv/versions/{version}*/bin", "~/.local/share/uv/python/cpython-{version}*/bin")
"""Folders where pyenv and uv keep interpreters, which need not be on the PATH."""
PROBE_S = 20.0


def find_python(versions: Sequence[str], chosen: Path | None = None) -> Path:
    """An interpreter of one of the versions, the first version before the others.

    Args:
        chosen: The user's own choice, which must have one of the versions.

    Raises:
        EngineError: None is here.
    """
    if chosen is not None:
        version = python_version(chosen)
        if version is None:
            raise EngineError(f"{chosen}: not a Python interpreter that runs here")
        if version not in versions:
            raise EngineError(f"{chosen}: Python {version}, but it must be {' or '.join(versions)}")
        return chosen
    for version in versions:
        for path in _candidates(version):
            if python_version(path) == version:
                return path
    raise EngineError(
        f"needs Python {' or '.join(versions)}, which is not here: install it ('uv python install {versions[0]}', or "
        f"the system's package python{versions[0]}-venv), or say where one is with --python"
    )


def python_version(path: Path) -> str | None:
    """`3.12`; None where the file is no interpreter that runs, such as pyenv's shim of a version that is not chosen."""
    try:
        process = subprocess.run(
            [str(path), "-I", "-c", ASK], capture_output=True, text=True, timeout=PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.split()[0] if process.returncode == 0 and process.stdout else None


def _candidates(version: str) -> Iterator[Path]:
    # A virtual environment's own interpreter would do, but the environment made from it would end with it.
    if sys.prefix == sys.base_prefix and f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        yield Path(sys.executable)
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and (path := shutil.which(f"python{version}", path=folder)):
            yield Path(path)
    for pattern in FOLDERS:
        whole = Path(pattern.format(version=version)).expanduser()
        yield from sorted(Path(whole.anchor).glob(str(whole / f"python{version}").removeprefix(whole.anchor)))
