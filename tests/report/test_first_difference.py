"""Greedy text after fixed prompts: where two engines part, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import pytest

from benchmarker.engines.base import PrefillScores, Scores, TokenIds, TokenSource, UnsupportedError
from benchmarker.quality.evaluation_text import Windows
from benchmarker.quality.judge import NEW_TOKENS, PROMPT_TOKENS, greedy_texts
from benchmarker.report.compare import to_markdown
from benchmarker.schema.quality import GreedyText
from benchmarker.workloads.generation.reading.generation_rows import FirstDifference
from tests import records
from tests.records import compare_records


def text(tokens: Sequence[int], gap: float | None = None) -> GreedyText:
    return GreedyText(tokens=tuple(tokens), gaps=() if gap is None else (gap,) * len(tokens))


def found(ours: Sequence[GreedyText], theirs: Sequence[GreedyText]) -> FirstDifference | None:
    """Of a row from its baseline."""
    baseline = records.quality(is_baseline=True, greedy=tuple(theirs))
    judged = {"fp16": baseline, "int8": records.quality(greedy=tuple(ours))}
    compared = compare_records([records.record(name).model_copy(update={"quality": of}) for name, of in judged.items()])
    rows = {row.variant: row for row in compared.rows}
    assert rows["fp16"].first_difference is None
    return rows["int8"].first_difference


@pytest.mark.parametrize(
    ("ours", "theirs", "expected", "verdict"),
    [
        ([text([1, 2])], [text([1, 2], 0.3)], FirstDifference(1, 1, None, None), "the same"),
        ([text([1, 3])], [text([1, 2], 0.04)], FirstDifference(1, 0, 2, 0.04), "rounding"),
        ([text([1, 3])], [text([1, 2], 0.06)], FirstDifference(1, 0, 2, 0.06), "more than rounding"),
        # The row's own gap where the baseline has none, and the earliest of several, with the largest gap.
        (
            [text([1, 2, 3], 0.01), text([1, 5, 3], 0.2)],
            [text([1, 2, 4]), text([1, 2, 3])],
            FirstDifference(2, 0, 2, 0.2),
            "more than rounding",
        ),
        ([text([1])], [text([2])], FirstDifference(1, 0, 1, None), "–"),
    ],
)
def test_texts_part_where_the_first_token_differs_and_the_gap_tells_why(ours, theirs, expected, verdict) -> None:
    result = found(ours, theirs)
    assert result == expected
    assert result.verdict == verdict


def test_older_records_and_other_texts_have_none() -> None:
    assert found([], [text([1])]) is None
    other = records.quality(text_sha256="ef" * 32, greedy=(text([1]),))
    judged = {"fp16": records.quality(is_baseline=True, greedy=(text([1]),)), "int8": other}
    compared = compare_records([records.record(name).model_copy(update={"quality": of}) for name, of in judged.items()])
    assert all(row.first_difference is None for row in compared.rows)
    assert "Greedy text after" not in to_markdown(compared)


def test_the_table_says_it_in_words() -> None:
    judged = {
        "fp16": records.quality(is_baseline=True, greedy=(text([1, 2, 3], 0.031), text([4, 5, 6], 0.5))),
        "int8": records.quality(kl=0.0004, greedy=(text([1, 7, 3]), text([4, 5, 6]))),
    }
    said = to_markdown(
        compare_records([records.record(name).model_copy(update={"quality": of}) for name, of in judged.items()])
    )
    line = next(line for line in said.splitlines() if "1 of 2" in line)
    assert [part.strip() for part in line.strip("|").split("|")] == [
        "int8", "1 of 2", "token 2", "0.031", "rounding",
    ]  # fmt: skip
    assert "Greedy text after 2 fixed prompts, against fp16's" in said


class Counting(TokenSource):
    """Each token is one more than the last; the likeliest is ahead of the next by a nat."""

    def __init__(self, *, tells: str) -> None:
        self.tells = tells
        self.prompts: list[TokenIds] = []

    def greedy_tokens(self, ids, new_tokens) -> tuple[int, ...]:
        if self.tells == "refuses":
            raise UnsupportedError("not this shape")
        self.prompts.append(ids)
        return tuple(ids[-1] + 1 + number for number in range(new_tokens))

    def step_scores(self, ids, *, prompt_tokens=1) -> Scores | None:
        if self.tells != "step":
            return None
        return Scores(numpy.tile(numpy.float32([-3.0, -1.0, -2.0]), (len(ids) - prompt_tokens + 1, 1)))

    def prefill_scores(self, ids) -> PrefillScores | None:
        if self.tells != "prefill":
            return None
        logs = numpy.tile(numpy.float32([-1.0, -1.5]), (len(ids), 1))
        return PrefillScores(numpy.tile(numpy.int64([0, 1]), (len(ids), 1)), logs)


@pytest.mark.parametrize(("tells", "gap"), [("step", 1.0), ("prefill", 0.5), ("nothing", None)])
def test_eight_prompts_spread_over_the_text_are_continued_with_their_gaps(tells: str, gap: float | None) -> None:
    windows = Windows(numpy.arange(24 * 300).reshape(24, 300), 7200, None)
    source = Counting(tells=tells)
    texts = greedy_texts(source, windows)
    assert [prompt[0] for prompt in source.prompts] == [300 * 3 * number for number in range(8)]
    assert {len(prompt) for prompt in source.prompts} == {PROMPT_TOKENS}
    assert [len(made.tokens) for made in texts] == [NEW_TOKENS] * 8
    assert {made.gaps for made in texts} == {() if gap is None else (gap,) * NEW_TOKENS}


def test_an_engine_that_cannot_run_it_has_no_texts() -> None:
    windows = Windows(numpy.arange(2 * 300).reshape(2, 300), 600, None)
    assert greedy_texts(Counting(tells="refuses"), windows) == ()
