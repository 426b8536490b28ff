"""How records of token mixers are compared: what must be equal, and the baseline."""

from __future__ import annotations

from benchmarker.comparison.comparing import Comparing
from benchmarker.workloads.mixers.reading.rows import MixersRow, row_fields
from benchmarker.workloads.mixers.record import MixersRecord

PLAIN = "softmax"


def form(record: MixersRecord) -> dict[str, str]:
    """Mixer and implementation."""
    return {"mixer": record.variant.mixer, "implementation": record.variant.implementation}


def layer(record: MixersRecord) -> str:
    """The shapes, and what is done to the inputs."""
    values = record.subject.model_dump(mode="json", exclude_none=True)
    return ", ".join(f"{name} {value}" for name, value in values.items())


COMPARING = Comparing(
    row=MixersRow,
    fields=row_fields,
    form=form,
    family=lambda record: record.variant.mixer,
    plainness=lambda record: (record.variant.mixer == PLAIN,),
    circumstances={"layer": layer},
    must_be_equal=("layer",),
    subject=("subject",),
)
