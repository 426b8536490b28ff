"""Test the printed table of a profile."""

import random

import pytest

from benchmarker.core.tables import to_markdown
from benchmarker.profiling.profile_table import hundredths, profile_table, shortened
from benchmarker.schema.record import Kernel
from benchmarker.workloads.generation.record import GenerationProfile


def profile_of(*kernels, by="device", busy_s=None, span_s=None, **more):
    kernel_s = sum(kernel.total_s for kernel in kernels)
    return GenerationProfile(
        by=by,
        prompt_tokens=26,
        new_tokens=32,
        batch_size=more.pop("batch_size", 1),
        latency_s=2.0,
        kernel_s=kernel_s,
        busy_s=kernel_s if busy_s is None else busy_s,
        span_s=kernel_s if span_s is None else span_s,
        kernels=kernels,
    )


def test_table_of_a_device_profile():
    profile = profile_of(
        Kernel(name="nvjet_hsh_64x8", calls=7200, total_s=0.6),
        Kernel(name="void kDequantizeBlockwise<__half, 512, 64, 8, 2>", calls=3600, total_s=0.3),
        Kernel(name="Memset (Device)", calls=10, total_s=0.00006),
        Kernel(name="a|b", calls=5, total_s=0.00003),
        busy_s=0.9,
        span_s=1.5,
    )
    assert to_markdown(profile_table(profile, what=profile.subject, limit=2)) == (
        "One profiled generation, prompt of 26, 32 new tokens: by device time\n"
        "\n"
        "| kernel                                        | category   |      time |     % | calls |  average |\n"
        "| :-------------------------------------------- | :--------- | --------: | ----: | ----: | -------: |\n"
        "| `nvjet_hsh_64x8`                              | matmul     | 600.00 ms | 66.66 | 7,200 | 83.33 us |\n"
        "| `kDequantizeBlockwise<__half, 512, 64, 8, 2>` | dequantize | 300.00 ms | 33.33 | 3,600 | 83.33 us |\n"
        "| (2 other kernels)                             |            |  90.00 us |  0.01 |    15 |  6.00 us |\n"
        "\n"
        "900.09 ms in 10,815 launches; the device was busy for 900.00 ms of 1.5000 s (60 %). "
        "The profiler slows the host, so it idles less when not profiled.\n"
    )


def test_table_of_a_cpu_profile():
    profile = profile_of(Kernel(name="aten::mm", calls=8, total_s=0.04), by="cpu", batch_size=4)
    assert to_markdown(profile_table(profile, what=profile.subject)) == (
        "One profiled generation, prompt of 26, 32 new tokens, batch of 4: by CPU time\n"
        "\n"
        "| operator   | category |     time |      % | calls | average |\n"
        "| :--------- | :------- | -------: | -----: | ----: | ------: |\n"
        "| `aten::mm` | matmul   | 40.00 ms | 100.00 |     8 | 5.00 ms |\n"
        "\n"
        "40.00 ms in 8 calls, each without the operators that it called.\n"
    )


def test_kernel_names_are_escaped_in_the_table():
    profile = profile_of(Kernel(name="a|b`c\n| d |\x1b[31m", calls=1, total_s=1.0))
    row = to_markdown(profile_table(profile, what=profile.subject)).splitlines()[4]
    assert row.startswith("| `` a\\|b`c \\| d \\| [31m `` | other ")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_sm90_hsh_128x8_64x12_4x1_v_bz_splitK_TNT", "nvjet_sm90_hsh_128x8_64x12_4x1_v_bz_splitK_TNT"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention_for_cpu"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH (Device -> Pinned)"),
        (
            "void kDequantizeBlockwise<__half, 512, 64, 8, 2>(float*, unsigned char*, float*, __half*, int, int)",
            "kDequantizeBlockwise<__half, 512, 64, 8, 2>",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::rsqrt_kernel_cuda(at::TensorIteratorBase&)"
            "::{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, "
            "std::array<char*, 2ul> >(int, at::native::rsqrt_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}"
            "::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>)",
            "vectorized_elementwise_kernel<4, rsqrt_kernel_cuda(float)>",
        ),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<"
            "float, float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&, "
            "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> > const&)"
            "::{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<float>)",
            "elementwise_kernel<128, 2, MulFunctor<float>>",
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, "
            "float, float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float>)",
            "reduce_kernel<512, 1, MeanOps<float>>",
        ),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
            "::{lambda()#3}::operator()() const::{lambda()#10}::operator()() const::{lambda(c10::Half)#1}, "
            "std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned "
            "int>, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int)",
            "unrolled_elementwise_kernel<direct_copy_kernel_cuda(Half)>",
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_3_64x64x128_4x1x1_cga1x1x1_kernel0_0",
            "cudnn_generated_fort_native_sdpa_sm80_flash_fpr…a1x1x1_kernel0_0",
        ),
        (
            "## Call CompiledFxGraph fp6332grql5ukoqmtonzsan7rnbrolnapwy36egj6nybthii6shn ##",
            "compiled graph fp633 (fused code)",
        ),
        ("## Call CompiledFxGraph None ##", "compiled graph (fused code)"),
    ],
)
def test_kernel_names_are_shortened(name, expected):
    assert shortened(name) == expected


def test_printed_percentages_sum_to_100():
    numbers = random.Random(0)
    for _ in range(200):
        times = [numbers.random() ** 6 for _ in range(numbers.randint(1, 40))]
        shown = hundredths(times)
        assert sum(round(float(share) * 100) for share in shown) == 10_000
        for time, share in zip(times, shown, strict=True):
            assert abs(float(share) - 100 * time / sum(times)) < 0.0101


def test_percentages_of_three_equal_kernels_sum_to_100():
    assert sorted(hundredths([1.0, 1.0, 1.0])) == ["33.33", "33.33", "33.34"]


@pytest.mark.parametrize("times", [[], [0.0, 0.0]])
def test_percentages_of_zero_time_are_zero(times):
    assert hundredths(times) == ["0.00"] * len(times)
