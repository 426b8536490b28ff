"""Waterfall, verdict and advice of synthetic records with a known bottleneck."""

from __future__ import annotations

import pytest

from benchmarker.core.tables import markdown, unmarked
from benchmarker.explain.explain import Explanation, explain
from benchmarker.explain.phases import Ceiling, rate_in_graph
from benchmarker.explain.waterfall import NotExplained
from benchmarker.report.explanations import ceiling_words
from benchmarker.schema.model import EngineFacts, ExternalFacts, KernelUse
from benchmarker.schema.record import Kernel
from tests.explained import COPY, FP16, INT8, INT8_LOAD, LIMITS, demand, explained, kernel, parts, run, split_profile
from tests.records import cell, compare_records, cpu_environment, load, missing, profile, record, sample


def test_waterfall_sums_to_the_measured_time_per_token() -> None:
    explanation = explained(run("fp16", *FP16, tpot_ms=28.0))
    assert parts(explanation) == {
        "reading the weights": 8.0 / 3.0,
        "matrix products beyond that": 3.6 - 8.0 / 3.0,
        "attention": 0.3,
        "norms, rotary, elementwise": 2.4,
        "copies and casts": 0.7,
        "gaps (launches, host)": 21.0,
    }
    assert sum(part.seconds for part in explanation.waterfall) == pytest.approx(0.028)


def test_matrix_products_are_not_split_without_measured_bandwidth() -> None:
    explanation = explained(run("fp16", *FP16, tpot_ms=28.0, weight_gb=None))
    assert parts(explanation)["matrix products"] == 3.6
    assert "reading the weights" not in parts(explanation)
    assert any("the least time of the products is not known" in note for note in explanation.notes)


def test_read_time_of_cached_weights_is_capped_at_product_time() -> None:
    explanation = explained(run("fp16", *FP16, tpot_ms=8.0, weight_gb=30.0))
    assert parts(explanation)["reading the weights"] == 3.6
    assert "matrix products beyond that" not in parts(explanation)


def with_time_alone(kernel_record: Kernel, *, share: float) -> Kernel:
    """Return the kernel with a share of its decode time in which no earlier kernel runs."""
    decode = kernel_record.sections["decode"]
    alone = decode.model_copy(update={"alone_s": share * decode.total_s})
    return kernel_record.model_copy(update={"sections": kernel_record.sections | {"decode": alone}})


def test_overlapping_kernel_counts_only_its_exclusive_time() -> None:
    product, norm = kernel("nvjet_a", ms=5.0), kernel("triton_red_fused_mean_rsqrt", ms=2.0)
    waiting, alone = with_time_alone(norm, share=1 / 4), with_time_alone(product, share=1)
    explanation = explained(
        run("fp16", tpot_ms=6.0, weight_gb=None, profiled=split_profile(alone, waiting, busy_ms=5.5))
    )
    assert parts(explanation) == {
        "matrix products": 5.0, "norms, rotary, elementwise": 0.5, "gaps (launches, host)": 0.5,
    }  # fmt: skip


def test_overlap_is_subtracted_from_kernels_between_products() -> None:
    overlapping = split_profile(*FP16, busy_ms=6.0)
    explanation = explained(run("fp16", tpot_ms=8.0, profiled=overlapping))
    # 1.0 of the 3.4 ms between products overlaps with the products.
    assert parts(explanation) == {
        "reading the weights": 8.0 / 3.0,
        "matrix products beyond that": 3.6 - 8.0 / 3.0,
        "attention": 0.3 * 2.4 / 3.4,
        "norms, rotary, elementwise": 2.4 * 2.4 / 3.4,
        "copies and casts": 0.7 * 2.4 / 3.4,
        "gaps (launches, host)": 2.0,
    }


def test_remaining_overlap_is_subtracted_from_products_above_the_floor() -> None:
    overlapping = split_profile(*FP16, busy_ms=3.0)
    explanation = explained(run("fp16", tpot_ms=4.0, profiled=overlapping))
    assert parts(explanation) == {
        "reading the weights": 8.0 / 3.0, "matrix products beyond that": 3.0 - 8.0 / 3.0, "gaps (launches, host)": 1.0,
    }  # fmt: skip


def test_busy_time_without_kernels_is_shown_as_unexplained() -> None:
    explanation = explained(run("fp16", tpot_ms=9.0, profiled=split_profile(*FP16, busy_ms=8.0)))
    assert parts(explanation)["unexplained"] == 1.0
    assert sum(part.seconds for part in explanation.waterfall) == pytest.approx(0.009)


def test_shares_are_scaled_if_the_profiler_slowed_the_kernels() -> None:
    explanation = explained(run("fp16", *FP16, tpot_ms=5.0))
    assert sum(share.of_total for share in explanation.shares) == pytest.approx(1)
    assert parts(explanation)["copies and casts"] == 0.7 * 5 / 7
    assert (
        "the profiled kernels alone took 7.00 ms, longer than the 5.00 ms of a whole token without the profiler, which "
        "slowed them: their shares hold, how long the device waits is not known"
    ) in explanation.notes


def test_only_the_profiled_depth_has_a_verdict() -> None:
    times = [2.8] * 5
    shapes = [cell(times, prompt_tokens=26, new_tokens=100, depth=depth) for depth in (0, 4096)]
    for depth in (0, 4096):
        profiled = split_profile(*FP16, depth=depth)
        explanation = explained(record("fp16", *shapes, profile=profiled, limits=LIMITS))
        assert explanation.cell.depth == depth
        rows = compare_records([record("fp16", *shapes, profile=profiled, limits=LIMITS)]).rows
        assert [row.bound_by for row in rows if row.cell.depth == depth] == ["host"]
        assert [row.bound_by for row in rows if row.cell.depth != depth] == [None]


def test_idle_device_is_host_bound_and_has_a_graph_ceiling() -> None:
    explanation = explained(run("fp16", *FP16, tpot_ms=28.0))
    assert explanation.verdict.bound == "host"
    assert unmarked(explanation.verdict.reason) == (
        "gaps 75 % (4.00x without), between products 12 % (1.14x without), reading the weights (the floor) 9.5 % "
        "(1.07x with less), products above the floor 3.3 % (1.03x without) of each 28.0 ms token."
    )
    assert unmarked(explanation.verdict.advice) == "`--engine compile` removes the host's work from each token."
    # 1,423 kernels in 7.0 ms, with at most 1.5 us between two of them.
    assert explanation.ceiling == Ceiling(pytest.approx(1 / 0.007), pytest.approx(1 / (0.007 + 1423 * 1.5e-6)))


def test_copies_longer_than_gaps_rank_before_the_host() -> None:
    explanation = explained(run("int8", *INT8, tpot_ms=24.0, load=INT8_LOAD))
    assert explanation.busy_share < 0.70
    assert explanation.verdict.bounds == ("dequantizing", "host")


def test_graph_ceiling_allows_one_empty_kernel_per_gap() -> None:
    phase = explained(
        run("fp16", kernel("nvjet_a", ms=4.0, calls=1000), kernel("Memset (Device)", ms=1.0, calls=1000), tpot_ms=28.0)
    ).phase
    # 2,000 kernels, with 0 to 1.5 us between two of them.
    assert rate_in_graph(phase, LIMITS, units=1) == Ceiling(pytest.approx(1 / 0.005), pytest.approx(1 / 0.008))
    assert rate_in_graph(phase, LIMITS, units=4) == Ceiling(pytest.approx(4 / 0.005), pytest.approx(4 / 0.008))
    assert rate_in_graph(phase, None, units=1) == Ceiling(pytest.approx(1 / 0.005), None)


def test_graph_ceiling_without_measured_launch_is_an_upper_bound() -> None:
    ceiling = explained(run("fp16", *FP16, tpot_ms=28.0, weight_gb=None)).ceiling
    assert ceiling is not None
    assert ceiling_words(ceiling, "token") == "at most 143 tok/s, the kernels' time alone"


def test_product_near_peak_bandwidth_is_bandwidth_bound() -> None:
    explanation = explained(run("fp16", kernel("triton_red_fused_mm_t_view_1", ms=3.2), tpot_ms=3.6, runtime="compile"))
    assert explanation.verdict.bound == "bandwidth"
    assert explanation.mbu == pytest.approx(8.011 / 3.6 / 3.0)
    assert unmarked(explanation.verdict.reason).startswith(
        "reading the weights (the floor) 74 % (1.95x with less), products above the floor 15 % (1.17x without), gaps "
    )


def test_product_near_peak_matmul_rate_is_compute_bound() -> None:
    busy = cell([0.5] * 5, batch_size=64, new_tokens=100, demand=demand(decode_flops=2_400_000_000_000))
    run_record = record("fp16", busy, profile=split_profile(kernel("nvjet_a", ms=4.5), batch_size=64), limits=LIMITS)
    assert explained(run_record).verdict.bound == "compute"


def test_copy_before_each_product_counts_as_dequantizing() -> None:
    explanation = explained(run("int8", *INT8, tpot_ms=18.0, load=INT8_LOAD))
    assert explanation.verdict.bound == "dequantizing"
    assert unmarked(explanation.verdict.reason).endswith(
        " of each 18.0 ms token; each weight is converted before it is multiplied, by the copy kernel "
        "`unrolled_elementwise_kernel<direct_copy_kernel_cuda(Iter&)`, launched as often as there are matrix products."
    )
    assert unmarked(explanation.verdict.advice) == (
        "A kernel that multiplies the packed weights saves it: `--engine compile` fuses the conversion into the "
        "product."
    )


def test_compiled_casts_of_quantized_weights_count_as_dequantization() -> None:
    casts = kernel("triton_poi_fused_1", ms=4.3, calls=96), kernel("triton_poi_fused_2", ms=1.0, calls=32)
    products = kernel("nvjet_sm90_hsh_128x8_64x12_4x1_v_bz_TNT", ms=5.0)
    compiled = explained(run("int8", *casts, products, tpot_ms=10.6, load=INT8_LOAD))
    assert compiled.verdict.bound == "dequantizing"
    assert parts(compiled)["dequantizing"] == 5.3
    assert "each weight is converted before it is multiplied, by `triton_poi_fused_1`." in unmarked(
        compiled.verdict.reason
    )
    unquantized = explained(run("fp16", *casts, products, tpot_ms=10.6))
    assert "dequantizing" not in parts(unquantized)


def test_quantized_variant_with_16_bit_products_has_a_warning() -> None:
    explanation = explained(run("int8", *INT8, tpot_ms=18.0, load=INT8_LOAD))
    assert explanation.proof.warnings == (
        "not a low-bit product: the quantized weights are converted to 16 or 32 bits, and multiplied like any others",
    )
    packed = explained(
        run("bnb4", kernel("void gemm_4bit_simt<__half, 1>(__half const*)", ms=3.0), tpot_ms=18.0, load=INT8_LOAD)
    )
    assert packed.proof.warnings == ()


def test_torch_fallback_has_a_warning() -> None:
    facts = load(
        quantized_fraction=0.9, linear_classes={"TorchLinear": 252, "Linear": 1}, weight_classes={"Tensor int32": 252}
    )
    explanation = explained(run("gptq", kernel("triton_poi_fused_index_mul_sub_0", ms=10.0), tpot_ms=12.0, load=facts))
    assert explanation.verdict.bound == "dequantizing"
    assert explanation.proof.warnings[0] == (
        "torch fallback: TorchLinear is gptqmodel's fallback, which dequantizes with torch operators and multiplies "
        "in 16 bits"
    )
    assert explanation.proof.warnings[1].startswith("not a low-bit product: ")


DENSE = KernelUse(purpose="linear", origin="benchmarker", name="gemv_dense", covered=1, total=253)
GPTQ = KernelUse(purpose="linear", origin="benchmarker", name="gemv_gptq")
REST = KernelUse(purpose="linear", origin="library", name="TorchLinear", covered=249, total=252)


@pytest.mark.parametrize(("uses", "has_warnings"), [((DENSE, GPTQ), False), ((DENSE,), True), ((GPTQ, REST), True)])
def test_only_our_gptq_kernel_replaces_a_torch_fallback(uses: tuple[KernelUse, ...], has_warnings: bool) -> None:
    facts = load(
        quantized_fraction=0.9, linear_classes={"TorchLinear": 252, "Linear": 1}, weight_classes={"Tensor int32": 252}
    )
    run_record = run("gptq", kernel("words_kernel", ms=2.0), tpot_ms=2.5, load=facts, runtime="compile")
    engine = EngineFacts(name="compile", tokens_read="end", kv_cache="static", kernels_used=uses)
    explanation = explained(run_record.model_copy(update={"engine": engine}))
    assert bool(explanation.proof.warnings) == has_warnings


def test_merged_low_bit_products_have_no_warning() -> None:
    # Three of seven: query, key, value, gate and up read one vector in Cohere's layers.
    facts = load(quantized_fraction=0.9, weight_classes={"Int8Tensor int8": 252, "Parameter float16": 1})
    rows = kernel("int8_rows_kernel", ms=2.0, calls=108)
    assert explained(run("int8", rows, tpot_ms=2.5, load=facts)).proof.warnings == ()
    converted = (kernel(COPY, ms=2.0), kernel("nvjet_a", ms=2.0))
    assert explained(run("int8", *converted, tpot_ms=5.0, load=facts)).proof.warnings


def test_copies_unrelated_to_weights_are_copy_bound() -> None:
    explanation = explained(run("fp16", kernel("nvjet_a", ms=5.0), kernel(COPY, ms=3.0, calls=900), tpot_ms=9.0))
    assert explanation.verdict.bound == "copies"
    assert unmarked(explanation.verdict.reason).startswith("between products 33 % (1.50x without)")


def test_slow_products_get_the_advice_to_change_kernels() -> None:
    explanation = explained(
        run("gptq", kernel("void marlin::Marlin<__half, 4>(int4 const*)", ms=5.0), tpot_ms=6.0, weight_gb=2.7)
    )
    assert explanation.verdict.bound == "slow products"
    assert unmarked(explanation.verdict.reason).endswith("; the products run at 18 % of the measured bandwidth.")
    assert unmarked(explanation.verdict.advice) == (
        "`--engine compile` has other kernels for the products; fewer bits help less than their size says."
    )


def test_hostile_kernel_name_stays_inside_its_code_span() -> None:
    explanation = explained(run("gptq", kernel("evil`dequant` **x**\n# y\x1b[31m", ms=5.0), tpot_ms=6.0))
    assert "`` evil`dequant` **x** # y [31m ``" in markdown(explanation.verdict.reason)


def test_attention_and_cache_updates_are_one_bound() -> None:
    explanation = explained(
        run(
            "fp16",
            kernel("nvjet_a", ms=4.0),
            kernel("void pytorch_flash::flash_fwd_splitkv_kernel<T>", ms=3.0, calls=36),
            kernel("void at::native::index_elementwise_kernel<128, 4, index_copy_kernel_impl>", ms=1.0, calls=72),
            tpot_ms=9.0,
        )
    )
    assert explanation.verdict.bound == "attention/KV"


def test_uncategorized_kernel_is_named_in_a_note() -> None:
    explanation = explained(run("fp16", kernel("nvjet_a", ms=4.0), kernel("mystery", ms=1.0), tpot_ms=6.0))
    assert parts(explanation)["other"] == 1.0
    notes = map(unmarked, explanation.notes)
    assert any("20 % of the kernel time has no category" in note and "`mystery`" in note for note in notes)


def test_views_count_as_host_time_on_cpu() -> None:
    on_cpu = split_profile(kernel("aten::mm", ms=6.0), kernel("aten::view", ms=2.0), by="cpu")
    explanation = explained(run("fp16", tpot_ms=20.0, profiled=on_cpu, environment=cpu_environment()))
    assert parts(explanation)["gaps (launches, host)"] == 14.0
    assert explanation.verdict.bound == "host"
    assert unmarked(explanation.verdict.advice).endswith(
        "`--engine compile` removes Python and dispatch overhead from each token."
    )


def test_close_bounds_on_cpu_are_unsure() -> None:
    on_cpu = split_profile(kernel("aten::mm", ms=6.0), kernel("aten::copy_", ms=4.0, calls=7), by="cpu")
    explanation = explained(run("fp16", tpot_ms=10.5, profiled=on_cpu, environment=cpu_environment()))
    assert explanation.verdict.bounds == ("copies", "host")
    assert explanation.verdict.is_unsure
    assert explanation.verdict.bound == "copies or host"


def test_profile_without_sections_is_compared_with_the_whole_generation() -> None:
    unsplit_profile = profile(
        kernels=(Kernel(name="nvjet_a", calls=320, total_s=0.32),), kernel_s=0.32, busy_s=0.32, latency_s=1.6
    )
    times = tuple(sample(2.6, new_tokens=100, ttft_s=0.125) for _ in range(3))
    explanation = explained(
        record("fp16", cell(prompt_tokens=26, new_tokens=100, samples=times), profile=unsplit_profile)
    )
    # The first token takes 125 ms, each of the 31 later tokens 25 ms.
    assert explanation.total_s == pytest.approx((0.125 + 31 * 0.025) / 32)
    assert explanation.busy_share == pytest.approx(0.32 / 0.9)
    assert explanation.slow_down == pytest.approx(1.6 / 0.9)


def test_time_is_the_geometric_mean_over_all_processes() -> None:
    rounds = [run("fp16", *FP16, tpot_ms=tpot_ms, round_number=number) for number, tpot_ms in enumerate((27, 28, 29))]
    without = [round_record.model_copy(update={"profile": None}) for round_record in rounds[1:]]
    assert explained(rounds[0], *without).total_s == pytest.approx((27 * 28 * 29) ** (1 / 3) / 1e3)


def test_variant_without_profile_has_a_reason() -> None:
    explanation = explain("fp16", [record("fp16")])
    assert isinstance(explanation, NotExplained)
    assert explanation.why == "no profile (left out, or the run ended before it)"
    left_out = explain("fp16", [record("fp16").model_copy(update={"procedure": {"profile": False}})])
    assert left_out.why == "no profile (left out by --no-profile)"
    failed = explain(
        "fp16", [record("fp16", no_profile=missing("profile: the profiler recorded no kernel"), load=None)]
    )
    assert isinstance(failed, NotExplained)
    assert failed.why == "no profile (profile: the profiler recorded no kernel)"


def test_variant_without_profile_has_load_warnings() -> None:
    loaded = load(linear_classes={"TorchLinear": 252}, quantized_fraction=0.9)
    explanation = explain("gptq", [record("gptq", load=loaded)])
    assert isinstance(explanation, NotExplained)
    assert explanation.proof is not None
    assert "torch fallback: TorchLinear" in explanation.proof.warnings[0]
    # The compiled step replaces the fallback by other kernels.
    for name in ("compile", "native"):
        compiled = explain("gptq", [record("gptq", load=loaded, runtime=name)])
        assert isinstance(compiled, NotExplained)
        assert compiled.proof is not None
        assert compiled.proof.warnings == ()


def test_gptq_on_native_gets_the_advice_to_use_float16() -> None:
    slow = kernel("gemv_gptq_kernel", ms=9.0, calls=252)
    advice = {}
    for dtype in ("float16", "bfloat16"):
        gptq = run("gptq", slow, tpot_ms=9.5, runtime="native", model={"dtype": dtype})
        advice[dtype] = unmarked(explained(gptq).verdict.advice)
    assert advice["bfloat16"] == "GPTQ's scales are float16, for which `--dtype float16` has faster kernels."
    assert advice["float16"].startswith("No option makes these kernels faster")


def test_external_engine_gets_no_advice_of_another_engine() -> None:
    facts = ExternalFacts(environment="vllm", version="0.24.0", python="3.12")
    engine = EngineFacts(name="vllm", tokens_read="each", kv_cache="paged", external=facts)

    def of(*kernels: Kernel, quant: str = "fp16", gpus: int = 1) -> Explanation:
        timed = run(quant, *kernels, tpot_ms=7.5, weight_gb=None, runtime="vllm", engine=engine, load=None)
        variant = timed.variant.model_copy(update={"gpus": gpus})
        return explained(timed.model_copy(update={"limits": LIMITS, "variant": variant}))

    products = of(kernel("nvjet_sm90_hsh_128x8_64x12_4x1_v_bz_TNT", ms=7.0))
    assert unmarked(products.verdict.advice) == (
        "The engine does not report the bytes that the products read; fewer bits a weight may help."
    )
    assert "the bytes of the products were not counted: the least time of the products is not known" in products.notes
    divided = of(*FP16[1:2], gpus=2)
    assert "The host still works between tokens" in divided.verdict.advice
    unpacking = of(kernel("dequantize_kernel_gptq", ms=7.0), quant="gptq")
    assert unmarked(unpacking.verdict.advice) == "A kernel that multiplies the packed weights saves it."


def test_kernel_that_cannot_be_captured_has_no_graph_ceiling() -> None:
    facts = load(linear_classes={"ExllamaV2Linear": 252})
    explanation = explained(run("gptq", *FP16, tpot_ms=28.0, load=facts))
    assert explanation.verdict.bound == "host"
    assert "A CUDA graph cannot capture this kernel" in unmarked(explanation.verdict.advice)
    assert explanation.ceiling is None


def test_profile_of_a_faster_process_has_a_note() -> None:
    explanation = explained(run("fp16", *FP16, tpot_ms=80.0))
    assert any("the process that was profiled was faster than the others" in note for note in explanation.notes)


def test_prefill_slower_in_the_profile_has_a_note() -> None:
    profiled = split_profile(*FP16, kernel("aten_prompt_gemm", ms=0.1))
    prompt = profiled.sections["prefill"]
    longer = prompt.model_copy(update={"busy_s": prompt.busy_s + 0.03})
    slow = profiled.model_copy(update={"sections": profiled.sections | {"prefill": longer}})
    explanation = explained(run("fp16", *FP16, tpot_ms=28.0, profiled=slow))
    assert explanation.prefill == (
        "prefill of 26 tokens: 28.00 ms to the first token, bound by small kernels: between products 90 % (10.03x "
        "without); the profiled one took longer than that in its kernels alone"
    )


def test_prefill_has_a_separate_verdict() -> None:
    explanation = explained(run("fp16", *FP16, tpot_ms=28.0))
    assert explanation.prefill == (
        "prefill of 26 tokens: 28.00 ms to the first token, bound by host: gaps 75 % (4.00x without), between products "
        "12 % (1.14x without)"
    )


def test_compiled_variant_gets_no_advice_to_compile() -> None:
    explanation = explained(run("int8", *INT8, tpot_ms=18.0, load=INT8_LOAD, runtime="compile"))
    assert "--engine compile" not in unmarked(explanation.verdict.advice)
