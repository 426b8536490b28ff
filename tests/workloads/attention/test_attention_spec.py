"""Specification of attention: valid values, refusals without torch, FLOPs and bytes."""

import pytest
from pydantic import ValidationError

from benchmarker.core.errors import SpecError, UnsupportedError
from benchmarker.schema.base import first_problem
from benchmarker.workloads.attention.attention_flops import allowed_pairs, attention_flops_and_bytes, scores_passes
from benchmarker.workloads.attention.attention_variants import VARIANTS, implementation_of
from benchmarker.workloads.attention.spec import (
    AttentionGrid,
    AttentionSubject,
    AttentionVariant,
    shape_of,
)
from benchmarker.workloads.operation.spec import LengthPoint


def shape(*, seq_len=8, batch_size=1, mode="forward", variant="naive", dtype=None, **subject):
    spec = AttentionSubject(**{"heads": 2, "head_dim": 4, **subject})
    return shape_of(spec, AttentionVariant(variant=variant, dtype=dtype), LengthPoint(seq_len, batch_size, mode))


def problem(kind, **values):
    with pytest.raises(ValidationError) as caught:
        kind(**values)
    return first_problem(caught.value, kind)


def test_tokens_determine_the_batch_size_of_each_length():
    grid = AttentionGrid(tokens=(16384,), seq_len=(1024, 16384), mode=("forward",))
    assert grid.points() == [LengthPoint(1024, 16, "forward"), LengthPoint(16384, 1, "forward")]


def test_points_are_sorted_by_length():
    points = AttentionGrid(seq_len=(512, 128), batch_size=(2, 1), mode=("forward",)).points()
    assert [(point.seq_len, point.batch_size) for point in points] == [(128, 1), (128, 2), (512, 1), (512, 2)]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (AttentionGrid, {"tokens": (16384,), "seq_len": (3000,)}, "tokens: 16384 is not a multiple of seq_len 3000"),
        (
            AttentionGrid,
            {"tokens": (64,), "seq_len": (8,), "batch_size": (2,)},
            "tokens: already determines the batch size; leave out batch_size or tokens",
        ),
        (
            AttentionSubject,
            {"heads": 16, "kv_heads": 5},
            "kv_heads: 16 heads cannot share 5 evenly; give a divisor",
        ),
        (
            AttentionSubject,
            {"window": 64, "causal": False},
            "window: needs causal: true; a window to both sides is not measured",
        ),
        (AttentionSubject, {"head_dims": 64}, "no key 'head_dims'; did you mean 'head_dim'?"),
    ],
)
def test_invalid_values_are_refused_in_one_line(kind, values, expected):
    assert problem(kind, **values) == expected


def test_unknown_variant_is_refused_with_a_suggestion():
    with pytest.raises(SpecError, match="no attention variant 'flsh'; did you mean 'flash'"):
        implementation_of("flsh")


def test_unsupported_shapes_are_refused_without_torch():
    assert VARIANTS["flash"].wrong_shape(shape(head_dim=512)) == "takes a head_dim of 256 at most, not 512"
    assert VARIANTS["cudnn"].wrong_shape(shape(dtype="float32")) == "takes bfloat16 and float16, not float32"
    assert VARIANTS["flash"].wrong_shape(shape(window=4)) == "takes no window"
    assert VARIANTS["naive"].wrong_shape(shape(head_dim=512, window=4)) is None


def test_cudnn_is_unsupported_on_amd_and_on_a_cpu():
    with pytest.raises(UnsupportedError, match=r"^not on AMD GPUs; it runs on NVIDIA GPUs$"):
        VARIANTS["cudnn"].check_available(shape(), "rocm")
    with pytest.raises(UnsupportedError, match=r"^not on CPUs; it runs on NVIDIA GPUs$"):
        VARIANTS["cudnn"].check_available(shape(), "cpu")


def test_tf32_is_unsupported_on_a_cpu():
    with pytest.raises(UnsupportedError, match="a CPU has none"):
        VARIANTS["naive"].check_available(shape(dtype="tf32"), "cpu")


def test_missing_library_is_named():
    assert VARIANTS["fa4"].missing_module() == "flash_attn.cute.interface"
    assert VARIANTS["flash"].missing_module() is None


@pytest.mark.parametrize(
    ("seq_len", "causal", "window", "pairs"),
    [(5, False, None, 25), (5, True, None, 15), (5, True, 2, 9), (5, True, 5, 15), (1, True, None, 1)],
)
def test_allowed_pairs_equal_the_counted_mask(seq_len, causal, window, pairs):
    counted = sum(
        not causal or 0 <= query - key < (window or seq_len) for query in range(seq_len) for key in range(seq_len)
    )
    assert counted == pairs
    assert allowed_pairs(shape(seq_len=seq_len, causal=causal, window=window)) == pairs


def test_flops_equal_those_of_the_flash_attention_papers():
    forward = attention_flops_and_bytes(shape(seq_len=1024, batch_size=16, heads=32, head_dim=16, causal=False))
    assert forward.flops == 34_359_738_368
    both = attention_flops_and_bytes(
        shape(seq_len=1024, batch_size=16, heads=32, head_dim=16, causal=False, mode="forward_backward")
    )
    assert both.flops == 3.5 * forward.flops
    assert both.forward_flops == forward.flops


def test_bytes_count_shared_heads_once():
    # q and o of 2 heads, k and v of 1, 8 positions of 4 numbers of 2 bytes.
    assert attention_flops_and_bytes(shape(kv_heads=1)).bytes == (2 * 2 + 2 * 1) * 8 * 4 * 2
    # Backward: also q, o, do, dq of 2 heads and k, v, dk, dv of 1; one float32 per row, written and read.
    assert (
        attention_flops_and_bytes(shape(kv_heads=1, mode="forward_backward")).bytes
        == (6 * 2 + 6 * 1) * 8 * 4 * 2 + 2 * 2 * 8 * 4
    )


def test_passes_over_the_scores_depend_on_mask_and_gradients():
    assert scores_passes(is_causal=False, is_backward=False) == 6
    assert scores_passes(is_causal=True, is_backward=False) == 8
    assert scores_passes(is_causal=False, is_backward=True) == 6 + 9
    assert scores_passes(is_causal=True, is_backward=True) == 8 + 11


def test_variant_with_a_dtype_is_named_after_the_dtype():
    assert AttentionVariant(variant="naive", dtype="tf32").name == "naive tf32"
    assert shape(dtype="float32").dtype == "float32"
    assert shape().dtype == "bfloat16"
