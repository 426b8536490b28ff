"""Is the result of all ranks right? It is held against float64, against one GPU, and against coded positions.

Against float64 as attention's is (all rows up to 2,048 positions, above that 64 rows of the output and the queries'
gradient). Against one GPU that computed the whole with the same kernel: all rows of all tensors, whatever the length,
so that gradients of keys and values that came home to the wrong rank are seen. And the order of the rows by inputs
whose values are their positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import WrongResultError
from benchmarker.workloads.attention.reference import Results, check, relative_error, wrong
from benchmarker.workloads.attention.timing import results_of
from benchmarker.workloads.context_parallel.record import ContextParallelChecked

if TYPE_CHECKING:
    from benchmarker.workloads.attention.inputs import Inputs
    from benchmarker.workloads.attention.spec import Shape
    from benchmarker.workloads.attention.variants.base import Attention

ORDER_TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}
"""Of a mean of positions, relative to itself."""


def against_whole(results: Results, inputs: Inputs, shape: Shape, single: Attention | None) -> dict[str, Any]:
    """Errors of the whole result, and its distances from the single GPU's.

    Args:
        single: One GPU's attention over the whole sequence; None where the result is its own.

    Returns:
        Fields of `ContextParallelChecked` but for the order.

    Raises:
        WrongResultError: A result holds a number that is not finite.
    """
    checked = check(results, inputs, shape)
    fields: dict[str, Any] = {**checked.model_dump(), "distances": ()}
    if single is None:
        return fields
    expected = results_of(single, inputs)
    errors = {tensor.tensor: tensor.error for tensor in check(expected, inputs, shape).tensors}
    fields["distances"] = [
        {"tensor": name, "distance": relative_error(result, expected[name]), "single_error": errors.get(name)}
        for name, result in results.items()
    ]
    return fields


def refuse_wrong(checked: ContextParallelChecked, dtype: str) -> None:
    """Refuse a result that is not attention's.

    Raises:
        WrongResultError: With the tensor and its distance.
    """
    problem = wrong(checked)
    if problem:
        raise WrongResultError(problem)
    for tensor in checked.distances:
        if tensor.distance > checked.tolerance:
            raise WrongResultError(
                f"wrong result: {tensor.tensor} is off by {tensor.distance:.2g} of its size from one GPU's with the "
                f"same kernel; {checked.tolerance:.0e} is allowed"
            )
    if checked.order_error is not None and checked.order_error > ORDER_TOLERANCE[dtype]:
        raise WrongResultError(
            f"wrong result: rows see other positions than they should: a mean is off by {checked.order_error:.2g}"
        )
