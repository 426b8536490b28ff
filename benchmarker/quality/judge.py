"""The order of things: the variant's predictions are kept, then the baseline is run over the same text, twice.

The variant comes first because it is loaded already: what is judged are the very modules that were timed. The two
models never share the device. The baseline's second run shows how far its predictions differ from themselves, which
is the noise that a divergence has to rise above.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import TYPE_CHECKING

from benchmarker.checkpoints.base import Progress, Target
from benchmarker.core.errors import QualityError
from benchmarker.core.units import gib
from benchmarker.hardware.device import Device
from benchmarker.quality.kept import Kept, Top, Whole
from benchmarker.quality.plan import BASELINE, Plan
from benchmarker.quality.scoring import first_logits, keep, score_against
from benchmarker.quality.scratch import scratch_file
from benchmarker.quality.statistics import Scores, divergence, perplexity, window_means
from benchmarker.quality.windows import SCORED_FROM, WINDOW_TOKENS
from benchmarker.quantization.registry import LOADERS, loader_options
from benchmarker.schema.quality import Quality

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Judge:
    """Takes first the variant, then the baseline."""

    def __init__(self, plan: Plan, kept: Kept, device: Device, progress: Progress, *, file_bytes: int) -> None:
        self._plan, self._kept, self._device, self._progress = plan, kept, device, progress
        self._file_bytes = file_bytes
        self._started = time.perf_counter()
        self._extra_bytes: int | None = None

    def keep(self, model: PreTrainedModel) -> None:
        """Run the variant.

        Raises:
            QualityError: Its logits are not finite.
        """
        before = self._mark()
        keep(model, self._plan.windows, self._kept, self._progress, name=self._plan.name)
        after = self._device.peak().allocated_bytes
        self._extra_bytes = None if before is None or after is None else after - before

    def verdict(self, baseline: PreTrainedModel) -> Quality:
        """Run the baseline, twice unless the variant was its first run, and work out everything.

        Raises:
            QualityError: Its logits are not finite.
        """
        scores = None if self._plan.is_baseline else self._score(baseline, replace=True)
        noise = self._score(baseline, replace=False)
        return self._quality(scores or noise, noise)

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
            text=plan.text.name,
            text_sha256=plan.text.sha256,
            text_asked=plan.text.asked,
            text_tokens=plan.windows.text_tokens,
            window_tokens=WINDOW_TOKENS,
            scored_from=SCORED_FROM,
            begins_with=plan.windows.begins_with,
            positions=scores.nats.size,
            top_k=plan.top_k,
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


def judge(plan: Plan, models: list[PreTrainedModel], device: Device, progress: Progress) -> Quality:
    """Judge a variant.

    Args:
        models: The variant alone. It is taken out, so that nobody but the caller's caller can hold on to it.

    Raises:
        BenchmarkerError: There is no room for the temporary file or no memory, the logits are not finite, or the
            baseline cannot be loaded.
    """
    try:
        return _judge(plan, models, device, progress)
    except (RuntimeError, MemoryError) as error:
        if not device.is_out_of_memory(error):
            raise
        raise QualityError(
            "--quality: out of memory while scoring; it takes up to 3 GiB beyond the model's own, so free some, "
            "or give --quality off"
        ) from error


def _judge(plan: Plan, models: list[PreTrainedModel], device: Device, progress: Progress) -> Quality:
    dtype = first_logits(models[0], plan.windows).dtype
    rows, row_bytes = len(plan.windows.ids), plan.row_bytes(dtype)
    tokens = f"{plan.vocabulary:,}" if plan.top_k is None else f"the likeliest {plan.top_k} of {plan.vocabulary:,}"
    progress.note(
        f"quality: {plan.windows.targets.size:,} tokens of {plan.text.name}; predictions over {tokens} tokens "
        f"take a temporary file of {gib(rows * row_bytes)}"
    )
    with scratch_file(rows, row_bytes) as file:
        kept = Whole(file, dtype=dtype) if plan.top_k is None else Top(file, count=plan.top_k)
        judging = Judge(plan, kept, device, progress, file_bytes=rows * row_bytes)
        judging.keep(models[0])
        if plan.is_baseline:
            return judging.verdict(models.pop())
        models.clear()
        give_back(device)
        return judging.verdict(_load_baseline(plan, device, progress))


def give_back(device: Device) -> None:
    """Free what only circles of references hold, and what compiled code remembers of its model."""
    if "torch._dynamo" in sys.modules:
        import torch

        torch.compiler.reset()
    gc.collect()
    device.release()


def _load_baseline(plan: Plan, device: Device, progress: Progress) -> PreTrainedModel:
    progress.note(f"quality: loading {plan.baseline_name}")
    loader = LOADERS[BASELINE.quant]
    target = Target(device.torch_name, plan.dtype)
    return loader.load(plan.baseline, loader_options(BASELINE), target, progress).model
