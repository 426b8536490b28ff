"""Test docs/extending.md in a copy of the package: add a quantization, an engine and a metric as described there.

The workload is tested in `test_workload_seam.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import benchmarker
from benchmarker.schema.record_io import collect
from tests.engines.test_engines_subprocess import ECHO

QUANTIZATION = '''
"""Weights rounded to a grid with one scale a row, and kept in 16 bit."""

from benchmarker.checkpoints.read_model import read_model
from benchmarker.quantization.base import Loaded, Loader, Options, require


class RoundedOptions(Options):
    """Rounding."""

    levels: int = 256
    """Values that a weight can have."""


def check(options, target):
    require("rounded", "safetensors")


def load(checkpoint, options, target):
    import torch

    model = read_model(checkpoint, target)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                step = 2 * module.weight.abs().amax(1, keepdim=True) / options.levels
                module.weight.copy_((module.weight / step).round() * step)
    return Loaded(model, notes=(f"{options.levels} levels",))


LOADER = Loader(
    name="rounded",
    summary="weights rounded to a grid",
    options=RoundedOptions,
    packages=("safetensors",),
    load=load,
    check=check,
)
'''
ENGINE = '''
"""The prompt's own tokens, from a process with another interpreter."""

import sys
from pathlib import Path

from benchmarker.engines.external.environments import Marker
from benchmarker.engines.external.external_engine import ExternalEngine


class EchoEngine(ExternalEngine):
    """Makes the prompt's own tokens."""

    name = "echo"

    def marker(self, device):
        return Marker(
            name="echo", python=sys.executable, version="9", pins_sha256=None, created="today", benchmarker="0"
        )

    def arguments(self, checkpoint, form, device, marker, progress):
        return {}, {}

    def command(self, marker):
        return [sys.executable, "-S", "-I", str(Path(__file__).with_name("echo_driver.py")), ""]

    def why_not_installed(self):
        return None

    def why_not_taken(self, form, checkpoint):
        return None if form.quant == "fp16" else f"{form.quant} is not a form that it knows"
'''
METRIC = """\
    metric(
        "after",
        "after ms",
        "seconds from the first new token to the end of the call",
        of_sample=lambda cell, sample: sample.latency_s - sample.ttft_s,
    ),"""
FIRST_METRIC = '    metric(\n        "latency",'


def insert(path: Path, *, before: str, line: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, (
        f"{path.name}: docs/extending.md says where a line belongs, and {before!r} is not there"
    )
    path.write_text(text.replace(before, f"{line}\n{before}"))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a copy of the package with an added quantization and engine."""
    assert benchmarker.__file__
    ignored = shutil.ignore_patterns("__pycache__", "models")
    package = Path(
        shutil.copytree(Path(benchmarker.__file__).parent, tmp_path / "checkout" / "benchmarker", ignore=ignored)
    )
    (package / "quantization" / "rounded.py").write_text(QUANTIZATION)
    registry = package / "quantization" / "registry.py"
    insert(registry, before="LOADERS: dict", line="from benchmarker.quantization import rounded")
    insert(registry, before='    "fp16": fp16.LOADER,', line='    "rounded": rounded.LOADER,')
    (package / "engines" / "echo.py").write_text(ENGINE)
    (package / "engines" / "echo_driver.py").write_text(ECHO)
    registry = package / "engines" / "registry.py"
    insert(registry, before="ENGINES: dict", line="from benchmarker.engines.echo import EchoEngine")
    insert(registry, before='    "llama-cpp": LlamaCppEngine(),', line='    "echo": EchoEngine(),')
    return package


@pytest.fixture
def config(model_folder: Path, tmp_path: Path) -> Path:
    experiment = {
        "model": {"id": str(model_folder), "dtype": "bfloat16"},
        "grid": {"prompt_tokens": [3], "new_tokens": [4]},
        "procedure": {"runs": 2, "warmup": 1, "warmup_limit": 1, "limits": False, "profile": False},
        "variants": [
            {"name": "rounded", "quant": "rounded", "engine": "eager", "options": {"levels": 16}},
            {"name": "echo", "quant": "fp16", "engine": "echo"},
        ],
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(experiment))
    return path


@pytest.mark.slow
@pytest.mark.by_hand
@pytest.mark.timeout(1200)
def test_added_quantization_engine_and_metric_work_in_every_command(
    package: Path, config: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    environment = os.environ | {"PYTHONPATH": str(package.parent)}

    def benchmarker_output(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "benchmarker", *map(str, arguments)]
        process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    benchmarker_output("sweep", config, "--rounds", "1", "--output", results, "--device", "cpu")
    insert(package / "workloads" / "generation" / "workload.py", before=FIRST_METRIC, line=METRIC)
    assert "2 of 4 cells are there already" in benchmarker_output(
        "sweep", config, "--rounds", "2", "--output", results, "--device", "cpu", "--resume"
    )

    records = {(record.variant.name, record.round): record for record in collect([results]).records}
    assert set(records) == {(name, number) for name in ("rounded", "echo") for number in (0, 1)}
    assert records["rounded", 1].load.notes == ("16 levels",)
    assert records["echo", 1].engine.engine_version == "9"

    # The rows of both rounds have the metric, although it was added after the first round.
    table = benchmarker_output("compare", results, "--all")
    assert "after ms" in table
    assert all(row["after_s"] > 0 for row in json.loads(benchmarker_output("compare", results, "--format", "json")))
    assert "rounded" in table
    assert "echo" in table
    assert "`after<60000ms`" in benchmarker_output("compare", results, "--budget", "after<60000ms")
    assert "rounded" in benchmarker_output("explain", results)
    assert "all follow from the raw samples" in benchmarker_output("verify", results)
    benchmarker_output("report", results, "--output", tmp_path / "page.html")
    assert "after ms" in (tmp_path / "page.html").read_text()
