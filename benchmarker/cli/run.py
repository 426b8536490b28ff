"""Measure one variant in this process and write one record: `python -m benchmarker.run --quant int8`.

One process, one variant: clean memory marks, no compiler state left over from another variant, and a crash that
costs one variant.
"""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarker.core.console import Terminal, one_line_errors, print_what_can_be_printed, quiet_libraries
from benchmarker.core.dependency_conflict import fitting_libraries
from benchmarker.core.errors import SpecError
from benchmarker.core.gc_guard import no_garbage_collection
from benchmarker.engines.registry import engine_name
from benchmarker.execution.parent_death import end_with_parent

if TYPE_CHECKING:
    from benchmarker.execution.job import Job
    from benchmarker.schema.experiment import Experiment

MODEL = "Model"
FORM = "Variant"
GRID = "Grid"
PROCEDURE = "Procedure"
QUALITY = "Quality"
PROGRAM = "python -m benchmarker.run"
BESIDE_JOB = ("--job", "--part", "--device", "--output", "--quiet", "--verbose")
"""Options that may stand beside --job, which says all the others."""


def asked_job(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="YAML file that supplies what is not given here.")] = None,
    job_file: Annotated[
        Path | None, typer.Option("--job", help="A job that a sweep saved, to be measured again; it says everything.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="Name of one of the config's variants.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Hub id or folder.  \\[default: Qwen/Qwen3-4B]", rich_help_panel=MODEL)
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Hub branch, tag or commit.", rich_help_panel=MODEL)] = None,
    load_format: Annotated[
        str | None, typer.Option(help="auto, or dummy for random weights in the exact shapes.", rich_help_panel=MODEL)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float16, bfloat16 or float32, for what is not quantized.", rich_help_panel=MODEL)
    ] = None,
    trust_remote_code: Annotated[
        bool | None,
        typer.Option(
            "--trust-remote-code", help="Run the repository's code; needs a 40-hex --revision.", rich_help_panel=MODEL
        ),
    ] = None,
    chat_template: Annotated[
        bool | None,
        typer.Option("--chat-template", help="Wrap text prompts in the model's template.", rich_help_panel=MODEL),
    ] = None,
    quant: Annotated[
        str | None, typer.Option(help="fp16, int8, int4, gptq, bnb4 or bnb8.", rich_help_panel=FORM)
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="eager (model.generate), cuda_graph, compile or native.", rich_help_panel=FORM),
    ] = None,
    runtime: Annotated[
        str | None, typer.Option(help="An older word for --engine; graph is cuda_graph.", rich_help_panel=FORM)
    ] = None,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Short for --engine compile.", rich_help_panel=FORM)
    ] = False,
    engine_option: Annotated[
        list[str] | None, typer.Option(help="The engine's own, as key=value; repeat it.", rich_help_panel=FORM)
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="The loader's own, as key=value; repeat it.", rich_help_panel=FORM)
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Text file that GPTQ is calibrated on.", rich_help_panel=FORM)
    ] = None,
    name: Annotated[str | None, typer.Option(help="What the tables call it.", rich_help_panel=FORM)] = None,
    prompt_tokens: Annotated[
        str | None, typer.Option(help="Prompt lengths.  \\[default: 3,26]", rich_help_panel=GRID)
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="A prompt text in place of lengths; repeat it.", rich_help_panel=GRID)
    ] = None,
    new_tokens: Annotated[
        str | None, typer.Option(help="Tokens to generate.  \\[default: 50,100]", rich_help_panel=GRID)
    ] = None,
    batch_size: Annotated[
        str | None, typer.Option(help="Sequences at once.  \\[default: 1]", rich_help_panel=GRID)
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(help="Tokens that are in the KV cache before the prompt.  \\[default: 0]", rich_help_panel=GRID),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(help="Timed generations a cell.  \\[default: 5]", rich_help_panel=PROCEDURE)
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Untimed ones before them.  \\[default: 3]", rich_help_panel=PROCEDURE)
    ] = None,
    warmup_limit: Annotated[
        int | None,
        typer.Option(help="As many until the last three agree, at most.  \\[default: 10]", rich_help_panel=PROCEDURE),
    ] = None,
    no_profile: Annotated[
        bool, typer.Option("--no-profile", help="Leave the profiled generation out.", rich_help_panel=PROCEDURE)
    ] = False,
    profile_tokens: Annotated[
        int | None, typer.Option(help="Its length at most.  \\[default: 32]", rich_help_panel=PROCEDURE)
    ] = None,
    energy: Annotated[
        bool,
        typer.Option(
            "--energy", help="Count joules per token too; a good minute, on a GPU.", rich_help_panel=PROCEDURE
        ),
    ] = False,
    no_limits: Annotated[
        bool,
        typer.Option("--no-limits", help="Do not measure the device's bandwidth first.", rich_help_panel=PROCEDURE),
    ] = False,
    quality: Annotated[
        str | None,
        typer.Option(
            help="Perplexity, and divergence from the unquantized model: quick, full or off.  \\[default: off]",
            rich_help_panel=QUALITY,
        ),
    ] = None,
    quality_topk: Annotated[
        int | None, typer.Option(help="Keep only so many of the likeliest tokens.", rich_help_panel=QUALITY)
    ] = None,
    quality_baseline: Annotated[
        str | None, typer.Option(help="The unquantized model, for a quantized checkpoint.", rich_help_panel=QUALITY)
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Tasks of lm-evaluation-harness: hellaswag,arc_easy.", rich_help_panel=QUALITY),
    ] = None,
    task_limit: Annotated[
        int | None, typer.Option(help="Questions of each task.  \\[default: all]", rich_help_panel=QUALITY)
    ] = None,
    eval_text: Annotated[
        str | None,
        typer.Option(
            help="Text file, or data set as NAME:CONFIG:SPLIT.  \\[default: the shipped text]", rich_help_panel=QUALITY
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N (also on ROCm).")] = "auto",
    output: Annotated[
        Path | None, typer.Option(help="Folder for the record.  \\[default: results/<device>/<model>]")
    ] = None,
    part: Annotated[
        str | None, typer.Option(hidden=True, help="What a sweep wants of the job in this process, as JSON.")
    ] = None,
    # The last two are for run_command, whose options these are too.
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the table alone.")] = False,  # noqa: ARG001
    verbose: Annotated[bool, typer.Option("--verbose", help="Let the libraries talk.")] = False,  # noqa: ARG001
) -> Any:
    """Measure one variant, and print and save what came out.

    Example: benchmarker run --quant int8 --prompt-tokens 26 --new-tokens 100
    """
    # A Job; imported here, because making its classes takes as long as all the rest of --help.
    from benchmarker.execution.job import make_job, whole_numbers

    if job_file is not None:
        return _saved_job(context, job_file, part=part, device=device, output=output)
    asked_engine = _one_engine({"--engine": engine, "--runtime": runtime, "--compile": "compile" if compile_ else None})
    options = list(option or [])
    if calibration is not None:
        options.append(f"calibration={calibration}")
    return make_job(
        config=config,
        variant=variant,
        model={
            "id": model,
            "revision": revision,
            "load_format": load_format,
            "dtype": dtype,
            "trust_remote_code": trust_remote_code,
            "chat_template": chat_template,
        },
        form={"quant": quant, "engine": asked_engine, "name": name},
        options=options,
        engine_options=engine_option or (),
        grid={
            "prompt_tokens": whole_numbers("--prompt-tokens", prompt_tokens),
            "prompts": prompt or None,
            "new_tokens": whole_numbers("--new-tokens", new_tokens),
            "batch_size": whole_numbers("--batch-size", batch_size),
            "depth": whole_numbers("--depth", depth),
        },
        procedure={
            "runs": runs,
            "warmup": warmup,
            "warmup_limit": warmup_limit,
            "profile": False if no_profile else None,
            "profile_tokens": profile_tokens,
            "energy": True if energy else None,
            "limits": False if no_limits else None,
        },
        quality={
            "size": quality,
            "text": eval_text,
            "top_k": quality_topk,
            "baseline": quality_baseline,
            "tasks": tasks.split(",") if tasks else None,
            "task_limit": task_limit,
        },
        device=device,
        output=output,
        reproduce=f"{PROGRAM} {shlex.join(_arguments())}".strip(),
        experiment=context.obj,
    )


def _saved_job(context: typer.Context, path: Path, *, part: str | None, device: str, output: Path | None) -> Job:
    """The job in a file, for a person or as one process of a sweep.

    Raises:
        SpecError: It cannot be read, or an option beside it would change it.
    """
    from benchmarker.execution.job import Part
    from benchmarker.execution.job_file import read_job_file

    sources = {parameter.opts[0]: context.get_parameter_source(parameter.name) for parameter in context.command.params}
    typed = [option for option, source in sources.items() if source and source.name == "COMMANDLINE"]
    if others := [option for option in typed if option not in BESIDE_JOB]:
        raise SpecError(f"--job {path}: says everything of the measurement; leave {others[0]} out")
    job = read_job_file(path)
    if part is not None:
        return job.in_part(Part.model_validate_json(part))
    changes = {"part": None, "output": output, "reproduce": f"{PROGRAM} {shlex.join(_arguments())}"}
    return job.model_copy(update=changes | ({"device": device} if "--device" in typed else {}))


@wraps(asked_job)
def run_command(*, quiet: bool, verbose: bool, **asked: Any) -> None:
    """Do the job that the arguments ask for."""
    with one_line_errors():
        job = asked_job(quiet=quiet, verbose=verbose, **asked)
        if job.part:
            end_with_parent()
        with quiet_libraries(verbose=verbose) as streams:
            # Libraries talk while they are imported, too. What they make then stays: looking through it for garbage
            # again and again takes a sixth of the time to import them.
            with no_garbage_collection(), fitting_libraries():
                from benchmarker.execution.run import Run

                gc.freeze()

            made = Run(job, Terminal(quiet=quiet, verbose=verbose, streams=streams)).execute()
    if made.no_quality or made.no_tasks or any(cell.status != "ok" for cell in made.cells):
        raise typer.Exit(1)


def _one_engine(given: dict[str, str | None]) -> str | None:
    """The engine that the options name, which may be given once in each spelling.

    Raises:
        SpecError: Two options name two engines.
    """
    names = {option: name for option, name in given.items() if name is not None}
    if len({engine_name(name) for name in names.values()}) > 1:
        said = [option if option == "--compile" else f"{option} {name}" for option, name in names.items()]
        raise SpecError(f"{said[0]} and {said[1]} name two engines; give one of them")
    return next(iter(names.values()), None)


def _arguments() -> list[str]:
    """What followed `python -m benchmarker.run` or `benchmarker run`."""
    arguments = sys.argv[1:]
    return arguments[1:] if arguments[:1] == ["run"] else arguments


def read_job(arguments: Sequence[str], experiment: Experiment | None = None) -> Job | None:
    """The job that these arguments of a run ask for, checked and not done; None where they ask for help.

    Args:
        experiment: Content of the config file among them, where it was read already.

    Raises:
        BenchmarkerError: As running it would.
    """
    answer = _command(asked_job).main(list(arguments), prog_name=PROGRAM, standalone_mode=False, obj=experiment)
    if answer is None or isinstance(answer, int):
        # Help, which prints, answers with an exit code.
        return None
    job: Job = answer
    return job.model_copy(update={"reproduce": f"{PROGRAM} {shlex.join(arguments)}"})


def known_options() -> dict[str, bool]:
    """The options of a run that people type, and whether each takes a value."""
    parameters = (one for one in _command(asked_job).params if not getattr(one, "hidden", False))
    return {name: not getattr(one, "is_flag", False) for one in parameters for name in one.opts}


def _command(function: Callable[..., object]) -> Any:
    """A click command; typer brings its own copy of click, whose types have no public name."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)
    return typer.main.get_command(app)


def main() -> None:
    """Entry of `python -m benchmarker.run`."""
    print_what_can_be_printed()
    _command(run_command)(prog_name=PROGRAM)
