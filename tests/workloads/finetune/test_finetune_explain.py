"""Kernels of a training step are assigned to purposes."""

import pytest

from benchmarker.schema.record import Kernel, KernelTime, Profile
from benchmarker.workloads.finetune.finetune_reading import (
    FLOAT32_ATTENTION,
    FLOAT32_PRODUCTS,
    float32_share,
    has_fused_attention,
    purposes,
    recompute_share,
    seconds_by_purpose,
    step_phase,
    unpacking_calls,
)

SGEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)"
UNPACK = "void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*)"
LOSS = "void (anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>(float*)"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>(int)"


def kernel(name, **sections):
    times = {section: KernelTime(calls=1, total_s=time_s, alone_s=time_s) for section, time_s in sections.items()}
    return Kernel(name=name, calls=len(times), total_s=sum(sections.values()), sections=times)


def profile(*kernels, by="device"):
    total_s = sum(kernel.total_s for kernel in kernels)
    longest = tuple(sorted(kernels, key=lambda kernel: -kernel.total_s))
    return Profile(by=by, latency_s=2 * total_s, kernel_s=total_s, busy_s=total_s, span_s=total_s, kernels=longest)


STEP = profile(
    kernel("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN", forward=3.0, recompute=2.0, backward=3.0),
    kernel(SGEMM, forward=0.5, backward=0.5),
    kernel("fmha_cutlassF_f32_aligned_64x64_rf_sm80(Params)", forward=0.25, recompute=0.25),
    kernel(UNPACK, forward=0.2, recompute=0.2, backward=0.1),
    kernel(LOSS, forward=0.1),
    kernel(ADAM, optimizer=0.4),
)


def test_float32_is_separate_and_the_optimizer_is_identified_by_its_section():
    spent = seconds_by_purpose(STEP)
    assert spent["matmul"] == 8.0
    assert spent[FLOAT32_PRODUCTS] == 1.0
    assert spent[FLOAT32_ATTENTION] == 0.5
    assert spent["dequantize"] == pytest.approx(0.5)
    assert spent["loss"] == pytest.approx(0.1)
    assert spent["optimizer"] == pytest.approx(0.4)
    assert sum(spent.values()) == pytest.approx(STEP.kernel_s)


def test_softmax_of_the_loss_is_not_attention():
    assert purposes(LOSS, "forward", on_device=True) == {"loss": 1.0}
    assert purposes("void softmax_warp_forward<float>(float*)", "forward", on_device=True) == {"attention": 1.0}


def test_sort_of_the_embedding_gradient_is_not_sampling():
    sort = "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<long>()"
    assert purposes(sort, "backward", on_device=True) == {"other": 1.0}


def test_helper_kernels_of_cudnns_backward_pass_are_attention():
    for name in ("compute_dot_do_o_specialized<true, 128>", "convert_dq_to_16bits<true>"):
        assert purposes(f"void cudnn::fusion::{name}(void const*)", "backward", on_device=True) == {"attention": 1.0}


def test_softmax_between_two_products_is_not_fused_attention():
    softmax = kernel("void softmax_warp_forward<float, float, float, 10>(float*)", forward=1.0)
    assert has_fused_attention(STEP)
    assert not has_fused_attention(profile(softmax, kernel(SGEMM, forward=2.0), kernel(LOSS, forward=0.1)))


def test_shares_are_relative_to_all_kernel_time():
    assert recompute_share(STEP) == pytest.approx(2.45 / STEP.kernel_s)
    assert float32_share(STEP) == pytest.approx(1.5 / STEP.kernel_s)
    assert unpacking_calls(STEP) == 3


def test_autograd_rows_on_a_cpu_are_not_busy_time():
    step = profile(kernel("aten::mm", forward=2.0), kernel("MmBackward0", backward=1.0), by="cpu")
    phase = step_phase(step)
    assert phase.categories == {"matmul": 2.0}
    assert phase.busy_s == 2.0
