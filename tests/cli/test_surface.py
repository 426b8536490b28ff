"""What others build on: names, options, configs, and the keys of what is written. See tests/unchanged.py."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from pydantic import BaseModel

import benchmarker
from benchmarker.cli.app import app
from benchmarker.schema.config_io import read_experiment
from benchmarker.schema.record_io import read_record
from benchmarker.workloads.generation.record import GenerationRecord
from tests.cli.test_cli import typed
from tests.jobs import read_job
from tests.unchanged import hold, hold_names

ROOT = Path(__file__).parents[2]
TEXTS = Path(__file__).parents[1] / "data" / "surface"
REFERENCES = ROOT / "results" / "reference"
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
TEXT_NAMES = (
    "configs.json",
    "public-names.txt",
    "options.txt",
    "record-fields.txt",
    "compare-keys.txt",
    "explain-keys.txt",
)


def signature(function: Callable[..., Any]) -> str:
    """As it is written, without where a default lies in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(function)))


def described(name: str) -> Iterator[str]:
    """A public name: a function's signature, a model's fields, a class's public methods."""
    value = getattr(benchmarker, name)
    if inspect.isfunction(value):
        yield f"{name}{signature(value)}"
    elif issubclass(value, BaseModel):
        yield from (f"{name}.{field}: default {info.default!r}" for field, info in value.model_fields.items())
    elif issubclass(value, Exception):
        yield f"{name} is an Exception"
    else:
        methods = inspect.getmembers(value, inspect.isfunction)
        yield from (
            f"{name}.{method}{signature(function)}"
            for method, function in methods
            if method == "__init__" or not method.startswith("_")
        )


def test_the_public_names_can_be_called_as_before():
    names = [name for name in benchmarker.__all__ if name != "__version__"]
    hold(TEXTS / "public-names.txt", "".join(f"{line}\n" for name in names for line in described(name)))


def commands(command: click.Command, words: str = "benchmarker") -> Iterator[tuple[str, click.Command]]:
    yield words, command
    for name, part in sorted(getattr(command, "commands", {}).items()):
        yield from commands(part, f"{words} {name}")


def test_every_command_takes_the_options_that_it_took():
    lines = [
        f"{words} {'/'.join(parameter.opts)}{' (hidden)' if getattr(parameter, 'hidden', False) else ''}\n"
        for words, command in commands(typer.main.get_command(app))
        for parameter in command.params
    ]
    hold(TEXTS / "options.txt", "".join(lines))


def test_every_config_is_read_as_the_same_experiment():
    experiments = {path.stem: read_experiment(path).model_dump(mode="json") for path in CONFIGS}
    hold(TEXTS / "configs.json", json.dumps(experiments, indent=1) + "\n")


@pytest.mark.parametrize("engine", ["eager", "cuda_graph", "compile"])
def test_an_engine_is_named_on_the_command_line_and_in_a_config(tmp_path, engine):
    config = tmp_path / "config.yaml"
    config.write_text(f"variants: [{{name: a, quant: gptq, engine: {engine}}}]\n")
    spellings = [["--quant", "gptq", "--name", "a", "--engine", engine], ["--config", str(config), "--variant", "a"]]
    if engine == "compile":
        spellings.append(["--quant", "gptq", "--name", "a", "--compile"])
    variants = [read_job(words).variant for words in spellings]
    assert {variant.engine for variant in variants} == {engine}
    assert all(variant == variants[0] for variant in variants)


def fields(schema: dict[str, Any], part: dict[str, Any], place: str) -> Iterator[str]:
    """Every field below this part of a JSON schema, as `cells[].memory.peak_allocated_bytes`."""
    if "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    for choice in part.get("anyOf", ()):
        yield from fields(schema, choice, place)
    if "items" in part:
        yield from fields(schema, part["items"], f"{place}[]")
    for name, below in part.get("properties", {}).items():
        path = f"{place}.{name}".lstrip(".")
        yield path + (" (required)" if name in part.get("required", ()) else "")
        yield from fields(schema, below, path)


def test_a_record_has_the_fields_that_it_had():
    schema = GenerationRecord.model_json_schema()
    hold(TEXTS / "record-fields.txt", "".join(f"{line}\n" for line in fields(schema, schema, "")))


def without_defaults(written: Any, read: Any) -> Any:
    """What was read, without the fields that the file did not have."""
    if isinstance(written, dict):
        return {key: without_defaults(value, read[key]) for key, value in written.items()}
    if isinstance(written, list):
        assert len(written) == len(read)
        return [without_defaults(*pair) for pair in zip(written, read, strict=True)]
    return read


@pytest.mark.parametrize("folder", sorted(path.name for path in REFERENCES.iterdir()))
def test_nothing_of_a_reference_is_lost_or_changed_by_reading_it(folder):
    for path in (REFERENCES / folder).glob("*-*.json"):
        written = json.loads(path.read_bytes())
        assert without_defaults(written, json.loads(read_record(path).model_dump_json())) == written, path.name


@pytest.mark.parametrize("verb", ["compare", "explain"])
def test_a_program_finds_the_keys_that_it_found(verb):
    def keys(value: Any, place: str) -> Iterator[str]:
        if isinstance(value, list):
            for part in value:
                yield from keys(part, f"{place}[]")
        elif isinstance(value, dict):
            for key, below in value.items():
                yield f"{place}.{key}"
                yield from keys(below, f"{place}.{key}")

    found = dict.fromkeys(
        key
        for folder in ("quickstart", "h100-energy", "h100-runtimes")
        for key in keys(json.loads(typed(verb, REFERENCES / folder, "--format", "json")[1]), "")
    )
    hold(TEXTS / f"{verb}-keys.txt", "".join(f"{key}\n" for key in found))


def test_no_text_is_of_something_that_is_gone():
    hold_names(TEXTS, TEXT_NAMES)
