"""Small model around each mixer: matched parameters, tasks, and scores."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarker.core.console import Terminal
from benchmarker.core.errors import SpecError
from benchmarker.execution.single_run import Run
from benchmarker.hardware.device import CpuDevice
from benchmarker.report.compare import compare, to_markdown
from benchmarker.report.verify import verify
from benchmarker.schema.record_io import collect
from benchmarker.workloads.mixers.mixer import GATED_DELTA, LINEAR, SOFTMAX, VARIANTS
from benchmarker.workloads.mixers.mixers_reading import Learned, learned
from benchmarker.workloads.mixers.record import TaskScore
from benchmarker.workloads.mixers.small_model import (
    IGNORED,
    Setting,
    SmallModel,
    block_facts,
    make_batch,
    parameters_of,
    settings_of,
    train,
    training_demand,
)
from benchmarker.workloads.mixers.spec import (
    MixersBlock,
    MixersSubject,
    MixersTasks,
    held_out_bytes,
    shape_of,
    shipped_bytes,
)
from benchmarker.workloads.operation.spec import LengthPoint
from tests.jobs import read_job

POINT = LengthPoint(32, 2, "training_step")


def subject(**block):
    tasks = MixersTasks(names=("mqar", "copy", "bytes"), pairs=(4,), text_len=32, steps=2, batch_size=4, seeds=1)
    values = {"hidden": 32, "layers": 2, "vocabulary": 64, **block}
    return MixersSubject(heads=2, head_dim=16, dtype="float32", block=MixersBlock(**values), tasks=tasks)


def model_of(variant, **block):
    spec = subject(**block)
    return SmallModel(VARIANTS[variant], spec, shape_of(spec, POINT), "cpu", vocabulary=64, seed=0)


@pytest.mark.parametrize("variant", ["softmax-sdpa", "linear-torch", "retention-torch", "gdn-torch"])
@pytest.mark.parametrize("short_conv", [False, True])
@pytest.mark.parametrize("match", ["parameters", "width"])
def test_formula_equals_the_number_of_parameters(variant, short_conv, match):
    model = model_of(variant, short_conv=short_conv, match=match)
    counted = sum(parameter.numel() for parameter in model.parameters())
    spec = subject(short_conv=short_conv, match=match)
    assert counted == parameters_of(VARIANTS[variant].mixer, spec, 64, POINT.seq_len)


def test_matched_models_are_within_two_percent_and_others_have_a_residual():
    matched = block_facts(GATED_DELTA, subject(), 32)
    assert abs(matched.residual) < 0.02
    assert matched.mlp_width < 4 * 32
    other = block_facts(GATED_DELTA, subject(match="width"), 32)
    assert other.residual == pytest.approx(2 * 2 * 2 * 33 / block_facts(SOFTMAX, subject(), 32).parameters)
    assert block_facts(LINEAR, subject(), 32).residual == 0


@pytest.mark.parametrize("variant", ["softmax-naive", "softmax-sdpa", "linear-torch", "retention-torch", "gdn-torch"])
@pytest.mark.parametrize("short_conv", [False, True])
def test_model_is_causal(variant, short_conv):
    model = model_of(variant, short_conv=short_conv)
    tokens = torch.randint(64, (1, 32))
    changed = torch.cat([tokens[:, :20], (tokens[:, 20:] + 1) % 64], dim=1)
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :20], after[:, :20], atol=1e-5)
    assert not torch.allclose(before[:, 20:], after[:, 20:], atol=1e-3)


def test_every_weight_has_a_gradient():
    model = model_of("gdn-torch", short_conv=True)
    model(torch.randint(64, (2, 32))).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_embeddings_are_larger_than_the_first_mixers_output():
    # With embeddings of standard deviation 0.02, softmax without a convolution did not learn recall.
    model = model_of("softmax-sdpa")
    hidden = model.tokens(torch.randint(64, (2, 32)))
    added = model.mixers[0](model.norms[0](hidden))
    assert hidden.square().mean() > 2 * added.square().mean()


def test_training_text_is_read_at_most_four_times():
    tasks = MixersTasks(steps=500, batch_size=64)
    border = int(0.9 * len(shipped_bytes()))
    steps = Setting("bytes", 256).steps(tasks)
    assert steps * 64 * 256 <= 4 * border < (steps + 1) * 64 * 256
    assert Setting("mqar", 4).steps(tasks) == 500
    assert Setting("bytes", 256).steps(tasks.model_copy(update={"steps": 20})) == 20


def test_flops_of_a_training_step_follow_the_formula():
    demand = training_demand(LINEAR, subject(), POINT)
    products = parameters_of(LINEAR, subject(), 64, 32) - (64 + 32) * 32
    mixer = 2 * 3 * 4 * 64 * 2 * 16 * 16
    assert (demand.mixer_flops, demand.flops) == (mixer, 6 * products * 64 + mixer)


def test_recall_has_one_query_per_key_and_keys_are_not_values():
    tasks = subject().tasks
    tokens, labels = make_batch(Setting("mqar", 4), tasks, torch.Generator().manual_seed(0))
    for row, row_labels in zip(tokens.tolist(), labels.tolist(), strict=True):
        pairs = dict(zip(row[0:8:2], row[1:8:2], strict=True))
        queries = {row[position]: label for position, label in enumerate(row_labels) if label != IGNORED}
        assert queries == pairs
        assert max(pairs) < 32 <= min(pairs.values())
        assert row_labels[:8] == [IGNORED] * 8


def test_copy_task_predicts_the_next_token():
    tokens, labels = make_batch(Setting("copy", 5), subject().tasks, torch.Generator().manual_seed(0))
    for row, row_labels in zip(tokens.tolist(), labels.tolist(), strict=True):
        assert (row[5], row_labels) == (0, [IGNORED] * 5 + row[:5])
        assert row[6:] == row[:4]


def test_held_out_text_is_not_trained_on():
    text, border = shipped_bytes(), int(0.9 * len(shipped_bytes()))
    tasks = subject().tasks.model_copy(update={"batch_size": 64})
    for is_held_out, part in ((False, text[:border]), (True, text[border:])):
        tokens, labels = make_batch(Setting("bytes", 40), tasks, torch.Generator().manual_seed(1), held_out=is_held_out)
        assert all(bytes(row) in part for row in tokens.tolist())
        assert torch.equal(tokens[:, 1:], labels[:, :-1])


def test_training_is_reproducible_with_its_seed():
    scores = [
        train(VARIANTS["linear-torch"], subject(), setting, seed, CpuDevice())
        for setting in settings_of(subject().tasks)
        for seed in (0, 0)
    ]
    assert [score.task for score in scores[::2]] == ["mqar", "copy", "bytes"]
    assert [score.asked for score in scores[::2]] == [8 * 4 * 4, 8 * 4 * 16, 8 * 4 * 32]
    assert [score.chance for score in scores[::2]] == [0.25, 1 / 63, 0]
    assert all(first == second for first, second in zip(scores[::2], scores[1::2], strict=True))
    assert 3 < scores[0].bits < 8


def test_record_contains_the_training_step_and_the_tasks(tmp_path: Path):
    arguments = ["mixers", "--variant", "linear-torch", "--seq-len", "32", "--mode", "training_step", "--heads", "2"]
    arguments += ["--head-dim", "16", "--dtype", "float32", "--device", "cpu", "--hidden", "32", "--layers", "1"]
    arguments += ["--tasks", "mqar", "--pairs", "2", "--steps", "2", "--seeds", "2", "--runs", "2", "--no-limits"]
    Run(read_job([*arguments, "--output", str(tmp_path)]), Terminal(quiet=True)).execute()
    (record,) = collect([tmp_path]).records
    assert [(cell.status, cell.block.residual) for cell in record.cells] == [("ok", 0.0)]
    assert [(score.task, score.size, score.seed) for score in record.tasks] == [("mqar", 2, 0), ("mqar", 2, 1)]
    text = to_markdown(compare([tmp_path]))
    assert "linear-torch" in text
    assert "chance %" in text
    assert not verify([tmp_path]).problems


def test_sequence_longer_than_the_held_out_text_is_refused():
    arguments = ["mixers", "--variant", "gdn-torch", "--tasks", "bytes", "--text-len"]
    with pytest.raises(SpecError, match="more than the held-out text has"):
        read_job([*arguments, str(held_out_bytes())])
    assert read_job([*arguments, str(held_out_bytes() - 1)])


def test_too_few_tokens_for_the_keys_are_refused():
    with pytest.raises(SpecError, match="vocabulary: 16 tokens have no 8 keys; give 18 or more"):
        read_job(["mixers", "--variant", "gdn-torch", "--tasks", "mqar", "--pairs", "8", "--task-vocabulary", "16"])


def score(seed, right=500, bits=2.0, task="mqar"):
    return TaskScore(
        task=task, size=4, seed=seed, steps=9, asked=1000, right=right, chance=0.25, bits=bits, parameters=1000
    )


def test_scores_at_chance_are_reported_as_chance():
    assert Learned("a", (score(0, 260), score(1, 245)), None).luck == ", at chance"
    assert Learned("a", (score(0, 100), score(1, 90)), None).luck == ", below chance"
    assert Learned("a", (score(0, 300), score(1, 310)), None).luck == ""


def row(variant, *bits, is_baseline=False):
    scores = [score(seed, bits=value) for seed, value in enumerate(bits)]
    return SimpleNamespace(variant=variant, tasks=scores, is_baseline=is_baseline)


def test_bits_are_compared_seed_by_seed():
    base = row("softmax", 2.0, 2.2, 1.9, is_baseline=True)
    same, worse = row("again", 2.001, 2.201, 1.901), row("linear", 2.4, 2.65, 2.28)
    assert {entry.variant: entry.verdict for entry in learned([base, same, worse])} == {
        "softmax": "baseline",
        "again": "same",
        "linear": "more bits",
    }


@pytest.mark.slow
@pytest.mark.by_hand
@pytest.mark.parametrize("short_conv", [False, True])
def test_softmax_learns_recall_with_and_without_a_convolution(short_conv):
    tasks = MixersTasks(names=("mqar",), pairs=(4,), steps=500, learning_rate=3e-3)
    block = MixersBlock(hidden=64, layers=2, short_conv=short_conv)
    spec = MixersSubject(heads=1, head_dim=64, dtype="float32", block=block, tasks=tasks)
    result = train(VARIANTS["softmax-sdpa"], spec, Setting("mqar", 4), 0, CpuDevice())
    assert result.right / result.asked > 0.9
