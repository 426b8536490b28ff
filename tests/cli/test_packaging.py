"""Contents of the wheel, extras, constraints and the setup script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from benchmarker import __version__
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.config_io import find_config, read_experiment, shipped_configs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_wheel_contains_all_data_files():
    package = ROOT / "benchmarker"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["benchmarker"]
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    files = {
        path
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and "configs" not in path.relative_to(package).parts
    }
    assert files <= packed
    assert {path.name for path in (ROOT / "configs").glob("*.yaml")} <= {path.name for path in packed}


def test_every_quantization_has_an_extra_and_all_includes_it():
    extras = PROJECT["project"]["optional-dependencies"]
    for name, loader in LOADERS.items():
        required = {requirement.split(">")[0].lower() for requirement in extras[name]}
        assert {package.lower() for package in loader.packages} <= required
    excluded = {"autoround", "fp8-checkpoint", "mxfp4"}
    included = [extra for extra in extras if (extra in LOADERS or extra == "finetune") and extra not in excluded]
    assert extras["all"] == [f"llm-quant-benchmarker[{','.join(included)}]"]


def test_constraints_pin_every_requirement_within_its_range():
    lines = (ROOT / "script" / "constraints.txt").read_text().splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pins = {pin.name.lower().replace("_", "-"): pin.specifier for pin in pinned}
    extras = PROJECT["project"]["optional-dependencies"]
    names = [*Requirement(extras["all"][0]).extras, "dev", "ray"]
    required = [*PROJECT["project"]["dependencies"], *(text for name in names for text in extras[name])]
    for requirement in map(Requirement, required):
        (pin,) = pins[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(pin.version), requirement


def test_config_is_found_by_name_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("quickstart", "quickstart.yaml", "configs/quickstart.yaml"):
        assert read_experiment(Path(name)).model.id == "qwen3-small"
    assert set(shipped_configs()) == {path.stem for path in (ROOT / "configs").glob("*.yaml")}


def test_local_config_precedes_a_shipped_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("quickstart.yaml").write_text("variants: [{quant: int8}]")
    assert find_config(Path("quickstart.yaml")) == Path("quickstart.yaml")


PYTHON_WITHOUT_LIBRARIES = """#!/bin/bash
[ "$1" != -c ] || exit 0
mkdir -p .venv/bin && echo venv >>calls
printf '#!/bin/bash\\necho pip >>calls; sleep 0.5\\n' >.venv/bin/python && chmod +x .venv/bin/python
"""


def test_concurrent_setup_waits_and_installs_once(tmp_path):
    script, python = tmp_path / "script", tmp_path / "bin" / "python3.13"
    script.mkdir()
    python.parent.mkdir()
    for name in ("environment.sh", "constraints.txt"):
        shutil.copy(ROOT / "script" / name, script)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    python.write_text(PYTHON_WITHOUT_LIBRARIES)
    python.chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    variables = inherited | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", f"source {script}/environment.sh"]
    both = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = sorted(process.communicate()[0] for process in both)
    assert printed[0].startswith("setting up .venv")
    assert printed[1] == "waiting for another set-up of .venv\n"
    assert [process.returncode for process in both] == [0, 0]
    assert (tmp_path / "calls").read_text().split() == ["venv", "pip", "pip"]


@pytest.mark.by_hand
@pytest.mark.parametrize("program", ["uvx", "pipx"])
def test_wheel_runs_through_uvx_and_pipx(program, tmp_path):
    """Requires `build`, the program and a package index. Takes a few minutes and 2 GB below `tmp_path`."""
    if shutil.which(program) is None or shutil.which("pyproject-build") is None:
        pytest.skip(f"{program} or build is not installed")
    subprocess.run(["pyproject-build", "--wheel", "--outdir", tmp_path / "dist", ROOT], check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    folders = {name: str(tmp_path / name.lower()) for name in ("UV_CACHE_DIR", "UV_TOOL_DIR", "PIPX_HOME")}
    launcher = {"uvx": ["uvx", "--from", wheel], "pipx": ["pipx", "run", "--spec", wheel]}[program]
    done = subprocess.run(
        [*launcher, "benchmarker", "compare", ROOT / "results" / "reference" / "quickstart"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | folders,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Run it: `benchmarker generate" in done.stdout


def test_versions_of_project_and_citation_are_equal():
    assert PROJECT["project"]["version"] == __version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_module_and_console_script_run_the_same_function():
    (command,) = PROJECT["project"]["scripts"].values()
    assert command == "benchmarker.cli.app:main"
    command_line = [sys.executable, "-m", "benchmarker", "--version"]
    done = subprocess.run(command_line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"benchmarker {__version__}"
