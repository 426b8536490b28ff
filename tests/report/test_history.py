"""Tables of `history` for runs of one variant that differ in engine, dtype, threads or instruction switches."""

from __future__ import annotations

from benchmarker.report.history import history_sheets
from benchmarker.schema.record_io import collect
from tests.records import cell, cpu_environment, record, save


def test_history_separates_runs_that_compare_refuses_to_pool(tmp_path):
    def run(name: str, latency_s: float, *, threads: int = 2, **fields):
        return record("int8", cell([latency_s]), run_id=name, environment=cpu_environment(threads=threads), **fields)

    folder = save(
        tmp_path,
        run("a", 1.0, threads=1, sweep="first"),
        run("b", 2.0, sweep="first"),
        run("c", 4.0, runtime="compile"),
        run("d", 5.0, model={"dtype": "bfloat16"}),
    )
    sheets = history_sheets(collect([folder]), "int8")
    headings = ("decode tok/s", "processes", "threads")
    tables = {
        sheet.title.rpartition("Intel Xeon, ")[2]: [
            tuple(column.text(row) for column in sheet.columns if column.heading in headings) for row in sheet.rows
        ]
        for sheet in sheets
    }
    assert tables == {
        "compile, float16, 1 run": [("12.50", "1")],
        "eager, bfloat16, 1 run": [("10.00", "1")],
        "eager, float16, 2 runs": [("50.00", "1", "1"), ("25.00", "1", "2")],
    }


def test_property_column_shows_only_the_values_that_differ(tmp_path):
    switches = {"DNNL_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    environments = [
        cpu_environment(variables=switches),
        cpu_environment(variables={**switches, "DNNL_MAX_CPU_ISA": "SSE41"}),
        cpu_environment(),
    ]
    folder = save(
        tmp_path, *(record(run_id=str(n), environment=environment) for n, environment in enumerate(environments))
    )
    [sheet] = history_sheets(collect([folder]), "fp16")
    column = next(column for column in sheet.columns if column.heading == "instruction switches")
    assert [column.text(row) for row in sheet.rows] == [
        "ATEN_CPU_CAPABILITY=avx2, DNNL_MAX_CPU_ISA=AVX2",
        "ATEN_CPU_CAPABILITY=avx2, DNNL_MAX_CPU_ISA=SSE41",
        "–",
    ]
