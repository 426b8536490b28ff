"""The HTML report: tables and caveats of `compare`, answer, charts, escaping and size."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from benchmarker.comparison.ranking import front, ranking_of
from benchmarker.core import tables
from benchmarker.core.errors import ResultsError, SpecError
from benchmarker.core.formatting import GIB
from benchmarker.explain.explain import Explanation
from benchmarker.explain.waterfall import GAPS, PARTS
from benchmarker.profiling.kernel_categories import CATEGORIES, seconds_by_category
from benchmarker.report.answer import answer
from benchmarker.report.charts.curves import crossings, with_room
from benchmarker.report.charts.stacked import LOOKS, looks_of, waterfall_chart
from benchmarker.report.charts.style import LIGHT, series_of, to_svg
from benchmarker.report.columns import first_table, other_cells
from benchmarker.report.compare import Comparison, brief, compare, sheets, to_markdown, where
from benchmarker.report.html.page import html, to_html, write_plots, write_report
from benchmarker.schema.model import EngineFacts, KernelUse
from benchmarker.schema.record import Conditions, Kernel, Memory
from benchmarker.schema.registry import workload_of
from benchmarker.workloads.generation.record import NO_TOKENIZER
from tests.explained import FP16, explained, run, split_profile
from tests.records import (
    cell,
    compare_records,
    environment,
    failed_cell,
    load,
    missing,
    profile,
    record,
    rounds,
    sample,
    save,
)

REFERENCE = Path(__file__).parents[2] / "results" / "reference"

HOSTILE = "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)> $x$ | `a` \x1b[31m"
STEADY = [1.400, 1.402, 1.399, 1.401, 1.398]
CHARTS = ["speed", "speed-memory", "waterfall", "cells", "kernels", "rounds", "board"]


def compared(folder: Path, *records: object, **options: object) -> Comparison:
    return compare([save(folder, *records)], **options)


def charts_of(comparison):
    return workload_of(comparison.workload).charts(comparison)


def page(comparison: Comparison) -> str:
    return to_html(comparison, charts_of(comparison))


def full_comparison(folder: Path, name: str = "int8") -> Comparison:
    """Return two variants whose records have every optional part."""
    conditions = Conditions(samples=20, sm_clock_mhz=1980, temperature_c=61, power_w=310.5)
    cells = [
        cell(conditions=conditions, timed_at=(1e9, 1e9 + 7)),
        cell([2.8, 2.9, 2.7, 2.8, 2.8], new_tokens=100, conditions=conditions, timed_at=(1e9 + 8, 1e9 + 20)),
    ]
    return compared(
        folder,
        record("fp16", *cells, profile=profile()),
        record("int8", *cells, name=name, profile=profile()),
    )


@pytest.fixture(scope="module")
def full_results(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return full_comparison(tmp_path_factory.mktemp("everything"))


@pytest.fixture(scope="module")
def full_page(full_results: Comparison) -> str:
    return page(full_results)


class Tables(HTMLParser):
    """Parser for the text of all table rows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._is_in = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._is_in = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._is_in = False

    def handle_data(self, data: str) -> None:
        if self._is_in:
            self.rows[-1][-1] += data


def test_first_table_equals_that_of_compare(tmp_path):
    comparison = compared(tmp_path, *rounds("fp16", STEADY), *rounds("int8", [2 * latency_s for latency_s in STEADY]))
    blocks = brief(comparison)
    lines = [line for line in tables.to_markdown(blocks).splitlines() if line.startswith("|")]
    printed = [[text.strip() for text in line.strip("|").split("|")] for line in lines]
    assert Tables(page(comparison)).rows[: len(printed) - 1] == [printed[0], *printed[2:]]


def test_report_has_the_caveats_of_compare(tmp_path):
    (tmp_path / "broken.json").write_text('{"schema_version": 1, "bench')
    comparison = compared(
        tmp_path,
        record("fp16", cell(flags=("unstable_warmup",)), model={"load_format": "dummy"}),
        record("int8", failed_cell("oom_gpu", "79.2 GiB of 79.2 in use"), model={"load_format": "dummy"}),
    )
    text = page(comparison)
    assert (
        "Random weights: time and memory are those of normally distributed weights; text and quality mean nothing"
        in text
    )
    assert "out of GPU memory: 79.2 GiB of 79.2 in use" in text
    assert "the last three warm-ups differed by more than 2 %, or there were fewer than three" in text
    assert "broken.json: not valid JSON" in text


def test_hostile_variant_name_is_escaped(tmp_path):
    text = page(full_comparison(tmp_path, HOSTILE))
    assert text.count("<script>") == 1
    assert "<img" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_hostile_text_in_other_fields_is_escaped(tmp_path):
    kernels = (Kernel(name=HOSTILE, calls=3, total_s=0.5),)
    hostile = record(
        HOSTILE,
        cell(),
        failed_cell("error", HOSTILE, new_tokens=100),
        name="bad",
        runtime=HOSTILE,
        options={HOSTILE: HOSTILE},
        model={"id": HOSTILE, "revision": HOSTILE},
        environment=environment(
            device={"name": HOSTILE, "driver": HOSTILE},
            packages={HOSTILE: HOSTILE},
            variables={"X": HOSTILE},
            cpu=HOSTILE,
        ),
        profile=profile(kernels=kernels),
        load=load(notes=(HOSTILE,), lm_head_dtype=HOSTILE),
        reproduce=HOSTILE,
        no_energy=missing(HOSTILE),
    )
    text = page(compared(tmp_path, hostile))
    assert text.count("<script>") == 1
    assert "<img" not in text
    assert "\x1b" not in text


def test_report_contains_no_url(full_page):
    assert re.findall(r"https?://[^\s\"'<)]+", full_page) == []


def test_markup_in_a_sentence_is_escaped():
    assert html("![x](http://a.example) <a href=x> & <http://c.example>").count("<") == 0


def test_complete_records_have_every_chart(full_results, full_page):
    charts = charts_of(full_results)
    assert [chart.name for chart in charts] == CHARTS
    for chart in charts:
        assert chart.note
        assert f'id="chart-{chart.name}"' in full_page


def test_depth_and_batch_have_charts_with_crossings(tmp_path):
    def cells(*rates):
        shapes = [(1, 0), (1, 4096), (8, 0)]
        return [
            cell([50 * batch / rate], batch_size=batch, depth=depth)
            for (batch, depth), rate in zip(shapes, rates, strict=True)
        ]

    comparison = compared(
        tmp_path, record("fp16", *cells(40.0, 30.0, 300.0)), record("int8", *cells(60.0, 50.0, 200.0))
    )
    charts = {chart.name: chart for chart in charts_of(comparison)}
    assert "No variant's line crosses that of fp16." in charts["depth"].note
    assert "a ring is where a variant's line crosses that of fp16" in charts["batch"].note
    assert "<svg" in to_svg(charts["depth"]) + to_svg(charts["batch"])


def test_crossing_is_the_intersection_of_the_drawn_lines():
    ((size, rate),) = crossings({1: 10.0, 4: 40.0}, {1: 20.0, 4: 20.0}, is_logarithmic=True)
    assert (size, rate) == pytest.approx((2.0, 20.0))
    ((size, rate),) = crossings({0: 10.0, 100: 50.0}, {0: 30.0, 100: 30.0}, is_logarithmic=False)
    assert (size, rate) == pytest.approx((50.0, 30.0))
    assert crossings({1: 10.0, 4: 40.0}, {1: 20.0, 4: 80.0}, is_logarithmic=True) == []
    assert crossings({1: 10.0}, {4: 20.0}, is_logarithmic=True) == []


def test_close_depths_share_an_axis_label():
    assert with_room([0, 512, 1024, 4096, 16384], is_logarithmic=False) == {0, 4096, 16384}
    assert with_room([1, 2, 4, 8], is_logarithmic=True) == {1, 2, 4, 8}


def test_gaps_are_described_by_the_profiled_device():
    device = waterfall_chart([explained(run("fp16", *FP16, tpot_ms=9.0))])
    cpu = waterfall_chart([explained(run("fp16", tpot_ms=9.0, profiled=split_profile(*FP16, by="cpu")))])
    assert "Its gaps are time in which the device waits for the host; " in device.note
    assert device.title.startswith("Why a token takes as long as it does")
    assert "Its gaps are Python, and the time between operators; " in cpu.note


def test_bar_of_overlapping_kernels_ends_at_the_token_time():
    explanation = explained(run("fp16", tpot_ms=6.5, profiled=split_profile(*FP16, busy_ms=6.4)))
    assert sum(part.seconds for part in explanation.waterfall) == pytest.approx(0.0065)
    assert all(part.seconds > 0 for part in explanation.waterfall)
    assert "<svg" in to_svg(waterfall_chart([explanation]))


def test_numbers_are_sorted_by_value(tmp_path):
    comparison = compared(tmp_path, *rounds("fp16", STEADY), *rounds("int8", [8.0 * latency_s for latency_s in STEADY]))
    by_heading = {column.heading: column for column in sheets(comparison)[0].columns}
    base, other = comparison.rows
    assert by_heading["speed-up"].text(base) == "baseline"
    assert by_heading["speed-up"].sort(base) == 1.0
    assert by_heading["TTFT ms"].sort(other) == pytest.approx(1e3 * other.ttft.value)
    assert by_heading["tok/s"].is_more_better
    assert not by_heading["TTFT ms"].is_more_better
    assert f'data-sort="{base.rate.value}"' in page(comparison)


def test_failed_cells_have_no_chart(tmp_path):
    comparison = compared(tmp_path, record("fp16", failed_cell("timeout", "it took more than 10 s")))
    assert charts_of(comparison) == []
    assert "timed out: it took more than 10 s" in page(comparison)


def test_charts_use_page_colours_and_unique_ids(full_results):
    svgs = [to_svg(chart) for chart in charts_of(full_results)]
    ids = [element_id for svg in svgs for element_id in set(re.findall(r'\bid="([^"]+)"', svg))]
    assert len(ids) == len(set(ids))
    for svg in svgs:
        assert "var(--text)" in svg
        assert not set(re.findall(r"#[0-9a-f]{6}\b", svg)) - {"#000000", "#ffffff"}


def test_report_is_deterministic(full_results, full_page):
    assert page(full_results) == full_page


def test_kernel_times_by_category_sum_to_the_profile():
    profiled = profile()
    seconds = seconds_by_category((kernel.name, kernel.total_s) for kernel in profiled.kernels)
    assert seconds == {"matmul": 0.375, "elementwise": 0.125}
    assert sum(seconds.values()) == profiled.kernel_s


def test_pareto_front_excludes_dominated_variants(tmp_path):
    def variant(name, latency_s, peak_bytes):
        memory = {"peak_allocated_bytes": peak_bytes}
        timed = cell([latency_s])
        return record(name, timed.model_copy(update={"memory": timed.memory.model_copy(update=memory)}), name=name)

    comparison = compared(
        tmp_path, variant("fp16", 1.0, 8), variant("int8", 2.0, 9), variant("gptq", 2.0, 3), variant("bnb4", 1.0, 5)
    )
    assert {row.variant for row in front(comparison.rows)} == {"bnb4", "gptq"}
    # gptq requires 1 % less memory than bnb4 and ten times its time.
    close = compared(
        tmp_path / "close",
        variant("fp16", 1.0, 8 * GIB),
        variant("gptq", 9.0, 297 * GIB // 100),
        variant("bnb4", 0.9, 3 * GIB),
    )
    assert {row.variant for row in front(close.rows)} == {"bnb4"}


def lines_of(comparison: Comparison) -> tuple[str, ...]:
    return tuple(map(tables.markdown, answer(comparison, ranking_of(comparison))))


def test_answer_names_its_cell_and_a_table_has_the_rest(tmp_path):
    def of(quant: str, times_s: tuple[float, float], rounds: int = 3) -> list[object]:
        return [
            record(
                quant,
                *(
                    cell([share * time_s], prompt_tokens=26, new_tokens=50, batch_size=batch)
                    for batch, time_s in zip((1, 8), times_s, strict=True)
                ),
                round_number=number,
            )
            for number, share in enumerate((1.0, 1.001, 0.999)[:rounds])
        ]

    two = compared(tmp_path, *of("fp16", (2.0, 2.0)), *of("int8", (1.0, 4.0)), *of("gptq", (1.0, 2.001)))
    assert lines_of(two)[0].startswith("At prompt 26, 50 new tokens, batch 8, **fp16** is best: ")
    (sheet,) = other_cells(two, ranking_of(two).cell)
    ((cell_name, names, _, gain),) = [[column.text(row) for column in sheet.columns] for row in sheet.rows]
    assert (cell_name, names) == ("batch 1", "int8 and gptq")
    assert gain.startswith("2.00x [")
    assert sheet.title in [block.title for block in brief(two) if isinstance(block, tables.Sheet)]
    once = compared(tmp_path / "once", *of("fp16", (2.0, 2.0), 1), *of("int8", (1.0, 4.0), 1))
    (sheet,) = other_cells(once, ranking_of(once).cell)
    assert [column.text(sheet.rows[0]) for column in sheet.columns] == ["batch 1", "int8 or fp16", "50.00", "2.00x"]
    single = compared(tmp_path / "one", record("fp16"), record("int8", cell([2.8])))
    assert other_cells(single, ranking_of(single).cell) == []


def test_answer_names_one_variant_only_if_the_difference_is_significant(tmp_path):
    faster = [[share * latency_s for latency_s in STEADY] for share in (0.5, 0.7)]
    clear = compared(tmp_path / "a", *rounds("fp16", STEADY), *rounds("int8", faster[0]), *rounds("gptq", faster[1]))
    assert lines_of(clear)[0] == (
        "**int8** is fastest: 71.43 decode tok/s, 2.00x [2.00, 2.00] fp16 (fastest unquantized variant); next is gptq, "
        "51.02 decode tok/s."
    )
    slower = compared(tmp_path / "p", *rounds("fp16", STEADY), *rounds("int8", [2 * time_s for time_s in STEADY]))
    assert lines_of(slower)[0].startswith(
        "**fp16** is fastest: 35.71 decode tok/s, the unquantized variant itself; next is int8"
    )
    alone = compared(tmp_path / "c", record("fp16"), record("int8", cell([2.8])))
    assert lines_of(alone) == (
        "**Not decided:** fp16 was the fastest in 1 round; fewer than 3 rounds cannot rule out chance.",
        "At least 2 more rounds are needed: `benchmarker sweep CONFIG --rounds 3`",
    )


def test_answer_is_the_smaller_of_two_equally_fast_variants(tmp_path):
    small = Memory(peak_allocated_bytes=2 * GIB)
    halves = [latency_s / 2 for latency_s in STEADY]
    pair = compared(
        tmp_path,
        *rounds("fp16", STEADY),
        *rounds("int8", halves),
        *(record("gptq", cell([time_s], memory=small), round_number=number) for number, time_s in enumerate(halves)),
    )
    assert "as fast as int8 within 2 %, in least memory." in lines_of(pair)[0]
    assert lines_of(pair)[1].startswith("Saves memory: 2.00 GiB instead of 7.59 GiB; quality not measured")
    alike = compared(tmp_path / "alike", *rounds("fp16", STEADY), *rounds("int8", halves))
    assert lines_of(alike)[1].startswith("Costs 7.59 GiB, like fp16; quality not measured")


def test_answer_ends_with_the_generate_command(tmp_path):
    options = {"bits": 4, "kernel": "torch", "group_size": 128}
    comparison = compared(tmp_path, record("gptq", options=options, runtime="compile"))
    assert lines_of(comparison)[-1] == (
        "Run it: `benchmarker generate --model Qwen/Qwen3-4B --quant gptq --option kernel=torch --engine compile "
        '"Why is the sky blue?"`'
    )


def test_generate_command_is_omitted_for_models_it_cannot_load(tmp_path):
    model = {"id": "/models/made", "files_sha256": "0f"}
    random = compared(tmp_path / "random", record("fp16", model={**model, "load_format": "dummy"}))
    assert not any(line.startswith("Run it") for line in lines_of(random))
    # The hub model of this id is not stored as AWQ.
    format_only = compared(tmp_path / "awq", record("awq", model={"load_format": "dummy"}))
    assert not any(line.startswith("Run it") for line in lines_of(format_only))
    # `generate` requires a tokenizer.
    unreadable = compared(tmp_path / "ids", record("fp16", cell([1.0], prompt_source=NO_TOKENIZER), model=model))
    assert not any(line.startswith("Run it") for line in lines_of(unreadable))
    # `generate` does not trust remote code.
    own_code = compared(tmp_path / "own", record("fp16", model={"id": "/models/own", "trust_remote_code": True}))
    assert not any(line.startswith("Run it") for line in lines_of(own_code))
    packed = compared(tmp_path / "packed", record("fp16", model={**model, "checkpoint": "/models/packed"}))
    assert lines_of(packed)[-1].startswith("Run it: `benchmarker generate --model /models/packed --quant fp16")


def test_answer_uses_the_corrected_verdict_of_the_table(tmp_path):
    others = {"int8": [1.05, 0.95, 1.1], "bnb4": [1.2, 0.9, 1.1], "gptq": [0.9, 1.1, 1.05]}
    slow = [record for name, latencies in others.items() for record in rounds(name, latencies)]
    mixed = compared(tmp_path, *rounds("fp16", [1.0] * 3), *slow, *rounds("gptq-compile", [0.35, 0.6, 0.45]))
    first = next(row for row in mixed.rows if row.variant == "gptq-compile")
    # Without the correction it would be faster: the interval excludes 1.
    assert first.ratio.low > 1
    assert first.speed_up.verdict == "inconclusive"
    assert lines_of(mixed)[0].startswith("**Not decided:** gptq-compile, ")
    assert first_table(ranking_of(mixed)).is_bold(first) is False


def test_wide_interval_is_replaced_by_the_outlier_round(tmp_path):
    disturbed = compared(tmp_path, *rounds("fp16", STEADY[:3]), *rounds("int8", [0.7, 9.1, 0.7]))
    texts = [column.text(disturbed.rows[1]) for column in first_table(ranking_of(disturbed)).columns]
    assert texts.count("outlier round 2") == 3  # TTFT, decode rate and speed-up
    assert not any("x [" in text for text in texts)
    assert lines_of(disturbed)[0] == "**Not decided:** fp16 or int8 may be the fastest; int8: outlier round 2."


def test_answer_without_peak_mentions_unmeasured_quality(tmp_path):
    comparison = compared(tmp_path, record("fp16", cell([1.0], memory=Memory())))
    assert lines_of(comparison)[1] == "Quality not measured: add `--quality quick`."


def test_answer_on_a_divided_model_advises_to_measure_quality_on_one_gpu(tmp_path):
    divided = record("fp16", cell([1.0], memory=Memory()))
    variant = divided.variant.model_copy(update={"gpus": 2, "split": "tensors"})
    comparison = compared(tmp_path, divided.model_copy(update={"variant": variant}))
    assert lines_of(comparison)[1] == "Quality not measured: add `--quality quick` on one GPU."


def test_fastest_variant_with_an_outlier_is_named_without_a_number(tmp_path):
    comparison = compared(tmp_path, *rounds("fp16", [10.0, 10.2, 10.1]), *rounds("int8", [1.0, 1.0, 1.6]))
    first = "int8 is faster than fp16, but has no number: outlier round 3."
    assert lines_of(comparison)[0] == first
    assert len(lines_of(comparison)) == 2


def test_wide_interval_without_outlier_names_no_round(tmp_path):
    latencies_s = {"fp16": [1.4, 1.4, 1.4], "int8": [1.4 / 2.6, 1.4 / 1.8, 1.4 / 1.2]}
    wide = compared(
        tmp_path, *(run_record for name, times in latencies_s.items() for run_record in rounds(name, times))
    )
    texts = {column.heading: column.text(wide.rows[1]) for column in first_table(ranking_of(wide)).columns}
    assert texts["decode tok/s"] == "wide"
    assert texts["speed-up"] == "wide [0.68, 4.65] inconclusive"
    (pace,) = (column for column in first_table(ranking_of(wide)).columns if column.heading == "decode tok/s")
    assert pace.sort(wide.rows[1]) is None
    assert lines_of(wide)[0].endswith("int8: wide [24.29, 165.92].")
    assert "utlier round" not in page(wide)


def test_charts_exclude_variants_without_a_number(tmp_path):
    records = [*rounds("fp16", STEADY[:3]), *rounds("gptq", STEADY[:3]), *rounds("int8", [0.7, 9.1, 0.7])]
    charts = {chart.name: chart for chart in charts_of(compared(tmp_path, *records))}
    assert charts["speed"].note.endswith("Without a number: int8: outlier round 2.")
    assert "Without a number here: int8." in charts["speed-memory"].note
    assert "int8" not in to_svg(charts["speed"])
    assert "int8" not in to_svg(charts["speed-memory"])


def test_undecided_answer_ends_with_the_sweep_command(tmp_path):
    save(tmp_path / "s", *rounds("fp16", [1.40, 1.42, 1.38]), *rounds("int8", [1.30, 1.39, 1.33]))
    (tmp_path / "s" / "sweep.json").write_text('{"config": "configs/x.yaml", "baseline": "fp16"}')
    lines = lines_of(compare(tmp_path / "s"))
    assert lines[0].startswith("**Not decided:** int8 or fp16 may be the fastest; int8 relative to fp16: [")
    # Records without saved jobs come from another machine, so that --resume is not possible.
    assert lines[1] == "1 more round would decide: `benchmarker sweep configs/x.yaml --rounds 4`"
    (tmp_path / "s" / "job-int8.json").write_text('{"job_version": 2}')
    resumed = f"1 more round would decide: `benchmarker sweep configs/x.yaml --resume {tmp_path}/s --rounds 4`"
    assert lines_of(compare(tmp_path / "s"))[1] == resumed


def test_sweep_command_completes_an_unfinished_round(tmp_path):
    comparison = compared(tmp_path, *rounds("fp16", STEADY[:3]), *rounds("int8", STEADY[:2]))
    assert lines_of(comparison)[1] == "At least 1 more round is needed: `benchmarker sweep CONFIG --rounds 3`"


def test_variant_with_benchmarker_kernels_has_an_asterisk(tmp_path):
    facts = EngineFacts(
        name="native",
        tokens_read="end",
        kv_cache="static",
        kernels_used=(KernelUse(purpose="linear", origin="benchmarker", name="gemv_gptq"),),
    )
    gptq = record("gptq", name="gptq native", runtime="native").model_copy(update={"engine": facts})
    comparison = compared(tmp_path, record("fp16"), gptq)
    row = next(row for row in comparison.rows if row.variant == "gptq native")
    assert row.label == "gptq native*"
    assert "benchmarker's own kernels" in " ".join(first_table(ranking_of(comparison)).notes)


def test_all_names_every_kernel_of_ours(tmp_path):
    uses = tuple(KernelUse(purpose="packed_rows", origin="benchmarker", name=f"kernel_{number}") for number in range(9))
    facts = EngineFacts(name="native", tokens_read="end", kv_cache="static", kernels_used=uses)
    ours = record("gptq", name="gptq native", runtime="native").model_copy(update={"engine": facts})
    text = to_markdown(compared(tmp_path, record("fp16"), ours))
    assert "kernel_8, benchmarker's own kernel, multiplies packed weights by several rows" in text


def test_every_table_of_the_report_scrolls_in_its_container(full_page):
    containers = full_page.count('<div class="wide" role="region" aria-label="Table" tabindex="0"><table')
    assert containers == full_page.count("<table") > 2
    assert ".wide { overflow-x: auto; }" in full_page


def test_report_does_not_overwrite_a_record(tmp_path):
    comparison = compared(tmp_path, record("fp16"))
    with pytest.raises(SpecError, match=r"give it a name that ends in \.html"):
        write_report(comparison, tmp_path / "000.json")
    with pytest.raises(ResultsError, match="that is a folder"):
        write_report(comparison, _created(tmp_path / "folder.html"))


def test_plots_are_png_files(full_results, tmp_path):
    files = write_plots(full_results, charts_of(full_results), tmp_path / "plots")
    assert [path.name for path in files] == [f"{name}.png" for name in CHARTS]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files)


def test_colours_are_per_variant_or_per_quantization_if_too_many():
    few = series_of({"fp16": "fp16", "fp16-again": "fp16", "int8": "int8"})
    assert len({look.colour(LIGHT) for look in few.values()}) == 3
    quants = ("fp16", "int8", "gptq", "bnb4")
    many = series_of({f"{quant} {runtime}": quant for runtime in ("eager", "graph", "compile") for quant in quants})
    assert len({(look.colour(LIGHT), look.marker) for look in many.values()}) == 12
    options = series_of({f"gptq {number}": "gptq" for number in range(10)})
    assert len({(look.colour(LIGHT), look.marker) for look in options.values()}) == 10
    assert many["int8 eager"].colour(LIGHT) == many["int8 compile"].colour(LIGHT) != many["gptq eager"].colour(LIGHT)


def test_report_of_a_large_sweep_is_below_3_mb(tmp_path):
    cells = [
        cell([1.0 + run / 1e4 for run in range(10)], prompt_tokens=length, new_tokens=new)
        for length in (3, 26, 128, 1024)
        for new in (50, 100, 512)
    ]
    records = [
        record(name, *cells, name=name, round_number=number, profile=profile())
        for name in ("fp16", "int8", "gptq", "bnb4", "fp16-graph", "int8-graph", "gptq-graph", "bnb4-graph")
        for number in range(10)
    ]
    assert len(page(compared(tmp_path, *records)).encode()) < 3_000_000


def _created(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_single_sample_is_drawn_without_spread(tmp_path):
    single = cell().model_copy(update={"samples": (sample(1.4),)})
    assert "One timed run each: no spread is known." in page(compared(tmp_path, record("fp16", single)))


def test_parts_and_kernel_categories_share_colours():
    looks = looks_of([*CATEGORIES, "something new"], colours=7)
    assert len(set(looks.values())) == len(looks)
    for folder in ("h100-runtimes", "h100-attention", "h200-finetune", "h100-mixers", "h100-x2-context-parallel"):
        for explanation in compare(REFERENCE / folder).explained:
            if isinstance(explanation, Explanation):
                names = {part.name for part in explanation.waterfall} - {GAPS}
                assert names <= LOOKS.keys()
                assert len({LOOKS[name] for name in names}) == len(names)
    parts = looks_of(["matrix products", *PARTS.values(), "something else"], colours=7)
    assert {parts[name][0] == looks[category][0] for category, name in PARTS.items() if category in looks} == {True}
    assert parts["matrix products"] == looks["matmul"]


def test_number_of_processes_is_per_cell():
    cells = [cell(), cell(batch_size=8)]
    by_round = [
        record("fp16", timed, round_number=number, run_id=f"{number} {timed.batch_size}")
        for number in range(3)
        for timed in cells
    ]
    assert " 3 processes a variant, 5 timed runs a cell" in where(compare_records(by_round))
