"""Test the comparison of task answers per question, and the harness if it is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from benchmarker.core.errors import MissingLibraryError, SpecError
from benchmarker.quality.harness_tasks import _result, check_tasks
from benchmarker.report.compare import to_markdown
from benchmarker.schema.quality import TaskResult
from benchmarker.workloads.generation.reading.quality_tables import paired
from tests import records
from tests.jobs import job_of
from tests.quality.test_quality import run
from tests.records import compare_records

IS_INSTALLED = importlib.util.find_spec("lm_eval") is not None
needs_harness = pytest.mark.skipif(not IS_INSTALLED, reason="lm_eval is not installed (benchmarker[tasks])")


def result(answers: str, **fields: Any) -> TaskResult:
    """Return a result; `RRW` stands for two correct answers and one wrong answer."""
    defaults: dict[str, Any] = {
        "task": "hellaswag", "version": "1.0", "harness": "0.4.13", "metric": "acc_norm", "few_shots": 0,
    }  # fmt: skip
    return TaskResult(right=tuple(letter == "R" for letter in answers), **{**defaults, **fields})


def test_equal_accuracies_may_hide_flips() -> None:
    comparison = paired(result("RRWW"), result("WWRR"))
    assert (comparison.change, comparison.flips, comparison.p) == (0, 1, 1)


def test_p_value_is_mcnemars() -> None:
    # Six answers changed from correct to wrong and none from wrong to correct: 2 * (1/2)^6.
    comparison = paired(result("WWWWWWRRRR"), result("RRRRRRRRRR"))
    assert comparison.change == pytest.approx(-0.6)
    assert comparison.flips == pytest.approx(0.6)
    assert comparison.p == pytest.approx(2 / 64)


@pytest.mark.parametrize(("gained", "lost"), [(3, 9), (40, 61), (700, 800)])
def test_p_value_matches_the_binomial_test(gained: int, lost: int) -> None:
    comparison = paired(result("R" * gained + "W" * lost), result("W" * gained + "R" * lost))
    assert comparison.p == pytest.approx(stats.binomtest(gained, gained + lost).pvalue)


def test_equal_answers_have_no_difference() -> None:
    comparison = paired(result("RRW"), result("RRW"))
    assert (comparison.change, comparison.error, comparison.flips, comparison.p) == (0, 0, 0, 1)


def test_task_table_shows_changes_on_the_same_questions() -> None:
    text = to_markdown(
        compare_records(
            [
                records.record("fp16", tasks=(result("RRRRRRRRWW"),)),
                records.record("int8", tasks=(result("RRRRRRRWRW"),)),
                records.record("gptq", tasks=(result("RRRR"),)),
                records.record("bnb4", no_tasks=records.missing("the questions cannot be read")),
            ]
        )
    )
    assert text[text.index("**Tasks**") :].split("\n\n")[1] == (
        "| task      | variant | questions | accuracy |         change |  flips |     p |\n"
        "| :-------- | :------ | --------: | -------: | -------------: | -----: | ----: |\n"
        "| hellaswag | fp16    |        10 |   80.0 % |              – |      – |     – |\n"
        "| hellaswag | int8    |        10 |   80.0 % | +0.0 ± 14.9 pp | 20.0 % | 1.000 |\n"
        "| hellaswag | gptq    |         4 |  100.0 % |              – |      – |     – |"
    )
    assert "- bnb4: no tasks: the questions cannot be read" in text
    assert "Tasks by lm-evaluation-harness 0.4.13, acc_norm." in text


def test_task_with_two_filters_counts_each_question_once() -> None:
    samples = [
        {"doc_id": doc, "filter": name, "exact_match": float(name == "flexible-extract")}
        for name in ("strict-match", "flexible-extract")
        for doc in (1, 0)
    ]
    task = _result(
        "gsm8k", {"samples": {"gsm8k": samples}, "versions": {"gsm8k": 3}, "n-shot": {"gsm8k": 5}}, harness="0.4"
    )
    assert (task.metric, task.right) == ("exact_match (strict-match)", (False, False))


def test_task_limit_without_tasks_is_refused() -> None:
    with pytest.raises(SpecError, match="--task-limit: does nothing without --tasks; add --tasks"):
        job_of(quality={"task_limit": 5})
    assert job_of(quality={"task_limit": 5, "tasks": ["arc_easy"]}).quality.task_limit == 5


@pytest.mark.skipif(IS_INSTALLED, reason="lm_eval is installed")
def test_missing_harness_is_reported_before_loading() -> None:
    with pytest.raises(MissingLibraryError) as caught:
        check_tasks(["hellaswag"])
    assert str(caught.value).endswith("'lm_eval' is not installed; pip install -e '.[tasks]' in benchmarker's folder")


@needs_harness
def test_misspelt_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match=r"--tasks: no task 'helaswag'; did you mean 'hellaswag'\?"):
        check_tasks(["helaswag"])


@needs_harness
@pytest.mark.slow
def test_harness_evaluates_the_loaded_model(
    session_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    questions = [{"question": "one", "choices": [" two", " three"], "answer": number % 2} for number in range(6)]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    (tmp_path / "words.yaml").write_text(
        f"""
task: words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "words.jsonl"}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
    )
    record = run(session_model, "fp16", tmp_path / "results", size="off", tasks=[str(tmp_path / "words.yaml")])
    (task,) = record.tasks
    # The same question has alternating correct answers, so that every second answer of the model is correct.
    assert task.right in ((True, False) * 3, (False, True) * 3)
    assert (task.task, task.metric) == ("words", "acc")
    assert record.quality is None
