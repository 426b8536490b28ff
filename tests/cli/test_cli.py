"""Printed output and exit codes of the commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import benchmarker
from benchmarker.cli.app import app
from benchmarker.engines.registry import MODEL_ENGINES
from benchmarker.quantization.registry import LOADERS
from tests.records import record, rounds, save

DATA = Path(__file__).parents[1] / "data"
STEADY = [1.000, 1.004, 0.998, 1.002, 0.996]
VERBS = [
    ["run"],
    ["sweep"],
    ["compare"],
    ["explain"],
    ["report"],
    ["verify"],
    ["import"],
    ["doctor"],
    ["checkpoint"],
] + [["checkpoint", verb] for verb in ("make", "list", "remove")]


def typed(*arguments: object) -> tuple[int, str]:
    """Run a command and return its exit code and its output."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_of_every_command_has_an_example(verb):
    code, printed = typed(*verb, "--help")
    assert code == 0
    assert f"Example: benchmarker {verb[0]}" in printed


def test_verify_passes_unchanged_records(tmp_path):
    save(tmp_path, *rounds("fp16", STEADY), *rounds("int8", STEADY))
    code, printed = typed("verify", tmp_path)
    assert code == 0
    assert "10 records checked: all follow from the raw samples" in printed


def test_verify_names_the_file_and_the_edited_number(tmp_path):
    save(tmp_path, record("fp16"))
    path = tmp_path / "000.json"
    written = json.loads(path.read_text())
    written["cells"][0]["memory"]["peak_allocated_bytes"] = 1
    path.write_text(json.dumps(written))
    (tmp_path / "cut.json").write_text('{"schema_version": 1, "bench')
    code, printed = typed("verify", tmp_path)
    assert code == 1
    assert "000.json: cell prompt 26, 50 new tokens, batch 1: memory.peak_allocated_bytes is 1, but " in printed
    assert "cut.json: not valid JSON" in printed
    assert "3 do not follow from the samples, 1 file could not be read" in printed


def test_imported_run_is_shown_by_compare(tmp_path):
    log = DATA / "reference-log.md"
    code, printed = typed("import", log, "--device", "AMD GPU", "--output", tmp_path)
    assert code == 0
    assert printed.splitlines()[0].startswith("fp16: ")
    code, printed = typed("compare", tmp_path)
    assert code == 0
    assert re.search(r"^fp16 ", printed, re.MULTILINE)
    assert "imported" in printed


def test_import_writes_nothing_if_one_log_is_invalid(tmp_path):
    wrong = tmp_path / "notes.txt"
    wrong.write_text("nothing was measured here\n")
    code, printed = typed(
        "import", DATA / "reference-log.md", wrong, "--device", "AMD GPU", "--output", tmp_path / "to"
    )
    assert code == 2
    assert "notes.txt: no run found" in printed
    assert not (tmp_path / "to").exists()


def test_import_of_two_logs_refuses_quant(tmp_path):
    log = DATA / "reference-log.md"
    code, printed = typed("import", log, log, "--quant", "fp16,int8")
    assert (code, printed) == (2, "error: --quant names the runs of one log; import several logs one by one\n")


def sides(tmp_path: Path, percent: float) -> tuple[Path, Path]:
    """Save two sweeps, the second slower by a percentage, and return their folders."""
    after = [latency_s * (1 + percent / 100) for latency_s in STEADY]
    return save(tmp_path / "a", *rounds("fp16", STEADY)), save(tmp_path / "b", *rounds("fp16", after))


def test_gate_exits_with_1_on_a_significant_slowdown(tmp_path):
    code, printed = typed("compare", *sides(tmp_path, 8), "--fail-if", "slower:5%")
    assert code == 1
    assert "\nFailed (slower:5%): 1 of 1 cells\n" in printed
    code, markdown = typed("compare", *sides(tmp_path, 8), "--fail-if", "slower:5%", "--format", "markdown")
    assert markdown.startswith("**Failed (slower:5%): 1 of 1 cells**\n\n| variant |")


def test_gate_passes_a_small_slowdown_and_prints_json(tmp_path):
    code, printed = typed("compare", *sides(tmp_path, 3), "--fail-if", "slower:5%", "--format", "json")
    assert code == 0
    (row,) = json.loads(printed)
    assert (row["variant"], row["verdict"], row["failed"]) == ("fp16", "slower", False)
    assert row["ratio"] == pytest.approx(1 / 1.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail-if", "slower:5%"], "--fail-if compares two sweeps, before and after; 1 given"),
        (["--format", "jsn"], "--format jsn: no such format; did you mean 'json'?"),
        (["--baseline", "fp61"], "--baseline fp61: no such variant in the records; did you mean 'fp16'?"),
    ],
)
def test_invalid_option_prints_one_line_and_exits_with_2(tmp_path, arguments, message):
    save(tmp_path, record("fp16"))
    assert typed("compare", tmp_path, *arguments) == (2, f"error: {message}\n")


def test_public_names_exist_and_are_imported_lazily():
    script = "import sys, benchmarker; assert 'torch' not in sys.modules and 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
    for name in benchmarker.__all__:
        assert not isinstance(getattr(benchmarker, name), type(sys)), name
    with pytest.raises(AttributeError, match="no attribute 'load_modle'"):
        _ = benchmarker.load_modle


def test_compare_is_a_function_after_repeated_imports():
    from benchmarker import compare as first
    from benchmarker import compare as second

    assert callable(first)
    assert first is second


def test_bash_completes_commands_and_options():
    def completed(line: str, at: int) -> list[str]:
        variables = {"_BENCHMARKER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(at)}
        command = [sys.executable, "-m", "benchmarker"]
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("benchmarker re", 1) == ["report"]
    assert completed("benchmarker report --pl", 2) == ["--plots"]


def test_help_of_generate_lists_quantizations_and_engines():
    _, printed = typed("generate", "--help")
    printed = " ".join(printed.replace("│", " ").split())
    assert f"{', '.join(LOADERS)};" in printed
    assert f"{', '.join(MODEL_ENGINES[:-1])} or {MODEL_ENGINES[-1]}." in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--max-new-tokens", "0", "a text"), "--max-new-tokens 0: less than one token"), ((), "generate: no text; give")],
)
def test_generate_checks_its_options_before_loading_a_model(arguments, message):
    code, printed = typed("generate", "--model", "no/such-model", *arguments)
    assert code == 2
    assert message in printed


def test_help_of_a_disabling_option_is_negated():
    _, printed = typed("run", "--help")
    assert "Do not measure the device's bandwidth" in " ".join(printed.replace("│", " ").split())


def test_values_of_a_repeated_option_are_concatenated():
    arguments = ("sweep", "configs/quickstart.yaml", "--dry-run", "--new-tokens", "5")
    code, plan = typed(*arguments, "--prompt-tokens", "3", "--prompt-tokens", "26,40")
    assert code == 0
    assert "3 x 5; 26 x 5; 40 x 5" in plan


def test_help_shows_the_defaults():
    _, printed = typed("run", "--help")
    assert "[default: 50,100]" in printed
