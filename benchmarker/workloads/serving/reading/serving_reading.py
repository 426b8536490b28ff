"""Rows of serving: good requests, the largest load within the SLO, crossovers, and checks of a record."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from benchmarker.comparison.crossing import SizeWords
from benchmarker.comparison.invariants import Check, equal
from benchmarker.comparison.rows import CellKey, Row, cell_of, keys_of
from benchmarker.core.formatting import percent, range_text
from benchmarker.core.tables import plain_line
from benchmarker.report.caveats import plain_caveats
from benchmarker.schema.record import DISTURBANCES, status_words
from benchmarker.workloads.serving import serving_statistics as statistics
from benchmarker.workloads.serving.reading.serving_bounds import bound_of
from benchmarker.workloads.serving.record import (
    LOAD_UNITS,
    Load,
    ServerFacts,
    ServingCell,
    ServingRecord,
    first_token_part,
)
from benchmarker.workloads.serving.serving_requests import length_range
from benchmarker.workloads.serving.slo import DEFAULT_SLO, Slo, parse_slo
from benchmarker.workloads.serving.spec import requests_of

MARKED_MERGED = 0.1  # Share of merged tokens above which TTFT and TPOT are marked.
UNEVEN_STARTS = 2  # Ratio of the longest to the shortest start above which the starts are listed.
ROUNDING_S = 1e-5  # Times of a request are rounded to this unit, s.


@dataclass(frozen=True)
class ServingRow(Row):
    slo: Slo = field(default_factory=lambda: parse_slo(DEFAULT_SLO))
    attainment: statistics.Attainment | None = None
    """Good requests among the requests of all rounds together, failed loads included."""
    failed: int = 0
    truncated: int = 0
    merged: float = 0.0  # Share of tokens that arrived together with the previous token, largest of all loads.
    backlog: float | None = None
    server: ServerFacts = field(default_factory=ServerFacts)  # Facts of the first server that became ready.
    starts_s: tuple[float, ...] = ()  # Time that the server of each round took to start.
    preemptions: int | None = None
    is_unquantized: bool = False
    was_running: bool = False  # True if the user started the server; its quantization is then unknown.

    @property
    def is_plain(self) -> bool:
        return self.is_unquantized or self.was_running

    @property
    def start_s(self) -> float | None:
        return median(self.starts_s) if self.starts_s else None

    @property
    def slo_verdict(self) -> statistics.SloVerdict | None:
        """Verdict; None if no request was sent or the load has no valid time. A load with failed requests fails."""
        if self.attainment is None or self.status == "ok":
            return self.attainment.verdict if self.attainment else None
        return "fails" if self.failed or self.truncated else None

    def values(self) -> dict[str, Any]:
        attained, server = self.attainment, self.server
        return {
            **super().values(),
            "slo": str(self.slo),
            "slo_verdict": self.slo_verdict,
            "requests": attained.requests if attained else None,
            "good_requests": attained.good if attained else None,
            "failed_requests": self.failed,
            "truncated_requests": self.truncated,
            "preemptions": self.preemptions,
            "start_s": self.start_s,
            "weight_bytes": server.weight_bytes,
            "kv_bytes": server.kv_bytes,
            "kv_capacity_tokens": server.kv_capacity_tokens,
        }


def make_row(fields: dict[str, Any], records: Sequence[ServingRecord], good: object) -> ServingRow:  # noqa: ARG001
    first, key = records[0], fields["cell"]
    cells = [cell for record in records if isinstance(cell := cell_of(record, key), ServingCell)]
    cells = [cell for cell in cells if cell.error_kind not in DISTURBANCES] or cells
    loads = [(load, cell.new_tokens) for cell in cells for load in cell.samples]
    servers = [record.server for record in records if record.server]
    preemptions = [load.counters.preemptions for load, _ in loads if load.counters.preemptions is not None]
    return ServingRow(
        **{**fields, "bound_by": bound_of([load for load, _ in loads])},
        slo=first.slo,
        attainment=statistics.attained(loads, first.slo),
        failed=sum(statistics.failed(load) for load, _ in loads),
        truncated=sum(statistics.truncated(load, new_tokens) for load, new_tokens in loads),
        merged=max((statistics.merged_share(load) for load, _ in loads), default=0.0),
        backlog=max((statistics.backlog(load) for load, _ in loads), default=None) if key and key.rate else None,
        server=servers[0] if servers else ServerFacts(),
        starts_s=tuple(server.start_s for server in servers if server.start_s is not None),
        preemptions=sum(preemptions) if preemptions else None,
        is_unquantized=first.is_unquantized,
        was_running=first.variant.url is not None,
        surroundings=first.variant.engine,
        has_random_weights=any(record.model.load_format == "dummy" for record in records),
    )


Series = Mapping[str, Sequence[ServingRow]]
"""Rows with equal lengths of requests, by variant; each variant's rows in the order of rising load."""


def series_of(rows: Sequence[ServingRow], axis: str) -> dict[CellKey, Series]:
    shapes: dict[CellKey, dict[str, list[ServingRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.cell and row.cell[axis]:
            shapes[row.cell.without(axis)][row.variant].append(row)
    return {
        shape: {name: sorted(members, key=lambda row: load_of(row, axis)) for name, members in variants.items()}
        for shape, variants in shapes.items()
    }


def load_of(row: ServingRow, axis: str) -> float:
    return float(row.cell[axis]) if row.cell else math.nan


def remarks(rows: Sequence[ServingRow], baseline: str | None, *, brief: bool = False) -> list[str]:  # noqa: ARG001
    """Return sentences on the largest load of each variant within the SLO, and on crossovers of throughput."""
    lines = []
    for axis, unit in LOAD_UNITS.items():
        shapes = series_of(rows, axis)
        for shape, variants in shapes.items():
            where = f" ({shape.words})" if len(shapes) > 1 else ""
            # A variant that was measured only with other lengths of requests is left out.
            texts = "; ".join(
                f"{plain_line(name)} {largest_text(members, axis)}"
                for name, members in variants.items()
                if len(shapes) == 1 or any(row.status != "not measured" for row in members)
            )
            lines.append(f"{unit.capitalize()} within {rows[0].slo.words}{where}: {texts}.")
            if axis == "concurrency":
                lines += [f"{words}{where}." for members in variants.values() if (words := _crossover(members))]
    return lines


def largest_text(rows: Sequence[ServingRow], axis: str) -> str:
    """Return the largest load within the SLO: `64 (at 256: 41 % good)`, `256 or more`, or `at 1 undecided: ...`."""
    fails = next((place for place, row in enumerate(rows) if row.slo_verdict in ("fails", None)), len(rows))
    passing = [place for place in range(fails) if rows[place].slo_verdict == "passes"]
    after = passing[-1] + 1 if passing else 0
    largest = f"{load_of(rows[after - 1], axis):g}" if passing else "none" if rows[0].slo_verdict else "unknown"
    if after == len(rows):
        return f"{largest} or more"
    if not passing and rows[after].slo_verdict == "undecided":
        return _obstacle(rows[after], axis)
    return f"{largest} ({_obstacle(rows[after], axis)})"


def _obstacle(row: ServingRow, axis: str) -> str:
    where = f"at {load_of(row, axis):g}"
    if row.status != "ok" or row.attainment is None:
        return f"{where}: {status_words(row.status)}"
    undecided = " undecided" if row.slo_verdict == "undecided" else ""
    return f"{where}{undecided}: {row.attainment.text} good"


def _crossover(rows: Sequence[ServingRow]) -> str | None:
    speed_ups = {int(load_of(row, "concurrency")): row.speed_up for row in rows if row.speed_up}
    reference = next((row.speed_up.reference for row in rows if row.speed_up), "")
    statement = f"{plain_line(rows[0].variant)} is faster than {plain_line(reference)}"
    falling, rising = "below {}{} requests at once", "above {}{} requests at once"
    return SizeWords(statement, "concurrency", "", " at once", speed_ups, falling=falling, rising=rising).sentence()


def caveats(records: Sequence[ServingRecord], rows: Sequence[ServingRow], **_: Any) -> list[str]:
    lines = [
        f"{plain_line(row.variant)} at {row.cell.rate:g} requests/s: {percent(row.backlog)} of the requests were "
        "unfinished when the last one arrived: its times depend on the number of requests."
        for row in rows
        if row.cell and row.backlog is not None and row.backlog > statistics.LARGEST_BACKLOG
    ]
    merged = [
        f"{plain_line(row.variant)} at {row.cell.words} ({percent(row.merged)})"
        for row in rows
        if row.cell and row.merged > MARKED_MERGED
    ]
    if merged:
        lines.append(
            "Tokens arrived together with the token before, so TTFT is too long and TPOT too short; the server or the "
            f"load generator lacked processor cores: {'; '.join(merged)}."
        )
    starts = {plain_line(row.variant): row.starts_s for row in rows if row.starts_s}
    if any(max(starts_s) > UNEVEN_STARTS * min(starts_s) for starts_s in starts.values()):
        texts = {name: [f"{start_s:.0f}" for start_s in sorted(starts_s)] for name, starts_s in starts.items()}
        spans = [f"{name} {range_text(each)} s" for name, each in texts.items()]
        lines.append(
            f"Servers took different times to start, of which start s is the median: {', '.join(spans)}. The first "
            "start on a host may compile the model."
        )
    models = {record.variant.name: record.server.model for record in records if record.variant.url and record.server}
    for name, model in models.items():
        reports = f" and reports the model {plain_line(model)}" if model else ""
        lines.append(
            f"{plain_line(name)}: a server that was already running{reports}; its quantization is not checked."
        )
    return [*lines, *plain_caveats(records, rows)]


def checks(record: ServingRecord) -> Iterator[Check]:
    """Check each load: its span, the number of requests, the inter-token latencies, and the cell's status."""
    for key, cell in zip(keys_of(record), record.cells, strict=True):
        requests = requests_of(cell, int(record.procedure["requests"]))
        least, most = length_range(cell.new_tokens, cell.length_spread, least=2)
        for number, load in enumerate(cell.samples, start=1):
            place = f"cell {key.words}, load {number}"
            yield equal(place, "latency_s", load.latency_s, fmean(load.request_s))
            yield equal(place, "parts_s", load.parts_s, first_token_part(load.ttft_s))
            yield equal(place, "requests", len(load.errors), requests)
            problem = statistics.problem_of(load, cell.new_tokens)
            outside = sum(not least <= tokens <= most for tokens in load.requested_tokens)
            yield equal(place, "requested tokens outside the spread", outside, 0)
            if cell.status == "ok":
                yield equal(place, "loads without a speed", problem, None)
                yield from _latency_checks(place, load)


def _latency_checks(place: str, load: Load) -> Iterator[Check]:
    pairs = [(first_s or 0.0, whole_s) for first_s, whole_s in zip(load.ttft_s, load.request_s, strict=True)]
    late = sum(first_s > whole_s for first_s, whole_s in pairs)
    yield equal(place, "requests whose first token comes after the last", late, 0)
    if load.itl_counts:
        between_s = math.fsum(whole_s - first_s for first_s, whole_s in pairs)
        itl_s = statistics.ITL_STEP_S * sum(
            step * count for step, count in zip(load.itl_steps, load.itl_counts, strict=True)
        )
        most_s = statistics.ITL_STEP_S / 2 * sum(load.itl_counts) + ROUNDING_S * len(pairs)
        expected = f"{between_s}, the time from first to last tokens, to {most_s}"
        yield Check(place, "sum of inter-token latencies", itl_s, expected, holds=abs(itl_s - between_s) <= most_s)
