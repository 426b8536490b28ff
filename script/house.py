"""How easily a stranger finds the way through the code: `python script/house.py [CHECKOUT]`.

Prints counts: rooms, modules at the top, the longest chain of imports, rooms that import each other, module names used
twice, variables that are pronouns, long files and lines, and the CPU time that help takes. `tests/test_house.py` holds
them at their limits.
"""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

PRONOUNS = {
    *("one", "found", "known", "said", "made", "of", "at", "own", "other"),
    *("given", "asked", "kept", "seen", "taken", "shown", "done", "left"),
}
"""Names of variables that say nothing of what is in them."""

SHARED_NAMES = {
    *("base", "registry", "energy", "profile", "quality"),
    *("spec", "record", "metrics", "words", "bench"),
}
"""Module names that mean the same in every room, and so may be used twice. The second line is a workload's."""
NAMED_AFTER_ANOTHER = ("cli", "workloads")
"""Rooms whose modules are named like what they belong to, so they may repeat a name of any other room.

A command is named like the module that it calls, and a module of a workload's own folder like the module that asks it:
`cli.verify` calls `comparison.verify`, which asks every workload's `reading.verify`.
"""

WORKLOAD_READING = "workloads.reading"
"""`workloads/<name>/reading/`: named by the workload's description, and imported when its records are read."""

WORKLOAD_CLASSES = "workloads.workload"
"""`workloads/base.py` and `workloads/<name>/workload.py`: methods import the rooms of measuring and of reading."""

MAXIMAL_LINES = 300
MAXIMAL_LINE_LENGTH = 120


class House:
    """The modules of the package `benchmarker` in a checkout, and what they import."""

    def __init__(self, root: Path) -> None:
        self.root = root
        package = root / "benchmarker"
        self.paths = {module_name(path.relative_to(package)): path for path in sorted(package.rglob("*.py"))}
        """Every module by its name inside the package: `core.errors`, and a package by its own: `core`."""
        self.texts = {name: path.read_text(encoding="utf-8") for name, path in self.paths.items()}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}

    def imports(self, name: str, *, everywhere: bool = False) -> set[str]:
        """Full names of what a module imports; with `everywhere`, inside functions too."""
        names = set()
        for node in statements(self.trees[name].body, everywhere=everywhere):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}: imports are written in full"
                assert node.module
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    names.add(whole if whole.removeprefix("benchmarker.") in self.paths else node.module)
        return names

    def arrows(self, name: str, *, everywhere: bool = False) -> set[str]:
        """Modules of this package that a module imports, by their names inside it."""
        return inside_package(self.imports(name, everywhere=everywhere))

    def rooms(self) -> list[str]:
        """Packages at the top."""
        return sorted({name.split(".")[0] for name in self.paths if "." in name})

    def top_modules(self) -> list[str]:
        """Modules that lie beside the rooms, `__init__` too."""
        return sorted(path.stem for path in self.paths.values() if path.parent == self.root / "benchmarker")

    def longest_chain(self) -> list[str]:
        """Modules of the longest chain, each importing the next, at the top of the file or inside a function.

        Registries name everything, and `cli` imports everything: both are left out. Modules that import each other
        inside functions count as one step, named by the first of them.
        """
        graph = {
            name: sorted(self.arrows(name, everywhere=True) & set(self.paths) - {name})
            for name in self.paths
            if name and not_a_corridor(name)
        }
        groups = circles(graph)

        @cache
        def chain_from(group: frozenset[str]) -> tuple[str, ...]:
            below = {groups[target] for name in group for target in graph[name] if target in graph} - {group}
            return (min(group), *max((chain_from(lower) for lower in below), key=len, default=()))

        return list(max((chain_from(group) for group in set(groups.values())), key=len))

    def mutual_rooms(self) -> list[str]:
        """Pairs of rooms that import each other, as `a <-> b`. How a workload is read is a room of its own."""
        pairs = {
            (room_of(name), room_of(target))
            for name in self.paths
            for target in self.arrows(name, everywhere=True)
            if name and room_of(name) != room_of(target)
        }
        return sorted(f"{first} <-> {second}" for first, second in pairs if first < second and (second, first) in pairs)

    def repeated_names(self) -> dict[str, list[str]]:
        """Module names used more than once and not by convention, each with its modules."""
        by_stem: dict[str, list[str]] = {}
        for name, path in self.paths.items():
            if (
                path.stem not in {"__init__", "__main__"} | SHARED_NAMES
                and name.split(".")[0] not in NAMED_AFTER_ANOTHER
            ):
                by_stem.setdefault(path.stem, []).append(name)
        return {stem: names for stem, names in sorted(by_stem.items()) if len(names) > 1}

    def pronouns(self) -> dict[str, tuple[int, int]]:
        """Bindings that are pronouns, and all bindings, by room."""
        counts: dict[str, tuple[int, int]] = {}
        for name, tree in self.trees.items():
            bound = list(bindings(tree))
            pronouns, total = counts.get(name.split(".")[0], (0, 0))
            counts[name.split(".")[0]] = (pronouns + sum(word in PRONOUNS for word in bound), total + len(bound))
        return counts

    def long_files(self) -> dict[str, int]:
        """Lines of the files that are too long."""
        lines = {name: len(text.splitlines()) for name, text in self.texts.items()}
        return {name: count for name, count in lines.items() if count > MAXIMAL_LINES}

    def long_lines(self) -> list[str]:
        """Places of the lines that are too long."""
        return [
            f"{self.paths[name].relative_to(self.root)}:{number}"
            for name, text in self.texts.items()
            for number, line in enumerate(text.splitlines(), start=1)
            if len(line) > MAXIMAL_LINE_LENGTH
        ]


def module_name(path: Path) -> str:
    """The name of a module inside the package, by its path there: `core/errors.py` is `core.errors`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def inside_package(names: Iterable[str]) -> set[str]:
    """Those of the full names that are in the package, by their names inside it."""
    return {name.removeprefix("benchmarker.") for name in names if name.startswith("benchmarker.")}


def room_of(name: str) -> str:
    """The room that a module is in. How a workload's records are read is a room of its own, above those that read."""
    parts = name.split(".")
    if name == "workloads.base" or (parts[0] == "workloads" and parts[-1] == "workload"):
        return WORKLOAD_CLASSES
    return WORKLOAD_READING if parts[0] == "workloads" and "reading" in parts else parts[0]


def not_a_corridor(name: str) -> bool:
    """Whether a module counts in a chain of imports."""
    is_class = room_of(name) == WORKLOAD_CLASSES
    return name.split(".")[0] not in {"cli", "__main__"} and name.split(".")[-1] != "registry" and not is_class


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


def circles(graph: dict[str, list[str]]) -> dict[str, frozenset[str]]:
    """The group of every module: itself, and those that it reaches and that reach it."""

    @cache
    def reached(name: str) -> frozenset[str]:
        visited: set[str] = set()
        waiting = [name]
        while waiting:
            new = set(graph[waiting.pop()]) & set(graph) - visited
            visited |= new
            waiting += new
        return frozenset(visited)

    return {name: frozenset({name, *(below for below in reached(name) if name in reached(below))}) for name in graph}


def bindings(tree: ast.AST) -> Iterator[str]:
    """Every name that a file binds: variables, fields, parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def cpu_seconds(root: Path, *arguments: str) -> float:
    """CPU time of the command with these arguments: the least of three runs, as other programs only add to it."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "benchmarker", *arguments]
        subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(3))


def lines_of(house: House) -> Iterator[str]:
    """What is printed, line by line."""
    chain = house.longest_chain()
    pronouns = house.pronouns()
    words = Counter(word for tree in house.trees.values() for word in bindings(tree) if word in PRONOUNS)
    yield f"rooms                 {len(house.rooms())}: {' '.join(house.rooms())}"
    yield f"modules at the top    {len(house.top_modules())}: {' '.join(house.top_modules())}"
    yield f"longest import chain  {len(chain)}: {' > '.join(chain)}"
    yield f"rooms both ways       {len(house.mutual_rooms())}: {', '.join(house.mutual_rooms())}"
    yield f"names used twice      {len(house.repeated_names())}"
    yield from (f"    {stem}: {' '.join(names)}" for stem, names in house.repeated_names().items())
    yield f"files over {MAXIMAL_LINES} lines  {len(house.long_files())}"
    yield from (f"    {name}: {count}" for name, count in house.long_files().items())
    yield f"lines over {MAXIMAL_LINE_LENGTH}        {len(house.long_lines())}"
    yield from (f"    {place}" for place in house.long_lines())
    by_word = " ".join(f"{word} {count}" for word, count in words.most_common())
    yield f"pronouns              {share(pronouns.values())}: {by_word}"
    yield from (f"    {room or '(top)'}: {share([counts])}" for room, counts in sorted(pronouns.items()) if counts[0])
    for arguments in (["--help"], ["run", "--help"]):
        yield f"{' '.join(arguments):<21} {cpu_seconds(house.root, *arguments):.2f} s of CPU time"


def share(counts: Iterable[tuple[int, int]]) -> str:
    """Counts of pronouns and of all bindings, as a sentence."""
    pronouns, total = (sum(column) for column in zip(*counts, strict=True))
    return f"{pronouns / total:.1%} ({pronouns} of {total})" if total else "no bindings"


if __name__ == "__main__":
    for line in lines_of(House(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)):
        print(line)
