"""Test the descriptions of cached checkpoints and the removal of incomplete ones."""

import os
import socket
import stat

import pytest
import torch
from safetensors.torch import save_file

from benchmarker.checkpoints.cache import cache_folder, entries, new_entry, quantize_s

NO_PROCESS = 99999999


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMARKER_CACHE", str(tmp_path / "cache"))


def make_entry(kind: str):
    with new_entry("0123", kind=kind, model="qwen3-tiny", options={}, needed_bytes=0) as folder:
        (folder / "config.json").write_text("{}")
    return entries()[0]


def test_quantized_checkpoint_stores_its_quantization_time():
    entry = make_entry("gptq")
    assert entry.description.made_s is not None
    assert quantize_s(entry.folder) == entry.description.made_s > 0


def test_random_weights_have_no_quantization_time():
    assert quantize_s(make_entry("dummy").folder) is None


def test_older_checkpoint_has_no_quantization_time():
    entry = make_entry("gptq")
    older = entry.description.model_copy(update={"made_s": None})
    (entry.folder / "benchmarker.json").write_text(older.model_dump_json())
    assert quantize_s(entry.folder) is None


def test_folder_outside_the_cache_has_no_quantization_time(tmp_path):
    assert quantize_s(tmp_path) is None


def make_draft(name: str):
    draft = cache_folder() / name
    draft.mkdir(parents=True)
    (draft / "model.safetensors").write_text("half")
    return draft


def test_only_drafts_of_dead_processes_on_this_host_are_removed(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node1.cluster")
    dead = make_draft(f".0123.node1.cluster.{NO_PROCESS}.ab12.tmp")
    alive = make_draft(f".0123.node1.cluster.{os.getpid()}.ab12.tmp")
    remote = [make_draft(f".0123.{host}.{NO_PROCESS}.ab12.tmp") for host in ("node2", "cluster", "a.node1.cluster")]
    make_entry("dummy")
    assert not dead.exists()
    assert all((draft / "model.safetensors").exists() for draft in (alive, *remote))


def test_concurrent_writers_with_equal_pids_use_separate_drafts():
    # Both writers have this process's host name and PID, as two containers may.
    with new_entry("0123", kind="gptq", model="second", options={}, needed_bytes=0) as slower:
        with new_entry("0123", kind="gptq", model="first", options={}, needed_bytes=0) as faster:
            assert faster != slower
        (slower / "config.json").write_text("{}")
    assert [entry.description.model for entry in entries()] == ["first"]
    assert [path.name for path in cache_folder().iterdir()] == ["0123"]


def test_cached_checkpoint_has_the_permissions_of_a_new_folder(tmp_path):
    (tmp_path / "any").mkdir()
    assert stat.S_IMODE(make_entry("gptq").folder.stat().st_mode) == stat.S_IMODE((tmp_path / "any").stat().st_mode)


def test_weights_of_a_cached_checkpoint_have_the_permissions_of_a_new_file(tmp_path):
    (tmp_path / "any").touch()
    with new_entry("0123", kind="gptq", model="qwen3-tiny", options={}, needed_bytes=0) as folder:
        save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
    weights = entries()[0].folder / "model.safetensors"
    assert stat.S_IMODE(weights.stat().st_mode) == stat.S_IMODE((tmp_path / "any").stat().st_mode)
