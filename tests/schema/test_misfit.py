"""Libraries that do not fit together, with packages made for it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarker.core.dependency_conflict import fitting_libraries
from benchmarker.core.errors import MissingLibraryError


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, as pip leaves them."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, name: str, version: str, code: str) -> None:
    (site / f"{name}.py").write_text(code)
    (site / f"{name}-{version}.dist-info").mkdir()
    (site / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def said_of(name: str) -> str:
    with pytest.raises(MissingLibraryError) as caught, fitting_libraries():
        importlib.import_module(name)
    return str(caught.value)


def test_who_asks_whom_in_vain_is_said_with_their_versions(site: Path) -> None:
    install(site, "misfit_old", "1.0", "")
    install(site, "misfit_new", "2.0", "from misfit_old import something\n")
    said = said_of("misfit_new")
    assert "misfit_new 2.0 asks misfit_old 1.0 for what it does not have (cannot import name 'something'" in said
    assert "upgrade misfit_old" in said


def test_a_library_that_hides_the_reason_behind_its_own_error(site: Path) -> None:
    hiding = "try:\n    import misfit_asking\nexcept ImportError as error:\n    raise ImportError('hm') from error\n"
    install(site, "misfit_asking", "2.0", "import misfit_lacking\n")
    install(site, "misfit_lazy", "3.0", hiding)
    assert said_of("misfit_lazy").startswith("misfit_asking 2.0 needs misfit_lacking, which is not installed")


def test_a_mistake_of_ours_stays_an_import_error() -> None:
    with pytest.raises(ImportError, match="nothing_of_the_kind"), fitting_libraries():
        from benchmarker.core.units import nothing_of_the_kind  # noqa: F401
