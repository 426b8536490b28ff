"""What a kernel is for, told from its name.

One table for NVIDIA, AMD and the operators of a CPU profile; the first rule that matches wins, so the rules that look
for a purpose (dequantize, attention) stand before those that look for a shape (gemm, elementwise). A kernel that
inductor made is named after the operators fused into it, and is judged by those.
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
    "bookkeeping",
    "other",
]
"""`bookkeeping` is of the host alone: views, allocations and the framework's own work, which no device ever sees."""
CATEGORIES: tuple[Category, ...] = get_args(Category)
UNKNOWN_LIMIT = 0.10
"""With more than this of the time in `other`, the table below needs the names."""

_RULES: tuple[tuple[str, Category], ...] = (
    # Operators that make a view, allocate or ask a question: on a CPU up to a fifth of the time of a small model.
    (
        r"^(aten::)?(_unsafe_view|_reshape_alias|view(_as\w*)?|transpose|t|permute|as_strided_?|slice"
        r"|(un)?squeeze_?|reshape|flatten|expand(_as)?|select|narrow|chunk|split\w*|unbind|alias|detach_?"
        r"|lift_fresh|resize_\w*|empty\w*|new_empty\w*"
        r"|resolve_(conj|neg)|result_type|is_nonzero|item|_local_scalar_dense|_has_\w+"
        r"|set_|output_nr|_version)$|TorchDynamo|Torch-Compiled Region|^MatMul[48]bit|Pregraph bytecode|AOTDispatcher",
        "bookkeeping",
    ),
    (
        r"nccl|rccl|mscclk|all_?reduce|all_?gather|reduce_scatter|cross_device_reduce|^(gloo|c10d|_c10d_functional):"
        r"|^Redistribute$",
        "communication",
    ),
    # bitsandbytes, torchao (tinygemm, int8pack), ExLlamaV2, Marlin, Machete, AWQ, vLLM, llama.cpp; then cuBLAS, CUTLASS
    # and Tensile by their type codes for 8- and 4-bit integers.
    (
        r"kgemm_4bit|gem[mv]_4bit|tinygemm|int[48]_?pack|int4mm|_int_mm|int_(scaled_)?matmul|scaled_int8_mm",
        "quantized matmul",
    ),
    (r"gemm_half_q_half|q4_matmul|q_?gemm|quant_matmul|marlin::|\bMarlin|machete::|exl3_gemm", "quantized matmul"),
    (
        r"gemm_w4a16|gemv_kernel_g\d|gemm_forward_4bit|awq_gemm|VecQuant\d|mul_mat_(vec_)?q|mixed_mm|bitblas",
        "quantized matmul",
    ),
    (
        r"qlinear|i8i8|i16832gemm|gemm_[su][48]|igemm|Cijk_\w*_(4xi8|I8)|scaled_mm|4bit_linear|weight_only_linear",
        "quantized matmul",
    ),
    (
        r"mixed_?input_?gemm|Gemm\w*<u?int[48]_t|quantized::linear|int8_linear_matmul|torch_aten_linear"
        r"|::quantized_linear",
        "quantized matmul",
    ),
    # Our own: see kernels/.
    (
        r"^(gemv_(gptq|nf4|int8)|packed_matmul|matmul_4bit|prompt_matmul|words|codes|int8_rows)_kernel",
        "quantized matmul",
    ),
    (r"^gemv_dense_kernel|^rows_kernel", "matmul"),
    (r"^decode_attention_kernel|^one_query_kernel", "attention"),
    (r"dequant|unpack|reconstruct_|nf4|[rl]shift_kernel|__[rl]shift__|bitwise_(right|left)_shift", "dequantize"),
    # Unpacking; an attention mask's is of other types on a GPU, and costs next to nothing on a CPU.
    (r"BitwiseAndFunctor<(?!bool|long)|aten::bitwise_and", "dequantize"),
    # flash-linear-attention's kernels and autograd's nodes, and the short convolution before them.
    (r"causal_?conv1d", "convolution"),
    (
        r"gated_?delta_?rule|(fused)?chunk_?(fwd|bwd)_kernel|FusedChunkFunction|simple_?gla|retention|linear_attn"
        r"|recompute_w_u|prepare_wy|solve_tril|merge_16x16_to_\w+_inverse|chunk_local_cumsum|chunk_scaled_dot_kkt",
        "linear attention",
    ),
    # Decoding is greedy, so a softmax belongs to attention and not to sampling.
    # cuDNN's backward pass has two kernels beside the one that is named after attention.
    (
        r"flash|fmha|attention|sdpa|aotriton|attn_(fwd|bwd)|_attn\b|\bmha_|_mha\b|softmax|_dot_product"
        r"|cudnn::fusion::(compute_dot_do_o|convert_dq)",
        "attention",
    ),
    (r"rms_?norm|layer_?norm|MeanOps|rsqrt|pow_tensor|aten::(pow|mean|rsqrt)\b", "norm"),
    (r"rotary|rope_|_rope|\b(cos|sin|neg)_kernel|aten::(cos|sin|neg)\b", "rotary"),
    (r"reshape_and_cache|kv_?cache|index_copy|index_put|slice_scatter|scatter_", "KV update"),
    (r"argmax|topk|multinomial|radix_?sort|bitonic|sort_?kernel|aten::(sort|multinomial)\b", "sampling"),
    (
        r"memcpy|memset|copy_kernel|copy(Buffer|Device|Host)|fillBuffer|CatArray|gather|index_?select"
        r"|index_kernel|embedding|transpose_|nchwToNhwc|nhwcToNchw",
        "copy/cast",
    ),
    (r"aten::(full|zeros|ones|new_(full|zeros|ones)|scalar_tensor|stack|constant_pad_nd)(_like)?$", "copy/cast"),
    (
        r"FillFunctor|clear_kernel|dynamic_quant|int8_vectorwise_quant|permute_cols|kQuantize|kInt8VectorQuant"
        r"|convert_kernel|cast_kernel",
        "copy/cast",
    ),
    (
        r"aten::(copy_|_?to(_copy)?|clone|cat|contiguous|fill_|zero_|index|repeat|repeat_interleave)(?![a-z])",
        "copy/cast",
    ),
    (r"gemm|gemv|Cijk_|nvjet|cutlass|cublas|hipblas|rocblas|split_?k|tensorop|wmma|_mfma", "matmul"),
    (r"\b(ampere|turing|volta|hopper)_|sm\d+_xmma|dot_kernel|reduce_1Block|triton_(mm|bmm|tem)|streamk", "matmul"),
    (r"(aten|mkldnn|onednn|mkl)::_?(mkl_|mkldnn_)?(mm|addmm|bmm|baddbmm|mv|addmv|linear|matmul|dot)\w*", "matmul"),
    (r"\bmkldnn_\w*linear|ipex_linear", "matmul"),
    # The generated code of a compiled graph on CPU: all of it but the matrix products, which are calls of their own.
    (
        r"elementwise|silu|swiglu|gelu|activation|act_and_mul|reduce_kernel|reduction_kernel|DeviceScan|kernel_scan_"
        r"|rows_by_lane_kernel|triton_poi|CompiledFxGraph",
        "elementwise",
    ),
    (
        r"aten::(add|cumsum|sub|rsub|mul|div|silu|sum|abs|exp|sqrt|clamp\w*|where|masked_fill|max|amax|min|round)_?\b",
        "elementwise",
    ),
    (
        r"aten::(__(or|and|xor)__|tril|triu|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|any|all|arange|isin\w*"
        r"|sigmoid|tanh|relu|reciprocal)_?\b",
        "elementwise",
    ),
)
_COMPILED: tuple[tuple[re.Pattern[str], Category], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), category) for pattern, category in _RULES
)

_INDUCTOR = re.compile(r"^(?:triton|cpp)_(?:(?P<kind>[a-z]{3})_)?fused_(?P<operators>.+?)(?:_\d+)?(?:\.kd)?$")

_NAMES: tuple[tuple[Category, str], ...] = (
    ("quantized matmul", "_weight_int8pack_mm _weight_int4pack_mm _int_mm _scaled_mm int_scaled_matmul"),
    ("matmul", "mm addmm bmm baddbmm mv addmv linear matmul dot"),
    ("attention", "softmax _softmax _scaled_dot_product_efficient_attention scaled_dot_product_attention"),
    ("attention", "_scaled_dot_product_flash_attention flex_attention"),
    ("dequantize", "__rshift__ __lshift__ bitwise_right_shift bitwise_left_shift dequantize_affine"),
    ("norm", "mean pow rsqrt var_mean rms_norm _fused_rms_norm native_layer_norm"),
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
# A name is its operators joined by underscores, which the operators have too: the longest that fits is meant.
_OPERATOR = re.compile(
    r"(?:(?<=_)|^)(" + "|".join(sorted(map(re.escape, _OPERATORS), key=len, reverse=True)) + r")(?=_|$)"
)


@cache
def category(name: str) -> Category:
    """What most of the kernel is for."""
    parts = shares(name)
    return max(parts, key=lambda category: (parts[category], -CATEGORIES.index(category)))


def seconds_by_category(times: Iterable[tuple[str, float]]) -> dict[Category, float]:
    """Names and seconds of kernels by purpose; a fused kernel's time is split over what is fused into it."""
    totals: dict[Category, float] = defaultdict(float)
    for name, total_s in times:
        for purpose, share in shares(name).items():
            totals[purpose] += share * total_s
    return dict(totals)


@cache
def shares(name: str) -> Mapping[Category, float]:
    """What the kernel is for, in parts that add up to 1.

    Only an inductor kernel has more than one part: each operator in its name counts the same, except that beside a
    matrix product, attention or dequantizing the others cost nothing worth naming.
    """
    fused = _INDUCTOR.match(name)
    if fused and fused["operators"].isdigit():
        # Several kernels in one: no operators are named.
        return {"elementwise": 1.0}
    if fused:
        return _fused_shares(fused["kind"], _OPERATOR.findall(fused["operators"]))
    return {next((purpose for pattern, purpose in _COMPILED if pattern.search(name)), "other"): 1.0}


def _fused_shares(kind: str | None, operators: list[str]) -> dict[Category, float]:
    # scales[group] * (weight - zeros[group]): what GPTQ's dequantizing is compiled to.
    if sorted(operators) == ["index", "mul", "sub"]:
        return {"dequantize": 1.0}
    counts = Counter(_OPERATORS[operator] for operator in operators)
    # A pointwise kernel is also named after the product or attention whose result it takes over, and so is a
    # reduction short enough to stay in registers (a norm's); neither reads a weight matrix.
    if kind == "poi" or (kind == "per" and set(counts) - {"matmul", "copy/cast"}):
        del counts["matmul"], counts["quantized matmul"]
    if kind == "poi":
        del counts["attention"]
    for heavy in ("quantized matmul", "matmul", "attention", "dequantize"):
        if counts[heavy]:
            return {heavy: 1.0}
    # Views alone cost nothing; if they became a kernel, it moves data.
    total = counts.total()
    return {purpose: count / total for purpose, count in counts.items()} if total else {"copy/cast": 1.0}
