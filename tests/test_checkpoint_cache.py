"""What a cached checkpoint says of itself."""

import pytest

from benchmarker.loaders.cache import entries, new_entry, quantize_s


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMARKER_CACHE", str(tmp_path / "cache"))


def made(kind: str):
    with new_entry("0123", kind=kind, model="qwen3-tiny", options={}, needed_bytes=0) as folder:
        (folder / "config.json").write_text("{}")
    return entries()[0]


def test_a_quantized_checkpoint_remembers_how_long_that_took():
    entry = made("gptq")
    assert entry.description.made_s is not None
    assert quantize_s(entry.folder) == entry.description.made_s > 0


def test_writing_random_weights_is_no_quantizing():
    assert quantize_s(made("dummy").folder) is None


def test_an_older_checkpoint_does_not_know():
    entry = made("gptq")
    older = entry.description.model_copy(update={"made_s": None})
    (entry.folder / "benchmarker.json").write_text(older.model_dump_json())
    assert quantize_s(entry.folder) is None


def test_a_folder_that_is_not_from_the_cache_does_not_know(tmp_path):
    assert quantize_s(tmp_path) is None
