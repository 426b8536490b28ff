"""Write what is made from the code and the reference records: `python script/make_docs.py`.

The pages of docs/ on options, configs and records; below each README of results/reference the tables of its records;
and the tables of other pages that come from them.

`tests/cli/test_docs.py` fails while what is there is not what this writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic import BaseModel, Field, TypeAdapter
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from benchmarker.cli.app import app
from benchmarker.cli.run_options import as_json
from benchmarker.comparison.ranking import ranking_of
from benchmarker.core.tables import Column, Sheet, table
from benchmarker.quantization.registry import LOADERS
from benchmarker.report.compare import compare, to_markdown
from benchmarker.report.first_table import first_table
from benchmarker.schema.base import Plain
from benchmarker.schema.registry import WORKLOADS, workload_of

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
RUNTIMES = REFERENCE / "h200-runtimes"
ANSWERED = "h100-native"
EXPLAINED = (REFERENCE / "h100-runtimes", RUNTIMES)
Line = tuple[str, ...]


def pages() -> dict[str, str]:
    """Every generated file by its path in the repository."""
    schema = json.dumps(record_schema(), indent=1, ensure_ascii=False)
    return {
        "docs/options.md": options_page(),
        "docs/config.md": config_page(),
        "docs/record.md": record_page(),
        "docs/record.schema.json": f"{schema}\n",
        **run_help_files(),
        **{
            str((folder / "README.md").relative_to(ROOT)): with_tables(folder) for folder in sorted(REFERENCE.iterdir())
        },
        **{str((folder / "explained.md").relative_to(ROOT)): explained(folder) for folder in EXPLAINED},
        "README.md": front_page(),
        "docs/control.md": control_page(),
        "docs/why-slow.md": why_slow_page(),
        "docs/attention.md": attention_page(),
        "docs/mixers.md": mixers_page(),
        "docs/finetune.md": finetune_page(),
        "docs/context-parallel.md": context_parallel_page(),
    }


def run_help_files() -> dict[str, str]:
    """The saved help of each workload's run, by its path in the repository."""
    return {f"benchmarker/cli/run_help/{name}.json": as_json(workload_of(name)) for name in WORKLOADS}


def with_tables(folder: Path) -> str:
    """A reference folder's README: what was written by hand, and the tables as `compare` prints them."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    start = max(text.rfind(f"\n\n- {first}: ") for first in ("model", "workload"))
    assert start >= 0, f"{folder}/README.md has no tables yet: end it with a line '- model: ' where they belong"
    return f"{text[:start]}\n\n{to_markdown(compare([folder]))}"


def explained(folder: Path) -> str:
    """What `benchmarker explain` prints of it."""
    done = CliRunner().invoke(app, ["explain", str(folder)], terminal_width=200)
    assert done.exit_code == 0, done.output
    return done.stdout


def front_page() -> str:
    """The README with the answer's table of a real GPU."""
    sheet = _first_table(ANSWERED)
    return _with_table("README.md", f"results/reference/{ANSWERED}", table(sheet.columns, sheet.rows))


def control_page() -> str:
    """The page on the control experiment with the table of its records."""
    sheet = _first_table("h100-aa")
    return _with_table("docs/control.md", "results/reference/h100-aa", table(sheet.columns, sheet.rows))


def why_slow_page() -> str:
    """The page on slow forms with the limits of three engines."""
    runtimes = compare([RUNTIMES])
    shown = workload_of(runtimes.workload)
    limits = shown.limit_sheet(shown.limit_rows(runtimes.rows))
    assert limits, "the reference has limits"
    return _with_table("docs/why-slow.md", "results/reference/h200-runtimes", table(limits.columns, limits.rows))


def attention_page() -> str:
    """The page of attention with the first table of a real GPU."""
    sheet = _first_table("h100-attention")
    return _with_table("docs/attention.md", "results/reference/h100-attention", table(sheet.columns, sheet.rows))


def finetune_page() -> str:
    """The page of fine-tuning with the first table of a real GPU."""
    sheet = _first_table("h200-finetune")
    return _with_table("docs/finetune.md", "results/reference/h200-finetune", table(sheet.columns, sheet.rows))


def mixers_page() -> str:
    """The page of token mixers with the first table of a real GPU."""
    sheet = _first_table("h100-mixers")
    return _with_table("docs/mixers.md", "results/reference/h100-mixers", table(sheet.columns, sheet.rows))


def context_parallel_page() -> str:
    """The page of context parallel attention with the first table of two real GPUs."""
    source = "h100-x2-context-parallel"
    sheet = _first_table(source)
    return _with_table("docs/context-parallel.md", f"results/reference/{source}", table(sheet.columns, sheet.rows))


def _first_table(folder: str) -> Sheet:
    return first_table(ranking_of(compare([REFERENCE / folder])))


def _with_table(page: str, source: str, rows: str) -> str:
    """The page with this table behind the comment that names its source."""
    text = (ROOT / page).read_text(encoding="utf-8")
    before, comment, rest = text.partition(f"<!-- {source}, by script/make_docs.py -->\n")
    assert comment, f"no table of {source}"
    lines = rest.splitlines(keepends=True)
    after = next((index for index, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return f"{before}{comment}{rows.strip()}\n{''.join(lines[after:])}"


def options_page() -> str:
    """Every verb with its arguments and options."""
    parts = [
        "# Commands and options",
        "Made from the code by `script/make_docs.py`. `benchmarker VERB --help` says the same in a terminal, and "
        "`benchmarker --install-completion` makes your shell complete them. Colours are off where `NO_COLOR` is set "
        "or the output is no terminal.",
    ]
    for words, command in _commands(typer.main.get_command(app), ()):
        parts += [f"## benchmarker {' '.join(words)}", *_paragraphs(command.help or "")]
        lines = [_option_line(one) for one in command.params if not getattr(one, "hidden", False)]
        parts.append(_rows(("argument or option", "what for", "default"), lines))
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _commands(inner, (*words, name))
    else:
        yield words, command


def _paragraphs(text: str) -> list[str]:
    """A docstring's paragraphs; its examples as code."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return [f"`{one.removeprefix('Example: ')}`" if one.startswith("Example: ") else one for one in paragraphs]


def _option_line(parameter: Any) -> Line:
    text = (getattr(parameter, "help", None) or "").replace("\\[", "[")
    said, _, default = text.partition("  [default: ")
    if not default and parameter.default not in (None, False) and not callable(parameter.default):
        default = f"{parameter.default}]"
    names = ", ".join(f"`{name}`" for name in parameter.opts) if parameter.opts[0].startswith("-") else ""
    default = default.removesuffix("]")
    return names or f"`{parameter.name.upper()}`", said, f"`{default}`" if "<" in default else default


def config_page() -> str:
    """Every key of a config file, and each variant's options."""
    parts = [
        "# The config file",
        "Made from the code by `script/make_docs.py`. A config is YAML; an unknown key is an error that names the "
        "near miss. `benchmarker run` takes the same values as options, and those win.",
    ]
    parts += _by_workload({name: workload_of(name).experiment for name in WORKLOADS}, ("key", "what for"))
    parts.append("## Options of the variants of generation")
    for name, loader in LOADERS.items():
        parts.append(f"### {name}: {loader.summary}")
        lines = [_key_line(loader.options, key) for key in loader.options.model_fields]
        parts.append(_rows(("key", "type", "default", "what for"), lines) if lines else "It has none.")
    return "\n\n".join(parts) + "\n"


def record_page() -> str:
    """Every field of a record."""
    parts = [
        "# The record",
        "Made from the code by `script/make_docs.py`. One JSON file per process, in base units (seconds, bytes, "
        "joules, counts), with the raw samples: every number in every table follows from it, and `benchmarker verify` "
        "checks that. `null` means not measured. The same as JSON Schema: [record.schema.json](record.schema.json).",
    ]
    parts += _by_workload({name: workload_of(name).record for name in WORKLOADS}, ("field", "what it is"))
    return "\n\n".join(parts) + "\n"


def record_schema() -> dict[str, Any]:
    """A record of any workload, which its field `workload` names."""
    kinds = Union.__getitem__(tuple(workload_of(name).record for name in WORKLOADS))
    return TypeAdapter(Annotated[kinds, Field(discriminator="workload")]).json_schema()


def _by_workload(models: Mapping[str, type[BaseModel]], headings: tuple[str, str]) -> list[str]:
    """A chapter for each workload, with a table for each of its models that no earlier chapter has at that place."""
    parts: list[str] = []
    described: set[tuple[str, type[BaseModel]]] = set()
    first, last = headings
    for name, model in models.items():
        parts += [f"## Workload {name}", workload_of(name).question]
        if described:
            parts.append("What is not listed is as above.")
        for place, kind in _kinds(model, ""):
            if (place, kind) in described:
                continue
            described.add((place, kind))
            parts.append(f"### {f'`{place}`' if place else 'Top level'}")
            parts += _paragraphs(kind.__doc__ or "")[:1]
            lines = [_key_line(kind, field) for field in kind.model_fields]
            parts.append(_rows((first, "type", "default", last), lines))
    return parts


def _kinds(kind: type[BaseModel], place: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """A model and those in its fields, each with the path to it."""
    yield place, kind
    for name, field in kind.model_fields.items():
        for inner in _models(field.annotation):
            is_many = get_origin(field.annotation) is tuple
            yield from _kinds(inner, f"{place}.{name}".removeprefix(".") + "[]" * is_many)


def _models(annotation: Any) -> Iterator[type[Plain]]:
    if isinstance(annotation, type) and issubclass(annotation, Plain):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _key_line(kind: type[BaseModel], name: str) -> Line:
    field = kind.model_fields[name]
    return (
        f"`{name}`",
        _type_words(field.annotation),
        _default_words(field),
        " ".join((field.description or "").split()),
    )


def _type_words(annotation: Any) -> str:
    """`int`, `list of int`, `"a" or "b"`, `object`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type):
        is_plain = issubclass(annotation, Plain)
        return "null" if annotation is type(None) else "object" if is_plain else annotation.__name__
    if origin is dict:
        return "mapping"
    if origin is tuple:
        is_list = Ellipsis in arguments
        return f"list of {_type_words(arguments[0])}" if is_list else f"{len(arguments)} values"
    if hasattr(annotation, "__metadata__"):
        return _type_words(arguments[0])
    return " or ".join(
        dict.fromkeys(f"`{one}`" if isinstance(one, str | int) else _type_words(one) for one in arguments)
    )


def _default_words(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None:
        return "null"
    if isinstance(default, BaseModel):
        return "its own defaults"
    if isinstance(default, tuple | dict):
        return f"`{json.dumps(default)}`" if default else "empty"
    return f"`{json.dumps(default)}`"


def _rows(headings: Line, lines: list[Line]) -> str:
    columns = [
        Column[Line](heading, lambda line, at=at: line[at].replace("|", "\\|"), "left")  # type: ignore[misc]
        for at, heading in enumerate(headings)
    ]
    return table(columns, lines)


def main() -> None:
    """Write them all."""
    # The help of other verbs reads these files.
    for make in (run_help_files, pages):
        for path, text in make().items():
            (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
