"""How records of attention are compared: what must be equal, and the baseline."""

from __future__ import annotations

from benchmarker.comparison.comparing import Comparing
from benchmarker.workloads.attention.record import AttentionRecord

PLAIN = "naive"


def form(record: AttentionRecord) -> dict[str, str]:
    """Implementation and type."""
    return {"implementation": record.variant.variant, "dtype": record.variant.dtype}


def layer(record: AttentionRecord) -> str:
    """The subject but for its type, which a variant may replace."""
    values = record.subject.model_dump(mode="json", exclude={"dtype"}, exclude_none=True)
    return ", ".join(f"{name} {value}" for name, value in values.items())


COMPARING = Comparing(
    form=form,
    plainness=lambda record: (record.variant.variant == PLAIN,),
    circumstances={"layer": layer},
    must_be_equal=("layer",),
    subject=("subject",),
)
