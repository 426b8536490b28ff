"""Quality of a variant: its predictions are saved, then the baseline runs over the same text.

The variant runs first because it is loaded already. Its timed decode step predicts the text token by token; the
baseline predicts it in forward passes over whole windows. The two models are never on the device together. A second run
of the baseline over a part of the text gives the noise floor of the divergence.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy
import torch

from benchmarker.checkpoints.base import Checkpoint, Progress, Target
from benchmarker.checkpoints.read_model import load_tokenizer
from benchmarker.core.errors import ModelError, QualityError, SpecError, UnsupportedError, WrongResultError
from benchmarker.core.formatting import gib
from benchmarker.engines.base import TokenIds, TokenSource
from benchmarker.hardware.device import Device
from benchmarker.quality import scoring
from benchmarker.quality.evaluation_text import SCORED_FROM, Text, Windows, cut, read_text, spread
from benchmarker.quality.scoring import SavedPredictions, divergence, perplexity, row_values
from benchmarker.quantization.load import find_checkpoint
from benchmarker.quantization.registry import LOADERS, loader_options
from benchmarker.schema.base import DType
from benchmarker.schema.model import ModelSpec, QuantSpec
from benchmarker.schema.quality import WINDOW_TOKENS, GreedyText, Quality, QualitySize, QualitySpec, baseline_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BASELINE = QuantSpec(quant="fp16")
PREFILL_TOP = 100
NOISE_WINDOWS = 16
MOST_NATS = 50.0  # Largest mean that is reported, in nats: a perplexity of 5e21. Random guesses have 12 nats.
PROMPTS = 8
PROMPT_TOKENS = 32
NEW_TOKENS = 32


@dataclass(frozen=True)
class Plan:
    size: QualitySize
    top_k: int | None
    text: Text
    windows: Windows
    name: str
    baseline: Checkpoint
    dtype: DType
    vocabulary: int
    is_baseline: bool

    @property
    def baseline_name(self) -> str:
        return baseline_name(self.baseline.model_id, self.dtype)

    @property
    def row_values(self) -> int:
        return row_values(self.windows.scored, self.vocabulary, self.top_k)

    @property
    def file_bytes(self) -> int:
        return len(self.windows.ids) * self.row_values * scoring.VALUE_BYTES


def make_plan(
    spec: QualitySpec,
    model: ModelSpec,
    form: QuantSpec,
    *,
    name: str,
    checkpoint: Checkpoint,
    tokenizer: Any | None,
    progress: Progress,
    is_plain: bool = True,
) -> Plan:
    """Read the text, cut it into windows and find the baseline. Raises BenchmarkerError.

    Args:
        tokenizer: Tokenizer of the variant; None if its folder has none.
        is_plain: True if the engine adds no quantization of its own to `form`.
    """
    assert spec.size != "off"
    if tokenizer is None and not (checkpoint.is_gguf and spec.baseline):
        place, remedy = "in its folder", "add its files"
        if checkpoint.is_gguf:
            place, remedy = "in the file", "name the original with --quality-baseline MODEL"
        raise ModelError(f"{model.id}: no tokenizer {place}, and --quality is measured on a text; {remedy}")
    text = read_text(spec.text)
    positions = checkpoint.config.get("max_position_embeddings")
    if positions is not None and positions < WINDOW_TOKENS[spec.size]:
        raise ModelError(
            f"{model.id}: has {positions} positions, and quality is measured in windows of {WINDOW_TOKENS[spec.size]}; "
            "leave --quality out"
        )
    baseline, baseline_tokenizer = _find_baseline(spec, model, checkpoint, tokenizer, progress)
    # A GGUF file may lack a vocabulary; then the tokenizer of --quality-baseline is used.
    windows = cut(text, tokenizer or baseline_tokenizer, size=spec.size)
    largest, vocabulary = int(windows.ids.max()), int(checkpoint.config["vocab_size"])
    if largest >= vocabulary:
        raise ModelError(
            f"{model.id}: its tokenizer gives token {largest}, and vocab_size in its config.json is {vocabulary}, so "
            "that the model has no such token; put the tokenizer of this model into its folder"
        )
    if spec.top_k is not None and spec.top_k >= vocabulary:
        raise SpecError(f"--quality-topk {spec.top_k}: the vocabulary has {vocabulary} tokens; give fewer")
    plan = Plan(
        size=spec.size,
        top_k=spec.top_k,
        text=text,
        windows=windows,
        name=name,
        baseline=baseline,
        dtype=model.dtype,
        vocabulary=vocabulary,
        is_baseline=is_plain and loader_options(form) == loader_options(BASELINE) and spec.baseline is None,
    )
    scoring.check_room(plan.file_bytes)
    return plan


def _find_baseline(
    spec: QualitySpec, model: ModelSpec, checkpoint: Checkpoint, tokenizer: Any | None, progress: Progress
) -> tuple[Checkpoint, Any]:
    if spec.baseline is None:
        if checkpoint.quantization is not None:
            raise ModelError(
                f"{model.id}: quantized already, so that --quality has no reference; "
                "name the original with --quality-baseline MODEL"
            )
        return checkpoint, tokenizer
    baseline = find_checkpoint(ModelSpec(id=spec.baseline, dtype=model.dtype), BASELINE, progress=progress)
    baseline_tokenizer = load_tokenizer(baseline)
    if baseline_tokenizer is None or (tokenizer and baseline_tokenizer.get_vocab() != tokenizer.get_vocab()):
        raise ModelError(
            f"--quality-baseline {spec.baseline}: its vocabulary differs from that of {model.id}, so that their "
            "predictions do not compare; give the model that it was quantized from"
        )
    if baseline.config["vocab_size"] != checkpoint.config["vocab_size"]:
        raise ModelError(
            f"--quality-baseline {spec.baseline}: predicts {baseline.config['vocab_size']} tokens, and "
            f"{model.id} {checkpoint.config['vocab_size']}; give the model that it was quantized from"
        )
    return baseline, baseline_tokenizer


@dataclass
class Subject:
    """Variant whose quality is measured. It is dropped from memory when its predictions are saved."""

    source: TokenSource | None
    close: Callable[[], None]

    def reference(self) -> PreTrainedModel | None:
        """Return the variant's model if it can be the baseline; None if it uses kernels of benchmarker."""
        source = self.source
        if source is None or source.model is None:
            return None
        return None if any(use.origin == "benchmarker" for use in source.facts().kernels_used) else source.model

    def drop(self, device: Device) -> None:
        self.source = None
        self.close()
        give_back(device)


def give_back(device: Device) -> None:
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    device.release()


def judge(plan: Plan, subject: Subject, device: Device, progress: Progress) -> Quality:
    """Measure the quality of a variant and drop it. Raises BenchmarkerError for NaN, or for lack of disk or memory."""
    tokens = f"{plan.vocabulary:,}" if plan.top_k is None else f"the {plan.top_k} most likely of {plan.vocabulary:,}"
    progress.note(
        f"quality: {plan.windows.targets.size:,} tokens of {plan.text.name}, one at a time; predictions over {tokens} "
        f"tokens take a temporary file of {gib(plan.file_bytes)}"
    )
    try:
        with scoring.scratch_file(len(plan.windows.ids), plan.row_values) as file:
            return _judge(plan, subject, file, device, progress)
    except (RuntimeError, MemoryError) as error:
        if not device.is_out_of_memory(error):
            raise
        raise QualityError(
            "--quality: out of memory while scoring; it takes up to 3 GiB beyond the model's own, so free some, "
            "or give --quality off"
        ) from error
    finally:
        if subject.source is not None:
            subject.drop(device)


def _judge(plan: Plan, subject: Subject, file: scoring.File, device: Device, progress: Progress) -> Quality:
    started = time.perf_counter()
    assert subject.source is not None
    device.reset_peak()
    before = device.peak_memory().allocated_bytes
    path, saved = _save(plan, subject.source, file, progress)
    greedy = greedy_texts(subject.source, plan.windows)
    after = device.peak_memory().allocated_bytes
    baseline = subject.reference() if plan.is_baseline else None
    if baseline is None:
        subject.drop(device)
        progress.note(f"quality: loading {plan.baseline_name}")
        target = Target(device.torch_name, plan.dtype)
        baseline = LOADERS[BASELINE.quant].load(plan.baseline, loader_options(BASELINE), target).model
    score = partial(scoring.score_against, baseline, plan.windows, saved, progress, name=plan.baseline_name)
    windows = len(plan.windows.ids)
    # The first run replaces the variant's predictions by the baseline's, with which the second run is compared.
    scores = score(range(windows), replace=True)
    noise = score(spread(NOISE_WINDOWS, windows).tolist(), replace=False)
    if (nats := float(scores.nats.mean())) > MOST_NATS:
        raise WrongResultError(f"--quality: {plan.name} predicts at {nats:.0f} nats a token: its output is wrong")
    value, error = perplexity(scores.nats)
    return Quality(
        size=plan.size,
        path=path,
        text=plan.text.name,
        text_sha256=plan.text.sha256,
        text_asked=plan.text.source,
        text_tokens=plan.windows.text_tokens,
        window_tokens=plan.windows.ids.shape[1],
        scored_from=SCORED_FROM,
        begins_with=plan.windows.begins_with,
        positions=scores.nats.size,
        top_k=saved.top_k,
        perplexity=value,
        perplexity_error=error,
        baseline=plan.baseline_name,
        is_baseline=plan.is_baseline,
        baseline_perplexity=perplexity(scores.baseline_nats)[0],
        against=divergence(scores),
        noise=divergence(noise),
        windows=scoring.window_means(scores),
        greedy=greedy,
        seconds=time.perf_counter() - started,
        file_bytes=plan.file_bytes,
        extra_bytes=None if before is None or after is None else after - before,
    )


def _save(
    plan: Plan, source: TokenSource, file: scoring.File, progress: Progress
) -> tuple[Literal["step", "prefill"], SavedPredictions]:
    saved = SavedPredictions(file, top_k=plan.top_k)
    dtype = getattr(torch, plan.dtype)
    if scoring.save_step_predictions(source, plan.windows, saved, progress, name=plan.name, dtype=dtype):
        return "step", saved
    # The rows of the file have the size of step predictions, which are larger than prefill predictions.
    count = min(plan.top_k or PREFILL_TOP, PREFILL_TOP)
    saved = SavedPredictions(file[:, : row_values(plan.windows.scored, plan.vocabulary, count)], top_k=count)
    if not scoring.save_prefill_predictions(source, plan.windows, saved, progress, name=plan.name):
        raise UnsupportedError(f"{source.facts().name} gives no predictions for a measurement of quality")
    return "prefill", saved


def greedy_texts(source: TokenSource, windows: Windows) -> tuple[GreedyText, ...]:
    """Return the greedy continuations of eight prompts, by which two engines are compared token by token.

    Two engines diverge when rounding decides between two tokens of nearly equal probability, so each token is returned
    with the gap between the two largest log-probabilities. Empty if the engine does not support greedy continuations.
    """
    prompts = windows.ids[spread(PROMPTS, len(windows.ids)), :PROMPT_TOKENS]
    try:
        return tuple(_greedy_text(source, prompt) for prompt in prompts.tolist())
    except UnsupportedError:
        return ()


def _greedy_text(source: TokenSource, prompt: TokenIds) -> GreedyText:
    tokens = source.greedy_tokens(prompt, NEW_TOKENS)
    ids = [*prompt, *tokens[:-1]]
    if scores := source.step_scores(ids, prompt_tokens=len(prompt)):
        logs = scores.log_probabilities
    elif prefill := source.prefill_scores(ids):
        logs = prefill.log_probabilities[len(prompt) - 1 :]
    else:
        return GreedyText(tokens=tokens)
    second, first = numpy.partition(logs, -2, axis=1)[:, -2:].T
    return GreedyText(tokens=tokens, gaps=tuple((first - second).astype(float).tolist()))
