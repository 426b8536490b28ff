"""Imports only go down, and what reads records or checks a config needs no torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "benchmarker"

LAYERS = (
    "errors garbage installed units names host stats recompute shipped sweeping.orphan",
    "plain silence logtext folding misfit",
    "roofline energyfacts profilefacts qualityfacts",
    "record device terminal",
    "recordfile",
    "loaders",
    "spec",
    "specfile keys loaders.dummy loaders.source",
    "workloads.base runtimes profiling",
    "measure",
    "environment workloads quality",
    "report",
    "collect comparable importing",
    "explaining",
    "gate notebook",
    "comparison",
    "explained page recommending",
    "job checkpoints verify",
    "judging",
    "afterwards",
    "measuring loading",
    "run",
    "sweeping doctor",
    "sweep",
    "verbs",
    "cli",
    "__main__",
)
"""From the ground up. A module may import from the layers below its own, and from its own package within its layer;
the longest name that fits is a module's place."""

WITHOUT_TORCH = (
    "cli verbs spec specfile record recordfile comparison collect comparable report sweep sweeping job stats errors "
    "units plain names notebook host silence terminal loaders run checkpoints loading verify recompute gate keys "
    "logtext importing recommending roofline qualityfacts page explaining explained profiling.kernels "
    "profiling.names profiling.table profiling.trace"
)
HEAVY = {"torch", "transformers", "accelerate", "optimum", "gptqmodel", "torchao", "bitsandbytes"}


def modules() -> dict[str, Path]:
    """Every module by its name inside the package: `loaders.base`, and a package by its own: `loaders`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def statements(body: list[ast.stmt], *, everywhere: bool) -> Iterator[ast.stmt]:
    """Statements that run on import; with `everywhere`, those inside functions too. Never what only types need."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from statements(node.orelse, everywhere=everywhere)
            continue
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not everywhere:
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, part, []), everywhere=everywhere)
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body, everywhere=everywhere)


def imported(name: str, *, everywhere: bool = False) -> set[str]:
    """Full names of what a module imports."""
    found = set()
    for node in statements(ast.parse(MODULES[name].read_text()).body, everywhere=everywhere):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are written in full"
            assert node.module
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole.removeprefix("benchmarker.") in MODULES else node.module)
    return found


def ours(names: set[str]) -> set[str]:
    """Those of them that are in this package, by their names inside it."""
    inside = {
        name.removeprefix("benchmarker").removeprefix(".") for name in names if name.split(".")[0] == "benchmarker"
    }
    return inside - {""}


def place(name: str) -> tuple[int, str]:
    """A module's layer, and the entry of LAYERS that put it there."""
    entries = [(entry, layer) for layer, line in enumerate(LAYERS) for entry in line.split()]
    fitting = [(entry, layer) for entry, layer in entries if f"{name}.".startswith(f"{entry}.")]
    assert fitting, f"benchmarker/{name.replace('.', '/')}.py has no place in LAYERS of tests/test_imports.py: add it"
    entry, layer = max(fitting, key=lambda one: len(one[0]))
    return layer, entry


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_only_go_down(name):
    layer, _ = place(name)
    for other in ours(imported(name, everywhere=True)) - {name}:
        other_layer, _ = place(other)
        same_package = other.split(".")[0] == name.split(".")[0]
        assert other_layer < layer or (other_layer == layer and same_package), (
            f"{name} imports {other}, which is not below it"
        )


def test_no_module_imports_itself_round_a_circle():
    def visit(name, path):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        for other in ours(imported(name)):
            visit(other, [*path, name])
        done.add(name)

    done: set[str] = set()
    for name in MODULES:
        visit(name, [])


def reached(name: str) -> set[str]:
    """All that importing a module imports, through the modules of this package and the packages they are in."""
    seen, outside, waiting = set(), set(), [name]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        names = imported(module)
        outside |= {one.split(".")[0] for one in names} - {"benchmarker"}
        parts = module.split(".")
        waiting += [*ours(names), *(".".join(parts[:end]) for end in range(len(parts)))]
    return outside


@pytest.mark.parametrize("entry", WITHOUT_TORCH.split())
def test_what_needs_no_torch_does_not_import_it(entry):
    for name in MODULES:
        if f"{name}.".startswith(f"{entry}."):
            assert not reached(name) & HEAVY, f"importing {name} imports {reached(name) & HEAVY}"


def test_reading_records_works_where_torch_cannot_be_imported():
    wanted = [
        f"benchmarker.{name}"
        for name in MODULES
        if any(
            f"{name}.".startswith(f"{entry}.") for entry in ("comparison", "report", "page", "cli", "profiling.table")
        )
    ]
    blocked = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in sorted(HEAVY))
    code = blocked + "".join(f"import {name}\n" for name in wanted)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
