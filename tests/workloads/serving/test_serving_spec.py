"""Config values of serving."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from benchmarker.core.errors import SpecError
from benchmarker.execution.jobs import make_job
from benchmarker.schema.base import first_problem
from benchmarker.schema.registry import workload_of
from benchmarker.workloads.serving.spec import (
    ServingExperiment,
    ServingGrid,
    ServingPoint,
    ServingVariant,
    requests_of,
)


def test_closed_loops_come_before_open_loops():
    grid = ServingGrid(concurrency=(4, 1), rate=(2.5,))
    assert [(point.concurrency, point.rate) for point in grid.points()] == [(1, 0.0), (4, 0.0), (0, 2.5)]


def test_rate_replaces_the_default_concurrency():
    assert [point.rate for point in ServingGrid.model_validate_json('{"rate": [2, 4]}').points()] == [2.0, 4.0]
    assert [point.concurrency for point in ServingGrid().points()] == [1, 4, 16, 64]


def test_closed_loop_has_at_least_four_requests_per_user():
    points = ServingGrid(concurrency=(16, 256)).points()
    assert [requests_of(point, 200) for point in points] == [200, 1024]


def test_open_loop_lasts_at_least_20_s():
    assert [requests_of(point, 200) for point in ServingGrid(rate=(4.0, 12.34)).points()] == [200, 247]


def test_running_server_is_named_after_its_url():
    assert ServingVariant.model_validate({"url": "http://127.0.0.1:8000/v1"}).name == "server at 127.0.0.1:8000"
    assert ServingVariant.model_validate({"quant": "gptq"}).name == "vllm gptq"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"variants": ({"quant": "fp16", "engine": "vlm"},)}, "variants[0].engine: input should be 'vllm', 'sglang'"),
        ({"variants": ({"url": "localhost:8000"},)}, "variants[0].url: 'localhost:8000' is no address of a server"),
        ({"grid": {"rate": (0.0,)}}, "grid.rate[0]: input should be greater than 0"),
        ({"grid": {"new_tokens": (1,)}}, "grid.new_tokens[0]: input should be greater than 1"),
        ({"procedure": {"slo": "ttft<500"}}, "procedure.slo: 'ttft<500' needs a unit"),
    ],
)
def test_invalid_value_is_refused_with_its_config_key(fields, message):
    with pytest.raises(ValidationError) as refused:
        ServingExperiment.model_validate({"variants": ({"quant": "fp16"},), **fields})
    assert first_problem(refused.value, ServingExperiment).startswith(message)


def test_engine_and_url_together_are_refused():
    with pytest.raises(SpecError, match=r"^--engine: starts a server, and --url names one that is already running"):
        make_job({"variant.url": "http://127.0.0.1:8000", "variant.engine": "vllm"}, workload="serving")


def test_command_of_a_cell_contains_only_its_kind_of_load():
    workload = workload_of("serving")
    point = ServingPoint(64, 32, length_spread=0.0, shared_prefix=0, dataset="", concurrency=0, rate=0.0)
    for fields, arguments in (
        ({"concurrency": 2}, "--prompt-tokens 64 --new-tokens 32 --concurrency 2"),
        ({"rate": 0.5}, "--prompt-tokens 64 --new-tokens 32 --rate 0.5"),
        (
            {"prompt_tokens": 0, "dataset": "chat.jsonl", "length_spread": 0.3, "concurrency": 1},
            "--new-tokens 32 --length-spread 0.3 --dataset chat.jsonl --concurrency 1",
        ),
    ):
        assert " ".join(workload.point_arguments(point._replace(**fields))) == arguments
