"""How long more rounds of a sweep would take, from when its processes began."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from benchmarker.schema.record import RunRecord


def round_s(records: Sequence[RunRecord]) -> float | None:
    """Seconds of one round of all variants: the median time from one process to the next, times the variants.

    A pause, as before a sweep went on, is one long time among many. None where no sweep had two processes.
    """
    starts: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.sweep:
            starts[record.sweep].append(datetime.fromisoformat(record.started_at).timestamp())
    spans = [later - earlier for times in starts.values() for earlier, later in pairwise(sorted(times))]
    variants = len({record.variant.name for record in records})
    return variants * statistics.median(spans) if spans else None
