"""Messages of conflicting libraries, with generated packages."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarker.core.errors import MissingLibraryError, report_library_conflicts


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, name: str, version: str, code: str) -> None:
    (site / f"{name}.py").write_text(code)
    (site / f"{name}-{version}.dist-info").mkdir()
    (site / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def message_of(name: str) -> str:
    with pytest.raises(MissingLibraryError) as caught, report_library_conflicts():
        importlib.import_module(name)
    return str(caught.value)


def test_conflict_names_both_libraries_and_versions(site: Path) -> None:
    install(site, "misfit_old", "1.0", "")
    install(site, "misfit_new", "2.0", "from misfit_old import something\n")
    message = message_of("misfit_new")
    assert "misfit_new 2.0 imports a name that misfit_old 1.0 lacks (cannot import name 'something'" in message
    assert "upgrade misfit_old" in message


def test_hidden_import_error_is_reported(site: Path) -> None:
    hiding = "try:\n    import misfit_asking\nexcept ImportError as error:\n    raise ImportError('hm') from error\n"
    install(site, "misfit_asking", "2.0", "import misfit_lacking\n")
    install(site, "misfit_lazy", "3.0", hiding)
    assert message_of("misfit_lazy").startswith("misfit_asking 2.0 needs misfit_lacking, which is not installed")


def test_wrong_import_in_this_package_raises_import_error() -> None:
    with pytest.raises(ImportError, match="nothing_of_the_kind"), report_library_conflicts():
        from benchmarker.core.formatting import nothing_of_the_kind  # noqa: F401
