"""The loader factory: a new quantization is one file beside this one and one line here."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from benchmarker.core.errors import FieldError, did_you_mean
from benchmarker.quantization import bnb_4bit as bnb4
from benchmarker.quantization import fp16
from benchmarker.quantization import torchao_int8 as int8
from benchmarker.quantization.base import Loader, Options
from benchmarker.quantization.gptq import loader as gptq
from benchmarker.schema.base import first_problem
from benchmarker.schema.model import QuantSpec

QuantT = TypeVar("QuantT", bound=QuantSpec)

LOADERS: dict[str, Loader] = {
    "fp16": fp16.LOADER,
    "int8": int8.LOADER,
    "gptq": gptq.LOADER,
    "bnb4": bnb4.LOADER,
}


def resolved_quant(form: QuantT) -> QuantT:
    """The form as it came, where there is such a quantization with such options.

    Raises:
        FieldError: There is not.
    """
    if form.quant not in LOADERS:
        raise FieldError(f"no loader '{form.quant}'{did_you_mean(form.quant, LOADERS)}", field="quant")
    try:
        loader_options(form)
    except ValidationError as error:
        raise FieldError(f"options: {first_problem(error, LOADERS[form.quant].options)}") from None
    return form


def loader_options(form: QuantSpec) -> Options:
    """The options as the loader's own type, defaults filled in."""
    return LOADERS[form.quant].options.model_validate(form.options)
