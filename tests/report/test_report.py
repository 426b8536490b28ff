"""The page: the numbers of `compare`, every caveat, one file, and names that do nothing."""

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
from benchmarker.report.compare import Comparison, brief, compare, sheets, where
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


def everything(folder: Path, name: str = "int8") -> Comparison:
    """Two variants with all that a record may hold."""
    seen = Conditions(samples=20, sm_clock_mhz=1980, temperature_c=61, power_w=310.5)
    cells = [
        cell(conditions=seen, timed_at=(1e9, 1e9 + 7)),
        cell([2.8, 2.9, 2.7, 2.8, 2.8], new_tokens=100, conditions=seen, timed_at=(1e9 + 8, 1e9 + 20)),
    ]
    return compared(
        folder,
        record("fp16", *cells, profile=profile()),
        record("int8", *cells, name=name, profile=profile()),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return everything(tmp_path_factory.mktemp("everything"))


@pytest.fixture(scope="module")
def whole_page(whole: Comparison) -> str:
    return page(whole)


class Tables(HTMLParser):
    """The text of every row of every sortable table."""

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


def test_the_first_table_says_what_compare_says(tmp_path):
    comparison = compared(tmp_path, *rounds("fp16", STEADY), *rounds("int8", [2 * one for one in STEADY]))
    blocks = brief(comparison)
    lines = [line for line in tables.to_markdown(blocks).splitlines() if line.startswith("|")]
    printed = [[text.strip() for text in line.strip("|").split("|")] for line in lines]
    assert Tables(page(comparison)).rows[: len(printed) - 1] == [printed[0], *printed[2:]]


def test_every_caveat_of_compare_is_on_the_page(tmp_path):
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


def test_a_hostile_name_is_text_everywhere(tmp_path):
    text = page(everything(tmp_path, HOSTILE))
    assert text.count("<script>") == 1
    assert "<img" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_hostile_text_in_any_other_place_is_text_too(tmp_path):
    kernels = (Kernel(name=HOSTILE, calls=3, total_s=0.5),)
    one = record(
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
    text = page(compared(tmp_path, one))
    assert text.count("<script>") == 1
    assert "<img" not in text
    assert "\x1b" not in text


def test_the_page_names_no_place_in_the_network(whole_page):
    found = set(re.findall(r"https?://[^\s\"'<)]+", whole_page))
    assert found == set()


def test_markup_in_a_sentence_makes_no_link_and_no_picture():
    assert html("![x](http://a.example) <a href=x> & <http://c.example>").count("<") == 0


def test_every_chart_appears_where_the_records_can_fill_it(whole, whole_page):
    charts = charts_of(whole)
    assert [chart.name for chart in charts] == CHARTS
    for chart in charts:
        assert chart.note
        assert f'id="chart-{chart.name}"' in whole_page


def test_depth_and_batch_have_curves_with_their_crossings(tmp_path):
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


def test_a_crossing_is_where_the_drawn_lines_meet():
    ((place, rate),) = crossings({1: 10.0, 4: 40.0}, {1: 20.0, 4: 20.0}, is_logarithmic=True)
    assert (place, rate) == pytest.approx((2.0, 20.0))
    ((place, rate),) = crossings({0: 10.0, 100: 50.0}, {0: 30.0, 100: 30.0}, is_logarithmic=False)
    assert (place, rate) == pytest.approx((50.0, 30.0))
    assert crossings({1: 10.0, 4: 40.0}, {1: 20.0, 4: 80.0}, is_logarithmic=True) == []
    assert crossings({1: 10.0}, {4: 20.0}, is_logarithmic=True) == []


def test_depths_close_to_each_other_share_the_room_for_their_numbers():
    assert with_room([0, 512, 1024, 4096, 16384], is_logarithmic=False) == {0, 4096, 16384}
    assert with_room([1, 2, 4, 8], is_logarithmic=True) == {1, 2, 4, 8}


def test_gaps_are_named_by_what_was_profiled():
    device = waterfall_chart([explained(run("fp16", *FP16, tpot_ms=9.0))], ())
    cpu = waterfall_chart([explained(run("fp16", tpot_ms=9.0, profiled=split_profile(*FP16, by="cpu")))], ())
    assert "Its gaps are time in which the device waits for the host; " in device.note
    assert device.title.startswith("Why a token takes as long as it does")
    assert "Its gaps are Python, and the time between operators; " in cpu.note


def test_the_bar_of_kernels_at_once_ends_where_the_token_does():
    one = explained(run("fp16", tpot_ms=6.5, profiled=split_profile(*FP16, busy_ms=6.4)))
    assert sum(part.seconds for part in one.waterfall) == pytest.approx(0.0065)
    assert all(part.seconds > 0 for part in one.waterfall)
    assert "<svg" in to_svg(waterfall_chart([one], ()))


def test_a_number_sorts_by_its_value_and_not_by_its_text(tmp_path):
    comparison = compared(tmp_path, *rounds("fp16", STEADY), *rounds("int8", [8.0 * one for one in STEADY]))
    by_heading = {column.heading: column for column in sheets(comparison)[0].columns}
    base, other = comparison.rows
    assert by_heading["speed-up"].text(base) == "baseline"
    assert by_heading["speed-up"].sort(base) == 1.0
    assert by_heading["TTFT ms"].sort(other) == pytest.approx(1e3 * other.ttft.value)
    assert by_heading["tok/s"].is_more_better
    assert not by_heading["TTFT ms"].is_more_better
    assert f'data-sort="{base.rate.value}"' in page(comparison)


def test_what_was_not_measured_has_no_chart(tmp_path):
    comparison = compared(tmp_path, record("fp16", failed_cell("timeout", "it took more than 10 s")))
    assert charts_of(comparison) == []
    assert "timed out: it took more than 10 s" in page(comparison)


def test_charts_take_their_colours_from_the_page_and_share_no_id(whole):
    drawn = [to_svg(chart) for chart in charts_of(whole)]
    ids = [one for svg in drawn for one in set(re.findall(r'\bid="([^"]+)"', svg))]
    assert len(ids) == len(set(ids))
    for svg in drawn:
        assert "var(--text)" in svg
        assert not set(re.findall(r"#[0-9a-f]{6}\b", svg)) - {"#000000", "#ffffff"}


def test_a_drawing_is_the_same_every_time(whole, whole_page):
    assert page(whole) == whole_page


def test_kernel_times_by_category_add_up_to_the_profile():
    one = profile()
    spent = seconds_by_category((kernel.name, kernel.total_s) for kernel in one.kernels)
    assert spent == {"matmul": 0.375, "elementwise": 0.125}
    assert sum(spent.values()) == one.kernel_s


def test_the_front_holds_what_nothing_beats_in_everything(tmp_path):
    def variant(name, latency_s, peak_bytes):
        memory = {"peak_allocated_bytes": peak_bytes}
        one = cell([latency_s])
        return record(name, one.model_copy(update={"memory": one.memory.model_copy(update=memory)}), name=name)

    comparison = compared(
        tmp_path, variant("fp16", 1.0, 8), variant("int8", 2.0, 9), variant("gptq", 2.0, 3), variant("bnb4", 1.0, 5)
    )
    assert {row.variant for row in front(comparison.rows)} == {"bnb4", "gptq"}
    # gptq needs 1 % less memory than bnb4, and ten times the time.
    close = compared(
        tmp_path / "close",
        variant("fp16", 1.0, 8 * GIB),
        variant("gptq", 9.0, 297 * GIB // 100),
        variant("bnb4", 0.9, 3 * GIB),
    )
    assert {row.variant for row in front(close.rows)} == {"bnb4"}


def lines_of(comparison: Comparison) -> tuple[str, ...]:
    return tuple(map(tables.markdown, answer(comparison, ranking_of(comparison))))


def test_of_several_cells_the_answer_names_its_own_and_a_table_has_the_fastest_of_the_others(tmp_path):
    def of(quant: str, times_s: tuple[float, float]) -> list[object]:
        return [
            record(
                quant,
                *(
                    cell([share * time_s], prompt_tokens=26, new_tokens=50, batch_size=batch)
                    for batch, time_s in zip((1, 8), times_s, strict=True)
                ),
                round_number=number,
            )
            for number, share in enumerate((1.0, 1.001, 0.999))
        ]

    two = compared(tmp_path, *of("fp16", (2.0, 2.0)), *of("int8", (1.0, 4.0)), *of("gptq", (1.0, 2.001)))
    assert lines_of(two)[0].startswith("At prompt 26, 50 new tokens, batch 8, **fp16** is best: ")
    (sheet,) = other_cells(two, ranking_of(two).cell)
    ((words, names, _, gain),) = [[column.text(row) for column in sheet.columns] for row in sheet.rows]
    assert (words, names) == ("batch 1", "int8 or gptq")
    assert gain.startswith("2.00x [")
    assert sheet.title in [block.title for block in brief(two) if isinstance(block, tables.Sheet)]
    one = compared(tmp_path / "one", record("fp16"), record("int8", cell([2.8])))
    assert other_cells(one, ranking_of(one).cell) == []


def test_the_answer_names_one_variant_only_where_rounds_tell_it_from_the_next(tmp_path):
    faster = [[share * one for one in STEADY] for share in (0.5, 0.7)]
    clear = compared(tmp_path / "a", *rounds("fp16", STEADY), *rounds("int8", faster[0]), *rounds("gptq", faster[1]))
    assert lines_of(clear)[0] == (
        "**int8** is fastest: 71.43 decode tok/s, 2.00x [2.00, 2.00] fp16 (fastest unquantized form); next is gptq, "
        "51.02 decode tok/s."
    )
    plain = compared(tmp_path / "p", *rounds("fp16", STEADY), *rounds("int8", [2 * one for one in STEADY]))
    assert lines_of(plain)[0].startswith(
        "**fp16** is fastest: 35.71 decode tok/s, the unquantized form itself; next is int8"
    )
    alone = compared(tmp_path / "c", record("fp16"), record("int8", cell([2.8])))
    assert lines_of(alone) == (
        "**Not decided:** fp16 was the fastest in 1 round; fewer than 3 rounds cannot rule out chance.",
        "At least 2 more rounds are needed: `benchmarker sweep CONFIG --rounds 3`",
    )


def test_of_two_that_are_as_fast_the_answer_takes_the_smaller(tmp_path):
    small = Memory(peak_allocated_bytes=2 * GIB)
    halves = [one / 2 for one in STEADY]
    pair = compared(
        tmp_path,
        *rounds("fp16", STEADY),
        *rounds("int8", halves),
        *(record("gptq", cell([one], memory=small), round_number=number) for number, one in enumerate(halves)),
    )
    assert "as fast as int8 within 2 %, in least memory." in lines_of(pair)[0]
    assert lines_of(pair)[1].startswith("Saves memory: 2.00 GiB instead of 7.59 GiB; quality not measured")
    alike = compared(tmp_path / "alike", *rounds("fp16", STEADY), *rounds("int8", halves))
    assert lines_of(alike)[1].startswith("Costs 7.59 GiB, like fp16; quality not measured")


def test_the_answer_ends_with_the_command_that_runs_it(tmp_path):
    options = {"bits": 4, "kernel": "torch", "group_size": 128}
    comparison = compared(tmp_path, record("gptq", options=options, runtime="compile"))
    assert lines_of(comparison)[-1] == (
        "Run it: `benchmarker generate --model Qwen/Qwen3-4B --quant gptq --option kernel=torch --engine compile "
        '"Why is the sky blue?"`'
    )


def test_the_command_names_the_checkpoint_and_is_left_out_for_a_folder_of_random_weights(tmp_path):
    made = {"id": "/models/made", "files_sha256": "0f"}
    random = compared(tmp_path / "random", record("fp16", model={**made, "load_format": "dummy"}))
    assert not any(line.startswith("Run it") for line in lines_of(random))
    # The real weights of a hub id are not in this format.
    format_only = compared(tmp_path / "awq", record("awq", model={"load_format": "dummy"}))
    assert not any(line.startswith("Run it") for line in lines_of(format_only))
    # `generate` needs a tokenizer.
    unreadable = compared(tmp_path / "ids", record("fp16", cell([1.0], prompt_source=NO_TOKENIZER), model=made))
    assert not any(line.startswith("Run it") for line in lines_of(unreadable))
    # `generate` runs no code of a model's repository.
    own_code = compared(tmp_path / "own", record("fp16", model={"id": "/models/own", "trust_remote_code": True}))
    assert not any(line.startswith("Run it") for line in lines_of(own_code))
    packed = compared(tmp_path / "packed", record("fp16", model={**made, "checkpoint": "/models/packed"}))
    assert lines_of(packed)[-1].startswith("Run it: `benchmarker generate --model /models/packed --quant fp16")


def test_the_answer_is_no_surer_than_the_table(tmp_path):
    others = {"int8": [1.05, 0.95, 1.1], "bnb4": [1.2, 0.9, 1.1], "gptq": [0.9, 1.1, 1.05]}
    slow = [record for name, latencies in others.items() for record in rounds(name, latencies)]
    mixed = compared(tmp_path, *rounds("fp16", [1.0] * 3), *slow, *rounds("gptq-compile", [0.35, 0.6, 0.45]))
    first = next(row for row in mixed.rows if row.variant == "gptq-compile")
    # By itself it would pass for faster: the interval leaves 1 out.
    assert first.ratio.low > 1
    assert first.speed_up.verdict == "inconclusive"
    assert lines_of(mixed)[0].startswith("**Not decided:** gptq-compile, ")
    assert first_table(ranking_of(mixed)).is_bold(first) is False


def test_an_interval_of_more_than_a_factor_of_two_is_no_number_but_a_round(tmp_path):
    disturbed = compared(tmp_path, *rounds("fp16", STEADY[:3]), *rounds("int8", [0.7, 9.1, 0.7]))
    texts = [column.text(disturbed.rows[1]) for column in first_table(ranking_of(disturbed)).columns]
    assert texts.count("outlier round 2") == 3  # TTFT, decode rate and speed-up
    assert not any("x [" in text for text in texts)
    assert lines_of(disturbed)[0] == "**Not decided:** fp16 or int8 may be the fastest; int8: outlier round 2."


def test_an_answer_without_a_peak_does_not_cost_its_unmeasured_quality(tmp_path):
    found = compared(tmp_path, record("fp16", cell([1.0], memory=Memory())))
    assert lines_of(found)[1] == "Quality not measured: add `--quality quick`."


def test_the_fastest_without_a_number_is_still_the_fastest(tmp_path):
    found = compared(tmp_path, *rounds("fp16", [10.0, 10.2, 10.1]), *rounds("int8", [1.0, 1.0, 1.6]))
    first = "int8 is faster than fp16, but has no number: outlier round 3."
    assert lines_of(found)[0] == first
    assert len(lines_of(found)) == 2


def test_a_merely_wide_interval_blames_no_round(tmp_path):
    paces = {"fp16": [1.4, 1.4, 1.4], "int8": [1.4 / 2.6, 1.4 / 1.8, 1.4 / 1.2]}
    wide = compared(tmp_path, *(one for name, times in paces.items() for one in rounds(name, times)))
    texts = {column.heading: column.text(wide.rows[1]) for column in first_table(ranking_of(wide)).columns}
    assert texts["decode tok/s"] == "wide"
    assert texts["speed-up"] == "wide [0.68, 4.65] inconclusive"
    (pace,) = (column for column in first_table(ranking_of(wide)).columns if column.heading == "decode tok/s")
    assert pace.sort(wide.rows[1]) is None
    assert lines_of(wide)[0].endswith("int8: wide [24.29, 165.92].")
    assert "utlier round" not in page(wide)


def test_no_chart_draws_a_variant_without_a_number(tmp_path):
    records = [*rounds("fp16", STEADY[:3]), *rounds("gptq", STEADY[:3]), *rounds("int8", [0.7, 9.1, 0.7])]
    charts = {chart.name: chart for chart in charts_of(compared(tmp_path, *records))}
    assert charts["speed"].note.endswith("Without a number: int8: outlier round 2.")
    assert "Without a number here: int8." in charts["speed-memory"].note
    assert "int8" not in to_svg(charts["speed"])
    assert "int8" not in to_svg(charts["speed-memory"])


def test_the_answer_ends_with_the_command_that_decides(tmp_path):
    save(tmp_path / "s", *rounds("fp16", [1.40, 1.42, 1.38]), *rounds("int8", [1.30, 1.39, 1.33]))
    (tmp_path / "s" / "sweep.json").write_text('{"config": "configs/x.yaml", "baseline": "fp16"}')
    lines = lines_of(compare(tmp_path / "s"))
    assert lines[0].startswith("**Not decided:** int8 or fp16 may be the fastest; int8 relative to fp16: [")
    # Without saved jobs, the records are of another machine.
    assert lines[1] == "1 more round would decide: `benchmarker sweep configs/x.yaml --rounds 4`"
    (tmp_path / "s" / "job-int8.json").write_text('{"job_version": 2}')
    resumed = f"1 more round would decide: `benchmarker sweep configs/x.yaml --resume {tmp_path}/s --rounds 4`"
    assert lines_of(compare(tmp_path / "s"))[1] == resumed


def test_the_command_that_decides_ends_an_unfinished_round(tmp_path):
    comparison = compared(tmp_path, *rounds("fp16", STEADY[:3]), *rounds("int8", STEADY[:2]))
    assert lines_of(comparison)[1] == "At least 1 more round is needed: `benchmarker sweep CONFIG --rounds 3`"


def test_a_row_with_kernels_of_ours_has_an_asterisk_in_table_and_answer(tmp_path):
    facts = EngineFacts(
        name="native",
        tokens_read="end",
        kv_cache="static",
        kernels_used=(KernelUse(purpose="linear", origin="benchmarker", name="gemv_gptq"),),
    )
    ours = record("gptq", name="gptq native", runtime="native").model_copy(update={"engine": facts})
    comparison = compared(tmp_path, record("fp16"), ours)
    row = next(row for row in comparison.rows if row.variant == "gptq native")
    assert row.label == "gptq native*"
    assert "benchmarker's own kernels" in " ".join(first_table(ranking_of(comparison)).notes)


def test_every_table_of_the_page_scrolls_in_its_own_container(whole_page):
    containers = whole_page.count('<div class="wide" role="region" aria-label="Table" tabindex="0"><table')
    assert containers == whole_page.count("<table") > 2
    assert ".wide { overflow-x: auto; }" in whole_page


def test_a_report_does_not_overwrite_a_record(tmp_path):
    comparison = compared(tmp_path, record("fp16"))
    with pytest.raises(SpecError, match=r"give it a name that ends in \.html"):
        write_report(comparison, tmp_path / "000.json")
    with pytest.raises(ResultsError, match="that is a folder"):
        write_report(comparison, _made(tmp_path / "folder.html"))


def test_plots_are_png_files(whole, tmp_path):
    files = write_plots(whole, charts_of(whole), tmp_path / "plots")
    assert [path.name for path in files] == [f"{name}.png" for name in CHARTS]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files)


def test_variants_have_colours_of_their_own_and_if_there_are_too_many_those_of_their_quantization():
    few = series_of({"fp16": "fp16", "fp16-again": "fp16", "int8": "int8"})
    assert len({look.colour(LIGHT) for look in few.values()}) == 3
    quants = ("fp16", "int8", "gptq", "bnb4")
    many = series_of({f"{quant} {runtime}": quant for runtime in ("eager", "graph", "compile") for quant in quants})
    assert len({(look.colour(LIGHT), look.marker) for look in many.values()}) == 12
    options = series_of({f"gptq {number}": "gptq" for number in range(10)})
    assert len({(look.colour(LIGHT), look.marker) for look in options.values()}) == 10
    assert many["int8 eager"].colour(LIGHT) == many["int8 compile"].colour(LIGHT) != many["gptq eager"].colour(LIGHT)


def test_a_large_sweep_stays_below_three_megabytes(tmp_path):
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


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_sample_without_spread_is_drawn_too(tmp_path):
    one = cell().model_copy(update={"samples": (sample(1.4),)})
    assert "One timed run each: no spread is known." in page(compared(tmp_path, record("fp16", one)))


def test_a_part_of_a_time_has_the_same_colour_in_charts_that_name_it_otherwise():
    looks = looks_of([*CATEGORIES, "something new"], colours=7)
    assert len(set(looks.values())) == len(looks)
    for folder in ("h100-runtimes", "h100-attention", "h200-finetune", "h100-mixers", "h100-x2-context-parallel"):
        for one in compare(REFERENCE / folder).explained:
            named = {part.name for part in one.waterfall} - {GAPS} if isinstance(one, Explanation) else set()
            assert named <= LOOKS.keys()
            assert len({LOOKS[name] for name in named}) == len(named)
    parts = looks_of(["matrix products", *PARTS.values(), "something else"], colours=7)
    assert {parts[name][0] == looks[category][0] for category, name in PARTS.items() if category in looks} == {True}
    assert parts["matrix products"] == looks["matmul"]


def test_the_number_of_processes_is_that_of_a_cell():
    cells = [cell(), cell(batch_size=8)]
    by_round = [
        record("fp16", each, round_number=number, run_id=f"{number} {each.batch_size}")
        for number in range(3)
        for each in cells
    ]
    assert " 3 processes a variant, 5 timed runs a cell" in where(compare_records(by_round))
