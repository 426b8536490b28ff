"""Measurement of one attention implementation, whose results are compared with attention in float64.

The error of a tensor is the Frobenius norm of its difference from the float64 result, divided by the norm of this
result. The error of torch's `math` backend in the same type shows how much error rounding alone causes. An
implementation is wrong if an error is above the type's tolerance *and* above twice the error of `math`.

Up to 2,048 positions, all rows of all results are compared. In longer sequences 64 rows are compared, one from each of
64 equal segments, for the output and the gradient of the queries only: gradients of keys and values need all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarker.core.errors import WrongResultError
from benchmarker.hardware.device import Device
from benchmarker.workloads.attention import attention_variants as implementations
from benchmarker.workloads.attention.attention_flops import attention_flops_and_bytes
from benchmarker.workloads.attention.record import AttentionCell, AttentionChecked, AttentionFacts, AttentionTensorError
from benchmarker.workloads.attention.spec import AttentionShape, AttentionSubject, AttentionVariant, shape_of
from benchmarker.workloads.operation import operation_call as calls
from benchmarker.workloads.operation.operation_bench import MatmulPrecision, OperationBench, ReadyCall
from benchmarker.workloads.operation.record import SeenKernel, TensorName
from benchmarker.workloads.operation.spec import LengthPoint

TOLERANCES = {"float32": 1e-5, "tf32": 2e-3, "bfloat16": 1e-2, "float16": 2e-3}
"""Largest error that passes, by type. TF32 has as many bits of fraction as float16, and so the same tolerance."""
MATH_RATIO = 2.0
ALL_ROWS = 2048
SAMPLED_ROWS = 64
CHUNK_BYTES = 2**28  # Maximum bytes of float64 scores in memory at once.

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def input_bytes(shape: AttentionShape) -> int:
    return shape.row_bytes * (shape.heads * (1 + shape.is_backward) + 2 * shape.kv_heads)


def make_inputs(shape: AttentionShape, device: str, *, seed: int) -> calls.CallInputs:
    """Return normally distributed inputs, as in the FlashAttention papers; the same for all implementations."""
    dtype = torch.float32 if shape.dtype == "tf32" else getattr(torch, shape.dtype)
    tensors = [tensor.to(dtype) for tensor in _random(shape, device, seed)]
    for tensor in tensors[:3]:
        tensor.requires_grad_(shape.is_backward)
    return calls.CallInputs(dict(zip("qkv", tensors, strict=False)), tensors[3] if shape.is_backward else None)


def inputs_sha256(shape: AttentionShape, device: str, *, seed: int) -> str:
    return calls.hash_inputs((*shape._replace(dtype="float32"), seed), _random(shape, device, seed))


def _random(shape: AttentionShape, device: str, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator(device=device).manual_seed(seed)
    for heads in (shape.heads, shape.kv_heads, shape.kv_heads, *[shape.heads] * shape.is_backward):
        yield torch.randn(shape.batch_size, heads, shape.seq_len, shape.head_dim, generator=generator, device=device)


def rows_of(seq_len: int) -> list[int]:
    """Return the query positions to compare: all if seq_len <= 2,048, else the middles of 63 segments and the last."""
    if seq_len <= ALL_ROWS:
        return list(range(seq_len))
    middles = [(2 * segment + 1) * seq_len // (2 * SAMPLED_ROWS) for segment in range(SAMPLED_ROWS - 1)]
    return [*middles, seq_len - 1]


def check(results: calls.Results, inputs: calls.CallInputs, shape: AttentionShape) -> AttentionChecked:
    """Return the errors of one call's results relative to float64. Raises WrongResultError for NaN or infinity."""
    calls.check_finite(results)
    rows = rows_of(shape.seq_len)
    exact = reference(inputs, shape, rows, torch.float64, by_formula)
    by_math = reference(inputs, shape, rows, inputs.named["q"].dtype, _by_math)
    tensors = []
    for name, expected in exact.items():
        result = results[name] if name in ("dk", "dv") else results[name][:, :, rows]
        error, math_error = (calls.relative_error(tensor, expected) for tensor in (result, by_math[name]))
        tensors.append(AttentionTensorError(tensor=name, error=error, math_error=math_error))
    return AttentionChecked(
        against="float64",
        error=max(tensor.error for tensor in tensors),
        tolerance=TOLERANCES[shape.dtype],
        tensors=tuple(tensors),
        rows=len(rows),
    )


def refuse_inaccurate(checked: AttentionChecked) -> None:
    for tensor in checked.tensors:
        if tensor.error > checked.tolerance and tensor.error > MATH_RATIO * tensor.math_error:
            raise WrongResultError(
                f"wrong result: {tensor.tensor} is off by {tensor.error:.2g} of its size from {checked.against}; "
                f"{checked.tolerance:.0e} is allowed, and torch's math backend is off by {tensor.math_error:.2g}"
            )


def reference(
    inputs: calls.CallInputs, shape: AttentionShape, rows: list[int], dtype: torch.dtype, attend: Attend
) -> calls.Results:
    """Return `rows` of the output `o` and of the gradient `dq`; also `dk` and `dv` if `rows` contains every row."""
    group_size = shape.heads // shape.kv_heads
    groups = shape.batch_size * shape.kv_heads
    # Queries [groups, group_size, rows, head_dim]; keys and values [groups, 1, length, head_dim].
    query, key, value = (tensor.detach() for tensor in inputs.tensors)
    query = query[:, :, rows].reshape(groups, group_size, len(rows), shape.head_dim)
    key, value = (tensor.reshape(groups, 1, shape.seq_len, shape.head_dim) for tensor in (key, value))
    gradient = None if inputs.gradient is None else inputs.gradient[:, :, rows].reshape(query.shape)
    chunk = max(1, CHUNK_BYTES // (group_size * len(rows) * shape.seq_len * 8))
    allowed: Tensor | None = None
    if shape.causal:
        distance = torch.tensor(rows, device=query.device)[:, None] - torch.arange(shape.seq_len, device=query.device)
        allowed = (distance >= 0) & (distance < (shape.window or shape.seq_len))
    chunks: list[list[Tensor]] = []
    for start in range(0, groups, chunk):
        part = slice(start, start + chunk)
        leaves = [tensor[part].to(dtype).requires_grad_(shape.is_backward) for tensor in (query, key, value)]
        output = attend(leaves[0], leaves[1], leaves[2], allowed)
        gradients = () if gradient is None else torch.autograd.grad(output, leaves, gradient[part].to(dtype))
        chunks.append([output.detach(), *gradients])
    joined = [torch.cat(tensors) for tensors in zip(*chunks, strict=True)]
    names: tuple[TensorName, ...] = ("o", "dq", "dk", "dv") if len(rows) == shape.seq_len else ("o", "dq")
    return {
        name: tensor.reshape(shape.batch_size, -1, *tensor.shape[2:])
        for name, tensor in zip(names, joined, strict=False)
    }


def by_formula(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(dim=-1) @ value


def _by_math(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    key, value = (tensor.expand(-1, query.shape[1], -1, -1) for tensor in (key, value))
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, attn_mask=allowed)


class AttentionBench(OperationBench[implementations.AttentionImplementation]):
    def __init__(
        self,
        subject: AttentionSubject,
        variant: AttentionVariant,
        device: Device,
        *,
        precision: MatmulPrecision | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        super().__init__(implementations.implementation_of(variant.variant), device, cache_bytes)
        self._subject, self._variant, self._precision = subject, variant, precision

    def facts(self) -> Mapping[str, Any]:
        precision = None if self.device.kind == "cpu" else self._precision
        source = implementations.source_sha256(self._variant.variant)
        return {"built": AttentionFacts(matmul_precision=precision, source_sha256=source)}

    def shape(self, point: LengthPoint) -> AttentionShape:
        return shape_of(self._subject, self._variant, point)

    def cell(self, point: LengthPoint) -> AttentionCell:
        self._ready = None
        shape = self.shape(point)
        digest = inputs_sha256(shape, self.device.torch_name, seed=self._subject.seed)
        return AttentionCell(
            status="ok", **point._asdict(), demand=attention_flops_and_bytes(shape), inputs_sha256=digest
        )

    def copies(self, point: LengthPoint) -> list[calls.CallInputs]:
        shape = self.shape(point)
        first = make_inputs(shape, self.device.torch_name, seed=self._subject.seed)
        return first.copies(calls.copies_needed(input_bytes(shape), self.cache_bytes, kind=self.device.kind))

    def checked(self, ready: ReadyCall) -> AttentionChecked:
        first = ready.copies[0]
        fresh = partial(make_inputs, ready.shape, self.device.torch_name, seed=self._subject.seed + 1)
        checked = check(calls.fresh_results(ready.operation, first, fresh), first, ready.shape)
        refuse_inaccurate(checked)
        return checked

    def name_kernels(self, kernels: tuple[SeenKernel, ...]) -> str:
        variants = implementations.variants_with_kernel(kernels, self.device.kind)
        return " and ".join(variants) or super().name_kernels(kernels)
