"""What a cached checkpoint says of itself, and what becomes of those that are not complete."""

import os
import socket
import stat

import pytest

from benchmarker.checkpoints.cache import cache_folder, entries, new_entry, quantize_s

NO_PROCESS = 99999999


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


def left_behind(name: str):
    draft = cache_folder() / name
    draft.mkdir(parents=True)
    (draft / "model.safetensors").write_text("half")
    return draft


def test_only_what_a_dead_process_of_this_host_left_is_removed(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node1.cluster")
    dead = left_behind(f".0123.node1.cluster.{NO_PROCESS}.ab12.tmp")
    alive = left_behind(f".0123.node1.cluster.{os.getpid()}.ab12.tmp")
    elsewhere = [left_behind(f".0123.{host}.{NO_PROCESS}.ab12.tmp") for host in ("node2", "cluster", "a.node1.cluster")]
    made("dummy")
    assert not dead.exists()
    assert all((draft / "model.safetensors").exists() for draft in (alive, *elsewhere))


def test_two_containers_whose_processes_have_one_number_make_one_checkpoint_each_for_itself():
    # The name of the host and the number are this process's own, twice.
    with new_entry("0123", kind="gptq", model="second", options={}, needed_bytes=0) as slower:
        with new_entry("0123", kind="gptq", model="first", options={}, needed_bytes=0) as faster:
            assert faster != slower
        (slower / "config.json").write_text("{}")
    assert [entry.description.model for entry in entries()] == ["first"]
    assert [path.name for path in cache_folder().iterdir()] == ["0123"]


def test_others_may_read_a_checkpoint_as_far_as_they_may_read_any_new_folder(tmp_path):
    (tmp_path / "any").mkdir()
    assert stat.S_IMODE(made("gptq").folder.stat().st_mode) == stat.S_IMODE((tmp_path / "any").stat().st_mode)
