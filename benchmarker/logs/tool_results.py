"""Result files of other benchmarks as rows: JSON, JSON lines, CSV, markdown or printed text, recognized by content.

Rows are shown beside records and never averaged with them. docs/imports.md lists the files.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarker.core.errors import ResultsError
from benchmarker.core.formatting import MISSING, seconds, significant
from benchmarker.core.tables import Column, lines_of
from benchmarker.logs import tool_formats as formats
from benchmarker.logs.log_runs import read_log
from benchmarker.logs.tool_formats import Format, ToolRow, Values

READ = "llama-bench, vllm bench, sglang.bench_serving, sglang.bench_one_batch, GuideLLM, AIPerf, optimum-benchmark"
_DATA_FILES = (".json", ".jsonl", ".csv")


def read_tool_results(path: Path) -> tuple[ToolRow, ...] | None:
    """Return the rows of a result file; None for a text without results, such as a log of runs. Raises ResultsError."""
    objects = _objects(path, read_log(path))
    if not objects and path.suffix not in _DATA_FILES:
        return None
    if (layout := next(filter(None, map(_format_of, objects)), None)) is None:
        raise ResultsError(f"{path}: not a result file of {READ}; docs/imports.md lists the files that are read")
    if layout.read is None:
        raise ResultsError(f"{path}: {layout.refusal}")
    fitting = [value for value in objects if layout.fits(value)]
    try:
        rows = [layout.read(value) for value in fitting]
        if layout.read is formats.serving:
            rows = [
                replace(row, model=", ".join(filter(None, (row.model, formats.settings_of(value, fitting)))))
                for row, value in zip(rows, fitting, strict=True)
            ]
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ResultsError(
            f"{path}: lacks a value that its tool always writes ({type(error).__name__}: {error}); get the whole file"
        ) from error
    return tuple(replace(row, model=row.model or path.name) for row in rows)


def _format_of(value: Values) -> Format | None:
    return next((layout for layout in formats.FORMATS if layout.fits(value)), None)


def _objects(path: Path, text: str) -> list[Values]:
    """Return the JSON objects, CSV rows or printed results of a file, and skip other lines. Raises ResultsError."""
    try:
        return list(_inner(json.loads(text)))
    except ValueError as error:
        objects = [value for value in _embedded(text) if _format_of(value)]
        if not objects and path.suffix == ".json":
            raise ResultsError(f"{path}: not valid JSON, or cut short ({error}); get the whole file") from error
    lines = lines_of(text)
    return objects or _csv_lines(lines) or formats.llama_bench_markdown(lines) or formats.serving_blocks(lines)


def _inner(content: Any) -> Iterator[Values]:
    if isinstance(content, list):
        for value in content:
            yield from _inner(value)
    elif isinstance(content, dict):
        benchmarks = content.get("benchmarks")
        if isinstance(benchmarks, list) and benchmarks:
            yield from ({**content, "benchmarks": [benchmark]} for benchmark in benchmarks)
        else:
            yield content


def _embedded(text: str) -> Iterator[Values]:
    decoder, end = json.JSONDecoder(), 0
    for match in re.finditer(r"^[\[{]", text, re.MULTILINE):
        if match.start() >= end:
            with contextlib.suppress(ValueError):
                value, end = decoder.raw_decode(text, match.start())
                yield from _inner(value)


def _csv_lines(lines: Sequence[str]) -> list[Values]:
    for number, line in enumerate(lines):
        names = next(csv.reader([line])) if line.count(",") > 5 else []
        if _format_of(dict.fromkeys(names)):
            rows = csv.DictReader(lines[number:])
            return [{name: value for name, value in row.items() if value} for row in rows if None not in row.values()]
    return []


def _count(number: float | None) -> str:
    return MISSING if number is None else f"{number:g}" if float(number).is_integer() else significant(number)


COLUMNS: tuple[Column[ToolRow], ...] = (
    Column("tool", lambda row: row.tool, "left"),
    Column("model", lambda row: row.model or MISSING, "left"),
    Column("prompt", lambda row: _count(row.prompt_tokens)),
    Column("new", lambda row: _count(row.new_tokens)),
    Column("depth", lambda row: _count(row.depth)),
    Column("at once", lambda row: _count(row.concurrency)),
    Column("prefill", lambda row: seconds(row.prefill_s)),
    Column("TTFT", lambda row: seconds(row.ttft_s)),
    Column("TPOT", lambda row: seconds(row.tpot_s)),
    Column("latency", lambda row: seconds(row.latency_s)),
    Column("new tokens/s", lambda row: significant(row.output_tokens_per_s)),
    Column("repeats", lambda row: _count(row.repeats)),
    Column("failed", lambda row: _count(row.failed)),
)
