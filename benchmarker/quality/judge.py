"""Quality of a variant: its predictions are saved, then the baseline runs over the same text.

The variant runs first because it is loaded already. Its timed decode step predicts the text token by token; the
baseline uses its own forward. The two models never share the device. A second run of the baseline over a part of the
text gives the noise floor of the divergence.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy
import torch
from numpy.typing import NDArray

from benchmarker.checkpoints.base import Progress, Target
from benchmarker.core.errors import QualityError, UnsupportedError
from benchmarker.core.formatting import gib
from benchmarker.engines.base import Scorer, TokenIds, TokenSource
from benchmarker.hardware.device import Device
from benchmarker.quality.judging_plan import BASELINE, Plan
from benchmarker.quality.saved_predictions import Bytes, SavedLogits, SavedPredictions, SavedTopK, scratch_file
from benchmarker.quality.scoring import save_prefill_predictions, save_step_predictions, score_against
from benchmarker.quality.statistics import Scores, divergence, perplexity, window_means
from benchmarker.quality.windows import SCORED_FROM, Windows
from benchmarker.quantization.registry import LOADERS, loader_options
from benchmarker.schema.quality import GreedyText, Quality

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOISE_WINDOWS = 16
SAVED_AS = torch.float32
PROMPTS = 8
PROMPT_TOKENS = 32
NEW_TOKENS = 32


@dataclass
class Subject:
    """Variant to be judged, until its predictions are saved."""

    source: TokenSource | None
    close: Callable[[], None]

    def reference(self) -> PreTrainedModel | None:
        source = self.source
        if source is None or source.model is None:
            return None
        return None if any(use.origin == "benchmarker" for use in source.facts().kernels_used) else source.model

    def drop(self, device: Device) -> None:
        self.source = None
        self.close()
        give_back(device)


class Judge:
    """Quality of one variant: `save` runs the variant, then `verdict` runs the baseline. Both check for NaN."""

    def __init__(self, plan: Plan, file: Bytes, device: Device, progress: Progress, *, file_bytes: int) -> None:
        self._plan, self._file, self._device, self._progress = plan, file, device, progress
        self._file_bytes = file_bytes
        self._started = time.perf_counter()
        self._extra_bytes: int | None = None
        self._saved: SavedPredictions = (
            SavedLogits(file, dtype=SAVED_AS) if plan.top_k is None else SavedTopK(file, count=plan.top_k)
        )
        self._path: Literal["step", "prefill"] = "step"
        self._greedy: tuple[GreedyText, ...] = ()

    def save(self, source: TokenSource) -> None:
        """Save the predictions of the variant's decode step, or of its prefill if the engine gives only those."""
        plan, name, before = self._plan, self._plan.name, self._mark()
        dtype = getattr(torch, plan.dtype)
        if not save_step_predictions(source, plan.windows, self._saved, self._progress, name=name, dtype=dtype):
            self._path = "prefill"
            # The rows of the file have the size of a step's predictions, which is larger.
            row_bytes = SavedTopK.row_bytes(plan.windows.scored, plan.prefill_top)
            top_k = SavedTopK(self._file[:, :row_bytes], count=plan.prefill_top)
            self._saved = top_k
            if not save_prefill_predictions(source, plan.windows, top_k, self._progress, name=name):
                raise UnsupportedError(f"{source.facts().name} gives no predictions for a measurement of quality")
        self._greedy = greedy_texts(source, plan.windows)
        after = self._device.peak().allocated_bytes
        self._extra_bytes = None if before is None or after is None else after - before

    def verdict(self, baseline: PreTrainedModel) -> Quality:
        """Run the baseline, and a part of it again; compare the variant with the first run and that with the second."""
        windows = self._plan.windows
        scores = self._score(baseline, range(len(windows.ids)), replace=True)
        return self._quality(scores, self._score(baseline, windows.spread(NOISE_WINDOWS).tolist(), replace=False))

    def _score(self, baseline: PreTrainedModel, numbers: Sequence[int], *, replace: bool) -> Scores:
        plan = self._plan
        return score_against(
            baseline, plan.windows, self._saved, self._progress, numbers, name=plan.baseline_name, replace=replace
        )

    def _mark(self) -> int | None:
        self._device.reset_peak()
        return self._device.peak().allocated_bytes

    def _quality(self, scores: Scores, noise: Scores) -> Quality:
        plan = self._plan
        value, error = perplexity(scores.nats)
        return Quality(
            size=plan.size,
            path=self._path,
            text=plan.text.name,
            text_sha256=plan.text.sha256,
            text_asked=plan.text.source,
            text_tokens=plan.windows.text_tokens,
            window_tokens=plan.windows.tokens,
            scored_from=SCORED_FROM,
            begins_with=plan.windows.begins_with,
            positions=scores.nats.size,
            top_k=plan.top_k if self._path == "step" else plan.prefill_top,
            perplexity=value,
            perplexity_error=error,
            baseline=plan.baseline_name,
            is_baseline=plan.is_baseline,
            baseline_perplexity=perplexity(scores.baseline_nats)[0],
            against=divergence(scores),
            noise=divergence(noise),
            windows=window_means(scores),
            greedy=self._greedy,
            seconds=time.perf_counter() - self._started,
            file_bytes=self._file_bytes,
            extra_bytes=self._extra_bytes,
        )


def judge(plan: Plan, subject: Subject, device: Device, progress: Progress) -> Quality:
    """Judge a variant and drop it. Raises BenchmarkerError for lack of disk or memory, NaN or missing predictions."""
    try:
        return _judge(plan, subject, device, progress)
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


def _judge(plan: Plan, subject: Subject, device: Device, progress: Progress) -> Quality:
    rows, row_bytes = len(plan.windows.ids), plan.row_bytes(SAVED_AS)
    tokens = f"{plan.vocabulary:,}" if plan.top_k is None else f"the {plan.top_k} most likely of {plan.vocabulary:,}"
    progress.note(
        f"quality: {plan.windows.targets.size:,} tokens of {plan.text.name}, one at a time; predictions over {tokens} "
        f"tokens take a temporary file of {gib(rows * row_bytes)}"
    )
    assert subject.source is not None
    with scratch_file(rows, row_bytes) as file:
        judging = Judge(plan, file, device, progress, file_bytes=rows * row_bytes)
        judging.save(subject.source)
        reference = subject.reference() if plan.is_baseline else None
        if reference is not None:
            return judging.verdict(reference)
        subject.drop(device)
        return judging.verdict(_load_baseline(plan, device, progress))


def give_back(device: Device) -> None:
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    device.release()


def _load_baseline(plan: Plan, device: Device, progress: Progress) -> PreTrainedModel:
    progress.note(f"quality: loading {plan.baseline_name}")
    loader = LOADERS[BASELINE.quant]
    target = Target(device.torch_name, plan.dtype)
    return loader.load(plan.baseline, loader_options(BASELINE), target, progress).model


def greedy_texts(scorer: Scorer, windows: Windows) -> tuple[GreedyText, ...]:
    """Return the greedy continuations of eight prompts, so that two engines can be compared token by token.

    Two engines diverge when rounding decides between two tokens of nearly equal probability, and greedy text never
    converges again; so each token has the gap between the two most likely ones. Empty if the engine does not support
    this.
    """
    count = min(PROMPTS, len(windows.ids))
    chosen = windows.ids[numpy.arange(count) * len(windows.ids) // count, :PROMPT_TOKENS]
    try:
        return tuple(_greedy_text(scorer, prompt) for prompt in chosen.tolist())
    except UnsupportedError:
        return ()


def _greedy_text(scorer: Scorer, prompt: TokenIds) -> GreedyText:
    tokens = scorer.greedy_tokens(prompt, NEW_TOKENS)
    logs = _log_probabilities(scorer, [*prompt, *tokens[:-1]], prompt_tokens=len(prompt))
    if logs is None:
        return GreedyText(tokens=tokens)
    top_two = numpy.partition(logs, -2, axis=1)[:, -2:]
    return GreedyText(tokens=tokens, gaps=tuple((top_two[:, 1] - top_two[:, 0]).astype(float).tolist()))


def _log_probabilities(scorer: Scorer, ids: TokenIds, *, prompt_tokens: int) -> NDArray[numpy.floating] | None:
    scores = scorer.step_scores(ids, prompt_tokens=prompt_tokens)
    if scores is not None:
        return scores.log_probabilities
    prefill = scorer.prefill_scores(ids)
    return None if prefill is None else prefill.log_probabilities[prompt_tokens - 1 :]
