"""Checks of results that every operation shares."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarker.core.errors import WrongResultError
from benchmarker.workloads.operation.call_inputs import Results

if TYPE_CHECKING:
    from torch import Tensor


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Return the Frobenius norm of the difference over that of the expected tensor; inf if a number is not finite."""
    error = (result.double() - expected.double()).norm().item() / expected.double().norm().item()
    return error if math.isfinite(error) else math.inf


def check_finite(results: Results) -> None:
    """Raise WrongResultError if a result holds NaN or infinity."""
    for name, result in results.items():
        if not bool(result.isfinite().all()):
            raise WrongResultError(f"wrong result: {name} holds a number that is not finite")


def check_new_memory(first: Results, second: Results) -> None:
    """Raise WrongResultError if two calls, whose results are both alive, returned a result in the same memory."""
    for name, result in first.items():
        if result.data_ptr() == second[name].data_ptr():
            raise WrongResultError(
                f"wrong result: two calls return {name} in the same memory, so the second overwrites the first; "
                "return a new tensor from each call"
            )
