"""Prompts of a batch are distinct by default and equal with --same-prompt; comparisons separate both kinds."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from benchmarker.comparison.results import results_of_records
from benchmarker.engines.base import TokenSource
from benchmarker.engines.decoders.compile import compile_decoder
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.static_decoder import cuda_graph_decoder
from benchmarker.execution.jobs import result_key
from benchmarker.hardware.device import CpuDevice
from benchmarker.logs.log_runs import find_runs
from benchmarker.schema.job import Procedure
from benchmarker.workloads.generation.generation_job import cell_fields
from benchmarker.workloads.generation.prompts import Prompt, distinct_count, inputs_sha256, make_prompts
from benchmarker.workloads.generation.record import GenerationCell
from benchmarker.workloads.generation.source_benchmarker import SourceBenchmarker
from benchmarker.workloads.generation.spec import Grid, Point
from benchmarker.workloads.generation.workload import WORKLOAD
from tests.cli.test_cli import typed
from tests.engines.test_engines import model
from tests.engines.test_engines_graph import Rerun
from tests.engines.test_engines_subprocess import CHECKPOINT, Echo, opened
from tests.jobs import job_with
from tests.records import cell, environment, record, save

__all__ = ["model"]

QUICK = Procedure(warmup=1, warmup_limit=1, runs=1)


class WordTokenizer:
    """Tokenizer with one token per word."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        del add_special_tokens
        return [int(hashlib.sha256(word.encode()).hexdigest()[:8], 16) for word in text.split()]


def prompts_of(point: Point, tokenizer: Any | None = None) -> tuple[Prompt, ...]:
    return make_prompts(point, tokenizer=tokenizer, vocabulary=128, chat_template=False)


def point_of(**axes: Any) -> Point:
    grid = {"prompt_tokens": (7,), "new_tokens": (5,), **axes}
    (point,) = Grid(**grid).points()
    return point


@pytest.mark.parametrize("tokenizer", [None, WordTokenizer()])
@pytest.mark.parametrize("tokens", [1, 7, 5000])
def test_sequences_have_distinct_prompts_and_contexts_of_equal_length(tokenizer: Any | None, tokens: int) -> None:
    prompts = prompts_of(point_of(prompt_tokens=(tokens,), batch_size=(32,), depth=(40,)), tokenizer)
    assert len({prompt.ids for prompt in prompts}) == len({prompt.context for prompt in prompts}) == 32
    assert {(len(prompt.ids), len(prompt.context)) for prompt in prompts} == {(tokens, 40)}


@pytest.mark.parametrize("tokenizer", [None, WordTokenizer()])
def test_first_sequence_has_the_prompt_of_a_batch_of_one(tokenizer: Any | None) -> None:
    single, several = (prompts_of(point_of(batch_size=(size,), depth=(9,)), tokenizer) for size in (1, 4))
    same = prompts_of(point_of(batch_size=(4,), depth=(9,), same_prompt=True), tokenizer)
    assert several[0] == single[0]
    assert same == single * 4
    assert inputs_sha256(same) == inputs_sha256(single) != inputs_sha256(several)


def test_batch_of_one_keeps_the_token_ids_of_earlier_versions() -> None:
    (prompt,), generator = prompts_of(point_of()), random.Random(0)
    ids = [generator.randrange(128) for _ in range(7)]
    assert prompt.ids == tuple(ids)
    assert inputs_sha256([prompt]) == hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
    (text,) = prompts_of(point_of(prompt_tokens=(3,)), WordTokenizer())
    assert text.ids == tuple(WordTokenizer().encode("A measurement is", add_special_tokens=False))


def test_text_prompt_is_used_for_all_sequences() -> None:
    prompts = prompts_of(
        Grid(prompts=("Why is it so?",), new_tokens=(5,), batch_size=(3,)).points()[0], WordTokenizer()
    )
    assert (len(prompts), distinct_count(prompts), prompts[0].source) == (3, 1, "given text")


def test_fewer_distinct_prompts_than_sequences_are_counted() -> None:
    point = point_of(prompt_tokens=(1,), batch_size=(40,))
    prompts = make_prompts(point, tokenizer=None, vocabulary=8, chat_template=False)
    assert (len(prompts), distinct_count(prompts)) == (40, 8)


def test_keys_depend_on_the_prompt_kind_only_for_batches() -> None:
    def key(**axes: Any) -> str:
        grid = Grid(prompt_tokens=(7,), new_tokens=(5,), **axes)
        return result_key(job_with(grid=grid), grid.points()[0], environment())

    assert key() == key(same_prompt=True)
    assert key(batch_size=(4,)) != key(batch_size=(4,), same_prompt=True)
    old = {"prompt_tokens": 7, "prompt": None, "new_tokens": 5, "batch_size": 4, "depth": 0}
    assert Grid().point_key(point_of(batch_size=(4,), same_prompt=True)) == old


def measured(source: TokenSource, config: dict[str, Any], **axes: Any) -> tuple[GenerationCell, list[Any]]:
    """Return the cell and the prompts that the engine received."""
    received: list[Any] = []
    generate = source.generate

    def keep(prompt_ids: Any, new_tokens: int, *, context: Any = None) -> Any:
        received.append(prompt_ids)
        return generate(prompt_ids, new_tokens, context=context)

    source.generate = keep  # type: ignore[method-assign]
    grid = Grid(prompt_tokens=(7,), new_tokens=(5,), **axes)
    (measured_cell,) = SourceBenchmarker(source, config, CpuDevice()).run(grid, QUICK)
    source.generate = generate  # type: ignore[method-assign]
    return measured_cell, received[-1]


ENGINES: dict[str, Callable[[PreTrainedModel], TokenSource]] = {
    "eager": lambda model: EagerDecoder(model, CpuDevice()),
    "cuda_graph": lambda model: cuda_graph_decoder(model, CpuDevice(), capture=Rerun()),
    "compile": lambda model: compile_decoder(model, CpuDevice()),
}


@pytest.mark.parametrize("engine", ["eager", "cuda_graph", pytest.param("compile", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("traced_only")
def test_sequences_of_a_batch_equal_runs_of_a_single_prompt(model: PreTrainedModel, engine: str) -> None:
    source, alone = ENGINES[engine](model), EagerDecoder(model, CpuDevice())
    distinct, prompts = measured(source, model.config.to_dict(), batch_size=(4,), depth=(40,))
    contexts = [prompt.context for prompt in prompts_of(point_of(batch_size=(4,), depth=(40,)))]
    assert (distinct.status, distinct.distinct_prompts, len(set(prompts))) == ("ok", 4, 4)
    tokens = source.generate(prompts, 5, context=contexts).tokens
    for row, (prompt, context) in enumerate(zip(prompts, contexts, strict=True)):
        assert alone.generate([prompt], 5, context=[context]).tokens == (tokens[row],)
    same, prompts = measured(source, model.config.to_dict(), batch_size=(4,), same_prompt=True)
    assert (same.status, same.distinct_prompts, len(set(prompts))) == ("ok", 1, 1)


def test_external_engine_receives_every_prompt(tmp_path: Path) -> None:
    with opened(Echo(tmp_path)) as source:
        distinct, prompts = measured(source, CHECKPOINT.config, batch_size=(4,))
        assert source.generate(prompts, 7).tokens == tuple(prompts)
        same, prompts = measured(source, CHECKPOINT.config, batch_size=(4,), same_prompt=True)
    assert (distinct.distinct_prompts, same.distinct_prompts, len(set(prompts))) == (4, 1, 1)


def test_plan_and_command_contain_the_prompt_kind() -> None:
    distinct, same = (point_of(batch_size=(4,), same_prompt=value) for value in (False, True))
    assert (WORKLOAD.point_text(distinct), WORKLOAD.point_text(same)) == (
        "7 x 5, batch 4",
        "7 x 5, batch 4, same prompt",
    )
    assert WORKLOAD.point_arguments(same) == [*WORKLOAD.point_arguments(distinct), "--same-prompt"]
    assert "--same-prompt" not in WORKLOAD.point_arguments(point_of(same_prompt=True))


def test_unmeasured_cell_has_the_key_of_a_measured_cell() -> None:
    grid = Grid(prompt_tokens=(7,), new_tokens=(5,), batch_size=(4,))
    fields = cell_fields(job_with(grid=grid), grid.points()[0], ())
    assert fields is not None
    assert fields["distinct_prompts"] == 4


def test_prompt_kinds_are_separate_cells_except_for_single_sequences() -> None:
    def cells(distinct: bool) -> list[GenerationCell]:
        return [cell([2.0], batch_size=size, distinct_prompts=size if distinct else 1) for size in (1, 4)]

    records = [record("fp16", *cells(distinct)) for distinct in (True, False)]
    results = results_of_records(records, baseline="fp16")
    assert [(row.cell.words, row.processes) for row in results.rows if row.cell] == [
        ("prompt 26, 50 new tokens, batch 1", 2),
        ("prompt 26, 50 new tokens, batch 4", 1),
        ("prompt 26, 50 new tokens, batch 4, distinct prompts", 1),
    ]


def test_comparison_of_both_prompt_kinds_names_them_in_every_table(tmp_path: Path) -> None:
    def cells(speed: float, distinct: bool) -> list[GenerationCell]:
        return [cell([speed], batch_size=size, distinct_prompts=size if distinct else 1) for size in (1, 4, 8)]

    save(tmp_path / "both", *(record("fp16", *cells(2.0, kind), run_id=str(kind)) for kind in (True, False)))
    code, text = typed("compare", tmp_path / "both", "--all", "--format", "markdown")
    assert code == 0
    assert "batch 8, distinct prompts" in text
    assert "| same " in text
    assert "| distinct " in text
    save(tmp_path / "one", *(record("fp16", *cells(2.0, True)), record("int8", *cells(1.0, True))))
    code, text = typed("compare", tmp_path / "one", "--all", "--format", "markdown")
    assert (code, "| same " in text, "| distinct " in text) == (0, False, False)
    assert "int8 wins against fp16 in decode at every batch, from batch 1 (2.00x) to batch 8 (2.00x)" in text
    assert "(prompt 26, 50 new tokens, distinct prompts)" in text
    code, rows = typed("compare", tmp_path / "both", "--format", "json")
    prompts = {(row["batch_size"], row.get("prompts")) for row in json.loads(rows)}
    assert prompts == {(1, None), (4, None), (8, None), (4, "distinct"), (8, "distinct")}


def test_imported_log_keeps_the_prompt_kind() -> None:
    for count in (1, 4):
        heading = WORKLOAD.cell_text(cell(batch_size=4, distinct_prompts=count))
        (logged,) = find_runs([heading])[0].cells
        assert (logged.batch_size, logged.has_distinct_prompts) == (4, count > 1)
