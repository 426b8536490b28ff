"""Comparisons with explanations, and their tables and sentences for a terminal, a notebook or markdown.

from benchmarker import compare
compare(["results/nvidia-h100"])
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarker.comparison.comparable import DifferingRecordsError
from benchmarker.comparison.gate import what_changed
from benchmarker.comparison.ranking import ranking_of
from benchmarker.comparison.recommend import Recommendation
from benchmarker.comparison.results import lines_by_sweep, results_of_records, to_rows
from benchmarker.comparison.rows import Results, Row, cell_words, headline_rows
from benchmarker.comparison.speed_up import with_changes
from benchmarker.core import tables
from benchmarker.core.errors import ResultsError, SpecError, did_you_mean
from benchmarker.core.formatting import abridged, plural
from benchmarker.core.tables import Block, Column, Sheet, bold, bullets, code, plain_line
from benchmarker.explain.explain import Contrast, Explanation, contrasts_of, explain, with_bounds
from benchmarker.explain.waterfall import NotExplained
from benchmarker.report.answer import answer, budget_lines, recommendation_lines
from benchmarker.report.caveats import caption
from benchmarker.report.columns import (
    against_named,
    bound,
    changes,
    first_table,
    names,
    other_cells,
    speed_up,
    whole_call,
)
from benchmarker.report.explanations import reasons, without_why
from benchmarker.schema.comply_file import comply_lines
from benchmarker.schema.record_io import Collected, collect, side_paths
from benchmarker.schema.registry import workload_of

AnyExplanation = TypeVar("AnyExplanation", bound=Explanation | NotExplained)
NAMED = 20  # Number of folders that an error lists.
SEVERAL = 3  # Number of folders from which an error lists the folders instead of the differences between records.
MOST_CAVEATS = 4  # Largest number of caveats that `brief` prints, the most important first. The others are counted.


@dataclass(frozen=True)
class Comparison(Results):
    sides: Mapping[str, Comparison] = field(default_factory=dict)
    explained: tuple[Explanation | NotExplained, ...] = ()  # Explanations in the order of the rows.
    contrasts: tuple[Contrast, ...] = ()  # Differences between each explained variant and the baseline.

    def _repr_markdown_(self) -> str:
        return to_markdown(self)

    def __str__(self) -> str:
        return tables.to_markdown(brief(self))


def compare(
    paths: str | Path | Sequence[str | Path], *, baseline: str | None = None, force: bool = False, pool: bool = False
) -> Comparison:
    """Read all records below these paths and compare their variants.

    Several folders are kept apart: variants are compared within a folder, and each folder with the first.

    Args:
        paths: Records, or folders with records anywhere below them. A single path needs no list.
        baseline: Variant to which all others are compared. By default the baseline of the sweep's file if it is not
            the workload's default one, and otherwise the unquantized variant in each variant's engine.
        force: Compare also records that differ in device, model or versions. The tables name the differences.
        pool: Compare the records of all folders as if one sweep had written them.

    Raises:
        ResultsError: No record, no such baseline, or records that do not compare.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    folders = side_paths(paths)
    if pool or len(folders) < 2:
        return _compare_collected(collect(paths), baseline=baseline, force=force)
    sides = {name: _compare_collected(collect(side), baseline=baseline, force=force) for name, side in folders.items()}
    return _side_by_side(sides, force=force)


def _compare_collected(collected: Collected, *, baseline: str | None, force: bool) -> Comparison:
    folders = sorted({path.parent for path, _ in collected.files}, key=str)
    try:
        results = results_of_records(
            collected.records,
            baseline=baseline,
            sweep_baseline=collected.baseline,
            force=force,
            problems=collected.problems,
        )
    except ResultsError as error:
        if len(folders) < SEVERAL:
            if len(folders) > 1 and isinstance(error, DifferingRecordsError):
                raise ResultsError(f"{error}. They are in {' and '.join(map(str, folders))}") from error
            raise
        above = os.path.commonpath(folders)
        names = abridged([os.path.relpath(folder, above) for folder in folders], NAMED)
        raise ResultsError(
            f"{len(folders)} folders of records, which do not all compare; give one of those in {above}: {names}"
        ) from error
    return replace(explain_results(results), resume=collected.resume, complied=comply_lines(folders))


def _side_by_side(sides: Mapping[str, Comparison], *, force: bool) -> Comparison:
    """Return one comparison with the rows of all sweeps; variants are renamed `int8 (SWEEP)`. Raises ResultsError."""
    first, *others = sides
    changed: list[str] = []
    for name in others:
        ends = (f"in {first}", f"in {name}")
        changed += what_changed(sides[first].records, sides[name].records, names=ends, force=force)
    rows = [
        replace(row, variant=f"{row.variant} ({name})", sweep=name) for name, side in sides.items() for row in side.rows
    ]
    explained = tuple(_of_sweep(each, name) for name, side in sides.items() for each in side.explained)
    return Comparison(
        rows=with_changes(rows, list(sides)),
        records=tuple(record for side in sides.values() for record in side.records),
        baseline=sides[first].baseline,
        problems=tuple(problem for side in sides.values() for problem in side.problems),
        members={f"{variant} ({name})": of for name, side in sides.items() for variant, of in side.members.items()},
        sides=sides,
        changed=tuple(dict.fromkeys(changed)),
        reasons=reasons(explained),
        explained=explained,
        contrasts=tuple(
            replace(each, baseline=_of_sweep(each.baseline, name), variant=_of_sweep(each.variant, name))
            for name, side in sides.items()
            for each in side.contrasts
        ),
    )


def _of_sweep(explanation: AnyExplanation, sweep: str) -> AnyExplanation:
    return replace(explanation, variant=f"{explanation.variant} ({sweep})")


def explain_results(results: Results) -> Comparison:
    withheld = {(row.variant, row.cell): row for row in results.rows if row.is_withheld}
    explained = tuple(
        NotExplained(each.variant, f"its rounds differ too much ({row.ranking.heading} {row.pace_spread})", each.proof)
        if isinstance(each, Explanation) and (row := withheld.get((each.variant, each.cell)))
        else each
        for each in (explain(name, members) for name, members in results.members.items())
    )
    # With --force, the cause of a difference may be the device or a version instead of the variant.
    contrasts = () if results.differences else contrasts_of(explained, results)
    values = vars(results) | {"rows": with_bounds(results.rows, explained), "reasons": reasons(explained)}
    return Comparison(**values, explained=explained, contrasts=contrasts)


def to_markdown(results: Results) -> str:
    return tables.to_markdown(whole(results))


def whole(results: Results) -> list[Block]:
    """Return every table, caption and caveat of a comparison, as `--all` prints them."""
    first, *others = sheets(results)
    blocks: list[Block] = [
        bullets([*forced(results), *header_of(results)]),
        first,
        *workload_of(results.workload).limit_sheets(results.rows, whole=True),
        *others,
        caption(results),
        bullets(remarks_of(results)),
    ]
    if results.reasons:
        blocks += [bold("Why"), bullets(results.reasons)]
    return [*blocks, bullets([*caveats_of(results, is_whole=True), *left_out(results)])]


def brief(
    results: Comparison, recommendation: Recommendation | None = None, *, sheet: Sheet | None = None
) -> list[Block]:
    """Return the output without `--all`. `recommendation` replaces the answer, and `sheet` replaces the first table."""
    ranking = ranking_of(results)
    lines = recommendation_lines(results, recommendation) if recommendation else answer(results, ranking)
    caveats = caveats_of(results)
    return [
        "\n".join([*forced(results), *lines]),
        where(results),
        sheet or first_table(ranking, without_why(results.explained)),
        *(other_cells(results, ranking.cell) if sheet is None and recommendation is None else []),
        bullets(budget_lines(recommendation) if recommendation else []),
        bullets(remarks_of(results, is_brief=True)),
        bullets([*caveats[:MOST_CAVEATS], *left_out(results)]),
        _rest(results, len(caveats) - MOST_CAVEATS),
    ]


def _rest(results: Results, hidden: int) -> str:
    cells = len({row.cell for row in results.rows}) - 1
    parts = [
        *([plural(cells, "more cell", "more cells")] if cells > 0 else []),
        *([plural(hidden, "more caveat", "more caveats")] if hidden > 0 else []),
        *(["reasons"] if results.reasons else []),
        "all columns",
    ]
    return f"--all: {', '.join(parts)}; --columns, --sort, --format; {code('benchmarker report')} draws."


def where(results: Results) -> str:
    """Return model, device and number of processes; a line for each sweep if they differ between sweeps."""
    if results.sides:
        texts = {name: where(side) for name, side in results.sides.items()}
        alike = len(set(texts.values())) == 1
        return next(iter(texts.values())) if alike else "\n".join(f"{name}: {text}" for name, text in texts.items())
    lines = workload_of(results.workload).header(results.records)
    return ". ".join(line.split(": ", 1)[1] for line in lines if not line.startswith("versions:")) + "."


def forced(results: Results) -> list[str]:
    """Return a line with the differences between records that `--force` compared; no line if there are none."""
    differences = "; ".join(plain_line(difference, longest=300) for difference in results.differences)
    return [f"{bold('not comparable, forced:')} {differences}"] if differences else []


def caveats_of(results: Results, *, is_whole: bool = False) -> list[str]:
    """Return the differences between sweeps that are kept apart, and the workload's caveats of each sweep."""

    def lines_of(side: Results) -> Sequence[str]:
        baseline = side.baseline if is_whole else None
        return workload_of(side.workload).caveats(side.records, side.rows, baseline=baseline)

    return [*results.changed, *lines_by_sweep(results, lines_of)]


def header_of(results: Results) -> list[str]:
    return lines_by_sweep(results, lambda side: workload_of(side.workload).header(side.records))


def remarks_of(results: Results, *, is_brief: bool = False) -> list[str]:
    workload = workload_of(results.workload)
    return lines_by_sweep(results, lambda side: workload.remarks(side.rows, side.baseline, brief=is_brief))


def left_out(results: Results) -> list[str]:
    problems = [f"left out: {plain_line(problem, longest=300)}" for problem in results.problems]
    return [*problems, *(plain_line(line, longest=300) for line in results.complied)]


def sheets(results: Results) -> list[Sheet]:
    """Return tables with all columns: of the cell `headline(rows)`, of all cells, and those that the workload adds."""
    rows, chosen = results.rows, headline_rows(results.rows)
    workload = workload_of(results.workload)
    cell = chosen[0].cell

    def columns(members: Sequence[Row]) -> list[Column[Any]]:
        return [
            *workload.timing_columns(members),
            *speed_up(members),
            *changes(members),
            *against_named(members, results.named),
            *whole_call(members, results.baseline),
        ]

    of_cell = [*names(rows), *columns(chosen), *bound(chosen), *workload.cost_columns(chosen)]
    tables = [Sheet(f"At {cell_words(cell)}" if cell else "", of_cell, chosen)]
    if len({row.cell for row in rows}) > 1:
        costs = workload.cost_columns(rows, whole=True)
        every_cell = [*workload.cell_columns(rows), *names(rows), *columns(rows), *costs]
        tables.append(Sheet("Every cell", every_cell, rows))
    return [*tables, *workload.detail_sheets(chosen)]


def chosen_sheet(results: Results, names: str | None, sort: str | None) -> Sheet:
    """Return the first table with the columns `names`, sorted by `sort`. Raises SpecError if a column is ambiguous."""
    first = first_table(ranking_of(results))
    choices = column_choices(results, first)
    picked = [_column(name, choices, option="--columns") for name in (names or "").split(",") if name.strip()]
    variant = first.columns[0]
    others = [column for column in picked if column.heading != variant.heading]
    rows = _sorted(first.rows, _column(sort, choices, option="--sort")) if sort else first.rows
    marks = tuple(note for note in first.notes if note.startswith("* "))
    return replace(first, columns=[variant, *others], rows=rows, notes=marks) if picked else replace(first, rows=rows)


def column_choices(results: Results, first: Sheet) -> dict[str, Column[Any]]:
    """Return the columns that `chosen_sheet` accepts, by heading in lower case."""
    limits = workload_of(results.workload).limit_sheets(list(first.rows))
    of_rows = (sheet for sheet in sheets(results) if all(isinstance(row, Row) for row in sheet.rows))
    columns: dict[str, Column[Any]] = {}
    for sheet in (first, *of_rows, *limits):
        for column in sheet.columns:
            columns.setdefault(column.heading.lower(), column)
    return columns


def _column(name: str, columns: Mapping[str, Column[Any]], *, option: str) -> Column[Any]:
    wanted = name.strip().lower()
    if wanted in columns:
        return columns[wanted]
    matches = [heading for heading in columns if heading.startswith(wanted)]
    matches = matches or [heading for heading in columns if wanted in heading]
    if len({heading.removesuffix(" mib").removesuffix(" gib") for heading in matches}) == 1:
        return columns[matches[0]]
    if matches:
        raise SpecError(f"{option} {name.strip()}: several columns have this beginning: {', '.join(matches)}")
    raise SpecError(f"{option} {name.strip()}: no such column{did_you_mean(wanted, columns)}")


def _sorted(rows: Sequence[Any], column: Column[Any]) -> list[Any]:
    number = column.sort
    if number is None:
        return sorted(rows, key=column.text)
    turn = -1 if column.is_more_better else 1
    return sorted(rows, key=lambda row: math.inf if (value := number(row)) is None else turn * value)


def to_csv(results: Results, sheet: Sheet | None) -> str:
    """Return the texts of `sheet` as CSV; if it is None, all values of all rows in base units."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if sheet:
        writer.writerow(column.heading for column in sheet.columns)
        writer.writerows([column.text(row) for column in sheet.columns] for row in sheet.rows)
    else:
        rows = to_rows(results)
        keys = list(dict.fromkeys(key for row in rows for key in row))
        writer.writerow(keys)
        writer.writerows([_csv_value(row.get(key)) for key in keys] for row in rows)
    return text.getvalue()


def _csv_value(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value
