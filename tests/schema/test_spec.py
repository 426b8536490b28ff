"""Reading of configs and options, and one-line errors."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from benchmarker.core.errors import SpecError
from benchmarker.execution.jobs import result_key
from benchmarker.schema.config_io import parse_option, read_experiment
from benchmarker.workloads.generation.spec import Grid, Point
from tests.jobs import job_with
from tests.records import environment

MINIMAL = "variants:\n  - {quant: fp16}\n"


def config(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_minimal_config_has_the_default_model_and_grid(tmp_path: Path) -> None:
    experiment = read_experiment(config(tmp_path, MINIMAL))
    assert experiment.model.id == "Qwen/Qwen3-4B"
    assert experiment.grid.points() == [
        Point(3, None, 50, 1),
        Point(3, None, 100, 1),
        Point(26, None, 50, 1),
        Point(26, None, 100, 1),
    ]
    assert experiment.procedure.runs == 5


def test_cells_are_sorted_from_small_to_large() -> None:
    points = Grid(prompt_tokens=(26, 3), new_tokens=(100, 50), batch_size=(8, 1)).points()
    assert [(point.batch_size, point.prompt_tokens, point.new_tokens) for point in points] == [
        (1, 3, 50), (1, 3, 100), (1, 26, 50), (1, 26, 100), (8, 3, 50), (8, 3, 100), (8, 26, 50), (8, 26, 100),
    ]  # fmt: skip


def test_prompts_replace_prompt_lengths() -> None:
    assert Grid(prompts=("Hello",), new_tokens=(5,)).points() == [Point(None, "Hello", 5, 1)]


def test_cells_of_a_batch_size_are_sorted_by_depth() -> None:
    points = Grid(prompt_tokens=(26, 3), new_tokens=(50,), batch_size=(1, 8), depth=(4096, 0)).points()
    assert [(point.batch_size, point.depth, point.prompt_tokens) for point in points] == [
        (1, 0, 3), (1, 0, 26), (1, 4096, 3), (1, 4096, 26),
        (8, 0, 3), (8, 0, 26), (8, 4096, 3), (8, 4096, 26),
    ]  # fmt: skip
    with pytest.raises(ValidationError, match="depth"):
        Grid(depth=(-1,))


def test_excluded_cells_are_left_out() -> None:
    exclude = ({"prompt_tokens": 26, "batch_size": 8}, {"batch_size": 32})
    points = Grid(prompt_tokens=(3, 26), new_tokens=(50,), batch_size=(1, 8, 32), exclude=exclude).points()
    assert [(point.prompt_tokens, point.batch_size) for point in points] == [(3, 1), (26, 1), (3, 8)]


def test_cells_of_different_depths_have_different_keys() -> None:
    keys = {
        result_key(job_with(), point, environment())
        for point in Grid(prompt_tokens=(26,), new_tokens=(50,), depth=(0, 4096)).points()
    }
    assert len(keys) == 2


MISTAKES = {
    "variants:\n  - {quant: fp16}\n  - {quant: bnb-4}\n": (
        "variants[1].quant: no quantization 'bnb-4'; did you mean 'bnb4'?"
    ),
    "variants:\n  - {quant: fp16, engine: compiled}\n": (
        "variants[0].engine: no engine 'compiled'; did you mean 'compile'?"
    ),
    MINIMAL + "procedure: {run: 5}\n": "procedure: no key 'run'; did you mean 'runs'?",
    MINIMAL + "grid: {new_tokens: [0]}\n": "grid.new_tokens[0]: input should be greater than 0, not 0",
    MINIMAL + "grid: {exclude: [{batch: 8}]}\n": "grid: exclude: no axis 'batch'; did you mean 'batch_size'?",
    MINIMAL
    + "grid: {exclude: [{batch_size: 1}]}\n": "grid: exclude leaves no cell; remove an entry of it, or choose other "
    "sizes",
    MINIMAL + "grid: {new_tokens: [-5]}\n": "grid.new_tokens[0]: input should be greater than 0, not -5",
    MINIMAL + "grid: {new_tokens: ['50']}\n": "grid.new_tokens[0]: input should be a valid integer, not '50'",
    MINIMAL + "model: {revision: 1234567}\n": "model.revision: input should be a valid string, not 1234567",
    MINIMAL + "model: {id: a, id: b}\n": "line 3: the key 'id' is given twice",
    MINIMAL + "baseline: int8\n": "baseline: no variant 'int8'; there is fp16",
    "variants:\n  - {quant: gptq, options: {group: 64}}\n": (
        "variants[0].options: no key 'group'; did you mean 'group_size'?"
    ),
    "variants:\n  - {quant: gptq, options: {group_size: x}}\n": (
        "variants[0].options: group_size: input should be -1, 16, 32, 64, 128, 256, 512 or 1024, not 'x'"
    ),
    "variants: []\n": "variants: must not be empty",
    "- fp16\n": "a config is a mapping with the keys model, grid, procedure and variants",
    MINIMAL + "model: {trust_remote_code: true}\n": (
        "model: trust_remote_code needs a revision of 40 hex digits (--revision), so that the code is pinned"
    ),
    "variants:\n  - {quant: fp16}\n  - {quant: fp16}\n": "variants: two are named 'fp16'; give them a name each",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_invalid_config_raises_one_line_with_file_and_key(tmp_path: Path, text: str) -> None:
    path = config(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        read_experiment(path)
    assert str(caught.value) == f"{path}: {MISTAKES[text]}"


def test_invalid_yaml_and_missing_files_raise_one_line(tmp_path: Path) -> None:
    path = config(tmp_path, "variants:\n  - {")
    with pytest.raises(SpecError) as caught:
        read_experiment(path)
    assert str(caught.value) == (
        f"{path}: not valid YAML: while parsing a flow node expected the node content, but found "
        "'<stream end>' at line 2, column 6"
    )
    with pytest.raises(
        SpecError,
        match=r"nowhere\.yaml: there is no such file; configs that ship: aa, .*, quickstart, qwen3-4b",
    ):
        read_experiment(tmp_path / "nowhere.yaml")


def test_option_values_are_parsed_as_numbers_booleans_or_text() -> None:
    assert parse_option("damp=1e-2") == ("damp", 0.01)
    assert parse_option("day=2024-01-01") == ("day", "2024-01-01")
    assert parse_option("double_quant=true") == ("double_quant", True)
    assert parse_option("kernel=") == ("kernel", "")


@pytest.mark.parametrize("text", ["kernel", "=triton", "sizes=[1, 2]"])
def test_invalid_option_raises(text: str) -> None:
    with pytest.raises(SpecError, match="--option"):
        parse_option(text)


def test_shipped_configs_are_valid() -> None:
    for path in (Path(__file__).parents[2] / "configs").glob("*.yaml"):
        assert read_experiment(path).variants
