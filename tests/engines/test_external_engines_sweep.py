"""Test sweeps with external engines whose fake drivers die or return too few tokens."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarker.cli.app import app
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ProcessError
from benchmarker.engines.external import environments
from benchmarker.engines.external.environments import (
    DRIVERS,
    ENVIRONMENTS,
    MARKER,
    EnvironmentState,
    Marker,
    environments_folder,
)
from benchmarker.execution.single_run import Run
from benchmarker.schema.job import Part
from benchmarker.schema.record_io import read_record
from benchmarker.sweep.child import Child
from tests.jobs import job_of

FAULTY = textwrap.dedent("""
    import os, time

    class Driver:
        def import_engine(self, **arguments):
            pass

        def open(self, **arguments):
            return {"load_s": 1.0}

        def generate(self, *, prompt_ids, new_tokens, context):
            if new_tokens == 17:
                os._exit(3)
            times = [time.perf_counter_ns()]
            for _ in range(2):
                time.sleep(0.002)
                times.append(time.perf_counter_ns())
            tokens = [[row[-1]] * (new_tokens - (new_tokens == 11)) for row in prompt_ids]
            return {"tokens": tokens, "start_ns": times[0], "first_ns": times[1], "last_ns": times[2],
                    "end_ns": times[2]}

        def facts(self):
            return {"version": "9", "kv_cache": "paged", "settings": {}, "weight_bytes": 5_000_000}

        def close(self):
            pass
""")
CONFIG = """
model: {id: qwen3-tiny, load_format: dummy, dtype: float32}
grid: {prompt_tokens: [3], new_tokens: [4, 11, 17, 18]}
procedure: {limits: false, profile: false, warmup: 1, warmup_limit: 1, runs: 2}
variants:
  - {name: faulty, quant: fp16, engine: llama-cpp}
"""


DYING_SGLANG = textwrap.dedent("""
    import asyncio
    import collections
    import os

    __version__ = "0.5.14"

    class Engine:
        def __init__(self, **arguments):
            self.loop = asyncio.new_event_loop()

        async def async_generate(self, **arguments):
            os._exit(3)

        def flush_cache(self):
            pass

        def get_server_info(self):
            graphs = {phase: {"backend": "full"} for phase in ("decode", "prefill")}
            memory = {"memory_usage": {"weight": 0.0, "kvcache": 0.01}}
            return collections.defaultdict(str, cuda_graph_config=graphs, internal_states=[memory])
""")


def marker_of(environment: str, interpreter: Path, command: str) -> Marker:
    """Return the marker of an environment whose interpreter always runs the given command."""
    interpreter.write_text(f"#!/bin/sh\nexec {command}\n")
    interpreter.chmod(0o755)
    return Marker(
        name=environment,
        python=str(interpreter),
        version="9",
        pins_sha256=None,
        created="2026-01-01T00:00:00Z",
        benchmarker="0.1.0",
    )


def register_faulty_engine(folder: Path) -> None:
    """Register an environment of llama-cpp that runs `FAULTY`."""
    program = folder / "faulty.py"
    program.write_text(FAULTY)
    marker = marker_of("llama-cpp", folder / "python", f"{sys.executable} -S -I {DRIVERS / 'driver_loop.py'} {program}")
    environment = environments_folder() / "llama-cpp"
    environment.mkdir(parents=True)
    (environment / MARKER).write_text(marker.model_dump_json())


@pytest.mark.slow
@pytest.mark.by_hand
def test_cells_before_and_after_a_crash_are_measured(tmp_path):
    register_faulty_engine(tmp_path)
    config, output = tmp_path / "config.yaml", tmp_path / "results"
    config.write_text(CONFIG)
    arguments = ["sweep", str(config), "--rounds", "1", "--allow-shared", "--output", str(output), "--device", "cpu"]
    output_text = CliRunner().invoke(app, arguments).output
    records = [read_record(path) for path in output.glob("faulty-round1-*.json")]
    statuses: dict[int, set[str]] = {}
    for record in records:
        for cell in record.cells:
            statuses.setdefault(cell.new_tokens, set()).add(cell.status)
    assert "ok" in statuses[4]
    assert "ok" in statuses[18]
    assert statuses[11] == {"invalid"}
    assert "llama-cpp: answered [10] tokens where 1 x 11 were asked for" in output_text
    assert "3 x 17: crashed: llama-cpp: its driver ended at 'generate' (exit 3)" in output_text


def test_crash_in_the_first_cell_is_not_a_loading_failure(tmp_path, monkeypatch):
    (tmp_path / "sglang.py").write_text(DYING_SGLANG)
    command = (
        f"env PYTHONPATH={tmp_path} {sys.executable} -S {DRIVERS / 'driver_loop.py'} {DRIVERS / 'sglang_driver.py'}"
    )
    marker = marker_of("sglang", tmp_path / "python", command)
    # SGLang's own environment is for GPUs.
    state = EnvironmentState(replace(ENVIRONMENTS["sglang"], device="cpu"), tmp_path, marker)
    monkeypatch.setitem(ENVIRONMENTS, "sglang", state.spec)
    monkeypatch.setattr(environments, "environment_state", lambda spec: state)
    path = tmp_path / "record.json"
    job = job_of(
        model={"id": "qwen3-tiny", "load_format": "dummy", "dtype": "float32"},
        form={"quant": "fp16", "engine": "sglang"},
        grid={"prompt_tokens": [3], "new_tokens": [4, 8]},
        procedure={"limits": False, "profile": False},
        device="cpu",
    )
    part = Part(record=path, sweep="2026-01-01T00:00:00Z", cells=(0, 1), only="timing")
    with pytest.raises(ProcessError, match="ended at 'generate'"):
        Run(job.in_part(part), Terminal(quiet=True)).execute()
    record, child = read_record(path), Child(None, None, "a", path, (0, 1))
    child.update()
    assert (record.status, record.error_kind, record.cells, record.load) == ("failed", "crash", (), None)
    assert child.phase == "cell"
