"""Downloads from a local hub server, the offline cache, and errors of the hub."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hub_server import COMMIT, Hub, hub_of, serving

FIND = """
import json, sys
import benchmarker.checkpoints.find
from benchmarker.core.errors import BenchmarkerError
from benchmarker.quantization.load import find_checkpoint
from benchmarker.schema.model import ModelSpec
from benchmarker.workloads.generation.spec import VariantSpec
model = ModelSpec(**json.loads(sys.argv[1]))
# Importing transformers takes seconds and only dummies need it.
benchmarker.checkpoints.find.import_libraries = lambda *packages: None
try:
    found = find_checkpoint(model, VariantSpec(name="fp16", quant="fp16"))
except BenchmarkerError as error:
    print(error)
else:
    files = sorted(path.name for path in found.folder.iterdir())
    print(json.dumps({"revision": found.revision, "files": files, "folder": str(found.folder)}))
"""

LOOK = """
import json, sys
from benchmarker.core.errors import BenchmarkerError
from benchmarker.checkpoints.find import look_for
from benchmarker.schema.model import ModelSpec
try:
    look_for(ModelSpec(**json.loads(sys.argv[1])))
except BenchmarkerError as error:
    print(error)
"""

STORED = """
import json, sys
from benchmarker.checkpoints.find import stored_quantization
from benchmarker.schema.model import ModelSpec
for _ in range(2):
    print(json.dumps(stored_quantization(ModelSpec(**json.loads(sys.argv[1])))))
"""


SERVER = """
import json, os, sys, traceback
import torch
import benchmarker.quantization.load
assert "huggingface_hub" not in sys.modules
for line in sys.stdin:
    asked = json.loads(line)
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.environ.clear()
            os.environ.update(asked["environment"])
            for descriptor, path in ((1, asked["out"]), (2, asked["error"])):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
            sys.argv = ["-c", asked["model"]]
            exec(asked["script"], {"__name__": "__main__"})
            sys.stdout.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    """Start a process that has imported torch but not the hub library. Each request runs in a fork of it."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        yield server
        server.stdin.close()


@pytest.fixture
def ask(forks: subprocess.Popen[str], tmp_path: Path) -> Callable[..., str]:
    def run(home: Path, model: dict[str, object], *, script: str = FIND, **variables: str) -> str:
        # The hub library reads its variables at its import. gptqmodel, imported by earlier tests, sets some of them.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_secret"}
        out, error = (Path(tempfile.mkstemp(dir=tmp_path)[1]) for _ in range(2))
        request = {
            "environment": environment | variables,
            "model": json.dumps({"id": "some/model"} | model),
            "script": script,
            "out": str(out),
            "error": str(error),
        }
        assert forks.stdin is not None
        assert forks.stdout is not None
        forks.stdin.write(json.dumps(request) + "\n")
        forks.stdin.flush()
        assert select.select([forks.stdout], [], [], 60)[0], "no answer within 60 s"
        assert forks.stdout.readline() == "0\n", error.read_text()
        assert "hf_secret" not in out.read_text() + error.read_text()
        return out.read_text().strip()

    return run


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hf")


UNREACHABLE = (
    "some/model: the Hugging Face hub cannot be reached (or HF_HUB_OFFLINE is set), and it is not in the cache; "
    "take --model qwen3-small, which ships with benchmarker, give a folder with --model PATH, or measure random "
    "weights of its shape with --load-format dummy"
)


def test_model_is_downloaded_once_and_then_read_from_the_cache(ask, session_model, home):
    hub = hub_of(session_model)
    hub.files |= {"pytorch_model.bin": b"pickle", "modeling.py": b"code", "README.md": b"text"}
    with serving(hub):
        first = json.loads(ask(home, {}, HF_ENDPOINT=hub.url))
    assert first["revision"] == COMMIT
    assert first["files"] == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    again = json.loads(ask(home, {}, HF_HUB_OFFLINE="1"))
    assert again == first
    unplugged = json.loads(ask(home, {}, HF_ENDPOINT=hub.url))
    assert unplugged == first


def test_stored_quantization_is_downloaded_once_and_then_cached(ask, session_model, tmp_path):
    hub = hub_of(session_model)
    config = json.loads(hub.files["config.json"]) | {"quantization_config": {"quant_method": "mxfp4"}}
    hub.files["config.json"] = json.dumps(config).encode()
    with serving(hub):
        assert ask(tmp_path, {}, script=STORED, HF_ENDPOINT=hub.url) == "\n".join(['{"quant_method": "mxfp4"}'] * 2)
        requests = len(hub.requests)
        assert ask(tmp_path, {}, script=STORED, HF_ENDPOINT=hub.url).count("mxfp4") == 2
    assert len(hub.requests) == requests
    cache = tmp_path / "hub"
    (cache / "models--some--model").rename(cache / "models--openai--gpt-oss-20b")
    stored = ask(tmp_path, {"id": "openai/gpt-oss-20b"}, script=STORED, HF_HUB_OFFLINE="1")
    assert stored.count("mxfp4") == 2
    assert ask(tmp_path, {"id": "openai/gpt-oss-20b", "load_format": "dummy"}, script=STORED) == "null\nnull"


def test_unreachable_hub_is_requested_once_for_the_quantization(ask, tmp_path):
    with serving(Hub({}, refuse=(503, ""))) as hub:
        assert ask(tmp_path, {"id": "Qwen/Qwen3-4B"}, script=STORED, HF_ENDPOINT=hub.url) == "null\nnull"
        requests = len(hub.requests)
        script = STORED.replace("range(2)", "range(1)")
        assert ask(tmp_path, {"id": "Qwen/Qwen3-4B"}, script=script, HF_ENDPOINT=hub.url) == "null"
    assert len(hub.requests) == 2 * requests


def test_dummy_of_a_hub_model_downloads_no_weights(ask, session_model, tmp_path):
    with serving(hub_of(session_model)) as hub:
        checkpoint = json.loads(ask(tmp_path, {"load_format": "dummy"}, HF_ENDPOINT=hub.url))
    assert checkpoint["files"] == [
        "benchmarker.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert not any("model.safetensors" in path for path in hub.requests)
    assert ask(tmp_path, {"load_format": "dummy"}, script=LOOK, HF_HUB_OFFLINE="1") == ""


def test_trusted_code_is_downloaded(ask, session_model, tmp_path):
    hub = hub_of(session_model)
    hub.files["modeling.py"] = b"code"
    with serving(hub):
        model = {"trust_remote_code": True, "revision": COMMIT}
        checkpoint = json.loads(ask(tmp_path, model, HF_ENDPOINT=hub.url))
    assert "modeling.py" in checkpoint["files"]


def test_unreachable_hub_raises_with_a_remedy(ask, tmp_path):
    assert ask(tmp_path, {}, HF_ENDPOINT="http://127.0.0.1:9") == UNREACHABLE


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ({"id": "qwen3-smal"}, "take --model qwen3-small, which ships with benchmarker"),
        ({"id": "qwen3-tini"}, "benchmarker ships 'qwen3-tiny'; take --model qwen3-small, which ships"),
        ({"id": "qwen3-smal", "load_format": "dummy"}, "benchmarker ships 'qwen3-small'; give a folder"),
    ],
)
def test_misspelt_name_of_a_shipped_model_prints_it_once(ask, tmp_path, model, remedy):
    message = ask(tmp_path, model, HF_HUB_OFFLINE="1")
    assert f"not in the cache; {remedy}" in message
    assert message.count("qwen3-small") == 1


def test_dummy_without_shape_raises_with_the_shipped_models(ask, tmp_path):
    assert ask(tmp_path, {"load_format": "dummy"}, HF_HUB_OFFLINE="1") == (
        "some/model: the Hugging Face hub cannot be reached (or HF_HUB_OFFLINE is set), and it is not in the cache; "
        "give a folder with its config.json, or a shape that ships with benchmarker (gemma-3-4b, gpt-oss-20b, "
        "llama-3.1-8b, qwen3-30b-a3b, qwen3-4b, qwen3-8b, qwen3-small, qwen3-tiny, qwen3.5-4b)"
    )


def test_uncached_model_offline_raises(ask, tmp_path):
    assert ask(tmp_path, {}, HF_HUB_OFFLINE="1") == UNREACHABLE


def test_silent_hub_times_out(ask, tmp_path):
    script = FIND.replace("try:", "benchmarker.checkpoints.find.ANSWER_S = 0.5\ntry:")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert ask(tmp_path, {}, script=script, HF_ENDPOINT=address) == UNREACHABLE


def test_hub_error_503_raises(ask, tmp_path):
    with serving(Hub({}, refuse=(503, ""))) as hub:
        assert ask(tmp_path, {}, HF_ENDPOINT=hub.url) == UNREACHABLE


def test_look_for_downloads_nothing_and_raises_as_find_does(ask, session_model, tmp_path):
    with serving(hub_of(session_model)) as hub:
        assert ask(tmp_path, {}, script=LOOK, HF_ENDPOINT=hub.url) == ""
        assert not any("/resolve/" in path for path in hub.requests)
        assert "no revision" in ask(tmp_path, {"revision": "v9"}, script=LOOK, HF_ENDPOINT=hub.url)
    assert ask(tmp_path, {}, script=LOOK, HF_HUB_OFFLINE="1") == UNREACHABLE


@pytest.mark.parametrize("refusal", [(404, "RepoNotFound"), (401, "")])
def test_unknown_model_raises(ask, refusal, tmp_path):
    with serving(Hub({}, refuse=refusal)) as hub:
        assert ask(tmp_path, {}, HF_ENDPOINT=hub.url) == (
            "some/model: no such model on the hub (a private one needs HF_TOKEN), and no folder of that name here"
        )


def test_unknown_revision_raises(ask, session_model, tmp_path):
    with serving(hub_of(session_model)) as hub:
        assert ask(tmp_path, {"revision": "v9"}, HF_ENDPOINT=hub.url) == (
            "some/model: no revision 'v9' on the hub; check --revision"
        )


def test_gated_model_raises_with_the_licence_url(ask, session_model, tmp_path):
    hub = hub_of(session_model)
    hub.gated = True
    with serving(hub):
        assert ask(tmp_path, {}, HF_ENDPOINT=hub.url) == (
            "some/model: gated; accept its licence on https://huggingface.co/some/model and set HF_TOKEN to your token"
        )


def test_hub_model_with_only_pickle_weights_is_not_downloaded(ask, tmp_path):
    with serving(Hub({"config.json": b"{}", "pytorch_model.bin": b"pickle"})) as hub:
        assert ask(tmp_path, {}, HF_ENDPOINT=hub.url).startswith(
            "some/model: its weights are pickle files (pytorch_model.bin), which can run code when opened; "
        )
    assert not any("resolve" in path for path in hub.requests)


def test_hub_model_without_safetensors_raises(ask, tmp_path):
    with serving(Hub({"config.json": b"{}", "model.gguf": b""})) as hub:
        assert ask(tmp_path, {}, HF_ENDPOINT=hub.url) == (
            "some/model: has no safetensors weights on the hub; only safetensors are read"
        )


def test_weights_in_another_quantization_are_not_downloaded(ask, session_model, tmp_path):
    hub = hub_of(session_model)
    config = json.loads(hub.files["config.json"]) | {"quantization_config": {"quant_method": "eetq"}}
    hub.files["config.json"] = json.dumps(config).encode()
    with serving(hub):
        assert ask(tmp_path, {}, HF_ENDPOINT=hub.url) == (
            "some/model: quantized with eetq, which no --quant loads; use an unquantized checkpoint"
        )
    assert not any("resolve" in path and "model.safetensors" in path for path in hub.requests)
