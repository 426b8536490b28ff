"""Test the requests of `checkpoint make` to the environment's driver, which is a fake, and its error messages."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from benchmarker.cli.app import app
from benchmarker.engines.external import environments
from benchmarker.engines.external.environment_install import register_environment
from benchmarker.engines.external.environments import DRIVERS, LLM_COMPRESSOR
from benchmarker.execution.jobs import make_job
from tests.architectures import small_model

FAKE = """
import json, pathlib, shutil

class Driver:
    def quantize(self, *, source, target, **request):
        shutil.copytree(source, target)
        folder = pathlib.Path(target)
        (folder / "tokenizer.json").write_text("written again")
        (folder / "request.json").write_text(json.dumps(request))
        config = json.loads((folder / "config.json").read_text())
        weights = {"num_bits": 4, "type": "int"}
        stored = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": stored}))
"""


def last_line(result: Result) -> str:
    return result.output.splitlines()[-1].removeprefix("error: ")


def make(model: Path | str, quant: str, folder: Path | None, *options: str) -> Result:
    output = ["-o", str(folder)] if folder else []
    command = ["checkpoint", "make", "--model", str(model), "--quant", quant, "--device", "cpu", *output, *options]
    return CliRunner().invoke(app, command)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register this interpreter as the environment, with a driver that copies the model."""
    drivers = tmp_path / "drivers"
    drivers.mkdir()
    shutil.copyfile(DRIVERS / "driver_loop.py", drivers / "driver_loop.py")
    (drivers / "llm_compressor_driver.py").write_text(FAKE)
    monkeypatch.setattr(environments, "DRIVERS", drivers)
    monkeypatch.setattr("benchmarker.engines.external.environment_install._imported_version", lambda *_: "1.0")
    register_environment(LLM_COMPRESSOR, python=Path(sys.executable))


def test_autoround_with_random_weights_needs_no_library(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarker.quantization.base.installed_version", lambda name: None)
    result = make("qwen3-tiny", "autoround", tmp_path / "made", "--load-format", "dummy")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "made" / "config.json").read_text())["quantization_config"]["bits"] == 4


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("quant", "shape"), [("w4a16", (64, 512)), ("awq", (64, 512)), ("fp8-dynamic", (0, 0))])
def test_checkpoint_keeps_its_tokenizer_and_is_measured_as_stored(tmp_path, quant, shape):
    folder = tmp_path / "made"
    result = make("qwen3-small", quant, folder)
    assert (result.exit_code, last_line(result)) == (0, f"ready: {folder}")
    request: dict[str, Any] = json.loads((folder / "request.json").read_text())
    pieces = request.pop("pieces")
    assert (len(pieces), len(pieces[0]) if pieces else 0) == shape
    assert request == {"method": quant, "dtype": "float16", "computed": "float32", "device": "cpu"}
    assert json.loads((folder / "tokenizer.json").read_text())["model"]
    assert make_job({"subject.model.id": str(folder)}).variant.name == "w4a16 made"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "drivers", "made"]


@pytest.mark.parametrize(("quant", "has_note"), [("w4a16", True), ("gptq", True), ("int8", False), ("fp16", False)])
def test_checkpoint_with_experts_in_16_bits_is_made_with_a_note(tmp_path, quant, has_note):
    config = small_model("qwen3_moe", num_experts=32).config
    config.save_pretrained(tmp_path / "shape")
    result = make(tmp_path / "shape", quant, tmp_path / "made", "--load-format", "dummy")
    assert result.exit_code == 0, result.output
    note = "note: transformers keeps 91 % of its weights in 16 bits, so that a run is invalid"
    assert (note in result.output.splitlines()) is has_note, result.output


@pytest.mark.usefixtures("installed")
def test_a_model_without_a_tokenizer_cannot_be_calibrated(model_folder, tmp_path):
    (model_folder / "tokenizer.json").unlink()
    result = make(model_folder, "w4a16", tmp_path / "made")
    assert result.exit_code == 2
    assert last_line(result) == (
        f"{model_folder}: no tokenizer in its folder, and w4a16 is calibrated on a text; "
        "add the tokenizer's files, or use --load-format dummy"
    )
    assert not (tmp_path / "made").exists()


def test_missing_environment_is_reported_with_the_install_command(tmp_path):
    result = make("qwen3-small", "autoround", tmp_path / "made")
    assert last_line(result) == (
        "llm-compressor: the environment llm-compressor is not installed: "
        "'benchmarker engine install llm-compressor' makes it"
    )


def test_shape_without_weights_is_refused_before_the_environment_is_missed(tmp_path):
    assert "use --load-format dummy" in last_line(make("qwen3-tiny", "awq", tmp_path / "made"))


@pytest.mark.parametrize(
    ("quant", "has_folder", "line"),
    [
        ("w4a16", False, "--quant w4a16: add -o FOLDER, the new folder of the quantized checkpoint"),
        (
            "nvfp4",
            True,
            "--quant nvfp4: qwen3-small is not quantized, and 'checkpoint make' quantizes to w4a16, w8a8, fp8-dynamic, "
            "awq, autoround alone",
        ),
    ],
)
def test_invalid_requests_are_refused(tmp_path, quant, has_folder, line):
    assert last_line(make("qwen3-small", quant, tmp_path / "made" if has_folder else None)) == line


def test_existing_folder_is_not_overwritten(model_folder):
    result = make("qwen3-small", "w8a8", model_folder)
    assert last_line(result) == f"-o {model_folder}: exists already; give a new folder"
