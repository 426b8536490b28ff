"""Cache of machine code of `cuda_source.load_or_compile`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarker.kernels.cuda_source import load_or_compile


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of compiled sources so far, with an empty cache folder."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    return []


def compiler(compiled: list[str], name: str) -> Callable[[], bytes]:
    def compile_source() -> bytes:
        compiled.append(name)
        return name.encode()

    return compile_source


def test_each_source_is_compiled_once(compiled: list[str]) -> None:
    for name in ("one", "two", "one", "two"):
        assert load_or_compile(["13.0", name], compiler(compiled, name)) == name.encode()
    assert compiled == ["one", "two"]
    # The key separates its parts.
    load_or_compile(["13.0o", "ne"], compiler(compiled, "three"))
    assert compiled == ["one", "two", "three"]


def test_failed_compilation_stores_no_binary(compiled: list[str], tmp_path: Path) -> None:
    def fail() -> bytes:
        raise ValueError("error: expected a ';'")

    for _ in range(2):
        with pytest.raises(ValueError, match="expected"):
            load_or_compile(["one"], fail)
    assert not list(tmp_path.rglob("*.cubin"))


def test_unwritable_cache_compiles_on_every_call(compiled: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "benchmarker-binaries").write_text("no folder")
    for _ in range(2):
        assert load_or_compile(["one"], compiler(compiled, "one")) == b"one"
    assert compiled == ["one", "one"]
