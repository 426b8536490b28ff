"""`benchmarker generate`: text from a model with a measured quantization and engine."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated, Any

import typer

from benchmarker.cli.common_options import (
    DeviceName,
    KeyValues,
    LoadFormat,
    Revision,
    Verbose,
    model_engines,
    quantizations,
)
from benchmarker.cli.run_options import quantization_names
from benchmarker.core.console import Terminal, quiet_libraries
from benchmarker.core.errors import SpecError


def generate(
    prompt: Annotated[list[str] | None, typer.Argument(help="Texts.  \\[default: the lines of standard input]")] = None,
    model: Annotated[str, typer.Option(help="Hub id or folder.")] = "Qwen/Qwen3-4B",
    revision: Revision = None,
    load_format: LoadFormat = "auto",
    dtype: Annotated[
        str, typer.Option(help="Type of the unquantized tensors: float16, bfloat16 or float32.")
    ] = "float16",
    quant: Annotated[str, typer.Option(help=quantization_names(), autocompletion=quantizations)] = "fp16",
    option: KeyValues = None,
    engine: Annotated[
        str, typer.Option(help="eager, cuda_graph, compile or native.", autocompletion=model_engines)
    ] = "eager",
    engine_option: Annotated[
        list[str] | None,
        typer.Option(help="Option of the engine, as key=value such as prefill=plain; may be repeated."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens.")] = 200,
    chat_template: Annotated[
        bool, typer.Option("--chat-template", help="Wrap each text in the model's chat template.")
    ] = False,
    stream: Annotated[bool, typer.Option(help="Print the tokens as they are generated.")] = True,
    device: DeviceName = "auto",
    verbose: Verbose = False,
) -> None:
    """Generate text with the quantization and the decode step that a sweep measured.

    Example: benchmarker generate --quant int8 --engine native "Why is the sky blue?"
    """
    typed = {
        "subject.model.id": model,
        "subject.model.revision": revision,
        "subject.model.load_format": load_format,
        "subject.model.dtype": dtype,
        "variant.quant": quant,
        "variant.engine": engine,
        "variant.options": option or None,
        "variant.engine_options": engine_option or None,
    }
    if max_new_tokens < 1:
        raise SpecError(f"--max-new-tokens {max_new_tokens}: less than one token")
    texts = _waited_for(prompt or _lines())
    generator = _load(typed, device=device, chat_template=chat_template, verbose=verbose)
    for text in texts:
        for piece in generator.generate(text, max_new_tokens=max_new_tokens, stream=stream):
            print(piece, end="", flush=stream)
        print(flush=True)


def _waited_for(texts: Iterable[str]) -> Iterator[str]:
    """Return the texts after waiting for the first one, so that no model is loaded in vain."""
    rest = iter(texts)
    for first in rest:
        return chain((first,), rest)
    raise SpecError('generate: no text; give one, as benchmarker generate "Why is the sky blue?", or send it lines')


def _lines() -> Iterator[str]:
    for line in () if sys.stdin.isatty() else sys.stdin:
        if line.strip():
            yield line.rstrip("\n")


def _load(typed: dict[str, Any], *, device: str, chat_template: bool, verbose: bool) -> Any:
    """Return a Generator. All options are checked before the model is read.

    Args:
        typed: Values of the options by their place in a job.
    """
    from benchmarker.checkpoints.read_model import load_tokenizer
    from benchmarker.engines.generator import Generator, refuse_device
    from benchmarker.execution.jobs import make_job
    from benchmarker.hardware.device import find_device
    from benchmarker.quantization.load import open_model

    job: Any = make_job(typed)
    variant = job.variant
    found_device = find_device(device)
    refuse_device(variant.engine, found_device)
    with quiet_libraries(verbose=verbose) as streams:
        loaded, checkpoint = open_model(job.model, variant, found_device, Terminal(quiet=not verbose, streams=streams))
        return Generator(
            loaded.model,
            engine=variant.engine,
            engine_options=variant.engine_options,
            tokenizer=load_tokenizer(checkpoint),
            chat_template=chat_template,
        )
