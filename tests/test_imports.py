"""Order of imports between packages, and modules that must not import torch."""

import subprocess
import sys

import pytest

from script.house import ROOT, House, inside_package

MEASURING = (
    "core",
    "schema",
    "profiling",
    "hardware checkpoints kernels",
    "quantization measure distributed",
    "engines",
    "quality",
    "workloads",
    "execution",
    "sweep doctor",
)
"""Packages from the bottom up. A package imports from those below it and from itself."""
GROUND = ("core", "schema", "profiling")
"""Packages below both the measuring and the reading packages."""
READING = ("comparison", "explain", "report", "logs")
"""Packages from the bottom up. They and the measuring packages do not import each other."""
ABOVE = ("cli", "comply", "run", "__main__")
"""Modules above both. The doctor's tables use the report's."""

WITHOUT_TORCH = (
    "cli core schema profiling comparison explain report logs sweep checkpoints quantization execution.jobs "
    "run workloads.generation.reading"
)
HEAVY = {"torch", "transformers", "accelerate", "optimum", "gptqmodel", "torchao", "bitsandbytes"}


WORKLOAD_READING = "workloads.reading"
"""Modules in `workloads/NAME/reading/` or named `NAME_reading`, which import from the packages that read records."""
WORKLOAD_CLASSES = "workloads.workload"
"""`workloads/base.py` and `workloads/NAME/workload.py`, whose methods import from all packages below the commands."""


def room_of(name: str) -> str:
    """Return the package of a module in the order of the imports."""
    parts = name.split(".")
    if name == "workloads.base" or (parts[0] == "workloads" and parts[-1] in ("workload", "operation_workload")):
        return WORKLOAD_CLASSES
    is_reading = "reading" in parts or parts[-1].endswith("_reading")
    return WORKLOAD_READING if parts[0] == "workloads" and is_reading else parts[0]


def goes_down(room_from: str, room_to: str) -> bool:
    """Return whether the first package may import from the second."""
    if room_from == room_to or room_from in ABOVE:
        return True
    if room_to in ABOVE or room_from == WORKLOAD_CLASSES:
        return room_to not in ABOVE
    # The rule that ends a sweep uses the speed-up of the tables.
    if (room_from, room_to) in (("doctor", "report"), ("sweep", "comparison")):
        return True
    if room_from == WORKLOAD_READING:
        return room_to in (*GROUND, *READING, "workloads")
    if room_from in READING:
        return room_to in GROUND or (room_to in READING and READING.index(room_to) < READING.index(room_from))
    floors = {name: floor for floor, line in enumerate(MEASURING) for name in line.split()}
    return room_to in floors and floors[room_to] < floors[room_from]


def test_imports_only_go_down(house):
    upward = [
        f"{name} imports {target}"
        for name in house.paths
        if name
        for target in house.arrows(name, everywhere=True)
        if not goes_down(room_of(name), room_of(target))
    ]
    assert not upward, f"upward imports: {upward}"


def test_every_package_is_in_the_order(house):
    rooms = {room_of(name) for name in house.paths if name}
    assert rooms <= {*" ".join(MEASURING).split(), *READING, WORKLOAD_READING, WORKLOAD_CLASSES, *ABOVE}


def test_imports_have_no_cycle(house):
    def visit(name, path):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in visited:
            return
        for target in house.arrows(name):
            visit(target, [*path, name])
        visited.add(name)

    visited: set[str] = set()
    for name in house.paths:
        visit(name, [])


def reached(house: House, name: str) -> set[str]:
    """Return the external packages that importing a module imports, directly or through this package."""
    visited, outside, waiting = set(), set(), [name]
    while waiting:
        module = waiting.pop()
        if module in visited:
            continue
        visited.add(module)
        names = house.imports(module)
        outside |= {full_name.split(".")[0] for full_name in names} - {"benchmarker"}
        parts = module.split(".")
        waiting += [*inside_package(names), *(".".join(parts[:end]) for end in range(len(parts)))]
    return outside


@pytest.mark.parametrize("entry", WITHOUT_TORCH.split())
def test_modules_without_torch_do_not_import_it(house, entry):
    for name in house.paths:
        if f"{name}.".startswith(f"{entry}."):
            heavy = reached(house, name) & HEAVY
            assert not heavy, f"importing {name} imports {heavy}"


def test_records_are_read_if_torch_cannot_be_imported(house):
    modules = [
        f"benchmarker.{name}" for name in house.paths if room_of(name) in (*GROUND, *READING, WORKLOAD_READING, "cli")
    ]
    finder = (
        "import sys\n"
        "class Refusing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {sorted(HEAVY)}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refusing())\n"
    )
    code = finder + "".join(f"import {name}\n" for name in modules)
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
