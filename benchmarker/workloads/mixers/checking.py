"""One implementation's call held against the reference, before any clock starts.

Output and gradients of the very inputs that are timed, after an exchange of their numbers in place; what lies behind a
position must not change what is before it; once for each mode, the lengths around a chunk's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import WrongResultError
from benchmarker.workloads.attention.bench import exchange, refuse_kept_output
from benchmarker.workloads.attention.reference import relative_error, rows_of
from benchmarker.workloads.mixers.inputs import Inputs, make_inputs
from benchmarker.workloads.mixers.record import MixersChecked, TensorError
from benchmarker.workloads.mixers.reference import HEADS, NAMES, TOLERANCES, Results, errors_of, wrong
from benchmarker.workloads.mixers.spec import Shape
from benchmarker.workloads.mixers.variants.base import Implementation, Operation

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device

CHUNK_ENDS = (63, 64, 65, 127)
"""Lengths on either side of the end of a chunk of 64, which most kernels have."""


@dataclass(frozen=True)
class Ready:
    """One cell before its clock starts."""

    shape: Shape
    operation: Operation
    copies: list[Inputs]


class Checking:
    """The checks of one implementation, with those that are made once."""

    def __init__(self, implementation: Implementation, device: Device, seed: int) -> None:
        self._implementation = implementation
        self._device = device
        self._seed = seed
        self._ends: dict[bool, float] = {}

    def inputs(self, shape: Shape, seed: int) -> Inputs:
        """One copy in the implementation's layout."""
        layout = self._implementation.layout
        return make_inputs(self._implementation.mixer, shape, self._device.torch_name, seed=seed, layout=layout)

    def checked(self, ready: Ready) -> MixersChecked:
        """Errors of a call whose inputs were changed in place after an earlier call on the same memory."""
        first, shape = ready.copies[0], ready.shape
        before = results_of(ready.operation, first)
        refuse_kept_output(before, results_of(ready.operation, first))
        del before
        exchange(first, self.inputs(shape, self._seed + len(ready.copies)))
        results = results_of(ready.operation, first)
        errors = self._refuse_wrong(results, first, shape)
        output = results["o"]
        del results
        causal_error = self._causal_error(ready, output)
        is_softmax = self._implementation.mixer.state_products is None
        return MixersChecked(
            against="float64",
            error=max(tensor.error for tensor in errors),
            tolerance=TOLERANCES[shape.dtype],
            tensors=errors,
            rows=len(rows_of(shape.seq_len)) if is_softmax else shape.seq_len,
            heads=shape.heads if is_softmax else min(HEADS, shape.heads),
            causal_error=causal_error,
            lengths=() if is_softmax else CHUNK_ENDS,
            lengths_error=None if is_softmax else self._ends_error(shape),
        )

    def _refuse_wrong(self, results: Results, inputs: Inputs, shape: Shape, where: str = "") -> tuple[TensorError, ...]:
        errors = errors_of(results, self._implementation.mixer, inputs, shape, self._implementation.layout)
        problem = wrong(errors, where)
        if problem:
            raise WrongResultError(problem)
        return errors

    def _causal_error(self, ready: Ready, output: Any) -> float:
        """How much the outputs before the middle change with everything behind it.

        Raises:
            WrongResultError: More than rounding.
        """
        import torch

        shape, first = ready.shape, ready.copies[0]
        fresh = self.inputs(shape, self._seed + len(ready.copies) + 1)
        middle, axis = shape.seq_len // 2, 2 if self._implementation.layout == "heads first" else 1
        if not middle:
            return 0.0
        with torch.no_grad():
            for target, source in zip(first.tensors, fresh.tensors, strict=True):
                size = shape.seq_len - middle
                target.narrow(axis, middle, size).copy_(source.narrow(axis, middle, size))
            with ready.operation.around():
                changed = ready.operation.call(*first.tensors)
        error = relative_error(changed.narrow(axis, 0, middle), output.narrow(axis, 0, middle))
        if error > TOLERANCES[shape.dtype]:
            raise WrongResultError(f"wrong result: what is behind a position changes what is before it, by {error:.2g}")
        return error

    def _ends_error(self, shape: Shape) -> float:
        """The largest error of an output at the lengths around a chunk's end.

        Raises:
            WrongResultError: One of them is wrong.
        """
        if shape.is_backward not in self._ends:
            worst = 0.0
            for length in CHUNK_ENDS:
                short = shape._replace(seq_len=length, batch_size=1)
                inputs = self.inputs(short, self._seed)
                results = results_of(self._implementation.open(short, self._device.torch_name), inputs)
                errors = self._refuse_wrong(results, inputs, short, f" at {length} positions")
                worst = max(worst, errors[0].error)
            self._ends[shape.is_backward] = worst
        return self._ends[shape.is_backward]


def results_of(operation: Operation, inputs: Inputs) -> Results:
    """One call's output, and the gradients of all inputs where they ask for them.

    Raises:
        WrongResultError: The output has another shape.
    """
    import torch

    with operation.around():
        output = operation.call(*inputs.tensors)
        expected = inputs.named["v"].shape
        if output.shape != expected:
            raise WrongResultError(f"wrong result: o has the shape {list(output.shape)}, not {list(expected)}")
        if inputs.gradient is None:
            return {"o": output}
        gradients = torch.autograd.grad(output, inputs.tensors, inputs.gradient)
    named = {NAMES[name]: part for name, part in zip(inputs.named, gradients, strict=True)}
    return {"o": output.detach(), **named}
