"""From a trace to kernel time: synthetic traces whose answer is known."""

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


def test_gaps_are_in_the_span_and_not_in_busy():
    work = device_work([event("a", 0, 10), event("b", 30, 10)])
    assert (work.kernel_s, work.busy_s, work.span_s) == (20e-6, 20e-6, 40e-6)


def test_streams_that_overlap_are_busy_once_and_both_counted_as_kernel_time():
    work = device_work([event("a", 0, 10, stream=7), event("b", 5, 10, stream=13), event("c", 6, 2, stream=20)])
    assert (work.kernel_s, work.busy_s, work.span_s) == (22e-6, 15e-6, 15e-6)


def test_copies_and_fills_count_and_everything_else_in_a_trace_does_not():
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


def test_launches_of_one_kernel_are_added_up_and_the_longest_total_comes_first():
    work = device_work([event("a", 0, 1), event("b", 2, 2.5), event("a", 5, 1), event("a", 7, 1)])
    assert work.kernels == (Kernel(name="a", calls=3, total_s=3e-6), Kernel(name="b", calls=1, total_s=2.5e-6))


def test_kernels_in_a_replayed_graph_count_like_any_other():
    graph = [
        event("a", 10 * number, 5) | {"args": {"device": 0, "stream": 7, "graph node id": 3}} for number in range(4)
    ]
    assert device_work(graph).busy_s == 20e-6


def cuts(first_token_ns: int) -> tuple[Cut, Cut]:
    return Cut("prefill", None), Cut("decode", first_token_ns)


def test_what_starts_after_the_first_token_is_decoding():
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
    # It started while the other ran, and has only what it took longer.
    assert norm.sections == {"decode": KernelTime(calls=1, total_s=10e-6, alone_s=5e-6)}
    assert (work.kernel_s, work.busy_s) == (60e-6, 55e-6)


def test_a_repeat_may_have_more_than_two_sections_and_one_in_which_nothing_ran_is_none() -> None:
    moments = (Cut("forward", None), Cut("empty", 9_000), Cut("backward", 10_000), Cut("optimizer", 20_000))
    work = device_work([event("a", 0, 1), event("b", 10, 2), event("a", 20, 4), event("a", 30, 4)], cuts=moments)
    assert {name: section.busy_s for name, section in work.sections.items()} == {
        "forward": 1e-6, "backward": 2e-6, "optimizer": 8e-6,
    }  # fmt: skip
    assert {name: time.calls for name, time in work.kernels[0].sections.items()} == {"forward": 1, "optimizer": 2}


def test_all_kernels_of_a_replayed_graph_are_one_launch():
    replays = [
        event("a", 100 * replay + 10 * node, 5) | {"args": {"device": 0, "stream": 7, "correlation": replay}}
        for replay in range(3)
        for node in range(4)
    ]
    decode = device_work(replays, cuts=cuts(50_000)).sections["decode"]
    assert decode.launches == 2


def test_a_tracer_that_does_not_tell_launches_apart_gives_no_number_of_them():
    decode = device_work([event("a", 0, 1), event("a", 10, 1)], cuts=cuts(5_000)).sections["decode"]
    assert decode == Section(busy_s=1e-6, span_s=1e-6, launches=None)


@pytest.mark.parametrize("moment_ns", [-1, 0, 11_000])
def test_work_on_one_side_of_the_first_token_is_not_split(moment_ns):
    work = device_work([event("a", 0, 1), event("a", 10, 1)], cuts=cuts(moment_ns))
    assert work.sections == {}
    assert work.kernels == (Kernel(name="a", calls=2, total_s=2e-6),)


def test_an_operators_own_time_is_split_by_when_it_starts():
    work = cpu_work(
        [operator("aten::linear", 0, 100), operator("aten::mm", 10, 80), operator("aten::mm", 200, 30)],
        cuts=cuts(150_000),
    )
    assert work.sections["decode"] == Section(busy_s=30e-6, span_s=30e-6, launches=None)
    assert work.kernels[0].sections == {
        "prefill": KernelTime(calls=1, total_s=80e-6),
        "decode": KernelTime(calls=1, total_s=30e-6),
    }


def test_the_hosts_clock_is_set_by_the_shortest_annotation():
    long, short = (
        operator(CLOCK_MARK, start_us, length_us, category="user_annotation")
        for start_us, length_us in ((200, 90), (1000, 2))
    )
    assert on_the_traces_clock([short, long], [DECODE], marks_ns=[1_000, 5_000]) == [Cut("decode", 1_001_500)]


def test_without_its_marks_a_trace_has_no_common_clock():
    mark = operator(CLOCK_MARK, 200, 2, category="user_annotation")
    assert on_the_traces_clock([operator("aten::mm", 0, 1)], [DECODE], marks_ns=[5_000]) == []
    assert on_the_traces_clock([mark], [DECODE], marks_ns=[4_000, 5_000]) == []


def test_of_two_devices_only_ours_counts():
    events = [event("a", 0, 10, device=0), event("a", 100, 10, device=1), event("b", 110, 10, device=1)]
    assert device_work(events, device_indices=(1,)).span_s == 20e-6
    assert device_work(events, device_indices=(0,)).kernels == (Kernel(name="a", calls=1, total_s=10e-6),)
    with pytest.raises(BenchmarkerError, match=r"the trace has devices 0, 1, none of them is 3"):
        device_work(events, device_indices=(3,))


def test_a_lone_device_is_ours_whatever_its_number():
    assert device_work([event("a", 0, 10, device=2)], device_indices=(0,)).busy_s == 10e-6


@pytest.mark.parametrize("events", [[], [event("model_inference", 0, 5000, category="gpu_user_annotation")]])
def test_a_trace_without_kernels_is_an_error_and_never_zero(events):
    with pytest.raises(BenchmarkerError, match=r"recorded no kernel .CUPTI on NVIDIA, roctracer on AMD gave none"):
        device_work(events)


def test_an_operators_time_is_its_own_without_what_it_called():
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


def test_a_caller_that_starts_with_what_it_calls_is_the_caller():
    work = cpu_work([operator("inner", 0, 40), operator("outer", 0, 100)])
    assert {kernel.name: kernel.total_s for kernel in work.kernels} == {"inner": 40e-6, "outer": 60e-6}


def test_a_trace_without_operators_is_an_error():
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
def test_no_moment_counts_twice_and_of_two_that_overlap_the_earlier_has_it(spans, alone):
    assert alone_ns([Interval("gemm", start, end, (0, 7)) for start, end in spans]) == alone


def test_a_trace_is_read_plain_and_gzipped(tmp_path):
    text = json.dumps({"traceEvents": [event("a\tb", 0, 1)]}).replace("\\t", "\t").encode() + b"\n"
    (tmp_path / "plain.json").write_bytes(text)
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(text))
    for name in ("plain.json", "packed.json.gz"):
        assert [one["name"] for one in read_trace(tmp_path / name)] == ["a\tb"]


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
def test_a_broken_trace_is_a_clear_error(tmp_path, content, problem):
    path = tmp_path / "run.trace.json.gz"
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=f"run.trace.json.gz: .*{problem}"):
        read_trace(path)


def test_a_trace_that_is_not_there(tmp_path):
    with pytest.raises(ResultsError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.json.gz")


@pytest.mark.parametrize(
    ("change", "said"),
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
def test_a_damaged_kernel_is_named_with_what_is_wrong(change, said):
    with pytest.raises(ResultsError, match=f"^the profiler's trace is damaged: {said}"):
        device_work([event("a", 0, 1), event("gemm", 5, 1) | change])


def test_a_damaged_operator_or_clock_mark_is_named_too():
    with pytest.raises(ResultsError, match="`tid` of its event aten::mm is 'main'"):
        cpu_work([operator("aten::mm", 0, 1, thread="main")])
    with pytest.raises(ResultsError, match="`ts` of its event benchmarker: clock is missing"):
        on_the_traces_clock([operator(CLOCK_MARK, None, 1, category="user_annotation")], [DECODE], marks_ns=[5_000])


def test_damage_in_what_does_not_count_does_no_harm():
    annotation = {"ph": "X", "cat": "user_annotation", "dur": "long"}
    assert device_work([annotation, event("a", 0, 1)]).busy_s == 1e-6
    assert on_the_traces_clock([annotation], [DECODE], marks_ns=[5_000]) == []
