"""From a profile and a timing to a reason, on records whose answer is known."""

from __future__ import annotations

import pytest

from benchmarker.core.tables import markdown, unmarked
from benchmarker.explain.explain import explain
from benchmarker.explain.phases import Ceiling, rate_in_graph
from benchmarker.explain.waterfall import NotExplained
from benchmarker.report.explanations import ceiling_words
from benchmarker.schema.model import EngineFacts, KernelUse
from benchmarker.schema.record import Kernel
from tests.explained import COPY, FP16, INT8, INT8_LOAD, LIMITS, demand, explained, kernel, parts, run, split_profile
from tests.records import cell, compare_records, cpu_environment, load, missing, profile, record, sample


def test_the_parts_of_a_token_add_up_to_its_measured_time() -> None:
    found = explained(run("fp16", *FP16, tpot_ms=28.0))
    assert parts(found) == {
        "reading the weights": 8.0 / 3.0,
        "matrix products beyond that": 3.6 - 8.0 / 3.0,
        "attention": 0.3,
        "norms, rotary, elementwise": 2.4,
        "copies and casts": 0.7,
        "gaps (launches, host)": 21.0,
    }
    assert sum(part.seconds for part in found.waterfall) == pytest.approx(0.028)


def test_without_a_measured_bandwidth_the_matrix_products_are_one_part() -> None:
    found = explained(run("fp16", *FP16, tpot_ms=28.0, weight_gb=None))
    assert parts(found)["matrix products"] == 3.6
    assert "reading the weights" not in parts(found)
    assert any("the least time of the products is not known" in note for note in found.notes)


def test_weights_that_stay_in_the_cache_are_read_faster_than_the_bandwidth() -> None:
    found = explained(run("fp16", *FP16, tpot_ms=8.0, weight_gb=30.0))
    assert parts(found)["reading the weights"] == 3.6
    assert "matrix products beyond that" not in parts(found)


def with_time_alone(one: Kernel, *, share: float) -> Kernel:
    """The kernel with that share of its decoding time to itself."""
    decode = one.sections["decode"]
    alone = decode.model_copy(update={"alone_s": share * decode.total_s})
    return one.model_copy(update={"sections": one.sections | {"decode": alone}})


def test_of_kernels_that_overlap_each_has_the_time_in_which_no_earlier_one_ran() -> None:
    product, norm = kernel("nvjet_a", ms=5.0), kernel("triton_red_fused_mean_rsqrt", ms=2.0)
    waiting, alone = with_time_alone(norm, share=1 / 4), with_time_alone(product, share=1)
    found = explained(run("fp16", tpot_ms=6.0, weight_gb=None, profiled=split_profile(alone, waiting, busy_ms=5.5)))
    assert parts(found) == {
        "matrix products": 5.0, "norms, rotary, elementwise": 0.5, "gaps (launches, host)": 0.5,
    }  # fmt: skip


def test_of_kernels_at_once_those_between_the_products_have_waited() -> None:
    overlapping = split_profile(*FP16, busy_ms=6.0)
    found = explained(run("fp16", tpot_ms=8.0, profiled=overlapping))
    # 3.4 ms between products share 1.0 ms with them.
    assert parts(found) == {
        "reading the weights": 8.0 / 3.0,
        "matrix products beyond that": 3.6 - 8.0 / 3.0,
        "attention": 0.3 * 2.4 / 3.4,
        "norms, rotary, elementwise": 2.4 * 2.4 / 3.4,
        "copies and casts": 0.7 * 2.4 / 3.4,
        "gaps (launches, host)": 2.0,
    }


def test_products_that_overlap_more_than_all_else_lose_what_is_above_their_floor() -> None:
    overlapping = split_profile(*FP16, busy_ms=3.0)
    found = explained(run("fp16", tpot_ms=4.0, profiled=overlapping))
    assert parts(found) == {
        "reading the weights": 8.0 / 3.0, "matrix products beyond that": 3.0 - 8.0 / 3.0, "gaps (launches, host)": 1.0,
    }  # fmt: skip


def test_what_the_parts_do_not_add_up_to_is_shown_as_unexplained() -> None:
    found = explained(run("fp16", tpot_ms=9.0, profiled=split_profile(*FP16, busy_ms=8.0)))
    assert parts(found)["unexplained"] == 1.0
    assert sum(part.seconds for part in found.waterfall) == pytest.approx(0.009)


def test_kernels_that_took_longer_than_the_whole_token_without_the_profiler_keep_their_shares() -> None:
    found = explained(run("fp16", *FP16, tpot_ms=5.0))
    assert sum(share.of_total for share in found.shares) == pytest.approx(1)
    assert parts(found)["copies and casts"] == 0.7 * 5 / 7
    assert (
        "the profiled kernels alone took 7.00 ms, longer than the 5.00 ms of a whole token without the profiler, which "
        "slowed them: their shares hold, how long the device waits is not known"
    ) in found.notes


def test_a_verdict_is_of_the_depth_that_was_profiled_and_of_no_other() -> None:
    times = [2.8] * 5
    shapes = [cell(times, prompt_tokens=26, new_tokens=100, depth=depth) for depth in (0, 4096)]
    for depth in (0, 4096):
        profiled = split_profile(*FP16, depth=depth)
        found = explained(record("fp16", *shapes, profile=profiled, limits=LIMITS))
        assert found.cell.depth == depth
        rows = compare_records([record("fp16", *shapes, profile=profiled, limits=LIMITS)]).rows
        assert [row.bound_by for row in rows if row.cell.depth == depth] == ["host"]
        assert [row.bound_by for row in rows if row.cell.depth != depth] == [None]


def test_a_device_that_waits_for_the_host_is_host_bound_and_the_graph_ceiling_is_computed() -> None:
    found = explained(run("fp16", *FP16, tpot_ms=28.0))
    assert found.verdict.bound == "host"
    assert unmarked(found.verdict.reason) == (
        "gaps 75 % (4.00x without), between products 12 % (1.14x without), reading the weights (the floor) 9.5 % "
        "(1.07x with less), products above the floor 3.3 % (1.03x without) of each 28.0 ms token."
    )
    assert unmarked(found.verdict.advice) == "`--engine compile` removes the host's work from each token."
    # 7.0 ms of kernels; 1,423 of them, each with at most 1.5 us between it and the next.
    assert found.ceiling == Ceiling(pytest.approx(1 / 0.007), pytest.approx(1 / (0.007 + 1423 * 1.5e-6)))


def test_gaps_that_are_shorter_than_the_copies_are_not_the_reason() -> None:
    found = explained(run("int8", *INT8, tpot_ms=24.0, load=INT8_LOAD))
    assert found.busy_share < 0.70
    assert found.verdict.bounds == ("dequantizing", "host")


def test_the_ceiling_of_a_graph_is_a_range_from_an_empty_kernel_between_any_two_to_nothing() -> None:
    phase = explained(
        run("fp16", kernel("nvjet_a", ms=4.0, calls=1000), kernel("Memset (Device)", ms=1.0, calls=1000), tpot_ms=28.0)
    ).phase
    # 2,000 kernels, each with 0 to 1.5 us between it and the next.
    assert rate_in_graph(phase, LIMITS, units=1) == Ceiling(pytest.approx(1 / 0.005), pytest.approx(1 / 0.008))
    assert rate_in_graph(phase, LIMITS, units=4) == Ceiling(pytest.approx(4 / 0.005), pytest.approx(4 / 0.008))
    assert rate_in_graph(phase, None, units=1) == Ceiling(pytest.approx(1 / 0.005), None)


def test_a_ceiling_without_a_measured_launch_is_an_upper_bound() -> None:
    ceiling = explained(run("fp16", *FP16, tpot_ms=28.0, weight_gb=None)).ceiling
    assert ceiling is not None
    assert ceiling_words(ceiling, "token") == "at most 143 tok/s, the kernels' time alone"


def test_reading_the_weights_at_most_of_the_bandwidth_is_bandwidth_bound() -> None:
    found = explained(run("fp16", kernel("triton_red_fused_mm_t_view_1", ms=3.2), tpot_ms=3.6, runtime="compile"))
    assert found.verdict.bound == "bandwidth"
    assert found.mbu == pytest.approx(8.011 / 3.6 / 3.0)
    assert unmarked(found.verdict.reason).startswith(
        "reading the weights (the floor) 74 % (1.95x with less), products above the floor 15 % (1.17x without), gaps "
    )


def test_arithmetic_near_the_matmul_rate_is_compute_bound() -> None:
    busy = cell([0.5] * 5, batch_size=64, new_tokens=100, demand=demand(decode_flops=2_400_000_000_000))
    made = record("fp16", busy, profile=split_profile(kernel("nvjet_a", ms=4.5), batch_size=64), limits=LIMITS)
    assert explained(made).verdict.bound == "compute"


def test_a_copy_before_each_product_is_dequantizing_under_another_name() -> None:
    found = explained(run("int8", *INT8, tpot_ms=18.0, load=INT8_LOAD))
    assert found.verdict.bound == "dequantizing"
    assert unmarked(found.verdict.reason).endswith(
        " of each 18.0 ms token; each weight is converted before it is multiplied, by the copy kernel "
        "`unrolled_elementwise_kernel<direct_copy_kernel_cuda(Iter&)`, launched as often as there are matrix products."
    )
    assert unmarked(found.verdict.advice) == (
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


def test_a_quantized_variant_that_multiplies_in_16_bits_is_said_so_loudly() -> None:
    found = explained(run("int8", *INT8, tpot_ms=18.0, load=INT8_LOAD))
    assert found.proof.warnings == (
        "not a low-bit product: the quantized weights are converted to 16 or 32 bits, and multiplied like any others",
    )
    packed = explained(
        run("bnb4", kernel("void gemm_4bit_simt<__half, 1>(__half const*)", ms=3.0), tpot_ms=18.0, load=INT8_LOAD)
    )
    assert packed.proof.warnings == ()


def test_a_torch_fallback_is_said_loudly() -> None:
    facts = load(
        quantized_fraction=0.9, linear_classes={"TorchLinear": 252, "Linear": 1}, weight_classes={"Tensor int32": 252}
    )
    found = explained(run("gptq", kernel("triton_poi_fused_index_mul_sub_0", ms=10.0), tpot_ms=12.0, load=facts))
    assert found.verdict.bound == "dequantizing"
    assert found.proof.warnings[0] == (
        "torch fallback: TorchLinear is gptqmodel's fallback, which dequantizes with torch operators and multiplies "
        "in 16 bits"
    )
    assert found.proof.warnings[1].startswith("not a low-bit product: ")


DENSE = KernelUse(purpose="linear", origin="benchmarker", name="gemv_dense", covered=1, total=253)
GPTQ = KernelUse(purpose="linear", origin="benchmarker", name="gemv_gptq")
REST = KernelUse(purpose="linear", origin="library", name="TorchLinear", covered=249, total=252)


@pytest.mark.parametrize(("uses", "warned"), [((DENSE, GPTQ), False), ((DENSE,), True), ((GPTQ, REST), True)])
def test_only_our_gptq_kernel_replaces_a_torch_fallback(uses: tuple[KernelUse, ...], warned: bool) -> None:
    facts = load(
        quantized_fraction=0.9, linear_classes={"TorchLinear": 252, "Linear": 1}, weight_classes={"Tensor int32": 252}
    )
    made = run("gptq", kernel("words_kernel", ms=2.0), tpot_ms=2.5, load=facts, runtime="compile")
    own = EngineFacts(name="compile", tokens_read="end", kv_cache="static", kernels_used=uses)
    found = explained(made.model_copy(update={"engine": own}))
    assert bool(found.proof.warnings) == warned


def test_five_products_made_as_one_are_low_bit_all_the_same() -> None:
    # Three of seven: query, key, value, gate and up read one vector in Cohere's layers.
    facts = load(quantized_fraction=0.9, weight_classes={"Int8Tensor int8": 252, "Parameter float16": 1})
    rows = kernel("int8_rows_kernel", ms=2.0, calls=108)
    assert explained(run("int8", rows, tpot_ms=2.5, load=facts)).proof.warnings == ()
    converted = (kernel(COPY, ms=2.0), kernel("nvjet_a", ms=2.0))
    assert explained(run("int8", *converted, tpot_ms=5.0, load=facts)).proof.warnings


def test_copies_that_no_weight_explains_are_copy_bound() -> None:
    found = explained(run("fp16", kernel("nvjet_a", ms=5.0), kernel(COPY, ms=3.0, calls=900), tpot_ms=9.0))
    assert found.verdict.bound == "copies"
    assert unmarked(found.verdict.reason).startswith("between products 33 % (1.50x without)")


def test_products_that_read_slowly_ask_for_a_better_kernel() -> None:
    found = explained(
        run("gptq", kernel("void marlin::Marlin<__half, 4>(int4 const*)", ms=5.0), tpot_ms=6.0, weight_gb=2.7)
    )
    assert found.verdict.bound == "slow products"
    assert unmarked(found.verdict.reason).endswith("; the products run at 18 % of the measured bandwidth.")
    assert unmarked(found.verdict.advice) == (
        "`--engine compile` has other kernels for the products; fewer bits help less than their size says."
    )


def test_a_hostile_name_stays_inside_its_code() -> None:
    found = explained(run("gptq", kernel("evil`dequant` **x**\n# y\x1b[31m", ms=5.0), tpot_ms=6.0))
    assert "`` evil`dequant` **x** # y [31m ``" in markdown(found.verdict.reason)


def test_attention_and_cache_updates_together_can_be_the_reason() -> None:
    found = explained(
        run(
            "fp16",
            kernel("nvjet_a", ms=4.0),
            kernel("void pytorch_flash::flash_fwd_splitkv_kernel<T>", ms=3.0, calls=36),
            kernel("void at::native::index_elementwise_kernel<128, 4, index_copy_kernel_impl>", ms=1.0, calls=72),
            tpot_ms=9.0,
        )
    )
    assert found.verdict.bound == "attention/KV"


def test_a_name_without_a_category_is_named_where_it_matters() -> None:
    found = explained(run("fp16", kernel("nvjet_a", ms=4.0), kernel("mystery", ms=1.0), tpot_ms=6.0))
    assert parts(found)["other"] == 1.0
    notes = map(unmarked, found.notes)
    assert any("20 % of the kernel time has no category" in note and "`mystery`" in note for note in notes)


def test_on_a_cpu_making_views_is_the_hosts_time() -> None:
    on_cpu = split_profile(kernel("aten::mm", ms=6.0), kernel("aten::view", ms=2.0), by="cpu")
    found = explained(run("fp16", tpot_ms=20.0, profiled=on_cpu, environment=cpu_environment()))
    assert parts(found)["gaps (launches, host)"] == 14.0
    assert found.verdict.bound == "host"
    assert unmarked(found.verdict.advice).endswith(
        "`--engine compile` removes Python and dispatch overhead from each token."
    )


def test_a_processor_has_no_kernels_to_speak_of() -> None:
    on_cpu = split_profile(kernel("aten::mm", ms=6.0), kernel("aten::copy_", ms=4.0, calls=7), by="cpu")
    found = explained(run("fp16", tpot_ms=10.5, profiled=on_cpu, environment=cpu_environment()))
    assert found.verdict.bounds == ("copies", "host")
    assert found.verdict.is_unsure
    assert found.verdict.bound == "copies or host"


def test_an_older_profile_is_held_against_the_whole_generation() -> None:
    whole = profile(
        kernels=(Kernel(name="nvjet_a", calls=320, total_s=0.32),), kernel_s=0.32, busy_s=0.32, latency_s=1.6
    )
    times = tuple(sample(2.6, new_tokens=100, ttft_s=0.125) for _ in range(3))
    found = explained(record("fp16", cell(prompt_tokens=26, new_tokens=100, samples=times), profile=whole))
    # The first token takes 125 ms and each of the 31 others 25 ms.
    assert found.total_s == pytest.approx((0.125 + 31 * 0.025) / 32)
    assert found.busy_share == pytest.approx(0.32 / 0.9)
    assert found.slow_down == pytest.approx(1.6 / 0.9)


def test_the_time_is_of_all_processes_and_the_profile_of_the_one_that_has_it() -> None:
    rounds = [run("fp16", *FP16, tpot_ms=tpot_ms, round_number=number) for number, tpot_ms in enumerate((27, 28, 29))]
    without = [one.model_copy(update={"profile": None}) for one in rounds[1:]]
    assert explained(rounds[0], *without).total_s == pytest.approx((27 * 28 * 29) ** (1 / 3) / 1e3)


def test_a_variant_without_a_profile_says_why_it_is_not_explained() -> None:
    found = explain("fp16", [record("fp16")])
    assert isinstance(found, NotExplained)
    assert found.why == "no profile (left out, or the run ended before it)"
    failed = explain(
        "fp16", [record("fp16", no_profile=missing("profile: the profiler recorded no kernel"), load=None)]
    )
    assert isinstance(failed, NotExplained)
    assert failed.why == "no profile (profile: the profiler recorded no kernel)"


def test_what_was_loaded_is_proven_without_a_profile_too() -> None:
    loaded = load(linear_classes={"TorchLinear": 252}, quantized_fraction=0.9)
    found = explain("gptq", [record("gptq", load=loaded)])
    assert isinstance(found, NotExplained)
    assert found.proof is not None
    assert "torch fallback: TorchLinear" in found.proof.warnings[0]
    # The compiled step has kernels of its own.
    for engine in ("compile", "native"):
        compiled = explain("gptq", [record("gptq", load=loaded, runtime=engine)])
        assert isinstance(compiled, NotExplained)
        assert compiled.proof is not None
        assert compiled.proof.warnings == ()


def test_gptq_by_native_is_advised_the_type_of_its_scales() -> None:
    slow = kernel("gemv_gptq_kernel", ms=9.0, calls=252)
    advice = {}
    for dtype in ("float16", "bfloat16"):
        one = run("gptq", slow, tpot_ms=9.5, runtime="native", model={"dtype": dtype})
        advice[dtype] = unmarked(explained(one).verdict.advice)
    assert advice["bfloat16"] == "GPTQ's scales are float16, for which `--dtype float16` has faster kernels."
    assert advice["float16"].startswith("No option makes these kernels faster")


def test_no_graph_is_promised_for_a_kernel_that_none_can_hold() -> None:
    held = load(linear_classes={"ExllamaV2Linear": 252})
    found = explained(run("gptq", *FP16, tpot_ms=28.0, load=held))
    assert found.verdict.bound == "host"
    assert "A CUDA graph cannot capture this kernel" in unmarked(found.verdict.advice)
    assert found.ceiling is None


def test_a_profile_of_a_faster_process_says_that_it_was() -> None:
    found = explained(run("fp16", *FP16, tpot_ms=80.0))
    assert any("the process that was profiled was faster than the others" in note for note in found.notes)


def test_a_prompt_that_was_profiled_slower_than_it_was_timed_tells_nothing() -> None:
    profiled = split_profile(*FP16, kernel("aten_prompt_gemm", ms=0.1))
    prompt = profiled.sections["prefill"]
    longer = prompt.model_copy(update={"busy_s": prompt.busy_s + 0.03})
    slow = profiled.model_copy(update={"sections": profiled.sections | {"prefill": longer}})
    found = explained(run("fp16", *FP16, tpot_ms=28.0, profiled=slow))
    assert found.prefill == (
        "prefill of 26 tokens: 28.00 ms to the first token, bound by small kernels: between products 90 % (10.03x "
        "without); the profiled one took longer than that in its kernels alone"
    )


def test_prefill_has_a_verdict_of_its_own() -> None:
    found = explained(run("fp16", *FP16, tpot_ms=28.0))
    assert found.prefill == (
        "prefill of 26 tokens: 28.00 ms to the first token, bound by host: gaps 75 % (4.00x without), between products "
        "12 % (1.14x without)"
    )


def test_a_compiled_runtime_is_not_told_to_compile() -> None:
    found = explained(run("int8", *INT8, tpot_ms=18.0, load=INT8_LOAD, runtime="compile"))
    assert "--engine compile" not in unmarked(found.verdict.advice)
