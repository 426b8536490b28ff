"""Plain frozen values: the base of everything that is read from or written to a file.

Strict: a number in quotes is not a number, and a key that nobody knows is an error with the near miss, because a
misspelt option that is silently ignored makes a wrong measurement.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError, ValidationError

from benchmarker.errors import did_you_mean


class Plain(BaseModel):
    """A frozen value that refuses unknown keys and converts nothing."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    hint = did_you_mean(str(key), cls.model_fields)
                    raise PydanticCustomError("unknown_key", "{text}", {"text": f"no key '{key}'{hint}"})
        return data


def first_problem(error: ValidationError) -> str:
    """The first thing wrong, as `variants[2].quant: no loader 'bnb-4bit'; did you mean 'bnb4'?`."""
    problem: ErrorDetails = error.errors()[0]
    path = ""
    for part in problem["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    text = problem["msg"].removeprefix("Value error, ")
    if problem["type"].endswith("_type"):
        text = f"{text[0].lower()}{text[1:]}, not {problem['input']!r}"
    return f"{path}: {text}" if path else text
