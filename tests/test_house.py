"""The counts that `script/house.py` prints stay within their limits."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarker.cli import verb_group
from benchmarker.engines.registry import ENGINES
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.registry import WORKLOADS, workload_of
from script.house import ROOT, House, circles

TOP_FILES = {".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "pyproject.toml"}
MAXIMAL_ROOMS = 24
MAXIMAL_TOP_MODULES = 4
MAXIMAL_CHAIN = 12
"""Modules, each importing the next: what a reader may have to follow to understand the first."""


@pytest.fixture(scope="module")
def house() -> House:
    return House(ROOT)


def test_the_top_level_fits_on_a_screen(house):
    assert len(house.rooms()) <= MAXIMAL_ROOMS
    assert len(house.top_modules()) <= MAXIMAL_TOP_MODULES


def test_the_repository_holds_sources_and_no_builds():
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("this copy is not a git repository")
    names = [Path(name) for name in listing.stdout.splitlines()]
    assert {name.name for name in names if len(name.parts) == 1} == TOP_FILES
    assert not [name for name in names if name.suffix in (".whl", ".so", ".pyc", ".pt", ".gguf")]


def test_no_file_and_no_line_is_too_long(house):
    assert not house.long_files()
    assert not house.long_lines()


def test_no_chain_of_imports_is_long(house):
    chain = house.longest_chain()
    assert len(chain) <= MAXIMAL_CHAIN, " > ".join(chain)


def test_a_variable_is_named_by_a_noun(house):
    counts = house.pronouns().values()
    assert sum(pronouns for pronouns, _ in counts) < 0.01 * sum(total for _, total in counts)


def test_no_two_rooms_import_each_other(house):
    assert not house.mutual_rooms()


def test_a_module_name_is_used_once_but_by_convention(house):
    assert not house.repeated_names()


HOMES = ("quantization", "engines", "workloads")
"""Rooms that may name a quantization or an engine: their own, and those of the workloads that measure them."""
NAMED_ELSEWHERE = {
    "checkpoints.cache": "the kinds of cached checkpoints",
    "checkpoints.gguf_file": "a file format and its library, which have the form's name",
    "cli.checkpoint": "the default of an option",
    "cli.engine": "an option that one engine's environments have",
    "cli.generate": "the default of an option",
    "logs.variant": "words of old logs",
    "quality.plan": "the unquantized model, which forms are held against",
    "schema.engine_names": "what engines were called before",
    "schema.upgrade": "what engines were called before",
}
"""Modules elsewhere that name one, and why. The list only gets shorter."""


def test_quantizations_and_engines_are_named_by_their_own_rooms(house):
    # `eager` and `compile` are words of torch's and of Python's too.
    names = {*LOADERS, *ENGINES} - {"eager", "compile"}
    naming = {
        module
        for module, tree in house.trees.items()
        if not module.startswith(HOMES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }
    assert naming == set(NAMED_ELSEWHERE)


WORKLOADS_HOMES = ("workloads", "schema.registry")
WORDS_OF_OTHERS = {
    "attention": "what a kernel is for, and a part of a record",
    "state": "an attribute of a library's module",
    "forward": "a method of torch's, and a part of a training step",
    "backward": "a part of a training step",
    "optimizer": "a part of a training step",
    "matmul": "what a kernel is for",
    "latency": "a field of every row",
    "peak": "the heading of every workload's memory",
    "error": "a status, and a field of what drivers answer",
    "tokens": "a field of what drivers answer",
    "decode": "a field of old records, and of what drivers answer",
    "parameters": "a field of what a driver is told",
}
"""Names of workloads and metrics that mean something else elsewhere, and what. The list only gets shorter."""


def test_workloads_and_metrics_are_named_by_their_own_rooms(house):
    metrics = {metric.name for name in WORKLOADS for metric in workload_of(name).metrics}
    elsewhere = {module: tree for module, tree in house.trees.items() if not module.startswith(WORKLOADS_HOMES)}
    used = {
        node.value
        for tree in elsewhere.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert used & {*metrics, *WORKLOADS} == set(WORDS_OF_OTHERS)


@pytest.mark.parametrize(
    ("source", "is_named"),
    [
        ("record.workload == 'attention'", True),
        ("workload_of('attention')", True),
        ("Origin(workload='attention')", True),
        ("row.metrics['decode']", True),
        ("workload.metric('latency')", True),
        ("{'metrics': metrics, 'latency': latency}", False),
        ("part.purpose == 'attention'", False),
    ],
)
def test_a_name_counts_where_it_is_one_of_a_workload_or_a_metric(source, is_named):
    assert bool(list(names_in_use(ast.parse(source)))) is is_named


def test_no_word_of_others_is_used_as_a_workload_or_a_metric(house):
    assert not [
        f"{module}: {expression}"
        for module, tree in house.trees.items()
        if not module.startswith(WORKLOADS_HOMES)
        for expression in names_in_use(tree)
    ]


def names_in_use(tree: ast.AST) -> Iterator[str]:
    """Expressions that look up, compare or pass a workload or a metric by one of those words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            subject, values = ast.unparse(node), [node.left, *node.comparators]
        elif isinstance(node, ast.Call):
            subject, values = ast.unparse(node.func), node.args
        elif isinstance(node, ast.Subscript):
            subject, values = ast.unparse(node.value), [node.slice]
        elif isinstance(node, ast.keyword):
            subject, values = node.arg or "", [node.value]
        else:
            continue
        words = {value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)}
        if words & set(WORDS_OF_OTHERS) and re.search("workload|metric", subject):
            yield ast.unparse(node)


HELPS = (["--help"], ["run", "--help"], ["run", "attention", "-h"], ["sweep", "--help"], ["engine", "list", "--help"])


@pytest.mark.parametrize("arguments", HELPS)
def test_help_imports_no_pydantic_and_no_markdown_and_makes_no_class_of_a_record_or_a_config(arguments):
    code = (
        "import sys\n"
        "from benchmarker.cli.app import main\n"
        f"sys.argv = ['benchmarker', *{arguments}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in sys.modules if name.startswith(('benchmarker.schema', 'benchmarker.workloads'))"
        " or name in ('pydantic', 'markdown_it', 'pygments')])"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Usage: benchmarker" in process.stdout
    imported = ast.literal_eval(process.stdout.splitlines()[-1])
    assert set(imported) <= {"benchmarker.schema", "benchmarker.schema.option", "benchmarker.schema.registry"}


def test_help_is_printed_by_a_typer_that_needs_more_of_what_is_left_out(monkeypatch):
    monkeypatch.setattr(verb_group, "UNUSED", {"rich.panel": "Other"})
    for module in ("typer.rich_utils", "rich.panel"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    verb_group.import_help_printer()
    assert "typer.rich_utils" not in sys.modules
    assert "rich.panel" not in sys.modules


@pytest.fixture
def small_house(tmp_path) -> House:
    """Two rooms: a chain of three modules, a pair of modules that import each other, and a name used twice."""
    for path, text in {
        "benchmarker/__init__.py": "",
        "benchmarker/a/__init__.py": "",
        "benchmarker/a/top.py": "def call():\n    from benchmarker.a import middle\n",
        "benchmarker/a/middle.py": "import benchmarker.b.ground\nfor one in ():\n    found = one\n",
        "benchmarker/a/registry.py": "import benchmarker.a.top\n",
        "benchmarker/b/ground.py": "",
        "benchmarker/b/middle.py": f"from benchmarker.a import top\n#{'-' * 120}\n" + "\n" * 300,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return House(tmp_path)


def test_what_is_counted(small_house):
    assert small_house.rooms() == ["a", "b"]
    assert small_house.top_modules() == ["__init__"]
    assert small_house.longest_chain() == ["b.middle", "a.top", "a.middle", "b.ground"]
    assert small_house.mutual_rooms() == ["a <-> b"]
    assert small_house.repeated_names() == {"middle": ["a.middle", "b.middle"]}
    assert small_house.pronouns() == {"": (0, 0), "a": (2, 2), "b": (0, 0)}
    assert small_house.long_files() == {"b.middle": 302}
    assert small_house.long_lines() == ["benchmarker/b/middle.py:2"]


def test_modules_that_import_each_other_are_one_group():
    groups = circles({"a": ["b"], "b": ["a", "c"], "c": []})
    assert groups["a"] == groups["b"] == {"a", "b"}
    assert groups["c"] == {"c"}
