"""Generate pages and tables from the code and the reference records: `python script/make_docs.py`.

Generated are the pages of docs/ on options, configs and records, the tables in the READMEs of results/reference, the
tables of other pages that come from these records, and the saved help. `tests/cli/test_docs.py` fails if they are
outdated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic import BaseModel, Field, TypeAdapter
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from benchmarker.cli.app import app
from benchmarker.cli.run_options import run_help
from benchmarker.comparison.ranking import ranking_of
from benchmarker.core.tables import Sheet, table
from benchmarker.quantization.checkpoint_table import ROWS
from benchmarker.quantization.dummy_packing import SCHEMES
from benchmarker.quantization.registry import LOADERS
from benchmarker.report.columns import first_table, measured_text
from benchmarker.report.compare import compare, to_markdown
from benchmarker.schema.base import Plain, models_in
from benchmarker.schema.registry import WORKLOADS, workload_of
from benchmarker.workloads.generation.architecture import DESCRIBED, FeedForwardKind

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
FIRST_TABLES = {
    "README.md": ("h100-qwen3-4b",),
    "docs/control.md": ("h100-aa",),
    "docs/attention.md": ("h100-attention",),
    "docs/mixers.md": ("h100-mixers",),
    "docs/finetune.md": ("h200-finetune",),
    "docs/context-parallel.md": ("h100-x2-context-parallel",),
}
"""Pages with the first tables of reference folders."""
ENGINES = ("README.md", "h100-engines")
"""Page with the best rate of each engine and width, in every cell of a reference folder."""
WIDTHS = {"16 bit": "fp16", "8 bit": "int8|fp8", "4 bit": "gptq|Q4"}
"""Widths of the weights, and a pattern of the names of their variants."""
LIMITS = ("docs/why-slow.md", "h200-runtimes")
"""Page with the limits of a reference folder."""
EXPLAINED = ("h100-awq", "h100-runtimes", "h200-runtimes", "h200-fp8")
"""Reference folders with the output of `benchmarker explain`."""
UNITS = {
    "_bytes_per_s": "bytes/s",
    "flops_per_s": "FLOP/s",
    "_per_s": "1/s",
    "_s": "s",
    "_ms": "ms",
    "_ns": "ns",
    "_us": "us",
    "_bytes": "bytes",
    "_j": "J",
    "_w": "W",
    "_c": "°C",
    "_mhz": "MHz",
    "_share": "share",
}
"""Units by the end of a field's name."""
LENGTH = 140
"""Maximum characters of a description in a table."""


def pages() -> dict[str, str]:
    """Return every generated file by its path in the repository."""
    schema = json.dumps(record_schema(), indent=1, ensure_ascii=False)
    return {
        "docs/options.md": options_page(),
        "docs/config.md": config_page(),
        "docs/checkpoints.md": checkpoints_page(),
        "docs/record.md": record_page(),
        "docs/record.schema.json": f"{schema}\n",
        "docs/models.md": models_page(),
        **run_help_files(),
        **{f"results/reference/{name}/README.md": with_tables(name) for name in reference_folders()},
        **{f"results/reference/{name}/explained.md": explained(name) for name in EXPLAINED},
        **{
            page: with_tables_of(page, {name: _first_table(name) for name in folders})
            for page, folders in FIRST_TABLES.items()
        },
        ENGINES[0]: with_lines(
            with_tables_of(ENGINES[0], {name: _first_table(name) for name in FIRST_TABLES[ENGINES[0]]}),
            f"results/reference/{ENGINES[1]}",
            rates_of_engines(ENGINES[1]),
        ),
        LIMITS[0]: with_tables_of(LIMITS[0], {LIMITS[1]: _limits(LIMITS[1])}),
    }


def reference_folders() -> list[str]:
    return sorted(folder.name for folder in REFERENCE.iterdir())


def run_help_files() -> dict[str, str]:
    """Return the saved help of each workload's run, by its path in the repository."""
    return {f"benchmarker/cli/run_help/{name}.json": _saved_help(name) for name in WORKLOADS}


def _saved_help(workload: str) -> str:
    """Return the JSON of a workload's help, one option per line."""
    made_help = run_help(workload_of(workload))
    lines = [json.dumps(asdict(option), ensure_ascii=False) for option in made_help.options]
    head = f'{{"command": {json.dumps(made_help.command)}, "example": {json.dumps(made_help.example)}, "options": ['
    return head + "\n" + ",\n".join(lines) + "\n]}\n"


def with_tables(name: str) -> str:
    """Return a reference folder's README: the hand-written part, then the tables of `compare`."""
    text = (REFERENCE / name / "README.md").read_text(encoding="utf-8")
    start = max(text.rfind(f"\n\n- {first}: ") for first in ("model", "workload"))
    assert start >= 0, f"{name}/README.md has no tables: end it with a line '- model: ' at their position"
    return f"{text[:start]}\n\n{to_markdown(compare([REFERENCE / name]))}"


def explained(name: str) -> str:
    """Return the output of `benchmarker explain` for a reference folder."""
    result = CliRunner().invoke(app, ["explain", str(REFERENCE / name), "--format", "markdown"], terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.stdout


def with_tables_of(page: str, sheets: dict[str, Sheet]) -> str:
    """Return a page with each folder's table after the comment that names the folder."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for folder, sheet in sheets.items():
        text = with_lines(text, f"results/reference/{folder}", table(sheet.columns, sheet.rows).strip())
    return text


def with_lines(text: str, source: str, lines_of_table: str, *, script: str = "make_docs.py") -> str:
    """Return a page's text with the table after the comment that names its source."""
    comment = f"<!-- {source}, by script/{script} -->\n"
    assert comment in text, f"a page has no table of {source}"
    before, _, rest = text.partition(comment)
    lines = rest.splitlines(keepends=True)
    after = next((index for index, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return f"{before}{comment}{lines_of_table}\n{''.join(lines[after:])}"


def _first_table(folder: str) -> Sheet:
    return first_table(ranking_of(compare([REFERENCE / folder])))


def rates_of_engines(folder: str) -> str:
    """Return the table of the best tok/s of whole calls for each engine and width."""
    best: dict[tuple[str, str], dict[tuple[int, int], tuple[float, str]]] = {}
    for row in compare([REFERENCE / folder]).rows:
        width = next(name for name, pattern in WIDTHS.items() if re.search(pattern, row.variant))
        cells = best.setdefault((str(row.engine), width), {})
        if row.rate and row.cell:
            shape = (row.cell.prompt_tokens, row.cell.batch_size)
            rate = (row.rate.value, measured_text(row, row.rate, scale=1.0))
            cells[shape] = max(rate, cells.get(shape, rate))
    shapes = sorted({shape for cells in best.values() for shape in cells})
    headings = ("engine", "weights", *(f"{prompt:,} x {batch}" for prompt, batch in shapes))
    return markdown_table(headings, [(*names, *(cells[shape][1] for shape in shapes)) for names, cells in best.items()])


def _limits(folder: str) -> Sheet:
    comparison = compare([REFERENCE / folder])
    workload: Any = workload_of(comparison.workload)
    sheet: Sheet
    (sheet,) = workload.limit_sheets(comparison.rows, whole=True)
    return sheet


def options_page() -> str:
    """Return the page of commands: their arguments and options."""
    parts = [
        "# Commands and options",
        "Generated by `script/make_docs.py`. `benchmarker VERB --help` prints the same in full; "
        "`benchmarker --install-completion` adds completion to your shell. `NO_COLOR` switches colours off.",
    ]
    for words, command in _commands(typer.main.get_command(app), ()):
        parts += [f"## benchmarker {' '.join(words)}", first_sentence(command.help or "")]
        lines = [_option_row(option) for option in command.params if not getattr(option, "hidden", False)]
        parts.append(markdown_table(("argument or option", "use", "default"), lines))
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _commands(inner, (*words, name))
    else:
        yield words, command


def _option_row(parameter: Any) -> tuple[str, ...]:
    text = (getattr(parameter, "help", None) or "").replace("\\[", "[")
    use, _, default = text.partition("  [default: ")
    if not default and parameter.default not in (None, False) and not callable(parameter.default):
        default = str(parameter.default)
    default = default.removesuffix("]")
    names = ", ".join(f"`{name}`" for name in parameter.opts) if parameter.opts[0].startswith("-") else ""
    return names or f"`{parameter.name.upper()}`", first_sentence(use), f"`{default}`" if "<" in default else default


def config_page() -> str:
    """Return the page of config files: every key, and the options of each quantization."""
    parts = [
        "# The config file",
        "Generated by `script/make_docs.py`. A config is YAML; an unknown key is an error with the most similar name. "
        "`benchmarker run` takes the same values as options, which take precedence.",
    ]
    experiments = {name: workload_of(name).experiment for name in WORKLOADS}
    for title, fields in _by_workload(experiments):
        rows = [(f"`{path}`", _default_text(field), _description(field)) for path, field in fields]
        parts += [f"## {title}", markdown_table(("key", "default", "meaning"), rows)]
    parts.append("## Options of quantizations")
    options = [
        (f"`{name}`", f"`{key}`", _type_text(field.annotation), _default_text(field), _description(field))
        for name, loader in LOADERS.items()
        for key, field in loader.options.model_fields.items()
    ]
    parts.append(markdown_table(("quant", "key", "type", "default", "meaning"), options))
    return "\n\n".join(parts) + "\n"


def checkpoints_page() -> str:
    """Return the page of the formats of checkpoints, with the engines and devices that run each."""
    by_library = ("checkpoint", "--quant", "eager, cuda_graph, compile: packed on", "needs")
    headings = (*by_library, "native", "vllm", "sglang", "llama-cpp")
    fields = ("native", "vllm", "sglang", "llama_cpp")
    rows = [
        (row.name, row.quant, row.packed_on, ", ".join(row.packages) or "-", *(getattr(row, name) for name in fields))
        for row in ROWS
    ]
    parts = [
        "# Checkpoints",
        "`benchmarker run --model FOLDER_OR_ID` without `--quant` measures a checkpoint in the quantization of its own "
        "config, and names the row after format and file: `w4a16 Qwen3-4B-W4A16`. A checkpoint without "
        "`quantization_config` is `fp16`. A config compares several checkpoints of one model; the baseline is the "
        "unquantized one, or the first:",
        "```yaml\nvariants:\n- {checkpoint: Qwen/Qwen3-4B}\n- {checkpoint: Qwen/Qwen3-4B-FP8, engine: vllm}\n"
        "- {checkpoint: Qwen/Qwen3-4B-AWQ}\n```",
        "The weights are examined after a first forward pass. A checkpoint that transformers unpacked is invalid, "
        "with the reason `ran in bfloat16`, and has no speed-up. "
        "Different tokenizers or chat templates are a caveat. `benchmarker doctor` prints the first columns, with the "
        "packages that are not installed:",
        f"<!-- formats, by script/make_docs.py -->\n{markdown_table(headings, rows)}",
        "vLLM and SGLang receive a checkpoint unchanged (`passed on`): their version decides whether it reads the "
        "format, and a row of vLLM is refused if no layer runs quantized. benchmarker's authors have run GPTQ, W4A16, "
        "AWQ and FP8 per row through vLLM and by `native` [on GPUs](../results/reference/h200-checkpoints/README.md), "
        "and W8A8 by `native`; FP8 in blocks on CPUs only.",
        "`--load-format dummy` writes random weights with the tensors of a format, so that it is timed at full size "
        f"without a download: `--quant` {', '.join(f'`{scheme}`' for scheme in SCHEMES)}, `fp8-checkpoint`, "
        "`autoround`, `awq`, or `gptq` with `--option bits=8`, `desc_act=true` or `sym=false`. Zero points of AWQ and "
        "of `sym=false` differ between groups, as in trained checkpoints. `benchmarker checkpoint make -o FOLDER` "
        "writes such a checkpoint, or one of bitsandbytes or torchao, to a folder.",
        "It quantizes a real model with `--quant w4a16`, `w8a8`, `fp8-dynamic`, `awq` or `autoround` after "
        "`benchmarker engine install llm-compressor`; `awq` is stored as symmetric W4A16 of compressed-tensors. Then "
        "`run --model FOLDER --quality quick --quality-baseline MODEL` measures it.",
    ]
    return "\n\n".join(parts) + "\n"


def record_page() -> str:
    """Return the page of records: every field with its unit and one line."""
    parts = [
        "# The record",
        "Generated by `script/make_docs.py`. One JSON file per process, in base units, with the raw samples; "
        "`benchmarker verify` recomputes the numbers of the tables from it. `null` means not measured. "
        "Types and defaults: [record.schema.json](record.schema.json).",
    ]
    for title, fields in _by_workload({name: workload_of(name).record for name in WORKLOADS}):
        rows = [(f"`{path}`", _unit(path), _description(field)) for path, field in fields]
        parts += [f"## {title}", markdown_table(("field", "unit", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def record_schema() -> dict[str, Any]:
    """Return the JSON Schema of a record of any workload, distinguished by its field `workload`."""
    kinds = Union.__getitem__(tuple(workload_of(name).record for name in WORKLOADS))
    return TypeAdapter(Annotated[kinds, Field(discriminator="workload")]).json_schema()


Fields = list[tuple[str, FieldInfo]]


def _by_workload(models: Mapping[str, type[BaseModel]]) -> Iterator[tuple[str, Fields]]:
    """Yield a title and fields: first the fields of all workloads, then the further fields of each workload."""
    fields = {name: dict(_fields(model, "")) for name, model in models.items()}
    first = next(iter(fields.values()))

    def is_alike(path: str, own: Mapping[str, FieldInfo]) -> bool:
        return path in own and path in first and _description(own[path]) == _description(first[path])

    shared = [path for path in first if all(path in own for own in fields.values())]
    common = [path for path in shared if sum(is_alike(path, own) for own in fields.values()) > len(fields) / 2]
    yield "All workloads", [(path, first[path]) for path in common]
    for name, own in fields.items():
        yield (
            f"Workload {name}",
            [(path, field) for path, field in own.items() if path not in common or not is_alike(path, own)],
        )


def _fields(model: type[BaseModel], place: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields of a model and of the models in its fields, each with its path."""
    for name, field in model.model_fields.items():
        path = f"{place}.{name}".removeprefix(".")
        inner = list(models_in(field.annotation))
        if not inner or _description(field):
            yield path, field
        for kind in inner:
            yield from _fields(kind, path + "[]" * (get_origin(field.annotation) is tuple))


def _description(field: FieldInfo) -> str:
    return first_sentence(field.description or "")


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, shortened at a word if it is very long."""
    sentence = re.split(r"(?<=[.!?]) (?=[A-Z`])", " ".join(text.split("\n\n")[0].split()))[0]
    return sentence if len(sentence) <= LENGTH else sentence[:LENGTH].rsplit(" ", 1)[0] + " …"


def _unit(path: str) -> str:
    name = path.split(".")[-1].removesuffix("[]")
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def _type_text(annotation: Any) -> str:
    """Return `int`, `list of int`, `"a" or "b"`, `object`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type):
        is_plain = issubclass(annotation, Plain)
        return "null" if annotation is type(None) else "object" if is_plain else annotation.__name__
    if origin is dict:
        return "mapping"
    if origin is tuple:
        is_list = Ellipsis in arguments
        return f"list of {_type_text(arguments[0])}" if is_list else f"{len(arguments)} values"
    if hasattr(annotation, "__metadata__"):
        return _type_text(arguments[0])
    return " or ".join(
        dict.fromkeys(f"`{value}`" if isinstance(value, str | int) else _type_text(value) for value in arguments)
    )


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None or isinstance(default, BaseModel):
        return ""
    if isinstance(default, tuple | dict):
        return f"`{json.dumps(default)}`" if default else "empty"
    return f"`{json.dumps(default)}`"


def models_page() -> str:
    """Return the page of architectures with the table of those that are described."""
    types: dict[tuple[str, str], list[str]] = {}
    for model_type, kinds in DESCRIBED.items():
        mixers = ", ".join(kind for kind in kinds if kind not in get_args(FeedForwardKind))
        feed_forward = ", ".join(kind for kind in kinds if kind in ("dense", "MoE"))
        types.setdefault((mixers, feed_forward), []).append(f"`{model_type}`")
    rows = [(*kinds, " ".join(names)) for kinds, names in sorted(types.items())]
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    return with_lines(text, "architecture.py", markdown_table(("layers", "feed-forward", "model_type"), rows))


def markdown_table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a markdown table without padding, which keeps the generated files small."""
    lines = [headings, tuple(":--" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def main() -> None:
    """Write every generated file."""
    # Write the saved help first, because the help of the other commands reads it.
    for make in (run_help_files, pages):
        for path, text in make().items():
            (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
