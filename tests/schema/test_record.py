"""Writing and reading of records, one-line errors of invalid records, and failed writes."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from benchmarker.core.errors import ResultsError
from benchmarker.schema.record_io import read_record, write_json
from tests.records import cell, failed_cell, profile, record, sample


def message(path: Path) -> str:
    with pytest.raises(ResultsError) as caught:
        read_record(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "RECORD")


def edited(path: Path, **changes: object) -> Path:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_json(record("int8", options={"group_size": 64, "symmetric": True}), tmp_path / "int8.json")
    return tmp_path / "int8.json"


def test_record_round_trips(tmp_path):
    written = record(
        "gptq",
        cell(warmup=(sample(),), flags=("unstable_warmup",)),
        failed_cell("oom_gpu", "no room", prompt_tokens=4096),
        options={"kernel": "exllama_v2", "bits": 4, "desc_act": False, "damp": 0.1, "none": None},
        profile=profile(),
    )
    write_json(written, tmp_path / "results" / "new" / "gptq.json")
    assert read_record(tmp_path / "results" / "new" / "gptq.json") == written


def test_record_has_no_nan_and_begins_with_its_schema_version(path):
    text = path.read_text()
    assert text.startswith('{\n "schema_version": 2,')
    assert "NaN" not in text


def test_record_has_the_default_file_mode(path):
    ordinary_file = path.parent / "plain"
    ordinary_file.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(ordinary_file.stat().st_mode)


def test_missing_file_raises(tmp_path):
    assert message(tmp_path / "none.json") == "RECORD: cannot be read: No such file or directory"


def test_truncated_record_raises(path):
    path.write_text(path.read_text()[:200])
    assert message(path).startswith("RECORD: not valid JSON (")
    assert message(path).endswith("; it may have been cut short")


def test_other_json_raises(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("[1, 2]")
    assert message(path) == "RECORD: not a benchmarker record (no schema_version)"


def test_schema_1_raises(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 1}))
    assert message(path) == "RECORD: schema 1 is not read any more; run the command again"


def test_newer_schema_raises_with_a_remedy(path):
    edited(path, schema_version=99)
    assert message(path) == "RECORD: schema 99 is newer than this benchmarker's 2; upgrade benchmarker"


def test_invalid_value_raises_with_the_field(path):
    edited(path, round="first")
    assert message(path) == "RECORD: round: input should be a valid integer, not 'first'"


def test_misspelt_key_raises(path):
    edited(path, stauts="complete")
    assert message(path).startswith("RECORD: ")
    assert "stauts" in message(path)


def test_nan_raises(path):
    path.write_text(path.read_text().replace('"load_s": 12.3', '"load_s": NaN'))
    assert "RECORD: " in message(path)


@pytest.mark.parametrize(
    ("error_number", "remedy"),
    [
        (errno.ENOSPC, "the disk is full; make room or choose another folder with --output"),
        (errno.EROFS, "the file system is read-only; choose another folder with --output"),
    ],
)
def test_failed_write_keeps_the_old_record_and_no_temporary_file(path, monkeypatch, error_number, remedy):
    before = path.read_text()

    def fail(handle: int) -> None:
        raise OSError(error_number, os.strerror(error_number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ResultsError) as caught:
        write_json(record("fp16"), path)

    assert str(caught.value) == f"{path}: not saved: {remedy}"
    assert path.read_text() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["int8.json"]


def test_file_in_place_of_the_folder_raises(path):
    with pytest.raises(ResultsError, match=r"int8\.json/fp16\.json: not saved: part of the path is a file"):
        write_json(record("fp16"), path / "fp16.json")


@pytest.mark.parametrize(
    ("key_path", "value"),
    [
        (("cells", 0, "samples", 0, "latency_s"), 0.0),
        (("cells", 0, "samples", 0, "ttft_s"), -0.1),
        (("cells", 0, "batch_size"), 0),
        (("load", "parameters"), 0),
        (("round",), -1),
        (("schema_version",), 0),
    ],
)
def test_impossible_numbers_raise(tmp_path: Path, key_path: tuple, value: float) -> None:
    data = json.loads(record("fp16").model_dump_json())
    parent = data
    for key in key_path[:-1]:
        parent = parent[key]
    parent[key_path[-1]] = value
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ResultsError, match=r"edited\.json"):
        read_record(path)
