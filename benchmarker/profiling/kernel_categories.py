"""Category of a kernel or operator by its name.

One ordered table for NVIDIA, AMD and Intel GPUs and for the operators of a CPU profile: the first rule that matches
wins. Rules for a purpose (KV update, dequantize, attention) come before rules for a computation (GEMM, elementwise).
The name of an inductor kernel lists its fused operators, which determine the category.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Literal, get_args

Category = Literal[
    "matmul",
    "quantized matmul",
    "dequantize",
    "attention",
    "linear attention",
    "convolution",
    "norm",
    "rotary",
    "elementwise",
    "copy/cast",
    "KV update",
    "sampling",
    "communication",
    "optimizer",
    "bookkeeping",
    "other",
]
"""`bookkeeping` is work on the host only: views, allocations and the framework itself."""
CATEGORIES: tuple[Category, ...] = get_args(Category)
UNKNOWN_LIMIT = 0.10  # Share of the time in `other` above which a report lists uncategorized kernels.

_RULES: tuple[tuple[Category, str], ...] = (
    # Views, allocations and queries: up to a fifth of the time of a small model on a CPU.
    (
        "bookkeeping",
        r"^(aten::)?(_unsafe_view|_reshape_alias|view(_as\w*)?|transpose|t|permute|as_strided_?|slice|(un)?squeeze_?"
        r"|reshape|flatten|expand(_as)?|select|narrow|chunk|split\w*|unbind|alias|detach_?|lift_fresh|resize_\w*"
        r"|empty\w*|new_empty\w*|resolve_(conj|neg)|result_type|is_nonzero|item|_local_scalar_dense|_has_\w+|set_"
        r"|output_nr|_version)$|TorchDynamo|Torch-Compiled Region|Pregraph bytecode|AOTDispatcher",
    ),
    (
        "communication",
        r"nccl|rccl|mscclk|mscclpp|nvshmem|record_param_comms|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
        r"|cross_device_reduce|one_?shot_|two_?shot_|lamport|deep_ep::|^(gloo|c10d|_c10d_functional):|^Redistribute$",
    ),
    ("optimizer", r"multi_tensor|_foreach_|_fused_(adam|sgd)|adamw?(?![a-z])|kOptimizer|optimizer|\blion_|muon"),
    # Writing keys and values: before attention, because the names contain those of attention kernels.
    (
        "KV update",
        r"reshape_and_cache|concat_and_cache|store_(kv|cache)|set_(mla_)?kv_buffer|append\w*kv|write_kv|copy_kv"
        r"|copy_blocks|swap_blocks|k_set_rows|qk_\w*cat_and_cache|kv_?cache_?(update|write|store|copy)"
        r"|indexer_k_quant_and_cache",
    ),
    # Selection of experts and of tokens: before attention, because the names contain softmax.
    (
        "elementwise",
        r"topk_?gating|topk_?softmax|topk_moe|grouped_topk|moe_(align|sum|fused_gate|gate|sort)|moe_?sorting"
        r"|expert_tokens|slot_mapping|kv_indices|req_to_token|compute_position|log_?softmax|cross_?entropy|nll_?loss",
    ),
    ("sampling", r"sampl|top_?[kp](?![a-z])|TopP|min_p_|renorm_?prob|token_bitmask|penalt|gumbel"),
    # Quantization of activations to 8 or 4 bits for a quantized GEMM.
    (
        "copy/cast",
        r"(per_token|per_tensor|per_block|group|dynamic|static|scaled|mul)_\w*quant(?!\w*(gemm|_mm|matmul))"
        r"|quant_deep_gemm|(?<!de)quantize_(affine|q8_1|mmq)|choose_qparams|kQuantize|kInt8VectorQuant"
        r"|int8_vectorwise_quant|cvt_fp16_to_fp4|cast_transpose|cast_(fp8|mxfp8|nvfp4)|scaled_fp[48]_quant"
        r"|fp4_quant(?!\w*gemm)|quantize_(nvfp4|mxfp\d)|(?<!de)fp8_quant|quantize_transpose|scale_1x128|hadamard",
    ),
    # bitsandbytes, torchao, ExLlama, Marlin, Machete, AllSpark, Humming, AWQ, GemLite, llama.cpp, DeepGEMM, AITER.
    (
        "quantized matmul",
        r"kgemm_4bit|gem[mv]_4bit|tinygemm|int[48]_?pack|int4mm|_int_mm|int_(scaled_)?matmul|scaled_int8_mm|MatMul8bit"
        r"|gemm_half_q_half|q4_matmul|q_?gemm|quant_matmul|marlin|machete|allspark|humming|exl[23]_gemm|exllama"
        r"|gemm_w4a16|gemv_kernel_g\d|gemm_forward_4bit|awq_gem[mv]|VecQuant\d|mul_mat_(vec_)?q|mixed_mm|bitblas"
        r"|qlinear|i8i8|i16832gemm|gemm_[su][48]|igemm|Cijk_\w*_(4xi8|I8|F8|B8)|scaled_mm|4bit_linear"
        r"|weight_only_linear|mixed_?input_?gemm|Gemm\w*<u?int[48]_t|quantized::linear|int8_linear_matmul"
        r"|torch_aten_linear|::quantized_linear|gem[mv]\w*_INT_|gemm_?a(?!16w16)\d+w\d|a\d+w\d+_?\w*gemm|w[48]a(8"
        r"|16)_\w*m|moe_kernel_(gptq|awq)|rowwise_scaled_linear|QuantizedLinear|gemlite|WarpSpecialized\w*FP8"
        # cuBLAS, CUTLASS and TensorRT-LLM by the types of their operands.
        r"|deep_gemm::\w*fp[48]|nvjet_(sm\d+_)?q|(gemm|bmm|matmul|xmma|cutlass|group_mm)\w*.*(e4m3|e5m2|e2m1"
        r"|[nm][vx]fp4|nvf4|mxf\d)|(fp8|fp4|e4m3|e2m1|nvfp4|mxfp\d)\w*(gemm|bmm|matmul|_mm\b|moe)|(gemm|matmul|_mm"
        r"|moe)_\w*(fp8|fp4)"
        # Our own: see kernels/.
        r"|^(gemv_(gptq|nf4|int8|scaled)|packed_matmul|matmul_4bit|prompt_matmul|words|codes|int8_rows)_kernel",
    ),
    ("matmul", r"^gemv_dense_kernel|^rows_kernel"),
    ("attention", r"^decode_attention_kernel|^one_query_kernel"),
    (
        "dequantize",
        r"dequant|unpack|reconstruct_|nf4|[rl]shift_kernel|__[rl]shift__|bitwise_(right|left)_shift"
        r"|QuantLinearFunction|MatMul4bit"
        # Unpacking. Attention masks use bool and long.
        r"|BitwiseAndFunctor<(?!bool|long)|aten::bitwise_and",
    ),
    # Mamba, flash-linear-attention and RWKV, and the short convolution before them.
    ("convolution", r"causal_?conv1d|ssm_conv|short_?conv"),
    (
        "linear attention",
        r"delta_?rule|(fused)?chunk_?(fwd|bwd)_kernel|FusedChunkFunction|(?<![a-z])gla(?![a-z])|simple_?gla|retention"
        r"|linear_?attn|lightning_att|recompute_w_u|prepare_wy|solve_tril|merge_16x16_to_\w+_inverse"
        r"|chunk_local_cumsum|chunk_scaled_dot_kkt|selective_(scan|state)|chunk_(scan|state|cumsum|h\b|o\b|kda|gated"
        r"|gdn)|state_passing|bmm_chunk|ssd_|ssm_scan|mamba|wkv|rwkv|fused_recurrent|gdn_gating|kda_gate|hgrn"
        r"|chunk_(fwd|bwd)_\w*[ohA]\b",
    ),
    # cuDNN's backward pass of attention has two more kernels.
    (
        "attention",
        r"flash(?!infer)|fmha|_fa\d_C::|attention|sdpa|aotriton|attn(?![a-z])|attn_?(fwd|bwd)|\bmha_|_mha\b|kernel_mha"
        r"|xqa|softmax|soft_max|_dot_product|cudnn::fusion::(compute_dot_do_o|convert_dq)|varlen_(fwd|bwd)|(Prefill"
        r"|Decode)With\w*KVCache|MergeStates|merge_(attn_)?state|(?<![a-z])mla_|_mla(?![a-z])|paged_att|\bpa_(fwd"
        r"|decode)|_grouped_kernel_stage|_fwd_kernel_stage\d|^_(fwd|bwd)_kernel(?![a-ce-z])|bwd_preprocess",
    ),
    (
        "norm",
        r"rms_?norm|layer_?norm|group_?norm|batch_?norm|instance_?norm|l2_?norm|qk_?norm|\bln_(fwd|bwd)|GammaBeta"
        r"|RowwiseMoments|\bbn_(fw|bw)|MeanOps|rsqrt|pow_tensor|aten::(pow|(var_)?mean|rsqrt)\b",
    ),
    ("rotary", r"rotary|(?<![a-z])m?rope(?![a-z])|apply_?rope|\b(cos|sin|neg)_kernel|aten::(cos|sin|neg)\b"),
    ("KV update", r"kv_?cache|index_copy|index_put|slice_scatter|scatter_|::(select_)?scatter\b"),
    (
        "sampling",
        r"argmax|argsort|multinomial|radix_?sort|bitonic|sort_?kernel|exponential_|aten::(sort|multinomial)\b",
    ),
    (
        "copy/cast",
        r"nchwToNhwc|nhwcToNchw|convert_kernel|cast_kernel|memcpy|memset|copy_kernel|copy(Buffer|Device|Host)"
        r"|fillBuffer|CatArray|concat_f|gather|get_rows|index_?select|index_kernel|embedding|transpose_|\bcpy_"
        r"|FillFunctor|AddPadding|clear_kernel|permute_cols|moe_(un)?permute",
    ),
    (
        "convolution",
        r"conv[123]d|convol|implicit_gemm|winograd|im2col|col2im|depthwise|fprop|dgrad|wgrad|miopen\w*conv|naive_conv"
        r"|igemm_(fwd|bwd|wrw)",
    ),
    (
        "copy/cast",
        r"aten::(full|zeros|ones|new_(full|zeros|ones)|scalar_tensor|stack|constant_pad_nd)(_like)?$|aten::(copy_"
        r"|_?to(_copy)?|clone|cat|contiguous|fill_|zero_|index|repeat|repeat_interleave)(?![a-z])",
    ),
    (
        "matmul",
        r"gemm|gemv|Cijk_|nvjet|cutlass|cublas|hipblas|rocblas|split_?k|tensorop|wmma|_mfma|mul_mat|fused_?moe|ck_moe"
        r"|moe_kernel|\bbmm_|grouped_mm|group_mm|flatmm|\b(ampere|turing|volta|hopper)_|sm\d+_xmma|dot_kernel"
        r"|reduce_1Block|triton_(mm|bmm|tem)|streamk|(aten|mkldnn|onednn|mkl)(::|_)_?(mkl_|mkldnn_)?(mm|addmm|bmm"
        r"|baddbmm|mv|addmv|linear|matmul|dot)\w*|\bmkldnn_\w*linear|ipex_linear",
    ),
    # Generated code of a compiled graph on a CPU; its matrix products are operators of their own.
    (
        "elementwise",
        r"elementwise|silu|swiglu|geglu|gelu|activation|act_and_mul|reduce_kernel|reduction_kernel|DeviceScan"
        r"|kernel_scan_|rows_by_lane_kernel|triton_poi|CompiledFxGraph|bin_bcast|unary_(gated_)?op|dropout"
        r"|masked_scale|pool[123]?d|upsample|scale_f32|triu_tril|element_mul|aten::(add|cumsum|sub|rsub|mul|div|silu"
        r"|sum|abs|exp|sqrt|clamp\w*|where|masked_fill|max(imum)?|amax|min(imum)?|round|floor|remainder|prod|log)_?\b"
        r"|aten::(__(or|and|xor)__|tril|triu|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|any|all|arange|isin\w*|sigmoid"
        r"|tanh|relu|threshold|leaky_relu|hardtanh|hardswish|reciprocal|normal|uniform|bernoulli|random"
        r"|linalg_vector_norm)_?(_backward)?\b",
    ),
)
_COMPILED: tuple[tuple[re.Pattern[str], Category], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), category) for category, pattern in _RULES
)

_BARE_OPERATOR = re.compile(r"[a-z_][a-z0-9_]*$")
_INDUCTOR = re.compile(r"^(?:triton|cpp)_(?:(?P<kind>[a-z]{3})_)?fused_(?P<operators>.+?)(?:_\d+)?(?:\.kd)?$")

_NAMES: tuple[tuple[Category, str], ...] = (
    ("quantized matmul", "_weight_int8pack_mm _weight_int4pack_mm _int_mm _scaled_mm int_scaled_matmul"),
    ("matmul", "mm addmm bmm baddbmm mv addmv linear matmul dot"),
    ("attention", "softmax _softmax _scaled_dot_product_efficient_attention scaled_dot_product_attention"),
    ("attention", "_scaled_dot_product_flash_attention flex_attention"),
    ("dequantize", "__rshift__ __lshift__ bitwise_right_shift bitwise_left_shift dequantize_affine"),
    ("convolution", "convolution"),
    ("elementwise", "_log_softmax log_softmax nll_loss_forward native_dropout"),
    ("norm", "native_group_norm _native_batch_norm_legit mean pow rsqrt var_mean rms_norm"),
    ("norm", "_fused_rms_norm native_layer_norm"),
    ("rotary", "cos sin neg"),
    ("KV update", "index_copy index_put slice_scatter select_scatter scatter"),
    ("sampling", "argmax topk multinomial sort"),
    ("copy/cast", "_to_copy convert_element_type cat clone copy copy_ embedding gather index_select index"),
    ("copy/cast", "constant_pad_nd repeat"),
    ("elementwise", "add sub rsub mul div silu gelu sigmoid tanh relu where maximum minimum clamp abs sum eq ne le lt"),
    ("elementwise", "ge gt logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not masked_fill arange"),
    ("elementwise", "full floor round remainder sqrt reciprocal any all prod exp log amax isin cumsum"),
)
_OPERATORS: dict[str, Category] = {name: purpose for purpose, names in _NAMES for name in names.split()}
# Operators are joined by underscores, which they also contain, so the longest match wins.
_OPERATOR = re.compile(
    r"(?:(?<=_)|^)(" + "|".join(sorted(map(re.escape, _OPERATORS), key=len, reverse=True)) + r")(?=_|$)"
)


@cache
def category(name: str) -> Category:
    parts = shares(name)
    return max(parts, key=lambda category: (parts[category], -CATEGORIES.index(category)))


def seconds_by_category(times: Iterable[tuple[str, float]]) -> dict[Category, float]:
    """Sum the seconds of kernels by category; the time of a fused kernel is split over its operators."""
    totals: dict[Category, float] = defaultdict(float)
    for name, total_s in times:
        for purpose, share in shares(name).items():
            totals[purpose] += share * total_s
    return dict(totals)


@cache
def shares(name: str) -> Mapping[Category, float]:
    """Return each category's share of a kernel's time; the shares add up to 1.

    Only an inductor kernel has several categories. The operators in its name have equal shares, but a matrix product,
    attention or dequantization has the whole time, since the other operators take almost none.
    """
    fused = _INDUCTOR.match(name)
    if fused and fused["operators"].isdigit():
        # The name of a combined kernel has a number instead of operators.
        return {"elementwise": 1.0}
    if fused:
        return _fused_shares(fused["kind"], _OPERATOR.findall(fused["operators"]))
    # Torch before 1.8 printed operators without `aten::`.
    spellings = (name, f"aten::{name}") if _BARE_OPERATOR.match(name) else (name,)
    matches = (purpose for spelling in spellings for pattern, purpose in _COMPILED if pattern.search(spelling))
    return {next(matches, "other"): 1.0}


def _fused_shares(kind: str | None, operators: list[str]) -> dict[Category, float]:
    # scales[group] * (weight - zeros[group]) is the dequantizing of GPTQ.
    if sorted(operators) == ["index", "mul", "sub"]:
        return {"dequantize": 1.0}
    counts = Counter(_OPERATORS[operator] for operator in operators)
    # The name of a pointwise kernel, or of a reduction that stays in registers (as in a norm), also lists the matrix
    # product or attention whose result the kernel reads; such a kernel reads no weight matrix.
    if kind == "poi" or (kind == "per" and set(counts) - {"matmul", "copy/cast"}):
        del counts["matmul"], counts["quantized matmul"]
    if kind == "poi":
        del counts["attention"]
    for heavy in ("quantized matmul", "matmul", "attention", "dequantize"):
        if counts[heavy]:
            return {heavy: 1.0}
    # Views cost nothing, so a kernel of views alone moves data.
    total = counts.total()
    return {purpose: count / total for purpose, count in counts.items()} if total else {"copy/cast": 1.0}


# cuBLAS and CUTLASS name the types of a product; sgemm is float32.
_SINGLES = re.compile(r"sgemm|_f32_|f32f32|<float, float, float")
_NARROWER = re.compile(r"tf32|bf16|f16|s16816|s1688")
"""Parts of the names of kernels that accumulate or return float32, but multiply narrower types."""


def is_float32(name: str) -> bool:
    """Return True if the name is that of a product or an attention kernel in float32, without tensor cores."""
    return bool(_SINGLES.search(name)) and not _NARROWER.search(name)
