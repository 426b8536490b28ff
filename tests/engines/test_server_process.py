"""Test server processes (start, crash, timeout, end) with fake programs, and the servers' command lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarker.checkpoints.base import Checkpoint
from benchmarker.core.errors import ProcessError
from benchmarker.core.process import NO_MULTICAST
from benchmarker.engines.base import Form
from benchmarker.engines.external import servers
from benchmarker.engines.external.environments import EngineError, Marker
from benchmarker.engines.external.server_process import ServerProcess, free_port, last_words, read
from benchmarker.engines.external.servers import SERVERS, Launch, LlamaServerOptions
from benchmarker.engines.external.sglang import SglangOptions
from benchmarker.engines.external.vllm import VllmEngine, VllmOptions
from benchmarker.hardware.device import CpuDevice
from benchmarker.quantization.base import Options

NULL_SERVER = Path(__file__).parents[1] / "null_server.py"


def started(*command: str) -> ServerProcess:
    return ServerProcess("fake", [sys.executable, *command], port=free_port())


def marker(tmp_path: Path, *, library: str | None = None) -> Marker:
    python = tmp_path / "bin" / "python"
    return Marker(
        name="llama-server",
        python=str(python),
        version="1",
        pins_sha256=None,
        library=library,
        created="",
        benchmarker="1",
    )


def launch_of(tmp_path: Path, arguments: dict[str, object], options: Options, *, has_tokenizer: bool = True) -> Launch:
    return Launch(marker(tmp_path), arguments, options, 8001, positions=640, concurrency=4, has_tokenizer=has_tokenizer)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ready_server_responds_until_it_is_ended():
    port = free_port()
    server = ServerProcess("null", [sys.executable, str(NULL_SERVER), "--port", str(port)], port=port)
    try:
        assert server.wait_ready(60) > 0
        assert read(f"{server.url}/v1/models") == '{"data": [{"id": "null"}]}'
        assert (server.resident_bytes() or 0) > 1e6
        server.check()
    finally:
        server.end(keep_log=False)
    assert read(f"{server.url}/v1/models") is None
    with pytest.raises(ProcessError, match=r"^null: ended while it was measured"):
        server.check()


def test_server_crash_is_reported_with_the_end_of_its_log():
    server = started("-c", "print('loading'); print('error: no such model'); print('bye'); raise SystemExit(7)")
    with pytest.raises(ProcessError) as caught:
        server.wait_ready(60)
    server.end(keep_log=True)
    message, _, log = str(caught.value).partition("; its log is ")
    assert message == "fake: ended before it was ready (exit 7): error: no such model | bye"
    assert caught.value.kind == "crash"
    assert "loading" in Path(log).read_text()
    Path(log).unlink()


def test_port_in_use_is_reported():
    port = free_port()
    command = [sys.executable, str(NULL_SERVER), "--port", str(port)]
    server, second = ServerProcess("null", command, port=port), None
    try:
        server.wait_ready(60)
        second = ServerProcess("second", command, port=free_port())
        with pytest.raises(ProcessError, match="address already in use"):
            second.wait_ready(60)
    finally:
        for process in filter(None, (server, second)):
            process.end(keep_log=False)


def test_out_of_memory_at_the_start_is_reported_as_oom():
    server = started("-c", "raise SystemExit('ggml: failed to allocate buffer of 99 GiB')")
    with pytest.raises(ProcessError, match=r"^fake: out of memory: it ended before it was ready") as caught:
        server.wait_ready(60)
    server.end(keep_log=False)
    assert caught.value.kind == "oom_host"


def test_server_that_is_not_ready_in_time_is_ended():
    server = started("-c", "import time; print('still loading', flush=True); time.sleep(600)")
    with pytest.raises(ProcessError, match=r"^fake: was not ready within 1 s: ") as caught:
        server.wait_ready(1)
    server.end(keep_log=False)
    assert caught.value.kind == "timeout"


def test_ending_a_server_ends_its_children(tmp_path):
    file = tmp_path / "pid"
    child = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    server = started("-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
    while not (file.exists() and file.read_text()):
        time.sleep(0.02)
    server.end(keep_log=False)
    limit_s = time.monotonic() + 10  # A killed process needs a moment on a busy machine.
    while is_alive(int(file.read_text())) and time.monotonic() < limit_s:
        time.sleep(0.02)
    assert not is_alive(int(file.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends a child with its parent")
def test_server_ends_if_its_parent_is_killed(tmp_path):
    code = (
        "import sys, time; from benchmarker.engines.external.server_process import ServerProcess\n"
        "server = ServerProcess('fake', [sys.executable, '-c', 'import time; time.sleep(600)'], port=1)\n"
        "print(server._process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.5)  # By then, the launcher has requested its end with the parent.
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline_s = time.monotonic() + 20
    while is_alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not is_alive(pid)


def test_last_words_are_the_last_error_and_last_line():
    assert last_words("a\nERROR one\nError two\n\nend\n") == "Error two | end"
    assert last_words("only Error\n") == "only Error"
    assert last_words(" \n") == "it printed nothing"


def test_vllm_server_gets_engine_arguments_without_prefix_caching(tmp_path):
    options = VllmOptions(max_model_len=640, max_num_seqs=256)
    arguments = {
        "model": "/models/m",
        "dtype": "bfloat16",
        "trust_remote_code": False,
        "tensor_parallel_size": 1,
        **options.model_dump(exclude_none=True),
        "cpu_kv_cache_gib": 2,
    }
    server, launch = SERVERS["vllm"], launch_of(tmp_path, arguments, options)
    command = server.command(launch)
    assert " ".join(command[1:]) == (
        "-I -m vllm.entrypoints.openai.api_server --model /models/m --dtype bfloat16 --tensor-parallel-size 1 "
        "--max-model-len 640 --max-num-seqs 256 --gpu-memory-utilization 0.9 --served-model-name model "
        "--host 127.0.0.1 --port 8001 --seed 0 --no-enable-prefix-caching"
    )
    assert server.variables(launch)["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert server.variables(launch).items() >= NO_MULTICAST.items()
    assert server.max_requests(launch) == 256


def test_vllm_server_selects_humming_by_disabling_other_kernels(tmp_path):
    options = VllmOptions(linear_backend="humming")
    checkpoint = Checkpoint(tmp_path, "m", None, dummy=False, config={})
    form = Form("gptq", Options(), "float16", options)
    arguments, _ = VllmEngine().arguments(checkpoint, form, CpuDevice(), None, None)  # type: ignore[arg-type]
    server, launch = SERVERS["vllm"], launch_of(tmp_path, arguments, options)
    assert "--linear-backend" not in server.command(launch)
    assert "MarlinLinearKernel" in server.variables(launch)["VLLM_DISABLED_KERNELS"]


def test_sglang_is_launched_without_its_radix_cache(tmp_path):
    arguments = {"model_path": "/models/m", "dtype": "bfloat16", "trust_remote_code": True}
    command = SERVERS["sglang"].command(launch_of(tmp_path, arguments, SglangOptions(), has_tokenizer=False))
    assert " ".join(command[1:]) == (
        "-I -m sglang.launch_server --model-path /models/m --dtype bfloat16 --trust-remote-code --served-model-name "
        "model --host 127.0.0.1 --port 8001 --random-seed 0 --disable-radix-cache --enable-metrics "
        "--skip-tokenizer-init"
    )


def test_llama_server_has_one_slot_per_concurrent_request(tmp_path, monkeypatch):
    arguments = {"model": "/models/m.gguf", "threads": 2, "gpu_layers": 0, "flash_attention": True, "library": None}
    server, launch = SERVERS["llama-server"], launch_of(tmp_path, arguments, LlamaServerOptions())
    with pytest.raises(EngineError, match="there is none in the environment llama-server"):
        server.command(launch)
    program = tmp_path / "lib" / "python3.12" / "site-packages" / "bin" / "llama-server"
    program.parent.mkdir(parents=True)
    program.touch()
    command = server.command(launch)
    assert command[0] == str(program)
    assert "--ctx-size 2564 --parallel 4 --cache-ram 0" in " ".join(command)
    assert "--no-cache-prompt" in command
    monkeypatch.setattr(servers, "physical_cores", lambda: 8)
    for threads, expected in ((None, "7"), (8, "8")):
        command = server.command(launch_of(tmp_path, arguments, LlamaServerOptions(threads=threads)))
        assert command[command.index("--threads") + 1] == expected
    assert server.max_requests(launch_of(tmp_path, arguments, LlamaServerOptions(slots=8))) == 8


def test_llama_server_that_does_not_start_raises_with_its_output(tmp_path):
    program = tmp_path / "lib" / "python3.12" / "site-packages" / "bin" / "llama-server"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'libllama-server-impl.so: cannot open' >&2\nexit 127\n")
    program.chmod(0o755)
    with pytest.raises(EngineError, match=r"llama-server --version failed: libllama-server-impl.so: cannot open$"):
        SERVERS["llama-server"].check(marker(tmp_path))
    program.write_text("#!/bin/sh\nexit 0\n")
    SERVERS["llama-server"].check(marker(tmp_path))


def test_llama_server_scores_are_of_forced_tokens(monkeypatch):
    def answer(url, body):
        (token,) = map(int, body["logit_bias"])
        logprob = None if token == 9 else -token / 10
        return {"choices": [{"logprobs": {"content": [{"id": min(token, 9), "logprob": logprob}]}}]}

    monkeypatch.setattr(servers, "post", answer)
    score = SERVERS["llama-server"].log_probabilities
    assert score("http://host", [3, 5, 7, 9]) == [-0.5, -0.7, None]
    with pytest.raises(LookupError, match="it generated the token 9 in place of 11"):
        score("http://host", [3, 11])


def test_vllm_facts_are_read_from_the_log():
    log = (
        "(EngineCore pid=9) INFO Model loading took 3.50 GiB memory and 2.1 seconds\n"
        "INFO Available KV cache memory: 1.25 GiB\nINFO GPU KV cache size: 123,456 tokens\n"
    )
    assert SERVERS["vllm"].log_facts(log) == {
        "weight_bytes": 3758096384,
        "kv_bytes": 1342177280,
        "kv_capacity_tokens": 123456,
    }
    assert SERVERS["vllm"].log_facts("") == {"weight_bytes": None, "kv_bytes": None, "kv_capacity_tokens": None}
