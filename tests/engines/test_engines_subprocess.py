"""Test engines in a process with another interpreter, by a driver that echoes token ids and by faulty drivers."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from benchmarker.checkpoints.base import Checkpoint, Silent
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ProcessError
from benchmarker.engines import registry
from benchmarker.engines.base import Form, UnsupportedError
from benchmarker.engines.external.environments import Marker
from benchmarker.engines.external.external_engine import ExternalEngine, ExternalSource
from benchmarker.execution.single_run import Run
from benchmarker.hardware.device import CpuDevice
from benchmarker.quantization.base import Options
from benchmarker.schema.job import Procedure
from benchmarker.workloads.generation.source_benchmarker import SourceBenchmarker
from benchmarker.workloads.generation.spec import Grid
from tests.jobs import job_of

ECHO = textwrap.dedent("""
    import array, json, os, sys, time

    fault = sys.argv[1]
    for line in sys.stdin:
        request = json.loads(line)
        operation = request["do"]
        if operation == fault:
            exec(sys.argv[2])
        if operation == "generate":
            start = time.perf_counter_ns()
            tokens = [(row * request["new_tokens"])[: request["new_tokens"]] for row in request["prompt_ids"]]
            first = time.perf_counter_ns()
            times = {"start_ns": start, "first_ns": first, "last_ns": first + 10, "end_ns": first + 20}
            answer = {"tokens": tokens, **times}
        elif operation == "score":
            with open(request["output"], "wb") as file:
                array.array("f", [-1.0, -0.5] * (len(request["ids"]) - request["rows_from"])).tofile(file)
            answer = {"vocabulary": 2}
        elif operation == "facts":
            answer = {"version": "9", "python": "3", "kv_cache": "paged", "growth_bytes": os.getpid()}
        else:
            answer = {"load_s": 1.0}
        print(json.dumps(answer), flush=True)
        if operation == "close":
            break
""")


class Echo(ExternalEngine):
    """Engine that repeats the prompt's tokens."""

    name = "echo"
    limit_s = 20.0

    def __init__(self, folder: Path, fault: str = "", code: str = "") -> None:
        self.program = folder / "driver.py"
        self.program.write_text(ECHO)
        self._fault = fault, code

    def marker(self, device: str) -> Marker:
        del device
        return Marker(
            name="echo", python=sys.executable, version="9", pins_sha256=None, created="today", benchmarker="0"
        )

    def arguments(self, *_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {}

    def command(self, marker: Marker) -> list[str]:
        del marker
        # An interpreter without this environment's packages.
        return [sys.executable, "-S", "-I", str(self.program), *self._fault]

    def why_not_installed(self) -> str | None:
        return None

    def why_not_taken(self, form: Form, checkpoint: Checkpoint) -> str | None:
        del checkpoint
        return None if form.quant == "fp16" else f"{form.quant} is not a form that it knows"


CHECKPOINT = Checkpoint(folder=Path("/model"), model_id="model", revision=None, dummy=True, config={"vocab_size": 128})
FORM = Form("fp16", Options(), "float16")


def opened(engine: Echo):
    return engine.open(CHECKPOINT, FORM, CpuDevice(), Silent())


def test_driver_returns_tokens_times_and_scores(tmp_path: Path) -> None:
    with opened(Echo(tmp_path)) as source:
        generation = source.generate([[5, 6, 7], [8, 9, 10]], 5)
        scores = source.step_scores([1, 2, 3])
        facts, peak_bytes = source.facts(), source.peak_bytes()
    assert generation.tokens == ((5, 6, 7, 5, 6), (8, 9, 10, 8, 9))
    assert generation.start_ns < generation.first_ns < generation.last_ns < generation.end_ns
    assert scores is not None
    assert scores.log_probabilities.shape == (3, 2)
    assert (facts.name, facts.engine_version, facts.kv_cache) == ("echo", "9", "paged")
    assert len(peak_bytes) == 1


def test_cells_are_measured_with_the_memory_of_the_driver_process(tmp_path: Path) -> None:
    with opened(Echo(tmp_path)) as source:
        subject = SourceBenchmarker(source, CHECKPOINT.config, CpuDevice())
        procedure = Procedure(warmup=1, warmup_limit=1, runs=2)
        (cell,) = subject.run(Grid(prompt_tokens=(3,), new_tokens=(5,)), procedure)
        (peak_bytes,) = source.peak_bytes()
    assert (cell.status, len(cell.samples), cell.demand) == ("ok", 2, None)
    assert cell.memory.resident_growth_bytes == peak_bytes


def test_too_few_tokens_give_an_invalid_cell(tmp_path: Path) -> None:
    short = Echo(tmp_path, "generate", "request['new_tokens'] -= 1")
    with opened(short) as source:
        (cell,) = SourceBenchmarker(source, CHECKPOINT.config, CpuDevice()).run(
            Grid(prompt_tokens=(3,), new_tokens=(5,)), Procedure(warmup=1, warmup_limit=1, runs=2)
        )
    assert cell.status == "invalid"
    assert "answered [4] tokens where 1 x 5 were asked for" in (cell.reason or "")


def generate(source: ExternalSource) -> None:
    source.generate([[5, 6, 7]], 5)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os._exit(3)", r"^echo: its driver ended at 'generate' \(exit 3\): it printed nothing$"),
        ("raise ValueError('no room')", r"^echo: its driver ended at 'generate' \(exit 1\): ValueError: no room$"),
        ("time.sleep(99)", r"^echo: no answer to 'generate' within 1 s; its driver was ended$"),
        ("print('hello', flush=True)", r"^echo: its driver answered 'generate' with no JSON object: hello$"),
    ],
)
def test_driver_failure_raises_a_one_line_error(tmp_path: Path, code: str, message: str) -> None:
    engine = Echo(tmp_path, "generate", code)
    engine.limit_s = 1.0 if "sleep" in code else 20.0
    with opened(engine) as source, pytest.raises(ProcessError, match=message) as caught:
        generate(source)
    assert "\n" not in str(caught.value)


def test_driver_refusal_is_reported_verbatim(tmp_path: Path) -> None:
    refusing = Echo(tmp_path, "open", 'print(\'{"error": "no such form"}\', flush=True); sys.exit()')
    with pytest.raises(UnsupportedError, match=r"^echo: no such form$"), opened(refusing):
        pass


def test_missing_interpreter_is_named(tmp_path: Path) -> None:
    engine = Echo(tmp_path)
    engine.command = lambda marker: ["/nowhere/python"]  # type: ignore[method-assign]
    with pytest.raises(ProcessError, match="cannot be started: /nowhere/python: No such file"), opened(engine):
        pass


def test_registered_engine_works_in_run(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.ENGINES, "echo", Echo(tmp_path))
    job = job_of(
        model={"id": str(model_folder), "dtype": "bfloat16"},
        form={"quant": "fp16", "engine": "echo"},
        grid={"prompt_tokens": [3], "new_tokens": [4]},
        procedure={"runs": 1, "warmup": 1, "warmup_limit": 1, "limits": False, "profile": False},
        device="cpu",
        output=tmp_path / "results",
    )
    record = Run(job, Terminal(quiet=True)).execute()
    assert (record.status, record.variant.engine, record.load) == ("complete", "echo", None)
    assert len(record.cells[0].first_tokens) == 4
    assert record.engine is not None
    assert record.engine.engine_version == "9"
    other_form = job.variant.model_copy(update={"quant": "int8"})
    with pytest.raises(UnsupportedError, match=r"^echo: int8 is not a form that it knows$"):
        Run(job.model_copy(update={"variant": other_form}), Terminal(quiet=True)).execute()
