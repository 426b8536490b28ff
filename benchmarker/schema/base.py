"""Base class and number types of everything that is read from or written to a file.

Validation is strict: a number in quotes is not a number, and an unknown key is an error, which suggests the nearest
key. A misspelt option that is ignored would make a wrong measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import ValidationError

from benchmarker.core.errors import did_you_mean

DType = Literal["float16", "bfloat16", "float32"]
Split = Literal["tensors", "layers"]
Scalar = str | int | float | bool | None
SHOWN_LENGTH = 60

Number = Annotated[float, Field(ge=-1e30, le=1e30)]
"""Measured number. The bounds keep products of two such numbers finite."""
Whole = Annotated[int, Field(ge=-(10**18), le=10**18)]
Count = Annotated[int, Field(ge=0, le=10**18)]
Positive = Annotated[int, Field(ge=1, le=10**18)]
Seconds = Annotated[float, Field(ge=1e-12, le=1e9)]  # Measured time, more than 0 and less than thirty years.
Spent = Annotated[float, Field(ge=0, le=1e9)]  # Sum of times in seconds, 0 or more.
Joules = Annotated[float, Field(ge=1e-12, le=1e18)]
Rate = Annotated[float, Field(ge=1, le=1e30)]


class Plain(BaseModel):
    """Frozen value that rejects unknown keys and converts no types."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


_IN_YAML = {"model_type": "must be a mapping", "tuple_type": "must be a list", "too_short": "must not be empty"}


def first_problem(error: ValidationError, kind: type[Plain]) -> str:
    """Return the first error, as `variants[2].quant: no quantization 'bnb-4'; did you mean 'bnb4'?`."""
    problem = error.errors()[0]
    place = list(problem["loc"])
    text = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        key = str(place.pop())
        text = f"no key '{key}'{did_you_mean(key, _keys_at(kind, place))}"
    elif problem["type"] not in ("value_error", "missing"):
        typed_value = problem["input"]
        is_short = isinstance(typed_value, int | float | str) and len(str(typed_value)) <= SHOWN_LENGTH
        ending = f", not {typed_value!r}" if is_short else ""
        text = _IN_YAML.get(problem["type"], f"{text[0].lower()}{text[1:]}")
        text = f"{text}{ending}{_instead(problem['type'], place, typed_value)}"
    path = ""
    for part in place:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return f"{path}: {text}" if path else text


def _instead(error_type: str, place: Sequence[int | str], value: object) -> str:
    if error_type == "model_type" and isinstance(value, str) and place:
        if isinstance(place[-1], int):
            return f"; write - {{name: {value}, quant: {value}}}" if place[0] == "variants" else ""
        return f"; write {place[-1]}: {{id: {value}}}"
    if error_type == "tuple_type" and isinstance(value, dict) and value and place:
        name, form = next(iter(value.items()))
        inner = ", ".join(f"{key}: {part}" for key, part in form.items()) if isinstance(form, dict) else "..."
        return f"; write {place[-1]} as a list: - {{name: {name}, {inner}}}"
    return ""


def _keys_at(kind: type[Plain], place: Sequence[int | str]) -> list[str]:
    model: type[BaseModel] | None = kind
    for part in place:
        if model is not None and isinstance(part, str) and part in model.model_fields:
            model = next(models_in(model.model_fields[part].annotation), None)
    return list(model.model_fields) if model is not None else []


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def changed_fields(before: Plain, after: Plain) -> list[str]:
    """Return the fields that differ, as `packages.torch: 2.12.0, then 2.13.0`."""
    old, new = _flat(before.model_dump(mode="json")), _flat(after.model_dump(mode="json"))
    return [
        f"{place}: {old.get(place, 'nothing')}, then {new.get(place, 'nothing')}"
        for place in {**old, **new}
        if old.get(place) != new.get(place)
    ]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
