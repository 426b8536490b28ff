"""The loader factory: a new quantization is one file beside this one and one line here."""

from __future__ import annotations

from benchmarker.quantization import bnb_4bit as bnb4
from benchmarker.quantization import fp16
from benchmarker.quantization import torchao_int8 as int8
from benchmarker.quantization.base import Loader
from benchmarker.quantization.gptq import loader as gptq

LOADERS: dict[str, Loader] = {
    "fp16": fp16.LOADER,
    "int8": int8.LOADER,
    "gptq": gptq.LOADER,
    "bnb4": bnb4.LOADER,
}
