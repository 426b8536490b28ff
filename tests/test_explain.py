"""From a profile and a timing to a reason, on records whose answer is known."""

from __future__ import annotations

import pytest

from benchmarker.explain.advice import graph_ceiling
from benchmarker.explain.explain import explain
from benchmarker.explain.values import Ceiling, NotExplained
from benchmarker.report.compare import compare_records
from benchmarker.schema.engine_facts import EngineFacts
from benchmarker.schema.kernels_used import PACKED, read_sentences
from benchmarker.schema.profile import Kernel
from tests.explained import COPY, FP16, INT8, INT8_LOAD, LIMITS, demand, explained, kernel, parts, run, split_profile
from tests.records import cell, cpu_environment, load, missing, profile, record, sample


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
    assert sum(part.seconds for part in found.waterfall.parts) == pytest.approx(0.028)


def test_without_a_measured_bandwidth_the_matrix_products_are_one_part() -> None:
    found = explained(run("fp16", *FP16, tpot_ms=28.0, weight_gb=None))
    assert parts(found)["matrix products"] == 3.6
    assert "reading the weights" not in parts(found)
    assert any("the ideal time of reading the weights is not known" in note for note in found.notes)


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


def test_kernels_that_run_at_once_are_a_part_that_takes_time_away_where_it_is_not_known_who_waited() -> None:
    overlapping = split_profile(*FP16, busy_ms=6.0)
    found = explained(run("fp16", tpot_ms=8.0, profiled=overlapping))
    assert parts(found)["kernels at once"] == -1.0
    assert "unexplained" not in parts(found)
    assert sum(part.seconds for part in found.waterfall.parts) == pytest.approx(0.008)


def test_what_the_parts_do_not_add_up_to_is_shown_as_unexplained() -> None:
    found = explained(run("fp16", *FP16, tpot_ms=6.8))
    assert parts(found)["unexplained"] == pytest.approx(-0.2)
    assert sum(part.seconds for part in found.waterfall.parts) == pytest.approx(0.0068)


def test_kernels_that_took_longer_than_the_whole_token_without_the_profiler_explain_nothing() -> None:
    found = explain("fp16", [run("fp16", *FP16, tpot_ms=5.0)])
    assert isinstance(found, NotExplained)
    assert found.why == (
        "the profiled kernels alone took 7.00 ms a token, longer than the 5.00 ms of a whole one without the profiler: "
        "it slowed them, and their times tell nothing"
    )
    (reason,) = compare_records([run("fp16", *FP16, tpot_ms=5.0)]).reasons
    assert reason == f"**fp16** is not explained: {found.why}."


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
    assert found.verdict.reason == (
        "75 % of each token the device waits for the host; busy 7.00 ms of each 28.0 ms token (25 %), "
        "9.5 % of the measured bandwidth."
    )
    # 7.0 ms of kernels; the shortest takes 2 us, more than an empty one in a graph.
    assert found.verdict.advice == (
        "Quantization cannot help here. `--runtime graph` would lift the ceiling to about 143 tok/s."
    )


def test_gaps_that_are_shorter_than_the_copies_are_not_the_reason() -> None:
    found = explained(run("int8", *INT8, tpot_ms=24.0, load=INT8_LOAD))
    assert found.waterfall.busy_share < 0.70
    assert found.verdict.bound == "dequantizing"


def test_the_ceiling_has_what_is_left_of_each_launch_in_a_graph() -> None:
    phase = explained(
        run("fp16", kernel("nvjet_a", ms=4.0, calls=1000), kernel("Memset (Device)", ms=1.0, calls=1000), tpot_ms=28.0)
    ).phase
    # 2,000 kernels, each with 1.5 us - 1.0 us between it and the next.
    assert graph_ceiling(phase, LIMITS, batch_size=1) == Ceiling(pytest.approx(1 / 0.006), is_bound=False)
    assert graph_ceiling(phase, LIMITS, batch_size=4) == Ceiling(pytest.approx(4 / 0.006), is_bound=False)
    assert graph_ceiling(phase, None, batch_size=1) == Ceiling(pytest.approx(1 / 0.005), is_bound=True)


def test_a_ceiling_without_a_measured_launch_is_an_upper_bound() -> None:
    advice = explained(run("fp16", *FP16, tpot_ms=28.0, weight_gb=None)).verdict.advice
    assert advice.endswith("would lift the ceiling to at most 143 tok/s, the kernels' time alone.")


def test_reading_the_weights_at_most_of_the_bandwidth_is_bandwidth_bound() -> None:
    found = explained(run("fp16", kernel("triton_red_fused_mm_t_view_1", ms=3.2), tpot_ms=3.6, runtime="compile"))
    assert found.verdict.bound == "bandwidth"
    assert found.mbu == pytest.approx(8.011 / 3.6 / 3.0)
    assert found.verdict.reason.startswith(
        "it uses 74 % of the measured memory bandwidth; busy 3.20 ms of each 3.60 ms"
    )


def test_arithmetic_near_the_matmul_rate_is_compute_bound() -> None:
    busy = cell([0.5] * 5, batch_size=64, new_tokens=100, demand=demand(decode_flops=1_500_000_000_000))
    made = record("fp16", busy, profile=split_profile(kernel("nvjet_a", ms=4.5), batch_size=64), limits=LIMITS)
    assert explained(made).verdict.bound == "compute"


def test_a_copy_before_each_product_is_dequantizing_under_another_name() -> None:
    found = explained(run("int8", *INT8, tpot_ms=18.0, load=INT8_LOAD))
    assert found.verdict.bound == "dequantizing"
    assert found.verdict.reason == (
        "each weight is converted before it is multiplied: 67 % of the kernel time is one copy kernel, "
        "`unrolled_elementwise_kernel<direct_copy_kernel_cuda(Iter&)`, launched as often as there are matrix "
        "products; busy 15.0 ms of each 18.0 ms token (83 %), 15 % of the measured bandwidth."
    )
    assert found.verdict.advice == (
        "A kernel that multiplies the packed weights saves it: `--runtime compile` fuses the conversion into the "
        "product."
    )


def test_a_quantized_variant_that_multiplies_in_16_bits_is_said_so_loudly() -> None:
    found = explained(run("int8", *INT8, tpot_ms=18.0, load=INT8_LOAD))
    assert found.proof.warnings == (
        "not a low-bit product: the quantized weights are converted to 16 or 32 bits, which takes 10.0 ms of each "
        "token, and multiplied like any others",
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
        "torch fallback: TorchLinear is gptqmodel's for where no better one runs: it unpacks by torch operators and "
        "multiplies in 16 bits"
    )
    assert found.proof.warnings[1].startswith("not a low-bit product: ")


DENSE = "one query's products with 1 of 253 linears are made by benchmarker's own kernel, not inductor's"


@pytest.mark.parametrize(
    ("products", "warned"), [(f"{DENSE}; {PACKED}", False), (DENSE, True), (f"{PACKED} (3 of 252 linears)", True)]
)
def test_only_our_product_of_packed_words_takes_the_place_of_a_torch_fallback(products: str, warned: bool) -> None:
    facts = load(
        quantized_fraction=0.9, linear_classes={"TorchLinear": 252, "Linear": 1}, weight_classes={"Tensor int32": 252}
    )
    made = run("gptq", kernel("words_kernel", ms=2.0), tpot_ms=2.5, load=facts, runtime="compile")
    own = EngineFacts(name="compile", tokens_read="end", kv_cache="static", kernels_used=read_sentences(products))
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


def test_products_that_read_slowly_ask_for_a_better_kernel() -> None:
    found = explained(
        run("gptq", kernel("void marlin::Marlin<__half, 4>(int4 const*)", ms=5.0), tpot_ms=6.0, weight_gb=2.7)
    )
    assert found.verdict.bound == "mixed"
    assert found.verdict.reason.startswith(
        "matrix products take 100 % of the kernel time, and read the weights at 18 % of the measured bandwidth; busy "
    )
    assert found.verdict.advice == "A better kernel for the products helps, before fewer bits do."


def test_a_hostile_name_stays_inside_its_code() -> None:
    found = explained(run("gptq", kernel("evil`dequant` **x**\n# y\x1b[31m", ms=5.0), tpot_ms=6.0))
    assert "`evil'dequant' **x** # y [31m`" in found.verdict.reason


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
    assert any("20 % of the kernel time has no category" in note and "`mystery`" in note for note in found.notes)


def test_on_a_cpu_making_views_is_the_hosts_time() -> None:
    on_cpu = split_profile(kernel("aten::mm", ms=6.0), kernel("aten::view", ms=2.0), by="cpu")
    found = explained(run("fp16", tpot_ms=20.0, profiled=on_cpu, environment=cpu_environment()))
    assert parts(found)["gaps (launches, host)"] == 14.0
    assert found.verdict.bound == "host"
    assert found.verdict.advice.endswith("`--runtime compile` takes Python and dispatch out of each token.")


def test_a_processor_has_no_kernels_to_speak_of() -> None:
    on_cpu = split_profile(kernel("aten::mm", ms=6.0), kernel("aten::copy_", ms=4.0, calls=7), by="cpu")
    found = explained(run("fp16", tpot_ms=10.5, profiled=on_cpu, environment=cpu_environment()))
    assert found.verdict.bound == "copies"
    assert found.verdict.reason.startswith("copies and casts take 40 % of the operators' time; busy")


def test_an_older_profile_is_held_against_the_whole_generation() -> None:
    whole = profile(
        kernels=(Kernel(name="nvjet_a", calls=320, total_s=0.32),), kernel_s=0.32, busy_s=0.32, latency_s=1.6
    )
    times = tuple(sample(2.6, new_tokens=100, ttft_s=0.125) for _ in range(3))
    found = explained(record("fp16", cell(prompt_tokens=26, new_tokens=100, samples=times), profile=whole))
    # The first token takes 125 ms and each of the 31 others 25 ms.
    assert found.waterfall.total_s == pytest.approx((0.125 + 31 * 0.025) / 32)
    assert found.waterfall.busy_share == pytest.approx(0.32 / 0.9)
    assert found.waterfall.slow_down == pytest.approx(1.6 / 0.9)


def test_the_time_is_of_all_processes_and_the_profile_of_the_one_that_has_it() -> None:
    rounds = [run("fp16", *FP16, tpot_ms=tpot_ms, round_number=number) for number, tpot_ms in enumerate((27, 28, 29))]
    without = [one.model_copy(update={"profile": None}) for one in rounds[1:]]
    assert explained(rounds[0], *without).waterfall.total_s == pytest.approx((27 * 28 * 29) ** (1 / 3) / 1e3)


def test_a_variant_without_a_profile_says_why_it_is_not_explained() -> None:
    found = explain("fp16", [record("fp16")])
    assert isinstance(found, NotExplained)
    assert found.why == "it has no profile: left out, or the run ended before it"
    failed = explain(
        "fp16", [record("fp16", no_profile=missing("profile: the profiler recorded no kernel"), load=None)]
    )
    assert failed == NotExplained("fp16", "profile: the profiler recorded no kernel")


def test_what_was_loaded_is_proven_without_a_profile_too() -> None:
    loaded = load(linear_classes={"TorchLinear": 252}, quantized_fraction=0.9)
    found = explain("gptq", [record("gptq", load=loaded)])
    assert isinstance(found, NotExplained)
    assert found.proof is not None
    assert "torch fallback: TorchLinear" in found.proof.warnings[0]
    # The compiled step has kernels of its own.
    compiled = explain("gptq", [record("gptq", load=loaded, runtime="compile")])
    assert isinstance(compiled, NotExplained)
    assert compiled.proof is not None
    assert compiled.proof.warnings == ()


def test_no_graph_is_promised_for_a_kernel_that_none_can_hold() -> None:
    held = load(linear_classes={"ExllamaV2Linear": 252})
    found = explained(run("gptq", *FP16, tpot_ms=28.0, load=held))
    assert found.verdict.bound == "host"
    assert "no graph can hold this kernel" in found.verdict.advice
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
        "prefill of 26 tokens: 28.00 ms to the first token; the profiled one took longer than that in its kernels "
        "alone, which tells nothing"
    )


def test_prefill_has_a_verdict_of_its_own() -> None:
    found = explained(run("fp16", *FP16, tpot_ms=28.0))
    assert found.prefill == (
        "prefill of 26 tokens: 28.00 ms to the first token, busy 25 %, 1.2 % of the measured matmul rate: host-bound"
    )


def test_a_compiled_runtime_is_not_told_to_compile() -> None:
    found = explained(run("int8", *INT8, tpot_ms=18.0, load=INT8_LOAD, runtime="compile"))
    assert "--runtime compile" not in found.verdict.advice
