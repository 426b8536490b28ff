"""Records of schema 1 are read as schema 2 has them, and stay on disk as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarker.core.errors import ResultsError
from benchmarker.schema.profile import KernelTime, Section
from benchmarker.schema.record_io import read_record
from benchmarker.schema.upgrade import upgraded
from benchmarker.workloads.generation.record import GenerationRecord

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
FILES = [path for path in sorted(REFERENCE.rglob("*.json")) if b'"schema_version": 1' in path.read_bytes()[:40]]


def as_version_1(**changes: Any) -> dict[str, Any]:
    """A record that was written under schema 1, with some of its fields changed."""
    return json.loads(FILES[0].read_bytes()) | changes


def read(folder: Path, data: object) -> GenerationRecord:
    path = folder / "old.json"
    path.write_text(json.dumps(data))
    record = read_record(path)
    assert isinstance(record, GenerationRecord)
    return record


def test_there_are_records_of_schema_1_to_read() -> None:
    assert len(FILES) > 90


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_reference_record_is_read_whole_and_is_the_same_when_written_again(path: Path) -> None:
    text = path.read_bytes()
    data = json.loads(text)
    record = read_record(path)
    assert isinstance(record, GenerationRecord)
    assert path.read_bytes() == text
    assert (record.schema_version, record.workload) == (2, "generation")
    assert GenerationRecord.model_validate_json(record.model_dump_json()) == record
    for cell, old in zip(record.cells, data["cells"], strict=True):
        assert cell.inputs_sha256 == old["prompt_sha256"]
        assert [sample.latency_s for sample in cell.samples] == [sample["latency_s"] for sample in old["samples"]]
    if record.profile and record.profile.sections:
        old = data["profile"]
        assert record.profile.sections["decode"].busy_s == old["decode_busy_s"]
        calls = sum(time.calls for kernel in record.profile.kernels for time in kernel.sections.values())
        assert calls == sum(kernel["calls"] for kernel in old["kernels"])


def test_an_upgrade_changes_nothing_in_what_it_is_given() -> None:
    data = as_version_1()
    before = json.dumps(data)
    upgraded(data)
    assert json.dumps(data) == before


@pytest.mark.parametrize(
    ("status", "reason", "kind", "sentence"),
    [
        ("failed", "ModelError: no such model", "model", "no such model"),
        ("failed", "MissingLibraryError: pip install torchao", "missing_library", "pip install torchao"),
        ("failed", "OutOfMemoryError: CUDA out of memory", "oom_gpu", "OutOfMemoryError: CUDA out of memory"),
        ("failed", "MemoryError", "oom_host", "MemoryError"),
        ("failed", "RuntimeError: shapes: 3", "other", "RuntimeError: shapes: 3"),
        ("failed", "the process died of SIGSEGV", "crash", "the process died of SIGSEGV"),
        ("failed", "the cell took more than 5 s", "timeout", "the cell took more than 5 s"),
        ("interrupted", "KeyboardInterrupt", "interrupted", "KeyboardInterrupt"),
    ],
)
def test_the_sentence_of_an_old_run_gives_its_kind(status: str, reason: str, kind: str, sentence: str) -> None:
    new = upgraded(as_version_1(status=status, reason=reason))
    assert (new["error_kind"], new["reason"]) == (kind, sentence)


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        ("oom_gpu", "CUDA out of memory", "oom_gpu"),
        ("oom_gpu", "not tried: the smaller 512 x 200 ran out of memory", "oom_gpu"),
        ("unsupported", "torch.compile recompiled in a timed run", "unsupported"),
        ("unsupported", "DeviceError: no such kernel here", "device"),
        ("invalid", "40 tokens came instead of 50", "wrong_token_count"),
        ("invalid", "the graph holds 3 of the 7 kernels of a step", "incomplete_graph"),
        ("invalid", "2 processes were on the device; end the others", "shared_device"),
        ("invalid", "the clock was 1400 MHz of 1980", "throttled"),
        ("invalid", "nobody saw how the board was while it was measured", "unwatched"),
        ("error", "RuntimeError: shapes do not match", "other"),
    ],
)
def test_the_status_and_sentence_of_an_old_cell_give_its_kind(status: str, reason: str, kind: str) -> None:
    cells = [as_version_1()["cells"][0] | {"status": status, "reason": reason}]
    assert upgraded(as_version_1(cells=cells))["cells"][0]["error_kind"] == kind


def test_what_was_missing_keeps_its_reason_and_loses_what_its_field_says_already(tmp_path: Path) -> None:
    record = read(tmp_path, as_version_1(no_energy="no energy: no driver library answers", no_profile="no kernel"))
    assert record.no_energy
    assert record.no_energy.reason == "no driver library answers"
    assert record.no_profile
    assert (record.no_profile.error_kind, record.no_profile.reason) == ("other", "no kernel")


def test_the_times_after_the_first_token_become_a_section_and_the_others_another(tmp_path: Path) -> None:
    old: dict[str, Any] = {
        "by": "device", "prompt_tokens": 26, "new_tokens": 32, "batch_size": 1, "latency_s": 2.0, "kernel_s": 0.75,
        "busy_s": 0.75, "span_s": 1.0, "decode_busy_s": 0.5, "decode_span_s": 0.7, "decode_launches": 31,
        "kernels": [
            {"name": "gemm", "calls": 40, "total_s": 0.5,
             "decode_calls": 31, "decode_s": 0.375, "decode_alone_s": 0.375},
            {"name": "norm", "calls": 31, "total_s": 0.125,
             "decode_calls": 31, "decode_s": 0.125, "decode_alone_s": 0.125},
            {"name": "fill", "calls": 1, "total_s": 0.125, "decode_calls": 0, "decode_s": 0.0, "decode_alone_s": 0.0},
        ],
    }  # fmt: skip
    profile = read(tmp_path, as_version_1(profile=old)).profile
    assert profile
    assert profile.sections == {
        "prefill": Section(busy_s=0.25),
        "decode": Section(busy_s=0.5, span_s=0.7, launches=31),
    }
    gemm, norm, fill = (kernel.sections for kernel in profile.kernels)
    assert gemm == {
        "prefill": KernelTime(calls=9, total_s=0.125),
        "decode": KernelTime(calls=31, total_s=0.375, alone_s=0.375),
    }
    assert norm == {"decode": KernelTime(calls=31, total_s=0.125, alone_s=0.125)}
    assert fill == {"prefill": KernelTime(calls=1, total_s=0.125)}


@pytest.mark.parametrize("field", sorted(as_version_1()))
@pytest.mark.parametrize("value", [[], {}, "text", -1, [None], [[]], {"kernels": 3}])
def test_whatever_stands_in_a_field_of_an_old_record_reading_it_is_one_line_or_works(
    tmp_path: Path, field: str, value: object
) -> None:
    message = ""
    try:
        read(tmp_path, as_version_1(**{field: value}))
    except ResultsError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 3}, "schema 3 is newer than this benchmarker's 2; upgrade benchmarker"),
        ({"schema_version": True}, "not a benchmarker record (no schema_version)"),
        ({"workload": "generatoin"}, "workload: this benchmarker has no 'generatoin'; did you mean 'generation'?"),
        ({"workload": None}, "workload: it names none; it was edited"),
        ({"error_kind": "oom"}, "error_kind: input should be 'oom_gpu'"),
    ],
)
def test_a_record_that_cannot_be_read_says_so_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    new = json.loads(read(tmp_path, as_version_1()).model_dump_json())
    with pytest.raises(ResultsError, match=r"old\.json: ") as caught:
        read(tmp_path, new | changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_flag_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    data = as_version_1()
    data["cells"][0]["flags"] = ["unstable_warm_up"]
    with pytest.raises(ResultsError, match=r"cells\[0\]\.flags\[0\]: input should be 'unstable_warmup'"):
        read(tmp_path, data)


DENSE = "one query's products with all linears are made by benchmarker's own kernel, not inductor's"


@pytest.mark.parametrize(
    ("runtime", "facts", "kind", "engine"),
    [
        ("eager", {"kv_cache": "dynamic"}, "cuda", "eager"),
        ("graph", {"attention": "one kernel, reads the filled part"}, "cuda", "cuda_graph"),
        ("compile", {"own_products": DENSE}, "cuda", "native"),
        ("compile", {"attention": "one kernel, reads the filled part"}, "cuda", "native"),
        ("compile", {"attention": "flash, reads the filled part"}, "cuda", "compile"),
        ("compile", {"attention": "two matmuls, read the whole cache"}, "cpu", "compile"),
        # It ended before it had facts.
        ("compile", None, "cuda", "native"),
        ("compile", None, "cpu", "compile"),
    ],
)
def test_a_runtime_becomes_an_engine_and_a_step_with_own_kernels_is_native(
    tmp_path: Path, runtime: str, facts: dict[str, Any] | None, kind: str, engine: str
) -> None:
    data = as_version_1()
    data["environment"]["device"]["kind"] = kind
    data["variant"]["runtime"] = runtime
    data["runtime"] = facts and {"name": runtime, "tokens_read": "end", "kv_cache": "static"} | facts
    record = read(tmp_path, data)
    assert record.variant.engine == engine
    assert record.engine is None or record.engine.name == engine


def test_a_cell_whose_own_attention_is_not_the_last_ones_tells_it_too(tmp_path: Path) -> None:
    data = as_version_1()
    data["variant"]["runtime"] = "compile"
    data["cells"][0]["step"] = {"attention": "one kernel, reads the filled part"}
    data["runtime"] |= {"name": "compile", "attention": "flash, reads the filled part"}
    record = read(tmp_path, data)
    assert record.engine
    assert [(use.origin, use.name) for use in record.engine.kernels_used] == [
        ("benchmarker", "decode_attention"),
        ("library", "flash"),
    ]
    assert record.variant.engine == "native"


@pytest.mark.parametrize(
    ("sentence", "purpose", "name"),
    [
        (DENSE, "linear", "gemv_dense"),
        ("those with the same input are made as one", "joined_linears", "fuse_qkv_gate_up"),
        ("an MLP's activation is part of its product", "swiglu", "gemv_swiglu"),
        ("a sentence that nobody kept", "linear", "a sentence that nobody kept"),
    ],
)
def test_an_old_sentence_about_kernels_is_a_value_and_none_is_lost(
    tmp_path: Path, sentence: str, purpose: str, name: str
) -> None:
    data = as_version_1()
    data["runtime"] |= {"own_products": sentence}
    record = read(tmp_path, data)
    assert record.engine
    assert [(use.purpose, use.name) for use in record.engine.kernels_used] == [(purpose, name)]


def test_every_reference_record_of_a_compiled_step_on_a_gpu_is_native_and_none_on_a_processor() -> None:
    engines = {
        (record.environment.device.kind, record.variant.engine)
        for path in FILES
        if (data := json.loads(path.read_bytes()))["variant"]["runtime"] == "compile"
        # Records of a program that had `native` already say what they are.
        and "engine_options" not in data["variant"]
        and isinstance(record := read_record(path), GenerationRecord)
    }
    assert engines == {("cuda", "native"), ("cpu", "compile")}


@pytest.mark.parametrize("engine", ["compile", "native"])
def test_a_last_record_of_schema_1_keeps_its_engine_and_its_kernels(tmp_path: Path, engine: str) -> None:
    data = as_version_1()
    data["environment"]["device"]["kind"] = "cuda"
    data["variant"] |= {"runtime": engine, "engine_options": {}}
    use = {"purpose": "linear", "origin": "inductor", "name": "mm", "covered": 3, "total": 253}
    data["runtime"] |= {"name": engine, "kernels_used": [use], "own_products": None}
    record = read(tmp_path, data)
    assert record.engine
    assert (record.variant.engine, record.engine.name) == (engine, engine)
    assert [kernel.model_dump() for kernel in record.engine.kernels_used] == [use]


def test_a_last_record_of_schema_1_that_ended_before_it_compiled_is_not_native(tmp_path: Path) -> None:
    data = as_version_1()
    data["environment"]["device"]["kind"] = "cuda"
    data["variant"] |= {"runtime": "compile", "engine_options": {}}
    data["runtime"] = None
    assert read(tmp_path, data).variant.engine == "compile"


def test_a_step_of_generate_that_was_flagged_for_its_own_rounding_reads_as_rounding() -> None:
    folder = REFERENCE / "cpu-smollm2"
    for variant in ("fp16-2", "int8-2"):
        (path,) = folder.glob(f"{variant}*.json")
        assert "step_differs" in path.read_text()
        record = read_record(path)
        assert isinstance(record, GenerationRecord)
        assert record.step_divergence
        assert record.step_divergence.verdict == "equal"
        assert record.cells[0].flags == ("unstable_warmup",)
