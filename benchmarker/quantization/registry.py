"""Registry of quantizations: a new quantization is one file in this folder and one line here."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from benchmarker.core.errors import FieldError, did_you_mean
from benchmarker.quantization import (
    awq,
    bnb_4bit,
    bnb_8bit,
    fp16,
    gguf,
    gptq,
    torchao_dynamic,
    torchao_int4,
    torchao_int8,
)
from benchmarker.quantization.base import Loader, Options
from benchmarker.quantization.dummy_packing import SCHEMES
from benchmarker.quantization.stored_formats import STORED_LOADERS, QuantT, with_scheme
from benchmarker.schema.base import first_problem
from benchmarker.schema.model import QuantSpec

LOADERS: dict[str, Loader] = {
    "fp16": fp16.LOADER,
    "int8": torchao_int8.LOADER,
    "int8-dynamic": torchao_dynamic.INT8,
    "fp8": torchao_dynamic.FP8,
    "int4": torchao_int4.LOADER,
    "gptq": gptq.LOADER,
    "awq": awq.LOADER,
    "bnb4": bnb_4bit.LOADER,
    "bnb8": bnb_8bit.LOADER,
    "gguf": gguf.LOADER,
    **STORED_LOADERS,
}


def stored_quant(stored: dict[str, Any]) -> str | None:
    """Return the quantization that loads checkpoints with this `quantization_config` unchanged, or None."""
    return next((name for name, loader in LOADERS.items() if loader.reads(stored)), None)


def quant_named(text: str) -> str:
    """Return the quantization with this name or alias, or raise FieldError with suggestions."""
    if text in LOADERS:
        return text
    plain = text.lower().replace("_", "-")
    for name, loader in LOADERS.items():
        if plain == name or plain in loader.aliases:
            return name
    raise FieldError(f"no quantization '{text}'{_instead(plain)}", field="quant")


def resolved_quant(form: QuantT) -> QuantT:
    """Replace an alias in `form.quant` by the quantization's name; FieldError for an unknown name or option."""
    form = with_scheme(form)
    form = form.model_copy(update={"quant": quant_named(form.quant)})
    try:
        loader_options(form)
    except ValidationError as error:
        raise FieldError(first_problem(error, LOADERS[form.quant].options), field="options") from None
    return form


def loader_options(form: QuantSpec) -> Options:
    return LOADERS[form.quant].options.model_validate(form.options)


def _instead(plain: str) -> str:
    if plain in ("hqq", "half-quadratic"):
        # transformers 5.23 raises "QuantizationMethod.HQQ is not available yet".
        return "; transformers 5 has no HQQ yet. torchao's int4 takes its scales: --quant int4 --option scales=hqq"
    gguf = re.fullmatch(r"i?q(\d)(-.+)?", plain)
    bits = gguf or re.fullmatch(r"(?:w|bits?)?(\d)(?:-?bits?)?", plain)
    able = [name for name, loader in LOADERS.items() if bits and int(bits[1]) in loader.bits and not loader.stored_only]
    title = "; that is a format of GGUF files" if gguf else ""
    if bits and able:
        return f"{title}; in {bits[1]} bits: {', '.join(able)}"
    return title + did_you_mean(plain, (*LOADERS, *SCHEMES))
