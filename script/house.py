"""Count properties of the code that affect navigation: `python script/house.py [CHECKOUT]`.

Every count covers the whole package. `tests/test_house.py` contains the limits. The files that a command executes are
counted by `script/executed_files.py`, CPU time of the help by `--help-time`. Requires only Python.
"""

from __future__ import annotations

import ast
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

PRONOUNS = {
    *("one", "found", "known", "said", "made", "of", "at", "own", "other", "here", "elsewhere", "whole"),
    *("given", "asked", "kept", "seen", "taken", "shown", "done", "left", "told", "looked"),
}
"""Variable names that do not describe a value."""

SHARED_NAMES = {"__init__", "__main__", "base", "registry"}
"""File names that may occur in every package."""
WORKLOAD_NAMES = {"spec", "record", "workload"}
"""File names that may occur in every folder `workloads/NAME`."""

NAMED_TARGET = re.compile(r"benchmarker[\w.]*:\w+")
"""String that names a function or a class to be imported by name."""

PRAGMA = re.compile(r"\s*# (noqa|type: ignore).*$")
MAXIMAL_LINES = 400
MAXIMAL_LINE_LENGTH = 120


class House:
    """The modules of the package `benchmarker` in a checkout, and their imports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        package = root / "benchmarker"
        self.paths = {module_name(path.relative_to(package)): path for path in sorted(package.rglob("*.py"))}
        """Every module by its name inside the package (`core.errors`); a package by its own name (`core`)."""
        self.texts = {name: path.read_text(encoding="utf-8") for name, path in self.paths.items()}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}

    def lines(self, *, kernels: bool) -> int:
        """Return the number of lines in kernels/, or of all lines outside it."""
        return sum(
            len(text.splitlines()) for name, text in self.texts.items() if (room_of(name) == "kernels") == kernels
        )

    def imports(self, name: str, *, everywhere: bool = False) -> set[str]:
        """Return the full names of a module's imports; with `everywhere`, also of those inside functions."""
        names = set()
        for node in statements(self.trees[name].body, everywhere=everywhere):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}: imports are written in full"
                assert node.module
                for alias in node.names:
                    target = f"{node.module}.{alias.name}"
                    names.add(target if target.removeprefix("benchmarker.") in self.paths else node.module)
        return names

    def arrows(self, name: str, *, everywhere: bool = False) -> set[str]:
        """Return the modules of this package that a module imports, by their names inside the package."""
        return inside_package(self.imports(name, everywhere=everywhere))

    def rooms(self) -> list[str]:
        """Return the packages at the top."""
        return sorted({name.split(".")[0] for name in self.paths if "." in name})

    def top_modules(self) -> list[str]:
        """Return the modules that lie next to the packages, `__init__` included."""
        return sorted(path.stem for path in self.paths.values() if path.parent == self.root / "benchmarker")

    def longest_chain(self) -> list[str]:
        """Return the longest chain of modules in which each imports the next, at the top or inside a function.

        Registries, which name everything, and `cli`, which imports everything, are excluded. Modules that import each
        other inside functions count as one step and appear under the first name.
        """
        graph = {
            name: sorted(self.arrows(name, everywhere=True) & set(self.paths) - {name})
            for name in self.paths
            if name and in_chains(name)
        }
        groups = cycles(graph)

        @cache
        def chain_from(group: frozenset[str]) -> tuple[str, ...]:
            below = {groups[target] for name in group for target in graph[name] if target in graph} - {group}
            return (min(group), *max((chain_from(lower) for lower in below), key=len, default=()))

        return list(max((chain_from(group) for group in set(groups.values())), key=len))

    def mutual_rooms(self) -> list[str]:
        """Return the pairs of packages that import each other, as `a <-> b`."""
        pairs = {
            (room_of(name), room_of(target))
            for name in self.paths
            for target in self.arrows(name, everywhere=True)
            if name and room_of(name) != room_of(target)
        }
        return sorted(f"{first} <-> {second}" for first, second in pairs if first < second and (second, first) in pairs)

    def repeated_names(self) -> dict[str, list[str]]:
        """Return the file names used more than once, each with its modules."""
        by_stem: dict[str, list[str]] = {}
        for name, path in self.paths.items():
            is_workload_folder = name.startswith("workloads.") and name.count(".") == 2
            if path.stem not in SHARED_NAMES | (WORKLOAD_NAMES if is_workload_folder else set()):
                by_stem.setdefault(path.stem, []).append(name)
        return {stem: names for stem, names in sorted(by_stem.items()) if len(names) > 1}

    def workload_hooks(self) -> list[str]:
        """Return the public methods without `@final` and the function fields that a workload can override."""
        return sorted(
            f"{node.name}.{hook}"
            for tree in self.trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.name == "Workload"
            for hook in hooks(node)
        )

    def named_targets(self) -> list[str]:
        """Return the strings such as `benchmarker.x:y` outside the registries, each after its module."""
        return [
            f"{name}: {node.value}"
            for name, tree in self.trees.items()
            if self.paths[name].stem != "registry"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED_TARGET.fullmatch(node.value)
        ] + [
            f"{name}: {ast.unparse(node)}"
            for name, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr) and re.fullmatch(r"f'\{\w+\}(\.\w+)*:\w+'", ast.unparse(node))
        ]

    def pronouns(self) -> dict[str, tuple[int, int]]:
        """Return the number of bindings that are pronouns and of all bindings, by package."""
        counts: dict[str, tuple[int, int]] = {}
        for name, tree in self.trees.items():
            names = list(bindings(tree))
            pronouns, total = counts.get(room_of(name), (0, 0))
            counts[room_of(name)] = (pronouns + sum(word in PRONOUNS for word in names), total + len(names))
        return counts

    def long_files(self) -> dict[str, int]:
        """Return the files that are too long, with their lines."""
        lines = {name: len(text.splitlines()) for name, text in self.texts.items()}
        return {name: count for name, count in lines.items() if count > MAXIMAL_LINES}

    def long_lines(self) -> list[str]:
        """Return path and number of every line that is too long; `# noqa` and `# type: ignore` are not counted."""
        return [
            f"{self.paths[name].relative_to(self.root)}:{number}"
            for name, text in self.texts.items()
            for number, line in enumerate(text.splitlines(), start=1)
            if len(PRAGMA.sub("", line)) > MAXIMAL_LINE_LENGTH
        ]


def module_name(path: Path) -> str:
    """Return a module's name inside the package: `core/errors.py` is `core.errors`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def inside_package(names: Iterable[str]) -> set[str]:
    """Return the names that are in the package, without its prefix."""
    return {name.removeprefix("benchmarker.") for name in names if name.startswith("benchmarker.")}


def room_of(name: str) -> str:
    """Return the top package of a module."""
    return name.split(".")[0]


def in_chains(name: str) -> bool:
    """Return whether a module counts in a chain of imports."""
    return (
        room_of(name) not in {"cli", "__main__"}
        and name.split(".")[-1] not in {"registry", "workload", "operation_workload"}
        and name != "workloads.base"
    )


def hooks(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names in a class body that a workload can override."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            is_final = any(
                ast.unparse(decorator) in ("final", "typing.final") for decorator in statement.decorator_list
            )
            if not statement.name.startswith("_") and not is_final:
                yield statement.name
        elif isinstance(statement, ast.AnnAssign) and "Callable" in ast.unparse(statement.annotation):
            yield ast.unparse(statement.target)


def statements(body: list[ast.stmt], *, everywhere: bool) -> Iterator[ast.stmt]:
    """Yield the statements that run on import; with `everywhere`, also those inside functions.

    Statements below `if TYPE_CHECKING` are excluded.
    """
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


def cycles(graph: dict[str, list[str]]) -> dict[str, frozenset[str]]:
    """Return the group of every module: the module and all modules on a cycle with it."""

    @cache
    def reachable(name: str) -> frozenset[str]:
        visited: set[str] = set()
        waiting = [name]
        while waiting:
            new = set(graph[waiting.pop()]) & set(graph) - visited
            visited |= new
            waiting += new
        return frozenset(visited)

    return {
        name: frozenset({name, *(below for below in reachable(name) if name in reachable(below))}) for name in graph
    }


def bindings(tree: ast.AST) -> Iterator[str]:
    """Yield every name that a file binds: variables, fields, parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def cpu_seconds(root: Path, *arguments: str) -> float:
    """Return the CPU time of a command: the minimum of three runs, because other programs only add to it."""

    def measure() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "benchmarker", *arguments]
        subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(measure() for _ in range(3))


def report(house: House) -> Iterator[str]:
    """Yield the counts as lines of text."""
    chain, pronouns = house.longest_chain(), house.pronouns()
    yield f"packages                {len(house.rooms())}: {' '.join(house.rooms())}"
    yield f"modules at the top      {len(house.top_modules())}: {' '.join(house.top_modules())}"
    yield f"files                   {len(house.paths)}"
    yield f"lines outside kernels/  {house.lines(kernels=False)}"
    yield f"lines in kernels/       {house.lines(kernels=True)}"
    yield f"longest import chain    {len(chain)}: {' > '.join(chain)}"
    yield f"mutual packages         {len(house.mutual_rooms())}: {', '.join(house.mutual_rooms())}"
    yield f"workload hooks          {len(house.workload_hooks())}"
    yield f"string dispatch         {len(house.named_targets())}"
    yield from (f"    {target}" for target in house.named_targets())
    repeated = house.repeated_names()
    yield f"names used twice        {len(repeated)}, by {sum(map(len, repeated.values()))} files"
    yield from (f"    {stem}: {' '.join(names)}" for stem, names in repeated.items())
    yield f"files over {MAXIMAL_LINES} lines    {len(house.long_files())}"
    yield from (f"    {name}: {count}" for name, count in house.long_files().items())
    yield f"lines over {MAXIMAL_LINE_LENGTH}          {len(house.long_lines())}"
    yield from (f"    {place}" for place in house.long_lines())
    yield f"pronouns                {share(pronouns.values())}"
    yield from (f"    {room or '(top)'}: {share([counts])}" for room, counts in sorted(pronouns.items()) if counts[0])


def share(counts: Iterable[tuple[int, int]]) -> str:
    """Format counts of pronouns and of all bindings."""
    pronouns, total = (sum(column) for column in zip(*counts, strict=True))
    return f"{pronouns / total:.1%} ({pronouns} of {total})" if total else "no bindings"


def main(arguments: list[str]) -> None:
    folders = [Path(word) for word in arguments if word != "--help-time"]
    house = House(folders[0] if folders else ROOT)
    for line in report(house):
        print(line)
    if "--help-time" in arguments:
        for command in (["--help"], ["run", "--help"]):
            print(f"{' '.join(command):<23} {cpu_seconds(house.root, *command):.2f} s of CPU time")


if __name__ == "__main__":
    main(sys.argv[1:])
