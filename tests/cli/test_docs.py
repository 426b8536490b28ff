"""Generated pages, links, commands and options of the manual."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarker.cli.app import app
from benchmarker.report.verify import verify
from benchmarker.schema.options import option_names
from benchmarker.schema.registry import WORKLOADS, workload_of
from tests.records import record

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MANUAL = sorted(DOCS.glob("*.md"))
PAGES = [*MANUAL, ROOT / "README.md", ROOT / "CHANGELOG.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")
COMMAND = re.compile(r"(?:^|`)benchmarker ([^`\n#]+)", re.MULTILINE)


def generated() -> dict[str, str]:
    """Return the files that the generator would write."""
    path = ROOT / "script" / "make_docs.py"
    spec = importlib.util.spec_from_file_location("make_docs", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.pages())


def test_generated_files_are_up_to_date():
    differing = [path for path, text in generated().items() if (ROOT / path).read_text() != text]
    assert not differing, "run: python script/make_docs.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_has_a_target(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_exists(page):
    group = typer.main.get_command(app)
    run_options = {name for parameter in group.commands["run"].params for name in parameter.opts}
    for text in COMMAND.findall(page.read_text()):
        arguments = shlex.split(text)
        if arguments[0].startswith("-") or arguments[0] == "VERB":
            continue
        command = group.commands[arguments[0]]
        if hasattr(command, "commands"):
            assert len(arguments) == 1 or arguments[1] in command.commands, text
            continue
        options = {name for parameter in command.params for name in parameter.opts}
        if arguments[0] == "run" and arguments[1:] and arguments[1] in WORKLOADS:
            options = set(option_names(workload_of(arguments[1])))
        if arguments[0] == "sweep":
            options |= run_options
        assert {argument for argument in arguments if argument.startswith("-")} <= options, text


def definition(source: str, name: str) -> str:
    """Return the source of a function or of a class's method, such as `Run.execute`."""
    body: Any = ast.parse(source).body
    for part in name.split("."):
        (node,) = [child for child in body if getattr(child, "name", None) == part]
        body = node.body
    return ast.get_source_segment(source, node) or ""


def test_listed_functions_of_a_run_are_called_in_order():
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(\S+\.py) +(.+)$", text, re.MULTILINE)
    calls = [(file, name) for file, names in lines for name in names.split(", ")]
    sources = [definition((ROOT / "benchmarker" / file).read_text(encoding="utf-8"), name) for file, name in calls]
    # The console script calls `main`, and typer calls the method of the class that app.py passes to it.
    assert calls[:2] == [("cli/app.py", "main"), ("cli/run_command.py", "RunCommand.make_context")]
    for number, (_, name) in enumerate(calls[2:], start=2):
        function = name.rpartition(".")[2]
        assert any(re.search(rf"\b{function}[(,]", source) for source in sources[:number]), name
    assert len(calls) == 20


def test_json_schema_contains_every_field_of_a_record():
    schema = json.loads((DOCS / "record.schema.json").read_text())
    for name in WORKLOADS:
        record_class = workload_of(name).record
        assert set(schema["$defs"][record_class.__name__]["properties"]) == set(record_class.model_fields)
    assert set(json.loads(record().model_dump_json())) <= set(schema["$defs"]["GenerationRecord"]["properties"])


def test_record_page_has_a_chapter_for_every_workload():
    page = (DOCS / "record.md").read_text()
    assert all(f"## Workload {name}\n" in page for name in WORKLOADS)


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text()
    assert all(f"({page.name})" in index for page in MANUAL if page.name != "README.md")


REFERENCES = pytest.mark.parametrize(
    "folder", sorted((ROOT / "results" / "reference").iterdir()), ids=lambda folder: folder.name
)


@REFERENCES
def test_reference_records_pass_verify(folder):
    assert verify([folder]).mismatches == ()


def test_help_of_an_option_repeats_no_phrase():
    for name in WORKLOADS:
        for option in workload_of(name).options():
            phrases = option.help.removesuffix(".").split(": ")
            assert len(set(phrases)) == len(phrases), f"{name} {option.flag}: {option.help}"
    [generate] = [command for command in typer.main.get_command(app).commands.values() if command.name == "generate"]
    [quant] = [parameter for parameter in generate.params if parameter.name == "quant"]
    assert "[default: " in quant.help
    assert not quant.show_default
