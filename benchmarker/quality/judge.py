"""The order of things: the variant's predictions are kept, then the baseline is run over the same text, twice.

The variant comes first because it is loaded already, and it is judged by the step that is timed: its engine is given
the text token by token. The baseline is run by its own forward. The two models never share the device. The baseline's
second run shows how far its predictions differ from themselves, which is the noise that a divergence has to rise above.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from benchmarker.checkpoints.base import Progress, Target
from benchmarker.core.errors import QualityError, UnsupportedError
from benchmarker.core.units import gib
from benchmarker.engines.base import TokenSource
from benchmarker.hardware.device import Device
from benchmarker.quality.kept import Kept, Top, Whole
from benchmarker.quality.plan import BASELINE, Plan
from benchmarker.quality.scoring import keep_prefill, keep_steps, score_against
from benchmarker.quality.scratch import Bytes, scratch_file
from benchmarker.quality.statistics import Scores, divergence, perplexity, window_means
from benchmarker.quality.windows import SCORED_FROM, WINDOW_TOKENS
from benchmarker.quantization.registry import LOADERS, loader_options
from benchmarker.schema.quality import Quality

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEPT = torch.float32
"""Engines tell log-probabilities, which 16 bit would round."""


@dataclass
class Subject:
    """The variant that is judged, as long as its predictions are not kept."""

    source: TokenSource | None
    """What its engine has opened."""
    close: Callable[[], None]
    """Closes it."""

    def reference(self) -> PreTrainedModel | None:
        """Its model, where that can be run as the baseline too; None where kernels of this program are in it."""
        source = self.source
        if source is None or source.model is None:
            return None
        return None if any(use.origin == "benchmarker" for use in source.facts().kernels_used) else source.model

    def drop(self, device: Device) -> None:
        """Give its memory back."""
        self.source = None
        self.close()
        give_back(device)


class Judge:
    """Takes first the variant, then the baseline."""

    def __init__(self, plan: Plan, file: Bytes, device: Device, progress: Progress, *, file_bytes: int) -> None:
        self._plan, self._file, self._device, self._progress = plan, file, device, progress
        self._file_bytes = file_bytes
        self._started = time.perf_counter()
        self._extra_bytes: int | None = None
        self._kept: Kept = Whole(file, dtype=KEPT) if plan.top_k is None else Top(file, count=plan.top_k)
        self._path: Literal["step", "prefill"] = "step"

    def keep(self, source: TokenSource) -> None:
        """Run the variant: by its decode step, or by its prefill where that is all that its engine tells.

        Raises:
            QualityError: Its predictions are not finite.
            UnsupportedError: Its engine tells none.
        """
        plan, name, before = self._plan, self._plan.name, self._mark()
        dtype = getattr(torch, plan.dtype)
        if not keep_steps(source, plan.windows, self._kept, self._progress, name=name, dtype=dtype):
            self._path = "prefill"
            likeliest = Top(self._file, count=plan.prefill_top)
            self._kept = likeliest
            if not keep_prefill(source, plan.windows, likeliest, self._progress, name=name):
                raise UnsupportedError(f"{source.facts().name} tells nothing of its predictions that could be judged")
        after = self._device.peak().allocated_bytes
        self._extra_bytes = None if before is None or after is None else after - before

    def verdict(self, baseline: PreTrainedModel) -> Quality:
        """Run the baseline twice, and work out everything.

        Raises:
            QualityError: Its logits are not finite.
        """
        return self._quality(self._score(baseline, replace=True), self._score(baseline, replace=False))

    def _score(self, baseline: PreTrainedModel, *, replace: bool) -> Scores:
        plan = self._plan
        name = plan.baseline_name
        return score_against(baseline, plan.windows, self._kept, self._progress, name=name, replace=replace)

    def _mark(self) -> int | None:
        """Live bytes now; None where nobody counts them."""
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
            text_asked=plan.text.asked,
            text_tokens=plan.windows.text_tokens,
            window_tokens=WINDOW_TOKENS,
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
            seconds=time.perf_counter() - self._started,
            file_bytes=self._file_bytes,
            extra_bytes=self._extra_bytes,
        )


def judge(plan: Plan, subject: Subject, device: Device, progress: Progress) -> Quality:
    """Judge a variant, and drop it.

    Raises:
        BenchmarkerError: There is no room for the temporary file or no memory, the predictions are not finite, the
            engine tells none, or the baseline cannot be loaded.
    """
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
    rows, row_bytes = len(plan.windows.ids), plan.row_bytes(KEPT)
    tokens = f"{plan.vocabulary:,}" if plan.top_k is None else f"the likeliest {plan.top_k} of {plan.vocabulary:,}"
    progress.note(
        f"quality: {plan.windows.targets.size:,} tokens of {plan.text.name}, one at a time; predictions over {tokens} "
        f"tokens take a temporary file of {gib(rows * row_bytes)}"
    )
    assert subject.source is not None
    with scratch_file(rows, row_bytes) as file:
        judging = Judge(plan, file, device, progress, file_bytes=rows * row_bytes)
        judging.keep(subject.source)
        reference = subject.reference() if plan.is_baseline else None
        if reference is not None:
            return judging.verdict(reference)
        subject.drop(device)
        return judging.verdict(_load_baseline(plan, device, progress))


def give_back(device: Device) -> None:
    """Free what only circles of references hold, and what compiled code remembers of its model."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    device.release()


def _load_baseline(plan: Plan, device: Device, progress: Progress) -> PreTrainedModel:
    progress.note(f"quality: loading {plan.baseline_name}")
    loader = LOADERS[BASELINE.quant]
    target = Target(device.torch_name, plan.dtype)
    return loader.load(plan.baseline, loader_options(BASELINE), target, progress).model
