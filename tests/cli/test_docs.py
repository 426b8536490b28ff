"""The manual: what is made from the code is up to date, its links lead somewhere, its commands exist."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from benchmarker.cli.app import app
from benchmarker.report.verify import verify
from benchmarker.schema.options import option_names
from benchmarker.schema.registry import WORKLOADS, workload_of
from tests.records import record

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
LINK = re.compile(r"\]\(([^)#]+)\)")
COMMAND = re.compile(r"(?:^|`)benchmarker ([^`\n#]+)", re.MULTILINE)


def written() -> dict[str, str]:
    """What the generator writes now."""
    path = ROOT / "script" / "make_docs.py"
    spec = importlib.util.spec_from_file_location("make_docs", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.pages())


def test_what_is_generated_says_what_the_code_and_the_records_say():
    differing = [path for path, text in written().items() if (ROOT / path).read_text() != text]
    assert not differing, "run: python script/make_docs.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_exists(page):
    group = typer.main.get_command(app)
    run_options = {name for one in group.commands["run"].params for name in one.opts}
    for text in COMMAND.findall(page.read_text()):
        words = shlex.split(text)
        if words[0].startswith("-") or words[0] == "VERB":
            continue
        command = group.commands[words[0]]
        if hasattr(command, "commands"):
            assert len(words) == 1 or words[1] in command.commands, text
            continue
        known = {name for one in command.params for name in one.opts}
        if words[0] == "run" and words[1:] and words[1] in WORKLOADS:
            known = set(option_names(workload_of(words[1])))
        if words[0] == "sweep":
            known |= run_options
        assert {word for word in words if word.startswith("-")} <= known, text


def test_the_schema_names_every_field_of_a_record():
    schema = json.loads((DOCS / "record.schema.json").read_text())
    for name in WORKLOADS:
        kind = workload_of(name).record
        assert set(schema["$defs"][kind.__name__]["properties"]) == set(kind.model_fields)
    assert set(json.loads(record().model_dump_json())) <= set(schema["$defs"]["GenerationRecord"]["properties"])


def test_the_page_of_the_record_has_a_chapter_for_every_workload():
    page = (DOCS / "record.md").read_text()
    assert all(f"## Workload {name}\n" in page for name in WORKLOADS)


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text()
    assert all(f"({page.name})" in index for page in PAGES if page.name != "README.md")


REFERENCES = pytest.mark.parametrize(
    "folder", sorted((ROOT / "results" / "reference").iterdir()), ids=lambda folder: folder.name
)


@REFERENCES
def test_every_number_of_a_reference_follows_from_its_raw_samples(folder):
    assert verify([folder]).mismatches == ()
