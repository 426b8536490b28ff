"""First different token of two greedy texts, and its classification as rounding or more than rounding."""

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


def difference_of(variant_texts: Sequence[GreedyText], baseline_texts: Sequence[GreedyText]) -> FirstDifference | None:
    """Return the first difference of the int8 texts from those of the fp16 baseline."""
    baseline = records.quality(is_baseline=True, greedy=tuple(baseline_texts))
    judged = {"fp16": baseline, "int8": records.quality(greedy=tuple(variant_texts))}
    compared = compare_records([records.record(name).model_copy(update={"quality": of}) for name, of in judged.items()])
    rows = {row.variant: row for row in compared.rows}
    assert rows["fp16"].first_difference is None
    return rows["int8"].first_difference


@pytest.mark.parametrize(
    ("variant_texts", "baseline_texts", "expected", "verdict"),
    [
        ([text([1, 2])], [text([1, 2], 0.3)], FirstDifference(1, 1, None, None), "the same"),
        ([text([1, 3])], [text([1, 2], 0.04)], FirstDifference(1, 0, 2, 0.04), "rounding"),
        ([text([1, 3])], [text([1, 2], 0.06)], FirstDifference(1, 0, 2, 0.06), "more than rounding"),
        # The variant's gap counts if the baseline has none, and the earliest of several differences.
        (
            [text([1, 2, 3], 0.01), text([1, 5, 3], 0.2)],
            [text([1, 2, 4]), text([1, 2, 3])],
            FirstDifference(2, 0, 2, 0.2),
            "more than rounding",
        ),
        ([text([1])], [text([2])], FirstDifference(1, 0, 1, None), "–"),
    ],
)
def test_first_difference_is_classified_by_the_gap_of_the_scores(
    variant_texts, baseline_texts, expected, verdict
) -> None:
    result = difference_of(variant_texts, baseline_texts)
    assert result == expected
    assert result.verdict == verdict


def test_older_records_and_different_texts_have_no_first_difference() -> None:
    assert difference_of([], [text([1])]) is None
    other = records.quality(text_sha256="ef" * 32, greedy=(text([1]),))
    judged = {"fp16": records.quality(is_baseline=True, greedy=(text([1]),)), "int8": other}
    compared = compare_records([records.record(name).model_copy(update={"quality": of}) for name, of in judged.items()])
    assert all(row.first_difference is None for row in compared.rows)
    assert "Greedy text after" not in to_markdown(compared)


def test_table_has_the_first_difference_and_its_verdict() -> None:
    judged = {
        "fp16": records.quality(is_baseline=True, greedy=(text([1, 2, 3], 0.031), text([4, 5, 6], 0.5))),
        "int8": records.quality(kl=0.0004, greedy=(text([1, 7, 3]), text([4, 5, 6]))),
    }
    output = to_markdown(
        compare_records([records.record(name).model_copy(update={"quality": of}) for name, of in judged.items()])
    )
    line = next(line for line in output.splitlines() if "1 of 2" in line)
    assert [part.strip() for part in line.strip("|").split("|")] == [
        "int8", "1 of 2", "token 2", "0.031", "rounding",
    ]  # fmt: skip
    assert "Greedy text after 2 fixed prompts, against fp16's" in output


class Counting(TokenSource):
    """Engine that counts upward and whose likeliest token leads by one nat (decode step) or half a nat (prefill)."""

    def __init__(self, *, scores: str) -> None:
        self.scores = scores
        self.prompts: list[TokenIds] = []

    def greedy_tokens(self, ids, new_tokens) -> tuple[int, ...]:
        if self.scores == "refuses":
            raise UnsupportedError("not this shape")
        self.prompts.append(ids)
        return tuple(ids[-1] + 1 + number for number in range(new_tokens))

    def step_scores(self, ids, *, prompt_tokens=1) -> Scores | None:
        if self.scores != "step":
            return None
        return Scores(numpy.tile(numpy.float32([-3.0, -1.0, -2.0]), (len(ids) - prompt_tokens + 1, 1)))

    def prefill_scores(self, ids) -> PrefillScores | None:
        if self.scores != "prefill":
            return None
        logs = numpy.tile(numpy.float32([-1.0, -1.5]), (len(ids), 1))
        return PrefillScores(numpy.tile(numpy.int64([0, 1]), (len(ids), 1)), logs)


@pytest.mark.parametrize(("scores", "gap"), [("step", 1.0), ("prefill", 0.5), ("nothing", None)])
def test_eight_evenly_spaced_prompts_are_continued_with_gaps(scores: str, gap: float | None) -> None:
    windows = Windows(numpy.arange(24 * 300).reshape(24, 300), 7200, None)
    source = Counting(scores=scores)
    texts = greedy_texts(source, windows)
    assert [prompt[0] for prompt in source.prompts] == [300 * 3 * number for number in range(8)]
    assert {len(prompt) for prompt in source.prompts} == {PROMPT_TOKENS}
    assert [len(continued.tokens) for continued in texts] == [NEW_TOKENS] * 8
    assert {continued.gaps for continued in texts} == {() if gap is None else (gap,) * NEW_TOKENS}


def test_engine_that_refuses_has_no_greedy_texts() -> None:
    windows = Windows(numpy.arange(2 * 300).reshape(2, 300), 600, None)
    assert greedy_texts(Counting(scores="refuses"), windows) == ()
