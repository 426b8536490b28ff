"""Columns and header lines of the tables of serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarker.core.formatting import MISSING, decimal, percent
from benchmarker.core.tables import Column, plain_line
from benchmarker.report.caveats import each, in_brackets, machine_lines
from benchmarker.report.columns import axis_column, byte_columns, estimate_columns, number_columns
from benchmarker.schema.record import status_words
from benchmarker.schema.registry import Axis, Metric, workload_of
from benchmarker.workloads.serving.reading.serving_reading import ServingRow
from benchmarker.workloads.serving.record import LOAD_UNITS, ServingRecord

Columns = list[Column[ServingRow]]
TIMING = ("output_tokens", "user_tokens", "ttft", "ttft_p99", "tpot", "tpot_p99")
BRIEF = ("ttft", "ttft_p99", "tpot")
GOOD = (
    "share of the requests that ended with all tokens within the SLO, of all rounds together, and the verdict on 90 %"
)


def cell_columns(rows: Sequence[Any], *, always: bool = False) -> list[Column[Any]]:
    """Return the columns of the lengths that vary, and of the load: `64` (concurrency) or `4/s` (rate)."""
    keys = [row.cell for row in rows if row.cell]

    def column(axis: Axis) -> Column[Any]:
        return axis_column(axis.heading, lambda key: key[axis.name] or MISSING)

    columns = [
        column(axis)
        for axis in (workload_of(keys[0].workload).axes if keys else ())
        if axis.name not in LOAD_UNITS
        if (always and any(key[axis.name] for key in keys)) or len({key[axis.name] for key in keys}) > 1
    ]
    return [*columns, axis_column("load", lambda key: f"{key.rate:g}/s" if key.rate else str(key.concurrency))]


def _metrics(rows: Sequence[ServingRow], names: Sequence[str]) -> Columns:
    def columns(metric: Metric) -> Columns:
        return estimate_columns(rows, metric.heading, lambda row: row.metrics.get(metric.name), scale=metric.scale)

    return [column for name in names for column in columns(rows[0].described.metric(name))] if rows else []


def timing_columns(rows: Sequence[ServingRow]) -> Columns:
    columns = _metrics(rows, TIMING) or [Column("output tok/s", lambda row: MISSING)]
    first = columns[0]
    status = replace(first, text=lambda row: first.text(row) if row.status == "ok" else status_words(row.status))
    return [status, *columns[1:], *_good(rows)]


def cost_columns(rows: Sequence[ServingRow], *, whole: bool = False) -> Columns:
    if whole:
        return []
    others = [metric.name for metric in rows[0].described.metrics if not metric.of_cell] if rows else []
    return [
        *_metrics(rows, [name for name in others if name not in TIMING]),
        *number_columns(rows, "goodput req/s", lambda row: row.facts.get("goodput"), decimal),
        *number_columns(rows, "start s", lambda row: row.start_s, decimal),
        *byte_columns(rows, "weights", lambda row: row.server.weight_bytes),
        *byte_columns(rows, "KV cache", lambda row: row.server.kv_bytes),
        *number_columns(rows, "KV tokens", lambda row: row.server.kv_capacity_tokens, "{:,}".format),
        *number_columns(rows, "preemptions", lambda row: row.preemptions, "{:,}".format),
    ]


def brief_columns(rows: Sequence[ServingRow]) -> tuple[Columns, Columns]:
    return _metrics(rows, BRIEF), _good(rows)


def _good(rows: Sequence[ServingRow]) -> Columns:
    def text(row: ServingRow) -> str:
        if row.attainment is None or row.slo_verdict is None:
            return MISSING
        return f"{percent(row.attainment.interval[0], places=0).removesuffix(' %')} {row.slo_verdict}"

    def share(row: ServingRow) -> float | None:
        return row.attainment.interval[0] if row.attainment and row.slo_verdict else None

    return [Column("good %", text, sort=share, is_more_better=True, help=GOOD)] if any(map(share, rows)) else []


def header(records: Sequence[ServingRecord], *, is_run: bool = False) -> list[str]:
    models = each(records, lambda record: record.model.id)
    weights = each(records, lambda record: "dummy weights" if record.model.load_format == "dummy" else "")
    servers = each(
        [record for record in records if record.server] or records,  # A server that did not start has no version.
        lambda record: (
            f"{record.variant.engine} {(record.server and record.server.version) or ''}"
            if record.variant.url is None
            else "already running"
        ),
    )
    requests = each(records, lambda record: str(record.procedure.get("requests")))
    return [
        *([f"variant: {plain_line(records[0].variant.name)}"] if is_run else []),
        f"model: {models}{in_brackets(each(records, lambda record: record.model.dtype), weights)}",
        f"servers: {servers}, {requests} requests a load or more, SLO {each(records, lambda record: str(record.slo))}",
        *machine_lines(records),
    ]
