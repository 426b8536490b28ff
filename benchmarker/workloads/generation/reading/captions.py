"""How to read a table of text generation."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker.comparison.rows import Results
from benchmarker.report import captions
from benchmarker.workloads.generation.reading.rows import GenerationRow


def caption(results: Results) -> str:
    """One paragraph under the tables. Empty where there is no number to explain."""
    rows = [row for row in results.rows if row.status == "ok" and isinstance(row, GenerationRow)]
    return " ".join([*filter(None, [captions.caption(results)]), *_energy(rows)])


def _energy(rows: Sequence[GenerationRow]) -> list[str]:
    if not any(row.energy for row in rows):
        return []
    return [
        "J/token is the energy of the whole board by its driver's counter, over windows of at least 10 s, prefill "
        "included; net is above the idle board with the model loaded. It is not what the wall socket gives."
    ]
