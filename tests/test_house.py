"""Limits of the counts of `script/house.py` and `script/executed_files.py`, and names per package."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarker.cli import app as command_line
from benchmarker.engines.registry import ENGINES
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.registry import WORKLOADS, workload_of
from script.house import ROOT, House, cycles

MAXIMUM = {
    "lines outside kernels/": 45_832,
    "lines in kernels/": 4_675,
    "files": 306,
    "files over 400 lines": 0,
    "lines over 120 characters": 0,
    "file names used twice": 0,
    "workload hooks": 35,
    "string dispatch": 0,
    "modules in a chain of imports": 16,
    "mutual packages": 0,
    "packages": 21,
    "modules at the top": 3,
}
"""Limits for the whole package; goal: 40,000, 5,000, 380, 0, 0, 0, 35, 0, 13, 0, 24, 4. Architectures
added 1,430 lines, stored formats 1,220, `comply` 960, the settings of other engines 350, and serving 2,850."""
MAXIMAL_PRONOUNS = 0.006
"""Share of the bindings."""
MAXIMAL_EXECUTED_FILES = {
    "compare results/reference/h100-native": 46,
    "run --quant int8 --model qwen3-tiny --load-format dummy --runs 1 --warmup 1 --new-tokens 8": 85,
}
"""Files with a function that a command executes; goal: 55 and 85."""

TOP_FILES = {".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "pyproject.toml"}


def test_counts_of_the_package_are_within_their_limits(house):
    counts = {
        "lines outside kernels/": house.lines(kernels=False),
        "lines in kernels/": house.lines(kernels=True),
        "files": len(house.paths),
        "files over 400 lines": len(house.long_files()),
        "lines over 120 characters": len(house.long_lines()),
        "file names used twice": len(house.repeated_names()),
        "workload hooks": len(house.workload_hooks()),
        "string dispatch": len(house.named_targets()),
        "modules in a chain of imports": len(house.longest_chain()),
        "mutual packages": len(house.mutual_rooms()),
        "packages": len(house.rooms()),
        "modules at the top": len(house.top_modules()),
    }
    assert not {name: count for name, count in counts.items() if count > MAXIMUM[name]}


def test_variable_names_are_nouns(house):
    counts = house.pronouns().values()
    assert sum(pronouns for pronouns, _ in counts) < MAXIMAL_PRONOUNS * sum(total for _, total in counts)


FEWER_STEPS = """
import sys
from benchmarker.quality import step_check
from script.executed_files import main
step_check.STEPS = 32
sys.exit(main(sys.argv[1:]))
"""
"""Program that runs script/executed_files.py with 32 steps, which execute the same functions as 256."""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.slow] if command.startswith("run") else [])
        for command in MAXIMAL_EXECUTED_FILES
    ],
)
def test_commands_execute_functions_of_few_files(command, tmp_path):
    is_run = command.startswith("run")
    output = ["--output", str(tmp_path)] if is_run else []
    program = ["-c", FEWER_STEPS] if is_run else ["script/executed_files.py"]
    process = subprocess.run(
        [sys.executable, *program, *command.split(), *output],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    summary = process.stderr.splitlines()[-1]
    assert int(summary.split()[-2]) <= MAXIMAL_EXECUTED_FILES[command], process.stderr


def test_counting_scripts_import_only_the_standard_library():
    imports = {name for module in ("house", "executed_files", "prose") for name in _imports(f"script/{module}.py")}
    assert imports - {"benchmarker"} <= set(sys.stdlib_module_names)


def _imports(path: str) -> set[str]:
    nodes = list(ast.walk(ast.parse((ROOT / path).read_text())))
    direct = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {
        name.split(".")[0]
        for name in direct | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    }


def test_repository_contains_no_build_outputs():
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("this copy is not a git repository")
    names = [Path(name) for name in listing.stdout.splitlines()]
    assert {name.name for name in names if len(name.parts) == 1} == TOP_FILES
    assert not [name for name in names if name.suffix in (".whl", ".so", ".pyc", ".pt", ".gguf")]


NAMING_PACKAGES = ("quantization", "engines", "workloads")
"""Packages that may name a quantization or an engine."""
NAMED_ELSEWHERE = {
    "checkpoints.cache": "kinds of cached checkpoints",
    "checkpoints.gguf_file": "file format and library of the same name",
    "cli.machine_commands": "default of an option, and an option for one engine",
    "logs.log_runs": "terms in logs",
    "quality.judge": "unquantized model, the reference of the quality measures",
}
"""Other modules that may name them, with the reason. The list only gets shorter."""


def test_quantizations_and_engines_are_named_only_in_their_packages(house):
    # `eager` and `compile` are also names in torch and Python.
    names = {*LOADERS, *ENGINES} - {"eager", "compile"}
    naming = {
        module
        for module, tree in house.trees.items()
        if not module.startswith(NAMING_PACKAGES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }
    assert naming <= set(NAMED_ELSEWHERE)


WORKLOAD_PACKAGES = ("workloads", "schema.registry")
AMBIGUOUS_NAMES = {
    "attention": "kernel category, and a part of a record",
    "state": "attribute of a library's module",
    "forward": "method of torch modules, and a part of a training step",
    "backward": "part of a training step",
    "optimizer": "part of a training step",
    "matmul": "kernel category",
    "latency": "field of every row",
    "peak": "heading of the memory of every workload",
    "error": "status, and a field of the driver's response",
    "tokens": "field of the driver's response",
    "decode": "field of the driver's response",
    "parameters": "field of the driver's request",
    "scaling": "argument of an attention function",
    "weights": "key of compressed-tensors' config",
}
"""Names of workloads and metrics with another meaning in other packages."""


def test_workloads_and_metrics_are_named_only_in_their_packages(house):
    metrics = {metric.name for name in WORKLOADS for metric in workload_of(name).metrics}
    other_trees = {module: tree for module, tree in house.trees.items() if not module.startswith(WORKLOAD_PACKAGES)}
    used = {
        node.value
        for tree in other_trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert used & {*metrics, *WORKLOADS} <= set(AMBIGUOUS_NAMES)


@pytest.mark.parametrize(
    ("source", "is_in_use"),
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
def test_names_in_use_finds_names_of_workloads_and_metrics(source, is_in_use):
    assert bool(list(names_in_use(ast.parse(source)))) is is_in_use


def test_ambiguous_names_do_not_refer_to_workloads_or_metrics(house):
    assert not [
        f"{module}: {expression}"
        for module, tree in house.trees.items()
        if not module.startswith(WORKLOAD_PACKAGES)
        for expression in names_in_use(tree)
    ]


def names_in_use(tree: ast.AST) -> Iterator[str]:
    """Yield expressions that look up, compare or pass a workload or metric by an ambiguous name."""
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
        names = {value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)}
        if names & set(AMBIGUOUS_NAMES) and re.search("workload|metric", subject):
            yield ast.unparse(node)


HELPS = (["--help"], ["run", "--help"], ["run", "attention", "-h"], ["sweep", "--help"], ["engine", "list", "--help"])


@pytest.mark.parametrize("arguments", HELPS)
def test_help_imports_no_pydantic_markdown_or_record_classes(arguments):
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
    assert set(imported) <= {"benchmarker.schema", "benchmarker.schema.options", "benchmarker.schema.registry"}


def test_help_is_printed_if_typer_requires_an_excluded_module(monkeypatch):
    monkeypatch.setattr(command_line, "UNUSED", {"rich.panel": "Other"})
    for module in ("typer.rich_utils", "rich.panel"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    command_line.import_help_printer()
    assert "typer.rich_utils" not in sys.modules
    assert "rich.panel" not in sys.modules


@pytest.fixture
def small_house(tmp_path) -> House:
    """Return packages with a chain of imports, mutual imports and a file name used twice."""
    for path, text in {
        "benchmarker/__init__.py": "",
        "benchmarker/a/__init__.py": "",
        "benchmarker/a/top.py": "def call():\n    from benchmarker.a import middle\n",
        "benchmarker/a/middle.py": "import benchmarker.b.ground\nfor one in ():\n    found = one\n",
        "benchmarker/a/registry.py": "import benchmarker.a.top\nTOP = 'benchmarker.a.top:call'\n",
        "benchmarker/b/ground.py": "TOP = 'benchmarker.a.top:call'\n",
        "benchmarker/b/middle.py": f"from benchmarker.a import top\n#{'-' * 120}\n" + "\n" * 400,
        "benchmarker/b/record.py": "",
        "benchmarker/kernels/gemv.py": "\n\n\n",
        "benchmarker/workloads/x/record.py": (
            "class Workload:\n    name: str\n    check: Callable[[], None]\n"
            "    @final\n    def title(self): ...\n    def prepare(self): ...\n    def _open(self): ...\n"
        ),
        "benchmarker/workloads/y/record.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return House(tmp_path)


def test_counts_of_a_small_package(small_house):
    assert small_house.rooms() == ["a", "b", "kernels", "workloads"]
    assert small_house.top_modules() == ["__init__"]
    assert small_house.lines(kernels=True) == 3
    assert small_house.lines(kernels=False) == 417
    assert small_house.longest_chain() == ["b.middle", "a.top", "a.middle", "b.ground"]
    assert small_house.mutual_rooms() == ["a <-> b"]
    assert small_house.repeated_names() == {"middle": ["a.middle", "b.middle"]}
    assert small_house.workload_hooks() == ["Workload.check", "Workload.prepare"]
    assert small_house.named_targets() == ["b.ground: benchmarker.a.top:call"]
    assert small_house.pronouns()["a"] == (2, 3)
    assert small_house.long_files() == {"b.middle": 402}
    assert small_house.long_lines() == ["benchmarker/b/middle.py:2"]


def test_mutual_imports_are_one_cycle():
    groups = cycles({"a": ["b"], "b": ["a", "c"], "c": []})
    assert groups["a"] == groups["b"] == {"a", "b"}
    assert groups["c"] == {"c"}


@pytest.fixture
def traced(tmp_path):
    """Return the output of the recorder for one call of `a.work`, which imports `b` in a function."""
    for name, text in {
        "a": "class Table:\n    rows = 1\n\ndef work():\n    import b\n",
        "b": "def decorator(function):\n    return function\n\n@decorator\ndef unused():\n    pass\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
        "from pathlib import Path\nfrom script.executed_files import Recorder\n"
        f"recorder = Recorder(Path({str(tmp_path)!r}))\n"
        "sys.settrace(recorder)\nimport a\na.work()\nsys.settrace(None)\nprint(recorder.files())\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_calls_during_an_import_are_not_counted(traced):
    assert traced == "['a.py']\n"
