"""Plan of a quality measurement, checked as far as possible before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.checkpoints.read_model import load_tokenizer
from benchmarker.core.errors import ModelError, SpecError
from benchmarker.quality.evaluation_text import Text, read_text
from benchmarker.quality.saved_predictions import SavedLogits, SavedTopK, check_room
from benchmarker.quality.windows import Windows, check_positions, check_tokens, cut
from benchmarker.quantization.load import find_checkpoint
from benchmarker.quantization.registry import loader_options
from benchmarker.schema.base import DType
from benchmarker.schema.model import ModelSpec, QuantSpec
from benchmarker.schema.quality import QualitySize, QualitySpec, baseline_name

if TYPE_CHECKING:
    import torch

BASELINE = QuantSpec(quant="fp16")
PREFILL_TOP = 100


@dataclass(frozen=True)
class Plan:
    """One variant compared with the unquantized model on one text."""

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
    def prefill_top(self) -> int:
        return min(self.top_k or PREFILL_TOP, PREFILL_TOP)

    def row_bytes(self, dtype: torch.dtype) -> int:
        if self.top_k is not None:
            return SavedTopK.row_bytes(self.windows.scored, self.top_k)
        return SavedLogits.row_bytes(self.windows.scored, self.vocabulary, dtype)


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
    """Read the text, cut it into windows and find the baseline.

    Args:
        tokenizer: Tokenizer of the variant; None if its folder has none.
        is_plain: True if the engine uses the quantization as it is, without one of its own.

    Raises:
        BenchmarkerError: The text, the tokenizer, the baseline or the free disk space does not suffice.
    """
    import torch

    assert spec.size != "off"
    if tokenizer is None and not (checkpoint.is_gguf and spec.baseline):
        place, remedy = "in its folder", "add its files"
        if checkpoint.is_gguf:
            place, remedy = "in the file", "name the original with --quality-baseline MODEL"
        raise ModelError(f"{model.id}: no tokenizer {place}, and --quality is measured on a text; {remedy}")
    text = read_text(spec.text)
    check_positions(checkpoint.config, model.id, size=spec.size)
    baseline, baseline_tokenizer = _find_baseline(spec, model, checkpoint, tokenizer, progress)
    # A GGUF file may come without a vocabulary; the original's is used then.
    windows = cut(text, tokenizer or baseline_tokenizer, size=spec.size)
    check_tokens(windows, checkpoint.config, model.id)
    plan = Plan(
        size=spec.size,
        top_k=spec.top_k,
        text=text,
        windows=windows,
        name=name,
        baseline=baseline,
        dtype=model.dtype,
        vocabulary=int(checkpoint.config["vocab_size"]),
        is_baseline=is_plain and loader_options(form) == loader_options(BASELINE) and spec.baseline is None,
    )
    if plan.top_k is not None and plan.top_k >= plan.vocabulary:
        raise SpecError(f"--quality-topk {plan.top_k}: the vocabulary has {plan.vocabulary} tokens; give fewer")
    check_room(len(windows.ids) * plan.row_bytes(torch.float32))
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
    baseline_checkpoint = find_checkpoint(ModelSpec(id=spec.baseline, dtype=model.dtype), BASELINE, progress=progress)
    baseline_tokenizer = load_tokenizer(baseline_checkpoint)
    if baseline_tokenizer is None or (tokenizer and baseline_tokenizer.get_vocab() != tokenizer.get_vocab()):
        raise ModelError(
            f"--quality-baseline {spec.baseline}: its vocabulary differs from that of {model.id}, so that their "
            "predictions do not compare; give the model that it was quantized from"
        )
    if baseline_checkpoint.config["vocab_size"] != checkpoint.config["vocab_size"]:
        raise ModelError(
            f"--quality-baseline {spec.baseline}: predicts {baseline_checkpoint.config['vocab_size']} tokens, and "
            f"{model.id} {checkpoint.config['vocab_size']}; give the model that it was quantized from"
        )
    return baseline_checkpoint, baseline_tokenizer
