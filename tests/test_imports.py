"""Imports only go down: two towers on one ground, and what reads records or checks a config needs no torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "benchmarker"

MEASURING = (
    "core",
    "schema",
    "profiling",
    "hardware checkpoints kernels",
    "quantization measure",
    "engines",
    "quality",
    "workloads",
    "execution",
    "sweep doctor",
)
"""From the ground up. A room imports from the rooms below it, and from itself."""
GROUND = ("core", "schema", "profiling")
"""What both towers stand on."""
READING = ("comparison", "explain", "report", "logs")
"""From the ground up; nothing of the measuring tower, which imports nothing of these either."""
WORKLOAD_READING = "workloads.reading"
"""`workloads/<name>/reading/`: named by the workload's description, and imported when its records are read."""
ABOVE = ("cli", "run", "__main__")
"""Where the towers meet. The doctor's tables use the report's."""

ARROWS_TO_CUT = {
    "logs -> workloads",
    "engines -> workloads",
    "logs -> engines",
}
"""Imports that go up still. The list only gets shorter."""

WITHOUT_TORCH = (
    "cli core schema profiling comparison explain report logs sweep checkpoints quantization execution.job "
    "execution.keys execution.job_file run workloads.generation.reading"
)
HEAVY = {"torch", "transformers", "accelerate", "optimum", "gptqmodel", "torchao", "bitsandbytes"}


def modules() -> dict[str, Path]:
    """Every module by its name inside the package: `core.errors`, and a package by its own: `core`."""
    paths = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


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
    names = set()
    for node in statements(ast.parse(MODULES[name].read_text()).body, everywhere=everywhere):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are written in full"
            assert node.module
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole.removeprefix("benchmarker.") in MODULES else node.module)
    return names


def ours(names: set[str]) -> set[str]:
    """Those of them that are in this package, by their names inside it."""
    inside = {
        name.removeprefix("benchmarker").removeprefix(".") for name in names if name.split(".")[0] == "benchmarker"
    }
    return inside - {""}


def room(name: str) -> str:
    """The room that a module is in. How a workload's records are read is a room of its own, above those that read."""
    parts = name.split(".")
    return WORKLOAD_READING if parts[0] == "workloads" and "reading" in parts else parts[0]


def goes_down(room_from: str, room_to: str) -> bool:
    """Whether the first room may import from the second."""
    if room_from == room_to or room_from in ABOVE:
        return True
    if room_to in ABOVE:
        return False
    if (room_from, room_to) == ("doctor", "report"):
        return True
    if room_from == WORKLOAD_READING:
        return room_to in (*GROUND, *READING, "workloads")
    if room_from in READING:
        return room_to in GROUND or (room_to in READING and READING.index(room_to) < READING.index(room_from))
    floors = {name: floor for floor, line in enumerate(MEASURING) for name in line.split()}
    return room_to in floors and floors[room_to] < floors[room_from]


def test_imports_only_go_down():
    upward = {
        f"{room(name)} -> {room(other)}": f"{name} imports {other}"
        for name in MODULES
        if name
        for other in ours(imported(name, everywhere=True))
        if not goes_down(room(name), room(other))
    }
    new = [sentence for arrow, sentence in upward.items() if arrow not in ARROWS_TO_CUT]
    assert not new, f"not below it: {new}"
    assert set(upward) == ARROWS_TO_CUT, "an arrow is cut: take it out of ARROWS_TO_CUT"


def test_every_room_has_its_floor():
    rooms = {room(name) for name in MODULES if name}
    assert rooms <= {*" ".join(MEASURING).split(), *READING, WORKLOAD_READING, *ABOVE}


def test_no_module_imports_itself_round_a_circle():
    def visit(name, path):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in visited:
            return
        for other in ours(imported(name)):
            visit(other, [*path, name])
        visited.add(name)

    visited: set[str] = set()
    for name in MODULES:
        visit(name, [])


def reached(name: str) -> set[str]:
    """All that importing a module imports, through the modules of this package and the packages they are in."""
    visited, outside, waiting = set(), set(), [name]
    while waiting:
        module = waiting.pop()
        if module in visited:
            continue
        visited.add(module)
        names = imported(module)
        outside |= {whole.split(".")[0] for whole in names} - {"benchmarker"}
        parts = module.split(".")
        waiting += [*ours(names), *(".".join(parts[:end]) for end in range(len(parts)))]
    return outside


@pytest.mark.parametrize("entry", WITHOUT_TORCH.split())
def test_what_needs_no_torch_does_not_import_it(entry):
    for name in MODULES:
        if f"{name}.".startswith(f"{entry}."):
            assert not reached(name) & HEAVY, f"importing {name} imports {reached(name) & HEAVY}"


def test_reading_records_works_where_torch_cannot_be_imported():
    wanted = [f"benchmarker.{name}" for name in MODULES if room(name) in (*GROUND, *READING, WORKLOAD_READING, "cli")]
    finder = (
        "import sys\n"
        "class Refusing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {sorted(HEAVY)}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refusing())\n"
    )
    code = finder + "".join(f"import {name}\n" for name in wanted)
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
