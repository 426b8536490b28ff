"""Measurement of one implementation of a mixer: inputs, reference in float64, and checks.

Queries, keys, values, gates and the output's gradient are the same normal random numbers for every mixer. Before
timing, linear attention applies its feature map to queries and keys; the delta rule scales them to length 1, and its
decay is sigmoid(x + 4) and its strength sigmoid(x).

Up to 512 positions, results are compared with the recurrence of the mixer's paper in float64, one token after the
other. Longer sequences are compared with the chunked formula in float64, whose first 512 positions must equal the
recurrence. Only the first and the last head of the last sequence are compared, at every position, because heads are
independent. Softmax is compared as in the workload attention. A changed input must not change earlier outputs. Once per
process and mode, the lengths around the end of a chunk are also compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from benchmarker.core.errors import WrongResultError
from benchmarker.hardware.device import Device
from benchmarker.hardware.read_environment import available_bytes
from benchmarker.measure.repeat import Step
from benchmarker.schema.record import RunRecord
from benchmarker.workloads.attention.attention_bench import TOLERANCES, by_formula, rows_of
from benchmarker.workloads.attention.attention_bench import check as check_attention
from benchmarker.workloads.mixers import mixer as mixers
from benchmarker.workloads.mixers.record import MixersCell, MixersChecked, MixersFacts, MixersTensorError
from benchmarker.workloads.mixers.small_model import ModelStep, block_facts, scores, training_demand
from benchmarker.workloads.mixers.spec import MixerShape, MixersSubject, shape_of
from benchmarker.workloads.operation import operation_call as calls
from benchmarker.workloads.operation.operation_bench import OperationBench, ReadyCall
from benchmarker.workloads.operation.record import OperationSample
from benchmarker.workloads.operation.spec import LengthPoint

TRAINING = "training_step"
MAX_COPIES = 64
"""Maximum number of input copies. Inputs that still fit in the cache with this many copies would be cached in a real
model as well."""
CHUNK_ENDS = (63, 64, 65, 127)  # Lengths around the end of a chunk; most kernels have chunks of 64 positions.
GATE_FACTOR = 3.0
"""Factor on the tolerance for gradients of decays and strengths, which are sums in which large numbers cancel."""
RECURRENCE_LENGTH = 512
REFERENCE_DISTANCE = 1e-9  # Largest relative difference between the recurrence and the chunked formula.
COMPARED_HEADS = 2


class MixersBench(OperationBench[mixers.MixerImplementation]):
    def __init__(
        self,
        subject: MixersSubject,
        variant: str,
        device: Device,
        *,
        cache_bytes: int | None = None,
        report: Callable[[str], object] | None = None,
    ) -> None:
        """If `report` is given, models are trained on the subject's tasks after timing; `report` prints progress."""
        super().__init__(mixers.implementation_of(variant), device, cache_bytes)
        self._mixer, self._subject, self._report = self.implementation.mixer, subject, report
        self._chunk_end_errors: dict[bool, float] = {}

    def facts(self) -> Mapping[str, Any]:
        packages = ("torch",) if self.implementation.missing_module() else self.implementation.packages
        return {"built": MixersFacts(versions={name: version(name) for name in packages})}

    def shape(self, point: LengthPoint) -> MixerShape:
        return shape_of(self._subject, point)

    def cell(self, point: LengthPoint) -> MixersCell:
        self._ready = None
        mixer, subject, shape, name = self._mixer, self._subject, self.shape(point), self.device.torch_name
        is_training = point.mode == TRAINING
        return MixersCell(
            status="ok",
            **point._asdict(),
            demand=training_demand(mixer, subject, point) if is_training else mixers.demand_of(mixer, shape),
            block=block_facts(mixer, subject, point.seq_len) if is_training else None,
            least_bytes=mixers.least_bytes(mixer, shape, writes_scores=self.implementation.writes_scores),
            free_bytes=available_bytes() if self.device.kind == "cpu" else torch.cuda.mem_get_info(name)[0],
            inputs_sha256=inputs_sha256(shape, name, seed=subject.seed),
        )

    def _inputs(self, shape: MixerShape, seed: int) -> calls.CallInputs:
        return make_inputs(self._mixer, shape, self.device.torch_name, seed=seed, layout=self.implementation.layout)

    def copies(self, point: LengthPoint) -> list[calls.CallInputs]:
        shape = self.shape(point)
        # In a training step, the mixer is checked on a single copy and is not timed by itself.
        most = 1 if point.mode == TRAINING else MAX_COPIES
        count = min(
            most, calls.copies_needed(mixers.input_bytes(self._mixer, shape), self.cache_bytes, kind=self.device.kind)
        )
        return [self._inputs(shape, self._subject.seed + number) for number in range(count)]

    def prove(self, point: LengthPoint) -> tuple[ReadyCall, dict[str, Any]]:
        with mixers.refused_compiler_is_unsupported():
            return super().prove(point)

    def correct(self, point: LengthPoint) -> Mapping[str, Any]:
        return self.prove(point)[1] if point.mode == TRAINING else super().correct(point)

    def step(self, point: LengthPoint) -> Step[OperationSample]:
        if point.mode != TRAINING:
            return super().step(point)
        self._ready = None
        return ModelStep(self.implementation, self._subject, point, self.device)

    def measured(self, cell: MixersCell, step: Any) -> Mapping[str, Any]:
        return {"passes": step.passes()} if cell.mode == TRAINING else {}

    def afterwards(self, record: RunRecord, path: Path) -> Mapping[str, Any]:  # noqa: ARG002
        if self._report is None:
            return {}
        self._ready = None
        return scores(self.implementation, self._subject, self.device, self._report)

    def checked(self, ready: ReadyCall) -> MixersChecked:
        first, shape, seed = ready.copies[0], ready.shape, self._subject.seed + len(ready.copies)
        results = calls.fresh_results(ready.operation, first, lambda: self._inputs(shape, seed))
        errors = checked_errors(results, self.implementation, first, shape)
        output = results["o"]
        del results
        causal_error = self._causal_error(ready, output, self._inputs(shape, seed + 1))
        rows, heads, ends = len(rows_of(shape.seq_len)), shape.heads, dict[str, Any]()
        if self._mixer is not mixers.SOFTMAX:
            rows, heads = shape.seq_len, min(COMPARED_HEADS, shape.heads)
            ends = {"lengths": CHUNK_ENDS, "lengths_error": self._chunk_end_error(shape)}
        return MixersChecked(
            against="float64",
            error=max(tensor.error for tensor in errors),
            tolerance=TOLERANCES[shape.dtype],
            tensors=errors,
            rows=rows,
            heads=heads,
            causal_error=causal_error,
            **ends,
        )

    def _causal_error(self, ready: ReadyCall, output: Tensor, fresh: calls.CallInputs) -> float:
        """Replace the second half of the inputs; return the relative change of the first half of the output. Raises
        WrongResultError if the change exceeds the type's tolerance."""
        shape, first = ready.shape, ready.copies[0]
        middle, axis = shape.seq_len // 2, 2 if self.implementation.layout == "heads first" else 1
        if not middle:
            return 0.0
        with torch.no_grad():
            for target, source in zip(first.tensors, fresh.tensors, strict=True):
                size = shape.seq_len - middle
                target.narrow(axis, middle, size).copy_(source.narrow(axis, middle, size))
            with ready.operation.around():
                changed = ready.operation.call(*first.tensors)
        error = calls.relative_error(changed.narrow(axis, 0, middle), output.narrow(axis, 0, middle))
        if error > TOLERANCES[shape.dtype]:
            raise WrongResultError(f"wrong result: later inputs change earlier outputs, by {error:.2g}")
        return error

    def _chunk_end_error(self, shape: MixerShape) -> float:
        """Return the largest error of an output at the lengths `CHUNK_ENDS`, computed once per mode."""
        if shape.is_backward not in self._chunk_end_errors:
            errors = []
            for length in CHUNK_ENDS:
                short = shape._replace(seq_len=length, batch_size=1)
                inputs = self._inputs(short, self._subject.seed)
                results = calls.results_of(self.implementation.open(short, self.device.torch_name), inputs)
                checked = checked_errors(results, self.implementation, inputs, short, f" at {length} positions")
                errors.append(checked[0].error)
            self._chunk_end_errors[shape.is_backward] = max(errors)
        return self._chunk_end_errors[shape.is_backward]


def make_inputs(
    mixer: mixers.Mixer, shape: MixerShape, device: str, *, seed: int, layout: mixers.Layout
) -> calls.CallInputs:
    dtype: torch.dtype = getattr(torch, shape.dtype)
    query, key, value, gate, strength, *gradients = _random(shape, device, seed)
    named = {"q": mixers.scaled(query, mixer, shape), "k": mixers.scaled(key, mixer, shape), "v": value}
    named = {name: tensor.to(dtype) for name, tensor in named.items()}
    if mixer is mixers.GATED_DELTA:
        named |= {"g": logsigmoid(gate + mixers.GATE_OFFSET), "beta": strength.sigmoid().to(dtype)}
    if shape.is_backward:
        named["o"] = gradients[0].to(dtype)
    if layout == "heads first":
        named = {name: tensor.transpose(1, 2).contiguous() for name, tensor in named.items()}
    gradient = named.pop("o", None)
    return calls.CallInputs(
        {name: tensor.requires_grad_(shape.is_backward) for name, tensor in named.items()}, gradient
    )


def inputs_sha256(shape: MixerShape, device: str, *, seed: int) -> str:
    """Return the SHA-256 of shape, seed and first random numbers; it is the same for every mixer and type."""
    return calls.hash_inputs((*shape._replace(dtype="float32"), seed), _random(shape, device, seed))


def _random(shape: MixerShape, device: str, seed: int) -> list[Tensor]:
    generator = torch.Generator(device=device).manual_seed(seed)
    rows = shape.batch_size, shape.seq_len, shape.heads
    keys, values = (*rows, shape.head_dim), (*rows, shape.value_dim)
    sizes = [keys, keys, values, rows, rows, *[values] * shape.is_backward]
    return [torch.randn(size, generator=generator, device=device) for size in sizes]


def checked_errors(
    results: calls.Results,
    implementation: mixers.MixerImplementation,
    inputs: calls.CallInputs,
    shape: MixerShape,
    suffix: str = "",
) -> tuple[MixersTensorError, ...]:
    """Return the errors of the output and of the gradients. Raises WrongResultError, whose message ends with `suffix`,
    if an error exceeds its tolerance or a result is not finite."""
    calls.check_finite(results)
    if implementation.mixer is mixers.SOFTMAX and shape.value_dim == shape.head_dim:
        checked = check_attention(results, inputs, mixers.softmax_shape(shape))
        errors = {tensor.tensor: tensor.error for tensor in checked.tensors}
    else:
        layout = implementation.layout
        expected = reference(implementation.mixer, inputs, shape, layout)
        errors = {
            name: calls.relative_error(two_heads(results[name], layout), exact) for name, exact in expected.items()
        }
    tensors = []
    for name, error in errors.items():
        tolerance = TOLERANCES[shape.dtype] * (GATE_FACTOR if name in ("dg", "dbeta") else 1.0)
        if error > tolerance:
            problem = f"{name} is off by {error:.2g} of its size from float64; {tolerance:.0e} is allowed"
            raise WrongResultError(f"wrong result{suffix}: {problem}")
        tensors.append(MixersTensorError(tensor=name, error=error, tolerance=tolerance))
    return tuple(tensors)


def two_heads(tensor: Tensor, layout: mixers.Layout) -> Tensor:
    """Return the first and last head of the last sequence, [2, length, ..]; [1, length, ..] for a single head."""
    last = (tensor if layout == "heads first" else tensor.transpose(1, 2))[-1]
    return last[:: max(1, last.shape[0] - 1)][:COMPARED_HEADS]


def reference(mixer: mixers.Mixer, inputs: calls.CallInputs, shape: MixerShape, layout: mixers.Layout) -> calls.Results:
    """Return output and gradients in float64 of the heads that are compared, [2, length, ..]."""
    leaves = {
        name: two_heads(tensor.detach(), layout).double().requires_grad_(shape.is_backward)
        for name, tensor in inputs.named.items()
    }
    output = _output(mixer, leaves, shape)
    if inputs.gradient is None:
        return {"o": output}
    gradients = torch.autograd.grad(output, tuple(leaves.values()), two_heads(inputs.gradient, layout).double())
    named = {calls.GRADIENT_NAMES[name]: tensor for name, tensor in zip(leaves, gradients, strict=True)}
    return {"o": output.detach(), **named}


def _output(mixer: mixers.Mixer, leaves: Mapping[str, Tensor], shape: MixerShape) -> Tensor:
    """Return the output in float64: by the recurrence if the sequence is short enough, else by chunks."""
    query, length, is_normalized = leaves["q"], shape.seq_len, shape.normalize and mixer is mixers.LINEAR
    if mixer is mixers.SOFTMAX:
        allowed = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        return by_formula(query, leaves["k"], leaves["v"], allowed)
    if (decay := mixers.head_decay(mixer, shape.heads, query.device)) is not None:
        decay = decay[:: max(1, shape.heads - 1)][:COMPARED_HEADS, None].expand(-1, length)
    tensors = query, leaves["k"], leaves["v"], leaves.get("g", decay), leaves.get("beta")
    if length <= RECURRENCE_LENGTH:
        return recurrence(*tensors, is_normalized=is_normalized)
    output = mixers.chunked(*tensors, is_normalized=is_normalized)
    with torch.no_grad():
        start: list[Any] = [None if tensor is None else tensor[:, :RECURRENCE_LENGTH] for tensor in tensors]
        distance = calls.relative_error(output[:, :RECURRENCE_LENGTH], recurrence(*start, is_normalized=is_normalized))
    assert distance < REFERENCE_DISTANCE, f"the two references differ by {distance:.1e}"
    return output


def recurrence(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, strength: Tensor | None, *, is_normalized: bool
) -> Tensor:
    """Return the output of the recurrence, [heads, length, value_dim]. Arguments as in `chunked`."""
    state = value.new_zeros(value.shape[0], key.shape[-1], value.shape[-1])
    key_sum = torch.zeros_like(key[:, 0])
    outputs = []
    for position in range(query.shape[1]):
        q, k, update = query[:, position] / query.shape[-1] ** 0.5, key[:, position], value[:, position]
        if log_decay is not None:
            state = log_decay[:, position, None, None].exp() * state
        if strength is not None:
            update = strength[:, position, None] * (update - (k[:, None] @ state)[:, 0])
        state = state + k[:, :, None] * update[:, None, :]
        output = (q[:, None] @ state)[:, 0]
        if is_normalized:
            key_sum = key_sum + k
            output = output / ((q * key_sum).sum(-1, keepdim=True) + mixers.EPSILON)
        outputs.append(output)
    return torch.stack(outputs, dim=1)
