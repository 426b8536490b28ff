"""The loader factory: a new quantization is one file beside this one and one line here."""

from __future__ import annotations

from benchmarker.loaders import bnb4, fp16, gptq, int8
from benchmarker.loaders.base import Loader

LOADERS: dict[str, Loader] = {
    "fp16": fp16.LOADER,
    "int8": int8.LOADER,
    "gptq": gptq.LOADER,
    "bnb4": bnb4.LOADER,
}
