"""Context parallel attention over two processes of this machine is accurate, timed and validated."""

import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest

from benchmarker.comparison.results import to_rows
from benchmarker.core.console import Terminal
from benchmarker.core.errors import SpecError
from benchmarker.execution.single_run import Run
from benchmarker.explain.explain import explain
from benchmarker.hardware.device import CpuDevice
from benchmarker.report.compare import compare
from benchmarker.report.verify import verify
from benchmarker.schema.record_io import collect
from benchmarker.workloads.context_parallel import rank_work
from benchmarker.workloads.context_parallel.context_parallel_bench import ContextParallelBench, read_variables
from benchmarker.workloads.context_parallel.spec import ContextParallelPoint, devices_of
from tests.jobs import read_job
from tests.profiling.test_profiling_trace import event

SHAPE = ("--heads", "2", "--head-dim", "16", "--dtype", "float32", "--device", "cpu", "--seq-len", "64")
SHORT = ("--runs", "2", "--warmup", "1", "--warmup-limit", "1", "--no-limits")


def read(*options):
    return read_job(["context_parallel", *SHAPE, *SHORT, *options])


# The run below also checks zigzag.
@pytest.mark.parametrize("variant", [pytest.param("zigzag", marks=pytest.mark.by_hand), "ring", "ulysses", "single"])
def test_result_of_all_ranks_equals_one_process_in_float64(variant):
    job = read("--variant", variant, "--heads", "4", "--kv-heads", "2", "--seq-len", "512")
    with closing(ContextParallelBench(job, CpuDevice(), None, None)) as bench:
        checked = bench.correct(ContextParallelPoint(2, 512, "forward_backward"))["checked"]
    assert {tensor.tensor for tensor in checked.tensors} == {"o", "dq", "dk", "dv"}
    assert checked.error <= 1e-5
    assert checked.order_error <= 1e-5
    assert len(checked.distances) == (0 if variant == "single" else 4)


def test_run_writes_a_record_that_is_compared_and_verified(tmp_path):
    options = ("--variant", "zigzag", "--mode", "forward_backward", "--output", str(tmp_path))
    Run(read(*options), Terminal(quiet=True)).execute()
    (record,) = collect([tmp_path]).records
    (cell,) = record.cells
    assert cell.status == "ok", cell.reason
    # 16 positions of 2 heads of 16, keys and values, float32, and the gradients of one block.
    assert cell.demand.step_bytes == 3 * 2 * 32 * 2 * 16 * 4
    assert cell.demand.total_flops == 2 * cell.demand.flops == 3.5 * 4 * 2 * 16 * 64 * 65 / 2
    for sample in cell.samples:
        assert sample.latency_s == max(sample.ranks_s)
        assert len(sample.ranks_s) == 2
    assert len(cell.alone_s) == 2
    assert min(cell.single_s, cell.link_bytes_per_s) > 0
    assert record.built.devices == ("cpu", "cpu")
    (row,) = to_rows(compare([tmp_path]))
    latency_s = sum(sample.latency_s for sample in cell.samples) / 2
    assert row["tflops_gpu_flop_per_s"] == pytest.approx(cell.demand.flops / latency_s)
    assert row["scaling"] > 0
    assert row["imbalance"] >= 1
    assert row["error"] <= 1e-5
    assert cell.sent_bytes == cell.demand.sent_bytes == cell.demand.step_bytes
    assert len(cell.traces) == 2
    assert 0 <= row["exposed_trace"] < 1
    assert row["tflops_flop_per_s"] == pytest.approx(2 * row["tflops_gpu_flop_per_s"])
    assert verify([tmp_path]).is_right
    explained = explain("zigzag", [record])
    assert any(part.seconds > 0 and part.name == "communication" for part in explained.waterfall)
    assert any(note.startswith("communication ran for") for note in explained.notes)


@pytest.mark.by_hand
def test_processes_of_torchrun_are_the_ranks(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    options = ["--variant", "zigzag", "--mode", "forward", "--ranks", "2,3,4", "--seq-len", "96"]
    command = [*torchrun, "-m", "benchmarker", "run", "context_parallel", *SHAPE[:-2], *SHORT, *options]
    process = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True, timeout=300)
    (record,) = collect([tmp_path]).records
    assert [cell.status for cell in record.cells] == ["ok", "ok", "unsupported"], process.stdout
    assert record.cells[2].reason == "ranks: torchrun started 3 processes, fewer than 4 ranks"
    assert [len(cell.alone_s) for cell in record.cells] == [2, 3, 0]


def test_unsupported_variant_is_recorded_with_a_reason(tmp_path):
    Run(read("--variant", "allgather", "--output", str(tmp_path)), Terminal(quiet=True)).execute()
    (record,) = collect([tmp_path]).records
    assert {cell.status for cell in record.cells} == {"unsupported"}
    assert record.cells[0].reason.startswith("torch's context_parallel has no rule for the processor's attention")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("--variant", "zigzag", "--seq-len", "4098", "--ranks", "4"),
            "seq_len: 4098 is not a multiple of 8, for 4 ranks; 4096 is",
        ),
        (("--variant", "ring", "--seq-len", "5"), "seq_len: 5 is not a multiple of 2, for 2 ranks; 4 is"),
        (
            ("--variant", "ulysses", "--heads", "6", "--ranks", "4"),
            "heads: ulysses splits them over the ranks; 6 heads and 6 kv_heads are not both multiples of 4",
        ),
        (
            ("--variant", "ulysses", "--heads", "8", "--kv-heads", "1"),
            "heads: ulysses splits them over the ranks; 8 heads and 1 kv_heads are not both multiples of 2",
        ),
        (
            ("--variant", "zigzag", "--kernel", "cudnn"),
            "dtype: kernel cudnn takes bfloat16 and float16, not float32; use kernel flash",
        ),
        (("--variant", "zigzag", "--heads", "8", "--kv-heads", "3"), "kv_heads: 8 heads cannot share 3 evenly"),
        (("--variant", "zigzag", "--energy"), "--energy: is not counted for context_parallel; leave it out"),
        (("--variant", "zig"), "no way to split 'zig'; did you mean 'zigzag'?"),
    ],
)
def test_impossible_split_is_refused_before_any_process(options, expected):
    with pytest.raises(SpecError) as caught:
        read(*options)
    assert expected in str(caught.value)


def test_communication_variables_are_recorded_without_paths():
    variables = {"NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG_FILE": "/home/me", "GLOO_SOCKET_IFNAME": "lo", "HOME": "/home/me"}
    assert read_variables(variables) == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0"}


def test_ranks_have_consecutive_gpus_or_share_the_cpu():
    assert devices_of("cuda:1", 2) == ("cuda:1", "cuda:2")
    assert devices_of("cpu", 2) == ("cpu", "cpu")


def test_trace_of_a_rank_contains_exposed_communication(monkeypatch):
    kernels = [event("flash_fwd_kernel", 0, 10), event("ncclDevKernel_SendRecv", 5, 15, stream=13)]
    traces = {"one device": kernels, "two devices": [*kernels, event("gemm", 0, 50, device=1)], "no tracer": []}
    monkeypatch.setattr(rank_work, "trace_of", lambda name, device: traces[name])
    device = SimpleNamespace(torch_name="cuda:0")
    trace = rank_work._trace_by_profiler("one device", device)
    assert rank_work._trace_by_profiler("two devices", device) == trace
    assert rank_work._trace_by_profiler("no tracer", device) is None
    assert (trace.span_s, trace.busy_s) == (20e-6, 20e-6)
    assert [(work.kind, work.busy_s, work.alone_s) for work in trace.kinds] == [
        ("communication", 15e-6, 10e-6),
        ("attention", 10e-6, 5e-6),
    ]
