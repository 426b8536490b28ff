"""The timed decode step is compared with the forward pass of the same model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest
import torch
from transformers import PreTrainedModel

from benchmarker.comparison.results import results_of_records
from benchmarker.core.console import Terminal
from benchmarker.core.errors import QualityError
from benchmarker.engines.base import Scores, TokenSource, UnsupportedError
from benchmarker.engines.decoders import prefill_decode
from benchmarker.engines.decoders.static_decoder import cuda_graph_decoder
from benchmarker.engines.decoders.torch_engine import TorchDecoder
from benchmarker.hardware.device import CpuDevice
from benchmarker.quality import step_check
from benchmarker.quality.step_check import step_divergence, texts_for
from benchmarker.schema.job import Procedure
from benchmarker.schema.quality import StepDivergence
from benchmarker.workloads.generation.generation_bench import LastCell, after_timing, check_step
from benchmarker.workloads.generation.reading.quality_tables import STEP_COLUMNS, step_caption
from benchmarker.workloads.generation.source_benchmarker import ModelBenchmarker
from benchmarker.workloads.generation.spec import GenerationJob, Grid
from tests.engines.test_engines_graph import Rerun, model
from tests.records import record, rounds

__all__ = ["model"]

GRID = Grid(prompt_tokens=(15,), new_tokens=(10,), batch_size=(1, 2))


def checked(kl: float, rounding: float | None = None) -> StepDivergence:
    return StepDivergence(
        steps=256, text_tokens=126, kl_mean=kl, kl_max=2 * kl, same_top=0.99, rounding_kl_mean=rounding
    )


class Source(TokenSource):
    """Model of two tokens whose step shifts the log-odds of each position by `shift`."""

    def __init__(self, shift: float, *, perturbed: float | None = None) -> None:
        self.shift, self.perturbed = shift, perturbed

    @staticmethod
    def at(odds: float, rows: int) -> Scores:
        logits = numpy.array([[odds, 0.0]] * rows, dtype=numpy.float32)
        return Scores(logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True)))

    def forward_scores(self, ids: Any) -> Scores | None:
        return self.at(0.0, len(ids))

    def step_scores(self, ids: Any, *, prompt_tokens: int = 1) -> Scores | None:
        return self.at(self.shift, len(ids) - prompt_tokens + 1)

    def perturbed_scores(self, ids: Any) -> Scores | None:
        return None if self.perturbed is None else self.at(self.perturbed, len(ids))


class WithoutScores(TokenSource):
    """Engine that returns tokens but no scores."""


def test_divergence_is_the_mean_over_the_steps_of_all_texts() -> None:
    result = step_divergence(Source(1.0), [(0, 1, 0), (1, 1, 0)])
    assert result is not None
    # Divergence of (1/2, 1/2) from (e, 1) / (1+e): ln(1+e) - 1/2 - ln 2.
    assert result.kl_mean == pytest.approx(numpy.log(1 + numpy.e) - 0.5 - numpy.log(2), rel=1e-6)
    assert (result.steps, result.text_tokens, result.rounding_kl_mean) == (4, 3, None)


@pytest.mark.parametrize(
    ("kl", "rounding", "verdict"),
    [
        (0.0009, None, "equal"),
        (0.0011, None, "differs"),
        (0.0011, 0.0006, "equal"),
        (0.0013, 0.0006, "differs"),
        (0.011, None, "wrong"),
        (0.011, 0.0054, "wrong"),
        (0.011, 0.0056, "equal"),
    ],
)
def test_verdict_depends_on_the_divergence_of_the_perturbed_forward(kl, rounding, verdict) -> None:
    assert checked(kl, rounding).verdict == verdict


@pytest.mark.parametrize(("kl", "verdict"), [(0.0009, "equal"), (0.0116, "differs"), (0.11, "wrong")])
def test_external_engine_has_wider_limits_of_divergence(kl: float, verdict: str) -> None:
    assert checked(kl).model_copy(update={"of_engine": True}).verdict == verdict


def test_perturbed_forward_gives_the_divergence_by_rounding() -> None:
    result = step_divergence(Source(0.1, perturbed=0.05), [(0, 1, 0)])
    assert result is not None
    assert result.rounding_kl_mean == pytest.approx(result.kl_mean / 4, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_perturbation_is_of_the_order_of_the_types_rounding(model: PreTrainedModel, dtype: torch.dtype) -> None:
    source = cuda_graph_decoder(model.to(dtype), CpuDevice(), capture=Rerun())
    ids = tuple(range(5, 29))
    forward, perturbed, repeated = source.forward_scores(ids), source.perturbed_scores(ids), source.forward_scores(ids)
    model.to(torch.float32)
    assert forward
    assert perturbed
    assert repeated
    # The perturbation ends with the call.
    assert numpy.array_equal(forward.log_probabilities, repeated.log_probabilities)
    difference = numpy.abs(forward.log_probabilities - perturbed.log_probabilities).mean()
    unit = torch.finfo(dtype).eps
    assert unit / 100 < difference < 100 * unit


def test_engine_without_scores_is_not_checked() -> None:
    assert step_divergence(WithoutScores(), [(0, 1)]) is None


def test_predictions_that_are_not_finite_raise() -> None:
    with pytest.raises(QualityError, match="not finite"):
        step_divergence(Source(float("nan")), [(0, 1)])


@pytest.mark.parametrize(
    ("longest", "step_s", "shape"),
    [(126, 0.003, (3, 126)), (23, 0.003, (12, 23)), (5000, 0.003, (1, 257)), (126, 1.0, (1, 33)), (1, 0.003, (256, 2))],
)
def test_texts_fit_the_timed_shape_and_the_time_limit(longest, step_s, shape, monkeypatch) -> None:
    monkeypatch.setattr(step_check, "STEPS", 256)
    texts = texts_for(lambda count: tuple(range(count)), longest=longest, step_s=step_s)
    assert (len(texts), len(texts[0])) == shape
    assert len({token for text in texts for token in text}) == shape[0] * shape[1]


def captured(model: PreTrainedModel) -> ModelBenchmarker:
    device = CpuDevice()
    subject = ModelBenchmarker(model, device=device)
    subject.source = cuda_graph_decoder(model, device, capture=Rerun())
    return subject


def changes(subject: ModelBenchmarker) -> dict[str, Any]:
    """Return the fields of the record that the check of the step changes."""
    cells = tuple(subject.run(GRID, Procedure(warmup=1, warmup_limit=1, runs=2)))
    assert [cell.status for cell in cells] == ["ok", "ok"]
    job = cast("GenerationJob", SimpleNamespace(points=GRID.points))
    last = LastCell(job, record("fp16", *cells), subject, Path("fp16.json"), Terminal(quiet=True))
    return after_timing(check_step, last)


def test_captured_step_is_compared_at_the_timed_shape(model: PreTrainedModel) -> None:
    subject = captured(model)
    changed = changes(subject)
    result = changed["step_divergence"]
    assert result.verdict == "equal"
    assert (result.steps, result.text_tokens) == (48, 25)
    assert result.rounding_kl_mean is not None
    assert [cell.status for cell in changed["cells"]] == ["ok", "ok"]
    # The check uses the two sequences of the last cell and captures no further shape.
    assert subject.source.facts().graphs_captured == 2


def test_fault_in_the_logits_without_changed_tokens_invalidates_the_speed(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = prefill_decode.decode_step

    def sharpened(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        token, logits = original(*arguments)  # type: ignore[arg-type]
        return token, 1.5 * logits

    monkeypatch.setattr(prefill_decode, "decode_step", sharpened)
    changed = changes(captured(model))
    assert changed["step_divergence"].verdict == "wrong"
    assert [(cell.status, cell.error_kind) for cell in changed["cells"]] == [("invalid", "wrong_result")] * 2
    assert "predicts something else than the variant's own forward" in changed["cells"][0].reason


def test_step_that_cannot_be_checked_is_recorded_with_a_reason(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, ids: object, **_: object) -> Scores:
        raise UnsupportedError("not with this cache")

    monkeypatch.setattr(TorchDecoder, "step_scores", refuse)
    assert changes(captured(model))["no_step_divergence"].reason == "not with this cache"


def test_wrong_step_invalidates_all_rounds_of_the_variant() -> None:
    wrong, *others = rounds("int8", [1.0, 1.0, 1.0])
    wrong = wrong.model_copy(update={"step_divergence": checked(0.3)})
    rows = results_of_records([*rounds("fp16", [2.0, 2.0, 2.0]), wrong, *others]).rows
    by_name = {row.variant: row for row in rows}
    assert by_name["fp16"].status == "ok"
    assert (by_name["int8"].status, by_name["int8"].latency) == ("invalid", None)
    assert "KL 0.3 nats a token over 256 steps" in (by_name["int8"].reason or "")


def test_table_contains_verdicts_and_unchecked_variants() -> None:
    differing = record("int8").model_copy(update={"step_divergence": checked(0.002, 0.0001)})
    rows = results_of_records([record("fp16"), differing]).rows
    cells = {row.variant: [column.text(row) for column in STEP_COLUMNS] for row in rows}
    assert cells["int8"] == ["int8", "0.002", "0.0001", "0.004", "99.0 %", "256", "more than rounding"]
    assert step_caption(rows).endswith("above both this and 0.01 has no speed. Not checked: fp16.")
