"""From a profile and a timing to a reason, on records whose answer is known."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from benchmarker.cli import app
from benchmarker.comparison import compare_records, to_markdown
from benchmarker.explaining.advice import graph_ceiling
from benchmarker.explaining.explain import explain
from benchmarker.explaining.values import Explanation, NotExplained
from benchmarker.record import Kernel, Profile, RunRecord
from benchmarker.roofline import Demand, Limits
from tests.records import cell, cpu_environment, load, profile, record, sample, save

COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::Iter&)"
TOKENS = 31
"""Decode steps of the profiled generation, which makes 32 tokens."""

LIMITS = Limits(
    read_bytes_per_s=3e12,
    copy_bytes_per_s=2.8e12,
    array_bytes=2**30,
    matmul_flops_per_s=600e12,
    matmul_dtype="float16",
    matmul_size=8192,
    launch_s=2e-6,
    operator_s=6e-6,
    graph_kernel_s=1.5e-6,
)


def kernel(name: str, *, ms: float, calls: int = 252) -> Kernel:
    """So many milliseconds and calls a decoded token, and as many in the prefill."""
    return Kernel(
        name=name,
        calls=calls * (TOKENS + 1),
        total_s=ms * (TOKENS + 1) / 1e3,
        decode_calls=calls * TOKENS,
        decode_s=ms * TOKENS / 1e3,
    )


def split_profile(*kernels: Kernel, busy_ms: float | None = None, **fields: object) -> Profile:
    """A profile that tells prefill and decode apart."""
    kernel_s = sum(one.total_s for one in kernels)
    decode_s = sum(one.decode_s or 0.0 for one in kernels) if busy_ms is None else busy_ms * TOKENS / 1e3
    return profile(
        kernels=kernels,
        kernel_s=kernel_s,
        busy_s=decode_s * (TOKENS + 1) / TOKENS,
        span_s=2.0,
        latency_s=2.0,
        decode_busy_s=decode_s,
        decode_span_s=1.86,
        **fields,
    )


def demand(weight_gb: float = 8.0, **fields: object) -> Demand:
    facts = {
        "weight_bytes": round(weight_gb * 1e9),
        "kv_bytes_per_token": 147_456,
        "context_tokens": 76.0,
        "kv_bytes": 11_000_000,
        "decode_flops": 8_100_000_000,
        "prefill_flops": 200_000_000_000,
        **fields,
    }
    return Demand(**facts)


def run(
    quant: str,
    *kernels: Kernel,
    tpot_ms: float,
    weight_gb: float | None = 8.0,
    profiled: Profile | None = None,
    **fields: object,
) -> RunRecord:
    """A run whose token takes so long, with the device's limits unless `weight_gb` is None."""
    times = [tpot_ms * 100 / 1e3] * 5
    return record(
        quant,
        cell(times, prompt_tokens=26, new_tokens=100, demand=demand(weight_gb) if weight_gb else None),
        profile=profiled or split_profile(*kernels),
        limits=LIMITS if weight_gb else None,
        **fields,
    )


def explained(one: RunRecord, *more: RunRecord) -> Explanation:
    found = explain(one.variant.name, [one, *more])
    assert isinstance(found, Explanation), found
    return found


def parts(found: Explanation) -> dict[str, float]:
    """Milliseconds a token."""
    return {part.name: pytest.approx(1e3 * part.seconds) for part in found.waterfall.parts}


FP16 = (
    kernel("nvjet_sm90_hsh_128x8_64x12_4x1_v_bz_TNT", ms=3.6),
    kernel("void at::native::reduce_kernel<512, 1, MeanOps<float>>", ms=1.0, calls=145),
    kernel("void at::native::vectorized_elementwise_kernel<4, MulFunctor<float>>", ms=1.4, calls=700),
    kernel(COPY, ms=0.7, calls=290),
    kernel("fmha_cutlassF_f16_aligned_64x128_rf_sm80", ms=0.3, calls=36),
)


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


def test_what_the_parts_do_not_add_up_to_is_shown_as_unexplained() -> None:
    overlapping = split_profile(*FP16, busy_ms=6.0)
    found = explained(run("fp16", tpot_ms=8.0, profiled=overlapping))
    assert parts(found)["unexplained"] == -1.0
    assert sum(part.seconds for part in found.waterfall.parts) == pytest.approx(0.008)


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
    assert graph_ceiling(phase, LIMITS, batch_size=1) == (pytest.approx(1 / 0.006), True)
    assert graph_ceiling(phase, LIMITS, batch_size=4) == (pytest.approx(4 / 0.006), True)
    assert graph_ceiling(phase, None, batch_size=1) == (pytest.approx(1 / 0.005), False)


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


INT8 = (
    kernel(COPY, ms=10.0),
    kernel("nvjet_sm90_hsh_128x8_64x12_4x1_v_bz_TNT", ms=3.4, calls=253),
    kernel("void at::native::vectorized_elementwise_kernel<4, MulFunctor<float>>", ms=1.6, calls=700),
)
INT8_LOAD = load(
    weight_bytes=4_417_150_464,
    quantized_fraction=0.9,
    weight_classes={"Int8Tensor int8": 252, "Tensor float16": 1},
)


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


def test_copies_that_no_weight_explains_are_copy_bound() -> None:
    found = explained(run("fp16", kernel("nvjet_a", ms=5.0), kernel(COPY, ms=3.0, calls=900), tpot_ms=9.0))
    assert found.verdict.bound == "copies"


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
    assert explain("fp16", [record("fp16")]) == NotExplained(
        "fp16", "it has no profile; measure it without --no-profile"
    )
    failed = record("fp16", no_profile="profile: the profiler recorded no kernel")
    assert explain("fp16", [failed]) == NotExplained("fp16", "profile: the profiler recorded no kernel")


def test_prefill_has_a_verdict_of_its_own() -> None:
    found = explained(run("fp16", *FP16, tpot_ms=28.0))
    assert found.prefill == (
        "prefill of 26 tokens: 28.00 ms to the first token, busy 25 %, 1.2 % of the measured matmul rate: host-bound"
    )


def pair(*, rounds: int = 1) -> list[RunRecord]:
    return [
        made
        for number in range(rounds)
        for made in (
            run("fp16", *FP16, tpot_ms=9.0 + 0.01 * number, round_number=number),
            run("int8", *INT8, tpot_ms=18.0 + 0.02 * number, round_number=number, load=INT8_LOAD),
        )
    ]


def test_two_variants_differ_part_by_part() -> None:
    (contrast,) = compare_records(pair(rounds=3)).contrasts
    assert sum(seconds for _, seconds in contrast.parts) == pytest.approx(0.009, rel=0.01)
    assert contrast.sentence() == (
        "int8 is 2.00x slower than fp16: +9.30 ms/token copies and casts (converting each weight before it is "
        "multiplied), +1.01 ms gaps (launches, host), -0.800 ms norms, rotary, elementwise, -0.300 ms attention"
    )


def test_one_process_each_is_said_to_be_no_test() -> None:
    (contrast,) = compare_records(pair()).contrasts
    assert contrast.sentence().startswith("int8 is 2.00x slower than fp16 (not tested): ")


def test_a_comparison_names_what_each_variant_is_bound_by() -> None:
    comparison = compare_records(pair())
    assert [(row.variant, row.bound_by) for row in comparison.rows] == [
        ("fp16", "mixed"),
        ("int8", "dequantizing"),
    ]
    printed = to_markdown(comparison)
    assert "bound by" in printed
    assert "**Why**\n\n- **fp16** is bound by mixed: no part stands out: " in printed
    assert "- **int8** is bound by dequantizing: each weight is converted" in printed


def test_explain_prints_the_parts_the_reasons_and_the_differences(tmp_path) -> None:
    done = CliRunner().invoke(app, ["explain", str(save(tmp_path, *pair()))])
    assert done.exit_code == 0, done.output
    assert "| reading the weights         |     2.67 |         2.67 |" in done.output
    assert "| **a token, measured**       | **9.00** |    **18.00** |" in done.output
    assert "**int8** (eager) is bound by **dequantizing**: " in done.output
    assert "- **not a low-bit product: " in done.output
    assert "**Against fp16**" in done.output


def test_records_without_a_profile_are_not_an_error(tmp_path) -> None:
    done = CliRunner().invoke(app, ["explain", str(save(tmp_path, record("fp16")))])
    assert done.exit_code == 0
    assert "- fp16 is not explained: it has no profile; measure it without --no-profile." in done.output


def test_a_compiled_runtime_is_not_told_to_compile() -> None:
    found = explained(run("int8", *INT8, tpot_ms=18.0, load=INT8_LOAD, runtime="compile"))
    assert "--runtime compile" not in found.verdict.advice
