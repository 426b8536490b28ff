"""How records of fine-tuning are compared: what must be equal, and the baseline."""

from __future__ import annotations

from benchmarker.comparison.comparing import Comparing
from benchmarker.workloads.finetune.record import FinetuneRecord

PLAIN = "lora"


def form(record: FinetuneRecord) -> dict[str, str]:
    """Every switch of the recipe."""
    variant = record.variant
    adapters = f"rank {variant.rank}, {variant.targets}" if variant.rank else "none"
    return {
        "base": variant.base,
        "train": variant.train,
        "checkpointing": variant.checkpointing,
        "prepare": variant.prepare,
        "optimizer": variant.optimizer,
        "attention": variant.attention,
        "adapters": adapters,
    }


COMPARING = Comparing(
    form=form,
    family=lambda record: record.variant.variant,
    plainness=lambda record: (record.variant.variant == PLAIN,),
    circumstances={
        "model": lambda record: record.model.id,
        "model revision": lambda record: record.model.revision,
        "model shapes (config_sha256)": lambda record: (record.model.config_sha256 or "")[:12] or None,
        "load_format": lambda record: record.model.load_format,
    },
    must_be_equal=("model", "model shapes (config_sha256)", "load_format"),
    subject=("model",),
    knows=lambda record: record.load is not None,
)
