"""Golden files of public names, options, configs, record fields and JSON keys. See tests/unchanged.py."""

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
from tests.unchanged import check_golden, check_golden_files

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
    """Return the signature without memory addresses of defaults."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(function)))


def descriptions(name: str) -> Iterator[str]:
    """Yield the signature of a function, the fields of a model or the public methods of a class."""
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


def test_public_names_keep_their_signatures():
    names = [name for name in benchmarker.__all__ if name != "__version__"]
    check_golden(TEXTS / "public-names.txt", "".join(f"{line}\n" for name in names for line in descriptions(name)))


def commands(command: click.Command, full_name: str = "benchmarker") -> Iterator[tuple[str, click.Command]]:
    yield full_name, command
    for name, node in sorted(getattr(command, "commands", {}).items()):
        yield from commands(node, f"{full_name} {name}")


def test_commands_keep_their_options():
    lines = [
        f"{full_name} {'/'.join(parameter.opts)}{' (hidden)' if getattr(parameter, 'hidden', False) else ''}\n"
        for full_name, command in commands(typer.main.get_command(app))
        for parameter in command.params
    ]
    check_golden(TEXTS / "options.txt", "".join(lines))


def test_configs_are_read_as_the_same_experiments():
    experiments = {path.stem: read_experiment(path).model_dump(mode="json") for path in CONFIGS}
    check_golden(TEXTS / "configs.json", json.dumps(experiments, indent=1) + "\n")


@pytest.mark.parametrize("engine", ["eager", "cuda_graph", "compile"])
def test_engine_on_the_command_line_equals_engine_in_a_config(tmp_path, engine):
    config = tmp_path / "config.yaml"
    config.write_text(f"variants: [{{name: a, quant: gptq, engine: {engine}}}]\n")
    spellings = [["--quant", "gptq", "--name", "a", "--engine", engine], ["--config", str(config), "--variant", "a"]]
    if engine == "compile":
        spellings.append(["--quant", "gptq", "--name", "a", "--compile"])
    variants = [read_job(arguments).variant for arguments in spellings]
    assert {variant.engine for variant in variants} == {engine}
    assert all(variant == variants[0] for variant in variants)


def fields(schema: dict[str, Any], node: dict[str, Any], path: str) -> Iterator[str]:
    """Yield every field below a node of a JSON schema, such as `cells[].memory.peak_allocated_bytes`."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for choice in node.get("anyOf", ()):
        yield from fields(schema, choice, path)
    if "items" in node:
        yield from fields(schema, node["items"], f"{path}[]")
    for name, child in node.get("properties", {}).items():
        field = f"{path}.{name}".lstrip(".")
        yield field + (" (required)" if name in node.get("required", ()) else "")
        yield from fields(schema, child, field)


def test_record_keeps_its_fields():
    schema = GenerationRecord.model_json_schema()
    check_golden(TEXTS / "record-fields.txt", "".join(f"{line}\n" for line in fields(schema, schema, "")))


def without_defaults(written: Any, read: Any) -> Any:
    """Return the values that were read, without fields that the file lacks."""
    if isinstance(written, dict):
        return {key: without_defaults(value, read[key]) for key, value in written.items()}
    if isinstance(written, list):
        assert len(written) == len(read)
        return [without_defaults(*pair) for pair in zip(written, read, strict=True)]
    return read


@pytest.mark.parametrize("folder", sorted(path.name for path in REFERENCES.iterdir()))
def test_reference_records_round_trip(folder):
    for path in (REFERENCES / folder).glob("*-*.json"):
        written = json.loads(path.read_bytes())
        assert without_defaults(written, json.loads(read_record(path).model_dump_json())) == written, path.name


@pytest.mark.parametrize("verb", ["compare", "explain"])
def test_json_output_keeps_its_keys(verb):
    def keys(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, list):
            for node in value:
                yield from keys(node, f"{path}[]")
        elif isinstance(value, dict):
            for key, child in value.items():
                yield f"{path}.{key}"
                yield from keys(child, f"{path}.{key}")

    key_paths = dict.fromkeys(
        key
        for folder in ("quickstart", "h100-energy", "h100-runtimes")
        for key in keys(json.loads(typed(verb, REFERENCES / folder, "--format", "json")[1]), "")
    )
    check_golden(TEXTS / f"{verb}-keys.txt", "".join(f"{key}\n" for key in key_paths))


def test_every_golden_file_is_used():
    check_golden_files(TEXTS, TEXT_NAMES)
