"""Test kernel times computed from synthetic traces with known results."""

import gzip
import json

import pytest

from benchmarker.core.errors import BenchmarkerError, ResultsError
from benchmarker.profiling.chrome_trace import (
    CLOCK_MARK,
    Cut,
    Interval,
    alone_ns,
    cpu_work,
    device_work,
    on_the_traces_clock,
    read_trace,
)
from benchmarker.schema.record import Kernel, KernelTime, Section

DECODE = Cut("decode", 5_500)


def event(name, start_us, duration_us, *, category="kernel", device=0, stream=7):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": device,
        "tid": stream,
        "ts": start_us,
        "dur": duration_us,
        "args": {"device": device, "stream": stream},
    }


def operator(name, start_us, duration_us, *, thread=1, category="cpu_op"):
    return {"ph": "X", "cat": category, "name": name, "pid": 99, "tid": thread, "ts": start_us, "dur": duration_us}


def test_gaps_count_in_the_span_and_not_as_busy_time():
    work = device_work([event("a", 0, 10), event("b", 30, 10)])
    assert (work.kernel_s, work.busy_s, work.span_s) == (20e-6, 20e-6, 40e-6)


def test_overlapping_streams_count_once_as_busy_time():
    work = device_work([event("a", 0, 10, stream=7), event("b", 5, 10, stream=13), event("c", 6, 2, stream=20)])
    assert (work.kernel_s, work.busy_s, work.span_s) == (22e-6, 15e-6, 15e-6)


def test_only_kernels_copies_and_fills_count():
    work = device_work(
        [
            event("Memcpy HtoD (Pageable -> Device)", 0, 3, category="gpu_memcpy"),
            event("Memset (Device)", 3, 1, category="gpu_memset"),
            event("gemm", 4, 6),
            event("model_inference", 0, 5000, category="gpu_user_annotation"),
            event("model_inference", 0, 5000, category="user_annotation"),
            event("aten::mm", 0, 900, category="cpu_op"),
            event("cudaLaunchKernel", 0, 900, category="cuda_runtime"),
            event("hipLaunchKernel", 0, 900, category="cuda_driver"),
            event("overhead", 0, 900, category="overhead"),
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "ts": 1, "id": 1},
            {"ph": "i", "name": "Record Window End", "ts": 9000},
        ]
    )
    assert [kernel.name for kernel in work.kernels] == ["gemm", "Memcpy HtoD (Pageable -> Device)", "Memset (Device)"]
    assert (work.kernel_s, work.span_s) == (10e-6, 10e-6)


def test_kernels_are_summed_by_name_and_sorted_by_time():
    work = device_work([event("a", 0, 1), event("b", 2, 2.5), event("a", 5, 1), event("a", 7, 1)])
    assert work.kernels == (Kernel(name="a", calls=3, total_s=3e-6), Kernel(name="b", calls=1, total_s=2.5e-6))


def test_kernels_of_a_replayed_graph_count():
    graph = [
        event("a", 10 * number, 5) | {"args": {"device": 0, "stream": 7, "graph node id": 3}} for number in range(4)
    ]
    assert device_work(graph).busy_s == 20e-6


def cuts(first_token_ns: int) -> tuple[Cut, Cut]:
    return Cut("prefill", None), Cut("decode", first_token_ns)


def test_kernels_starting_after_the_first_token_count_as_decode():
    events = [
        event("gemm", 0, 40) | {"args": {"device": 0, "stream": 7, "correlation": 1}},
        event("gemm", 100, 10) | {"args": {"device": 0, "stream": 7, "correlation": 2}},
        event("norm", 105, 10, stream=13) | {"args": {"device": 0, "stream": 13, "correlation": 3}},
    ]
    work = device_work(events, cuts=cuts(90_000))
    assert list(work.sections) == ["prefill", "decode"]
    assert work.sections["prefill"] == Section(busy_s=40e-6, span_s=40e-6, launches=1)
    assert work.sections["decode"] == Section(busy_s=15e-6, span_s=15e-6, launches=2)
    gemm, norm = work.kernels
    assert (gemm.calls, gemm.total_s) == (2, 50e-6)
    assert gemm.sections == {
        "prefill": KernelTime(calls=1, total_s=40e-6, alone_s=40e-6),
        "decode": KernelTime(calls=1, total_s=10e-6, alone_s=10e-6),
    }
    # `norm` starts while `gemm` runs, so that only its time after the end of `gemm` is exclusive.
    assert norm.sections == {"decode": KernelTime(calls=1, total_s=10e-6, alone_s=5e-6)}
    assert (work.kernel_s, work.busy_s) == (60e-6, 55e-6)


def test_empty_sections_are_left_out() -> None:
    sections = (Cut("forward", None), Cut("empty", 9_000), Cut("backward", 10_000), Cut("optimizer", 20_000))
    work = device_work([event("a", 0, 1), event("b", 10, 2), event("a", 20, 4), event("a", 30, 4)], cuts=sections)
    assert {name: section.busy_s for name, section in work.sections.items()} == {
        "forward": 1e-6, "backward": 2e-6, "optimizer": 8e-6,
    }  # fmt: skip
    assert {name: time.calls for name, time in work.kernels[0].sections.items()} == {"forward": 1, "optimizer": 2}


def test_graph_replay_counts_as_one_launch():
    replays = [
        event("a", 100 * replay + 10 * node, 5) | {"args": {"device": 0, "stream": 7, "correlation": replay}}
        for replay in range(3)
        for node in range(4)
    ]
    decode = device_work(replays, cuts=cuts(50_000)).sections["decode"]
    assert decode.launches == 2


def test_launches_are_none_without_correlation_ids():
    decode = device_work([event("a", 0, 1), event("a", 10, 1)], cuts=cuts(5_000)).sections["decode"]
    assert decode == Section(busy_s=1e-6, span_s=1e-6, launches=None)


@pytest.mark.parametrize("moment_ns", [-1, 0, 11_000])
def test_work_entirely_before_or_after_the_first_token_is_not_split(moment_ns):
    work = device_work([event("a", 0, 1), event("a", 10, 1)], cuts=cuts(moment_ns))
    assert work.sections == {}
    assert work.kernels == (Kernel(name="a", calls=2, total_s=2e-6),)


def test_operator_self_time_is_split_by_its_start():
    work = cpu_work(
        [operator("aten::linear", 0, 100), operator("aten::mm", 10, 80), operator("aten::mm", 200, 30)],
        cuts=cuts(150_000),
    )
    assert work.sections["decode"] == Section(busy_s=30e-6, span_s=30e-6, launches=None)
    assert work.kernels[0].sections == {
        "prefill": KernelTime(calls=1, total_s=80e-6),
        "decode": KernelTime(calls=1, total_s=30e-6),
    }


def test_host_clock_is_aligned_by_the_shortest_mark():
    long, short = (
        operator(CLOCK_MARK, start_us, length_us, category="user_annotation")
        for start_us, length_us in ((200, 90), (1000, 2))
    )
    assert on_the_traces_clock([short, long], [DECODE], marks_ns=[1_000, 5_000]) == [Cut("decode", 1_001_500)]


def test_clocks_are_not_aligned_without_all_marks():
    mark = operator(CLOCK_MARK, 200, 2, category="user_annotation")
    assert on_the_traces_clock([operator("aten::mm", 0, 1)], [DECODE], marks_ns=[5_000]) == []
    assert on_the_traces_clock([mark], [DECODE], marks_ns=[4_000, 5_000]) == []


def test_only_the_selected_device_counts():
    events = [event("a", 0, 10, device=0), event("a", 100, 10, device=1), event("b", 110, 10, device=1)]
    assert device_work(events, device_indices=(1,)).span_s == 20e-6
    assert device_work(events, device_indices=(0,)).kernels == (Kernel(name="a", calls=1, total_s=10e-6),)
    with pytest.raises(BenchmarkerError, match=r"the trace has devices 0, 1, none of them is 3"):
        device_work(events, device_indices=(3,))


def test_a_single_device_is_selected_for_any_index():
    assert device_work([event("a", 0, 10, device=2)], device_indices=(0,)).busy_s == 10e-6


@pytest.mark.parametrize("events", [[], [event("model_inference", 0, 5000, category="gpu_user_annotation")]])
def test_device_trace_without_kernels_raises(events):
    with pytest.raises(BenchmarkerError, match=r"recorded no kernel .CUPTI on NVIDIA, roctracer on AMD gave none"):
        device_work(events)


def test_operator_time_excludes_called_operators():
    work = cpu_work(
        [
            operator("aten::linear", 0, 100),
            operator("aten::matmul", 10, 80),
            operator("aten::mm", 20, 50),
            operator("aten::add", 150, 10),
            operator("aten::mm", 0, 30, thread=2),
            operator("ProfilerStep#1", 0, 500, category="user_annotation"),
        ]
    )
    assert work.kernels == (
        Kernel(name="aten::mm", calls=2, total_s=80e-6),
        Kernel(name="aten::matmul", calls=1, total_s=30e-6),
        Kernel(name="aten::linear", calls=1, total_s=20e-6),
        Kernel(name="aten::add", calls=1, total_s=10e-6),
    )
    assert (work.kernel_s, work.busy_s, work.span_s) == (140e-6, 140e-6, 160e-6)


def test_longer_operator_with_an_equal_start_is_the_caller():
    work = cpu_work([operator("inner", 0, 40), operator("outer", 0, 100)])
    assert {kernel.name: kernel.total_s for kernel in work.kernels} == {"inner": 40e-6, "outer": 60e-6}


def test_cpu_trace_without_operators_raises():
    with pytest.raises(BenchmarkerError, match="no operator"):
        cpu_work([operator("mine", 0, 10, category="user_annotation")])


@pytest.mark.parametrize(
    ("spans", "alone"),
    [
        ([], []),
        ([(0, 5)], [5]),
        ([(0, 5), (5, 9)], [5, 4]),
        ([(3, 4), (0, 10), (8, 12)], [0, 10, 2]),
        ([(0, 1), (4, 6)], [1, 2]),
        ([(0, 4), (1, 6), (2, 5), (2, 9)], [4, 2, 0, 3]),
    ],
)
def test_overlapping_time_counts_for_the_earlier_kernel(spans, alone):
    assert alone_ns([Interval("gemm", start, end, (0, 7)) for start, end in spans]) == alone


def test_plain_and_gzipped_traces_are_read(tmp_path):
    text = json.dumps({"traceEvents": [event("a\tb", 0, 1)]}).replace("\\t", "\t").encode() + b"\n"
    (tmp_path / "plain.json").write_bytes(text)
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(text))
    for name in ("plain.json", "packed.json.gz"):
        assert [entry["name"] for entry in read_trace(tmp_path / name)] == ["a\tb"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(b'{"traceEvents": []}' * 50, mtime=0)[:-20], "may have been cut short"),
        (b'{"traceEvents": [', "may have been cut short"),
        (b"\x1f\x8b not gzip at all", "may have been cut short"),
        (b"\xff\xfe", "may have been cut short"),
        (b'{"schema_version": 1}', "not a trace of torch.profiler"),
        (b"3", "not a trace of torch.profiler"),
    ],
    ids=["truncated gzip", "truncated JSON", "not gzip", "not text", "a record", "a number"],
)
def test_invalid_trace_file_raises(tmp_path, content, problem):
    path = tmp_path / "run.trace.json.gz"
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=f"run.trace.json.gz: .*{problem}"):
        read_trace(path)


def test_missing_trace_file_raises(tmp_path):
    with pytest.raises(ResultsError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.json.gz")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ts": None}, "`ts` of its event gemm is missing"),
        ({"ts": "12"}, "`ts` of its event gemm is '12'"),
        ({"dur": float("nan")}, "`dur` of its event gemm is nan"),
        ({"dur": -5}, "`dur` of its event gemm is -5"),
        ({"dur": "5"}, "`dur` of its event gemm is '5'"),
        ({"ts": 10**400}, "`ts` of its event gemm is 1000"),
        ({"name": None}, "`name` of its event None is missing"),
        ({"args": ["cuda:0"]}, "`args` of its event gemm is \\['cuda:0'\\]"),
        ({"args": {"device": "cuda:0"}}, "`device` of its event gemm is 'cuda:0'"),
        ({"args": {"stream": None}}, "`stream` of its event gemm is missing"),
        ({"args": {"correlation": "x"}}, "`correlation` of its event gemm is 'x'"),
    ],
)
def test_malformed_kernel_event_is_reported_with_its_field(change, problem):
    with pytest.raises(ResultsError, match=f"^the profiler's trace is damaged: {problem}"):
        device_work([event("a", 0, 1), event("gemm", 5, 1) | change])


def test_malformed_operator_or_clock_mark_is_reported():
    with pytest.raises(ResultsError, match="`tid` of its event aten::mm is 'main'"):
        cpu_work([operator("aten::mm", 0, 1, thread="main")])
    with pytest.raises(ResultsError, match="`ts` of its event benchmarker: clock is missing"):
        on_the_traces_clock([operator(CLOCK_MARK, None, 1, category="user_annotation")], [DECODE], marks_ns=[5_000])


def test_malformed_events_that_do_not_count_are_ignored():
    annotation = {"ph": "X", "cat": "user_annotation", "dur": "long"}
    assert device_work([annotation, event("a", 0, 1)]).busy_s == 1e-6
    assert on_the_traces_clock([annotation], [DECODE], marks_ns=[5_000]) == []
