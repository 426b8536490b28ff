"""Bytes, FLOPs, floors and MBU compared with hand-computed numbers, and their columns in the tables."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarker.comparison.results import to_rows
from benchmarker.core.errors import SpecError
from benchmarker.hardware.device import CpuDevice
from benchmarker.measure import device_limits
from benchmarker.measure.device_limits import (
    CPU_ARRAY_BYTES,
    LAUNCH_REPEATS,
    LAUNCHES,
    best_time,
    cpu_array_bytes,
    host_cache_bytes,
    host_time,
    measure_limits,
)
from benchmarker.report.compare import compare, to_markdown
from benchmarker.report.verify import verify
from benchmarker.schema.model import EngineFacts, StepFacts
from benchmarker.schema.record import Limits, Memory
from benchmarker.workloads.generation.architecture import floor_s, mbu, prefill_mfu
from benchmarker.workloads.generation.read_architecture import describe
from benchmarker.workloads.generation.record import GenerationDemand, GenerationRecord
from benchmarker.workloads.generation.spec import Point
from tests.fakes import FakeDevice
from tests.jobs import read_job
from tests.loading import EMBEDDING, LINEARS, NORMS, ROPE_BYTES, load
from tests.records import cell, failed_cell, record, save

H100 = Limits(
    read_bytes_per_s=3.1e12,
    copy_bytes_per_s=3.03e12,
    array_bytes=2**31,
    matmul_flops_per_s=700e12,
    matmul_dtype="float16",
    matmul_size=8192,
    cache_bytes=50 * 2**20,
)


def demand(weight_bytes: int = 8_044_900_000, *, batch_size: int = 1) -> GenerationDemand:
    """Return the demand of Qwen3-4B at a short context."""
    return GenerationDemand(
        weight_bytes=weight_bytes,
        kv_bytes_per_token=147_456,
        context_tokens=50,
        kv_bytes=147_456 * 50 * batch_size,
        decode_flops=8_074_000_000 * batch_size,
        prefill_flops=190_000_000_000,
    )


def test_floor_is_the_larger_of_read_and_compute_time() -> None:
    assert floor_s(demand(), H100) == pytest.approx((8_044_900_000 + 7_372_800) / 3.1e12)
    assert floor_s(demand(batch_size=1024), H100) == pytest.approx(1024 * 8_074_000_000 / 700e12)


def test_mbu_and_mfu_are_fractions_of_the_device_limits() -> None:
    assert mbu(demand(), H100, tpot_s=2 * floor_s(demand(), H100)) == pytest.approx(0.5)
    assert prefill_mfu(demand(), H100, ttft_s=0.001) == pytest.approx(190e9 / 0.7e12)


def test_demand_of_qwen3_4b_equals_hand_computed_values() -> None:
    # method.md's table: 8.65 GFLOP per token and 7.75 TFLOP of prefill at 1024 tokens.
    config = Qwen3Config(
        vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        weights = describe(Qwen3ForCausalLM(config).to(torch.float16))
    demanded = weights.demand(prompt_tokens=1024, new_tokens=2, batch_size=1, depth=0)
    assert weights.head == 388_956_160
    assert demanded.kv_bytes_per_token == 147_456
    assert (demanded.context_tokens, demanded.kv_bytes) == (1024, 147_456 * 1024)
    assert demanded.decode_flops == 2 * (3_633_315_840 + 388_956_160) + 589_824 * 1024
    assert demanded.prefill_flops == pytest.approx(7.75e12, rel=1e-3)


def test_context_is_the_mean_over_decode_steps_plus_depth() -> None:
    with torch.device("meta"):
        weights = describe(Qwen3ForCausalLM(Qwen3Config(num_hidden_layers=1)))
    # A prompt of 26 and 5 new tokens: four steps at positions 26, 27, 28 and 29.
    assert weights.demand(prompt_tokens=26, new_tokens=5, batch_size=1, depth=0).context_tokens == 27.5
    assert weights.demand(prompt_tokens=26, new_tokens=5, batch_size=1, depth=4096).context_tokens == 4123.5


def test_tied_and_untied_embeddings_read_equal_bytes(model_folder: Path) -> None:
    tied = load(model_folder, "fp16").model
    demanded = describe(tied).demand(prompt_tokens=4, new_tokens=2, batch_size=3, depth=0)
    weight_bytes = 2 * (EMBEDDING + LINEARS + NORMS) + ROPE_BYTES
    assert demanded.weight_bytes == weight_bytes + 3 * 2 * 128
    tied.lm_head.weight = torch.nn.Parameter(tied.lm_head.weight.clone())
    assert describe(tied).demand(prompt_tokens=4, new_tokens=2, batch_size=3, depth=0) == demanded


def test_quantized_bytes_include_scales_and_zero_points(model_folder: Path) -> None:
    weights = describe(load(model_folder, "int8", dtype="bfloat16").model)
    channels = 2 * (128 + 2 * 64 + 128 + 2 * 256 + 128)
    # Each row has a scale of 32 bits and a zero point of 8.
    assert weights.read_bytes == LINEARS + 5 * channels + 2 * (EMBEDDING + NORMS) + ROPE_BYTES
    shape = {"prompt_tokens": 4, "new_tokens": 2, "batch_size": 1, "depth": 0}
    unquantized = describe(load(model_folder, "fp16", dtype="bfloat16").model)
    assert weights.demand(**shape).decode_flops == unquantized.demand(**shape).decode_flops


def test_measured_cpu_limits_have_no_launch_times() -> None:
    limits = measure_limits(CpuDevice(), "bfloat16")
    assert limits.bytes_per_s == max(limits.read_bytes_per_s, limits.copy_bytes_per_s) > 1e8
    assert limits.matmul_flops_per_s > 1e8
    assert (limits.launch_s, limits.graph_kernel_s) == (None, None)
    assert limits.matmul_dtype in ("bfloat16", "float32")
    assert limits.cache_bytes == host_cache_bytes()


def test_cpu_matmul_rate_is_that_of_the_fastest_dtype(monkeypatch) -> None:
    rates = {("float32", 256): 60e9, ("float32", 512): 80e9, ("float32", 768): 70e9, ("bfloat16", 256): 1e9}
    monkeypatch.setattr(device_limits, "_product", lambda device, dtype, size: (rates[dtype, size], dtype, size))
    assert device_limits._cpu_product(CpuDevice(), "bfloat16") == (80e9, "float32", 512)
    rates |= {("bfloat16", size): 300e9 + size for size in (256, 512, 768)}
    assert device_limits._cpu_product(CpuDevice(), "bfloat16") == (300e9 + 768, "bfloat16", 768)


def test_bandwidth_array_is_a_multiple_of_the_cache_within_memory() -> None:
    least, most = CPU_ARRAY_BYTES
    assert cpu_array_bytes(None, free=2**40) == least
    assert cpu_array_bytes(2**27, free=2**40) == 2**29
    assert cpu_array_bytes(2**30, free=2**40) == most
    assert cpu_array_bytes(None, free=2**20) == 2**18


def test_best_time_excludes_the_first_call() -> None:
    calls: list[int] = []
    assert best_time(CpuDevice(), lambda: calls.append(1)) < 1
    assert len(calls) == 4


def test_launch_time_excludes_the_execution_of_the_kernel() -> None:
    device = FakeDevice()
    launched: list[int] = []
    assert 0 < host_time(device, lambda: launched.append(len(device.calls))) < 1e-3
    # The device is synchronized before each series of launches and after the last.
    assert sorted(set(launched)) == list(range(1, LAUNCH_REPEATS + 1))
    assert len(launched) == LAUNCHES * LAUNCH_REPEATS
    assert len(device.calls) == LAUNCH_REPEATS + 1


def limited(
    quant: str,
    *tpots_ms: float,
    weight_bytes: int = 8_044_900_000,
    runtime: str = "eager",
    kernels: float | None = None,
    first_tokens: tuple[int, ...] = (1, 2, 3),
) -> GenerationRecord:
    """Return a run on the H100 with one TPOT for each of the batch sizes 1, 8, 32 and 128, in this order."""
    cells = [
        cell(
            [50 * tpot_ms / 1e3] * 3,
            batch_size=batch,
            demand=demand(weight_bytes, batch_size=batch),
            first_tokens=first_tokens,
        )
        for batch, tpot_ms in zip((1, 8, 32, 128), tpots_ms, strict=False)
    ]
    facts = EngineFacts(name=runtime, tokens_read="end", kv_cache="static", kernels_per_token=kernels)
    name = quant if runtime == "eager" else f"{quant} {runtime.removeprefix('cuda_')}"
    run_record = record(quant, *cells, name=name, runtime=runtime, limits=H100)
    return run_record.model_copy(update={"engine": facts})


AGAINST_THE_LIMITS = """\
| variant    | engine     | TPOT ms | decode tok/s | floor ms |  MBU |  best | reached | kernels/token | as eager |
| :--------- | :--------- | ------: | -----------: | -------: | ---: | ----: | ------: | ------------: | -------: |
| fp16       | eager      |   26.00 |        38.46 |    2.598 | 10 % |     – |       – |          2083 |        – |
| fp16 graph | cuda_graph |   5.200 |        192.3 |    2.598 | 50 % | 1.00x |       – |             – |   3 of 3 |
| int8       | eager      |   40.00 |        25.00 |    1.426 |  4 % | 1.82x |    36 % |             – |        – |
| int8 graph | cuda_graph |   3.900 |        256.4 |    1.426 | 37 % | 1.82x |    73 % |           510 |   2 of 3 |"""


def test_rows_compare_the_measured_time_with_the_floor(tmp_path: Path) -> None:
    save(
        tmp_path,
        limited("fp16", 26.0, kernels=2083),
        limited("int8", 40.0, weight_bytes=4_414_000_000),
        limited("fp16", 5.2, runtime="cuda_graph"),
        limited("int8", 3.9, weight_bytes=4_414_000_000, runtime="cuda_graph", kernels=510, first_tokens=(1, 2, 4)),
    )
    rows = {row["variant"]: row for row in to_rows(compare([tmp_path]))}
    best = (8_044_900_000 + 7_372_800) / (4_414_000_000 + 7_372_800)
    assert rows["fp16"]["mbu"] == pytest.approx(0.0999, abs=1e-4)
    assert rows["fp16"]["best_ratio"] is None
    assert rows["int8 graph"]["best_ratio"] == pytest.approx(best)
    # 5.2 / 3.9 in the same engine, of the 1.82 that the bytes allow; eager is not the reference.
    assert rows["int8 graph"]["best_ratio_reached"] == pytest.approx(5.2 / 3.9 / best)
    assert rows["fp16 graph"]["best_ratio_reached"] is None
    assert rows["int8 graph"]["kernels_per_token"] == 510
    assert rows["int8 graph"]["same_tokens"] == 2
    output = to_markdown(compare([tmp_path]))
    table = output.split("**Against the limits of the device**\n\n")[1].split("\n\n")[0]
    assert table == AGAINST_THE_LIMITS


def test_kernel_count_is_per_cell(tmp_path: Path) -> None:
    run = limited("fp16", 5.2, 6.1, 7.3, runtime="cuda_graph", kernels=670)
    cells = (
        run.cells[0].model_copy(update={"step": StepFacts(graph_kernels=381)}),
        run.cells[1],
        run.cells[2].model_copy(update={"step": StepFacts(graph_kernels=671)}),
    )
    save(tmp_path, run.model_copy(update={"cells": cells}))
    # The profiler counted in the last cell. The second is of an older record without a count.
    assert [row["kernels_per_token"] for row in to_rows(compare([tmp_path]))] == [381, None, 670]
    assert not verify([tmp_path]).mismatches


@pytest.mark.parametrize("in_graph", [None, 670])
def test_failed_cell_does_not_change_the_previous_kernel_count(tmp_path: Path, in_graph: int | None) -> None:
    run = limited("fp16", 5.2, runtime="cuda_graph")
    assert run.engine
    cells = (
        run.cells[0].model_copy(update={"step": StepFacts(graph_kernels=381)}),
        failed_cell("oom_gpu", "no room", prompt_tokens=26, new_tokens=50, batch_size=128),
    )
    facts = run.engine.model_copy(update={"graph_kernels": in_graph})
    save(tmp_path, run.model_copy(update={"cells": cells, "engine": facts}))
    assert [row["kernels_per_token"] for row in to_rows(compare([tmp_path]))] == [381, None]
    assert not verify([tmp_path]).mismatches


def test_limits_table_has_every_batch_size_and_depth(tmp_path: Path) -> None:
    run = limited("fp16", 26.0, 27.0)
    deep = cell([1.5] * 3, depth=4096, demand=demand(8_044_900_000))
    shorter = cell([0.3] * 3, new_tokens=10, demand=demand(8_044_900_000))
    save(tmp_path, run.model_copy(update={"cells": (shorter, *run.cells, deep)}))
    table = to_markdown(compare([tmp_path])).split("**Against the limits of the device**\n\n")[1].split("\n\n")[0]
    shapes = [[part.strip() for part in line.split("|")[1:3]] for line in table.splitlines()[2:]]
    assert shapes == [["1", "0"], ["1", "4096"], ["8", "0"]]


def test_mbu_above_100_percent_is_reported_as_an_error(tmp_path: Path) -> None:
    save(tmp_path, limited("fp16", 2.0))
    assert "MBU 130 % is impossible: an error of ours" in to_markdown(compare([tmp_path]))
    assert [mismatch.field for mismatch in verify([tmp_path]).mismatches] == ["mbu"]


def test_cached_weights_have_no_memory_limit(tmp_path: Path) -> None:
    save(tmp_path, limited("fp16", 0.001, weight_bytes=20_000_000))
    output = to_markdown(compare([tmp_path]))
    assert "stays in the last cache: its memory is no limit for it" in output
    assert "error of ours" not in output
    assert not verify([tmp_path]).mismatches


def test_depth_beyond_the_context_raises_with_the_largest_depth() -> None:
    from benchmarker.workloads.generation.prompts import check_fits

    with pytest.raises(SpecError, match=r"depth 500 \+ prompt of 26 .* use a depth of at most 474"):
        check_fits(Point(26, None, 12, 1, depth=500), 26, {"max_position_embeddings": 512}, model="qwen3")


def test_cells_of_different_depths_are_separate_rows(tmp_path: Path) -> None:
    shallow, deep = (cell([1.0 + depth / 1e4] * 3, depth=depth) for depth in (0, 4096))
    save(tmp_path, record("fp16", shallow, deep), record("int8", shallow, deep))
    rows = to_rows(compare([tmp_path]))
    assert [(row["variant"], row["depth"], row["latency_s"]) for row in rows] == [
        ("fp16", 0, 1.0), ("int8", 0, 1.0), ("fp16", 4096, 1.4096), ("int8", 4096, 1.4096),
    ]  # fmt: skip
    output = to_markdown(compare([tmp_path]))
    assert "**At prompt 26, 50 new tokens, batch 1, depth 4096**" in output
    assert "| depth | variant |" in output
    assert verify([tmp_path]).is_right


def test_cold_and_warm_setup_are_two_columns(tmp_path: Path) -> None:
    def compiled(setup_s: float, cache: str, number: int) -> GenerationRecord:
        facts = EngineFacts(name="compile", tokens_read="end", kv_cache="static", setup_s=setup_s, setup_cache=cache)
        run_record = record("int8", name="int8 compile", runtime="compile", run_id=f"run-{number}")
        return run_record.model_copy(update={"engine": facts})

    save(tmp_path, record("fp16"), compiled(31.5, "cold", 1), compiled(6.25, "warm", 2))
    output = to_markdown(compare([tmp_path]))
    assert "| cold setup s | warm setup s |" in output
    assert "|         31.5 |         6.25 |" in output
    [_, row] = to_rows(compare([tmp_path]))
    assert (row["setup_cold_s"], row["setup_warm_s"]) == (31.5, 6.25)


def test_graph_pool_counts_as_peak_memory(tmp_path: Path) -> None:
    memory = Memory(peak_allocated_bytes=8_150_000_000, peak_reserved_bytes=8_400_000_000, graph_pool_bytes=50_000_000)
    save(tmp_path, record("fp16", cell(memory=memory)))
    [row] = to_rows(compare([tmp_path]))
    assert row["peak_memory_bytes"] == 8_200_000_000
    assert verify([tmp_path]).is_right


@pytest.mark.parametrize(
    "arguments",
    [
        "--quant fp16",
        "attention --variant flash --seq-len 1024 --head-dim 128",
        "mixers --variant gdn-fla-chunk --seq-len 1024 --head-dim 128",
        "finetune --variant qlora --model qwen3-small --seq-len 512",
        "context_parallel --variant zigzag --ranks 2 --seq-len 8192",
    ],
)
def test_matmul_rate_is_measured_in_the_dtype_of_the_job(arguments: str) -> None:
    for dtype in ("bfloat16", "float32"):
        job = read_job([*arguments.split(), "--dtype", dtype])
        assert job.matmul_dtype == dtype
