"""Jobs from a config file and command-line options."""

from pathlib import Path
from typing import Any

import pytest

from benchmarker.core.errors import SpecError
from tests.jobs import job_of, read_job

CONFIG = Path("configs/quickstart.yaml")


def test_job_without_config_has_the_defaults() -> None:
    job = job_of(form={"quant": "int8"})
    assert job.model.id == "Qwen/Qwen3-4B"
    assert job.variant.name == "int8"


def test_command_line_options_override_the_config() -> None:
    job = job_of(config=CONFIG, variant="int8", procedure={"runs": 2, "warmup": None})
    assert (job.model.id, job.procedure.runs, job.procedure.warmup) == ("qwen3-small", 2, 3)


def test_prompt_tokens_override_the_prompts_of_a_config(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("grid: {prompts: [Hello there]}\nvariants: [{name: fp16, quant: fp16}]\n")
    assert [point.prompt for point in job_of(config=config, variant="fp16").grid.points()] == ["Hello there"] * 2
    job = job_of(config=config, variant="fp16", grid={"prompt_tokens": [512], "prompts": None})
    assert {(point.prompt, point.prompt_tokens) for point in job.grid.points()} == {(None, 512)}


def test_compile_with_another_engine_is_refused() -> None:
    with pytest.raises(
        SpecError, match="--engine cuda_graph and --compile give two values of engine; give one of them"
    ):
        read_job(["--quant", "int8", "--engine", "cuda_graph", "--compile"])
    assert read_job(["--quant", "int8", "--engine", "compile", "--compile"]).variant.engine == "compile"


def test_unknown_engine_option_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^--engine-option: no key 'threads'"):
        read_job(["--engine", "compile", "--engine-option", "threads=2"])


def test_changed_variant_gets_a_new_name() -> None:
    assert job_of(config=CONFIG, variant="gptq").variant.name == "gptq"
    assert job_of(config=CONFIG, variant="gptq", options=["kernel=torch"]).variant.name == "gptq kernel=torch"
    assert job_of(config=CONFIG, variant="gptq", form={"engine": "compile"}).variant.name == "gptq compile"


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"variant": "int8"}, "--variant names a variant of a config file; give --config too, or use --quant"),
    ({"config": CONFIG, "variant": "int4"}, r"no variant 'int4'; did you mean 'int8'\?"),
    ({"config": CONFIG}, "has several variants; choose one with --variant"),
    ({"form": {"quant": "eetq"}}, "^--quant: no quantization 'eetq'"),
    ({"form": {"quant": "fp16", "engine": "vlm"}}, r"^--engine: no engine 'vlm'; did you mean 'vllm'\?"),
    ({"form": {"quant": "int8"}, "options": ["group=32"]}, r"^--option: no key 'group'; did you mean 'group_size'\?"),
    ({"grid": {"new_tokens": [0]}}, "^--new-tokens: input should be greater than 0, not 0"),
    ({"grid": {"prompts": ["hi"], "prompt_tokens": [512]}}, "--prompt and --prompt-tokens: .*; give one of them"),
    ({"model": {"chat_template": True}}, "--chat-template: wraps a text, and there is none; add --prompt TEXT"),
    ({"procedure": {"profile": False, "profile_tokens": 8}}, "--profile-tokens: does nothing beside --no-profile"),
    ({"form": {"quant": "gptq"}, "options": ["bits=4", "bits=8"]}, "--option bits: given twice, as 4 and as 8"),
    ({"procedure": {"runs": 0}}, "^--runs: input should be greater than 0, not 0"),
    (
        {"model": {"load_format": "random"}},
        "^--load-format: input should be 'auto' or 'dummy', not 'random'",
    ),
]


@pytest.mark.parametrize(("fields", "message"), MISTAKES)
def test_invalid_job_raises_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        job_of(**fields)
    assert "\n" not in str(caught.value)


def test_token_counts_are_separated_by_commas() -> None:
    assert read_job(["--new-tokens", "50,100"]).grid.new_tokens == (50, 100)
    with pytest.raises(SpecError, match="--new-tokens 50 100: write whole numbers separated by commas, such as 3,26"):
        read_job(["--new-tokens", "50 100"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt-tokens", "512", "2048"], "'2048' belongs to no option; numbers .* commas between them: 512,2048$"),
        (["--quant", "int8", "fp16", "--runs", "3"], "'fp16' belongs to no option$"),
    ],
)
def test_argument_without_option_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_job(arguments)
