"""Names to categories, with names as profiles really have them (cut short where a table cut them)."""

import pytest

from benchmarker.profiling.kernel_categories import CATEGORIES, category, shares


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # NVIDIA
        ("nvjet_hsh_64x8_64x16_1x4_h_bz_NNT", "matmul"),
        ("nvjet_tst_128x8_64x12_2x1_v_bz_splitK_TNT", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816...", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_...", "matmul"),
        ("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn", "matmul"),
        ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute", "matmul"),
        ("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false>", "matmul"),
        ("void gemvNSP_kernel<__half, __half, __half, float, 1, 16, 4, 1024>", "matmul"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __half, __half>", "matmul"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __half, float, __half, false>", "matmul"),
        ("void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<__half const>>>", "matmul"),
        ("sm80_xmma_gemm_i8i8_i8i32_f32_tn_n_tilesize128x64x64_stage3", "quantized matmul"),
        ("void kgemm_4bit_inference_naive<__half, 128, 16>(int, int, int, __half*)", "quantized matmul"),
        ("void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>(int, int, int)", "quantized matmul"),
        ("void gemm_4bit_simt<__half, 1>(__half const*, unsigned char const*, float const*)", "quantized matmul"),
        ("void gemm_4bit_sm80_m16n8k16<__half, 32, 64, 128>(__half const*, unsigned char const*)", "quantized matmul"),
        ("void kDequantizeBlockwise<__half, 512, 64, 8, 2>(flo...", "dequantize"),
        (
            "void at::native::tinygemm_m16n8k16_chunk_kernel<at::native::ALayout_RM<(KReductionType)0>>",
            "quantized matmul",
        ),
        (
            "void gemm_half_q_half_gptq_kernel<true, 1, false, false>(half const*, unsigned int const*)",
            "quantized matmul",
        ),
        ("void gemm_half_q_half_kernel<4, 1, false, false>(half const*, unsigned int const*)", "quantized matmul"),
        ("reconstruct_gptq_kernel(unsigned int const*, unsigned short const*, unsigned int const*)", "dequantize"),
        ("void marlin::Marlin<__half, 4, 256, 1, 8, 8, false, 4, 8>(int4 const*)", "quantized matmul"),
        ("void MarlinDefault<__half>(int4 const*)", "quantized matmul"),
        ("dequant_kernel", "dequantize"),
        ("dequant_4bit_kernel", "dequantize"),
        ("dequant_nf4_kernel", "dequantize"),
        ("quant_matmul_248_kernel", "quantized matmul"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::BitwiseAndFunctor<int>>", "dequantize"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::BitwiseAndFunctor<bool>>", "elementwise"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::BitwiseAndFunctor<long>>", "elementwise"),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::rshift_kernel_cuda(at::TensorIteratorBase&)",
            "dequantize",
        ),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4>>", "attention"),
        ("void pytorch_flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>", "attention"),
        ("fmha_cutlassB_f32_aligned_64x64_k128_sm80(PyTorchMem...", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128", "attention"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>", "attention"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous)::pow_tensor_scalar_kernel_impl",
            "norm",
        ),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>", "norm"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::rsqrt_kernel_cuda(at::TensorIterator&)",
            "norm",
        ),
        ("void at::native::elementwise_kernel<128, 4, at::native::neg_kernel_cuda(at::TensorIteratorBase&)", "rotary"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::cos_kernel_cuda(at::TensorIterator&)",
            "rotary",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<MulFunctor<float>>>",
            "elementwise",
        ),
        ("void at::native::elementwise_kernel<128, 4, at::native::CUDAFunctor_add<c10::Half>>", "elementwise"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous)::silu_kernel(at::Iter&)",
            "elementwise",
        ),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::Iter&)", "copy/cast"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::Iter&)",
            "copy/cast",
        ),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<OpaqueType<2u>, uint4, 4>", "copy/cast"),
        ("void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)", "copy/cast"),
        (
            "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::Half, long, unsigned int, 2, 2, -2>",
            "copy/cast",
        ),
        (
            "void at_cuda_detail::cub::detail::scan::DeviceScanKernel<at_cuda_detail::cub::ScanTileState<long>>",
            "elementwise",
        ),
        ("Memcpy DtoH (Device -> Pinned)", "copy/cast"),
        ("Memset (Device)", "copy/cast"),
        ("void at::native::index_elementwise_kernel<128, 4, at::native::index_copy_kernel_impl>", "KV update"),
        ("void at::native::index_elementwise_kernel<128, 4, at::native::index_put_kernel_impl>", "KV update"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>",
            "sampling",
        ),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>", "attention"),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        # AMD
        ("Cijk_Alik_Bljk_HHS_BH_MT64x64x32_MI16x16x16x1_SN_1LD...", "matmul"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x64x32_MI16x16x16x1_SN_1LD...", "matmul"),
        ("Cijk_Alik_Bljk_I8II_BH_MT128x128x32_MI32x32x8x1_SN", "quantized matmul"),
        ("void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3<...>>", "matmul"),
        ("attn_fwd.kd", "attention"),
        ("_ZN7ck_tile6kentryILi256ELi2ENS_13FmhaFwdKernelINS_", "attention"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>) [clone .kd]", "communication"),
        ("__amd_rocclr_copyBuffer", "copy/cast"),
        ("__amd_rocclr_fillBufferAligned", "copy/cast"),
        ("CopyDeviceToHost", "copy/cast"),
        # Rows of operators, in tables and CPU profiles
        ("aten::mm", "matmul"),
        ("aten::addmm", "matmul"),
        ("aten::linear", "matmul"),
        ("mkldnn::_linear_pointwise", "matmul"),
        ("aten::mul", "elementwise"),
        ("aten::add_", "elementwise"),
        ("aten::copy_", "copy/cast"),
        ("aten::_to_copy", "copy/cast"),
        ("aten::to", "copy/cast"),
        ("aten::cat", "copy/cast"),
        ("aten::embedding", "copy/cast"),
        ("aten::index_copy_", "KV update"),
        ("aten::pow", "norm"),
        ("aten::mean", "norm"),
        ("aten::rsqrt", "norm"),
        ("aten::neg", "rotary"),
        ("aten::argmax", "sampling"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::_efficient_attention_backward", "attention"),
        ("aten::_scaled_dot_product_efficient_attention_backwa...", "attention"),
        ("aten::_weight_int8pack_mm", "quantized matmul"),
        ("aten::_weight_int4pack_mm_for_cpu", "quantized matmul"),
        ("bitsandbytes::dequantize_4bit", "dequantize"),
        ("bitsandbytes::gemv_4bit", "quantized matmul"),
        ("onednn::qlinear_pointwise", "quantized matmul"),
        ("## Call CompiledFxGraph fp6332grql5ukoqmtonzsan7rnbrolnapwy36egj6nybthii6shn ##", "elementwise"),
        ("aten::full", "copy/cast"),
        ("aten::__or__", "elementwise"),
        ("gptqmodel::torch_aten_linear", "quantized matmul"),
        ("gptqmodel_exllamav2::gemm_half_q_half", "quantized matmul"),
        ("void marlin::Marlin<__half, 256, 1, 8, 8>", "quantized matmul"),
        ("dequant_kernel_248", "dequantize"),
        ("aten::_int_mm", "quantized matmul"),
        ("void at::native::tinygemm_m16n8k16_chunk_kernel<at::native::ALayout_RM<0>>", "quantized matmul"),
        ("bitsandbytes::gemm_4bit", "quantized matmul"),
        ("bitsandbytes::int8_scaled_mm", "quantized matmul"),
        ("bitsandbytes::int8_mixed_scaled_mm", "quantized matmul"),
        ("bitsandbytes::int8_linear_matmul", "quantized matmul"),
        ("bitsandbytes::int8_mm_dequant", "dequantize"),
        ("bitsandbytes::int8_vectorwise_dequant", "dequantize"),
        ("bitsandbytes::int8_vectorwise_quant", "copy/cast"),
        ("void kInt8VectorQuant<__half, 1024, 1>", "copy/cast"),
        ("void kdequant_mm_int32_fp16<4, 512>", "dequantize"),
        ("void at::native::(anonymous namespace)::fused_rms_norm", "norm"),
        ("void cudnn::ops::nchwToNhwcKernel<__half>", "copy/cast"),
        ("_swiglu_fwd_kernel", "elementwise"),
        ("ck_fused_attn", "attention"),
        ("Custom_Cijk_Alik_Bljk_HHS_BH_UserArgs_MT16x16x512", "matmul"),
        ("void wvSplitK_hf_sml_<__half, 64, 2>", "matmul"),
        # What only the host does
        ("aten::view", "bookkeeping"),
        ("aten::transpose", "bookkeeping"),
        ("aten::as_strided", "bookkeeping"),
        ("aten::empty_strided", "bookkeeping"),
        ("aten::_local_scalar_dense", "bookkeeping"),
        ("TorchDynamo Cache Lookup", "bookkeeping"),
        ("aten::slice_scatter", "KV update"),
        ("aten::index_select", "copy/cast"),
        # What nobody knows
        ("my_secret_kernel<float>", "other"),
        ("", "other"),
    ],
)
def test_a_kernels_category(name, expected):
    assert category(name) == expected


def test_what_inductor_fused_is_split_by_the_operators_in_its_name():
    assert shares("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3") == {
        "copy/cast": 1 / 6,
        "elementwise": 2 / 6,
        "norm": 3 / 6,
    }
    assert category("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3") == "norm"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("triton_poi_fused_index_mul_sub_0", "dequantize"),
        ("triton_poi_fused___rshift___bitwise_and_index_mul_sub_2", "dequantize"),
        ("triton_poi_fused_mul_silu_7", "elementwise"),
        ("triton_poi_fused_1", "elementwise"),
        ("words_kernel", "quantized matmul"),
        ("gemv_gptq_kernel", "quantized matmul"),
        ("gemv_nf4_kernel", "quantized matmul"),
        ("gemv_int8_kernel", "quantized matmul"),
        ("packed_matmul_kernel", "quantized matmul"),
        ("prompt_matmul_kernel", "quantized matmul"),
        ("matmul_4bit_kernel", "quantized matmul"),
        ("unpack_int8_kernel", "dequantize"),
        ("unpack_codes_kernel", "dequantize"),
        ("unpack_gptq_kernel", "dequantize"),
        ("rows_by_lane_kernel", "elementwise"),
        ("gemv_dense_kernel", "matmul"),
        ("decode_attention_kernel", "attention"),
        ("codes_kernel", "quantized matmul"),
        ("one_query_kernel", "attention"),
        ("rows_kernel", "matmul"),
        ("int8_rows_kernel", "quantized matmul"),
        ("triton_red_fused_mm_t_view_1", "matmul"),
        ("triton_red_fused__to_copy_mean_mm_mul_pow_rsqrt_4", "matmul"),
        ("triton_tem_fused_mm_9", "matmul"),
        ("triton_poi_fused_index_copy_4.kd", "KV update"),
        ("triton_per_fused_argmax_0", "sampling"),
        ("triton_poi_fused__to_copy_add_cat_cos_mul_neg_sin_unsqueeze_5", "rotary"),
        ("triton_per_fused__softmax_add_mul_8", "attention"),
        ("triton_poi_fused_clone_expand_unsqueeze_view_6", "copy/cast"),
        ("triton_poi_fused_view_6", "copy/cast"),
        ("triton_red_fused__to_copy_add_mm_mul_silu_t_view_16", "matmul"),
        ("triton_per_fused_mm_t_view_2", "matmul"),
        ("triton_per_fused__to_copy_add_arange_bmm_cat_cos_expand_mean_mm_mul_neg_pow_rsqrt_sin_view_4", "norm"),
        ("triton_poi_fused__scaled_dot_product_efficient_attention__to_copy_add_le_mm_where_7", "elementwise"),
        ("triton_poi_fused_mm_3", "copy/cast"),
        ("cpp_fused_mul_silu_3", "elementwise"),
        ("triton_mm", "matmul"),
        ("triton_red_fused__weight_int8pack_mm_1", "quantized matmul"),
        ("triton_tem_fused__int_mm_mul_4", "quantized matmul"),
    ],
)
def test_an_inductor_kernels_category(name, expected):
    assert category(name) == expected


def test_the_shares_of_any_kernel_add_up_to_one_and_are_known_categories():
    for name in ("triton_poi_fused_add_cos_mul_neg_sin_1", "triton_poi_fused_unheard_of_1", "aten::mm", "nobody"):
        parts = shares(name)
        assert sum(parts.values()) == pytest.approx(1)
        assert set(parts) <= set(CATEGORIES)
