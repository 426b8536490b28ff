"""`explain` on the reference records: a bound for each profiled variant, a reason for each without a profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import typed

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
FOLDERS = sorted(path.name for path in REFERENCE.iterdir())


def explained(folder: str) -> dict[str, dict[str, Any]]:
    """Rows that `explain` prints as JSON, by variant."""
    rows, _ = json.JSONDecoder().raw_decode(typed("explain", REFERENCE / folder, "--format", "json")[1])
    return {row["variant"]: row for row in rows}


def profiled(folder: str) -> set[str]:
    """Variants with a profile in a record."""
    records = [json.loads(path.read_text()) for path in REFERENCE.glob(f"{folder}/*.json")]
    return {record["variant"]["name"] for record in records if record.get("profile")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_profiled_reference_variants_have_a_bound(folder):
    rows = explained(folder)
    assert profiled(folder) <= rows.keys()
    for name, row in rows.items():
        if name in profiled(folder) and "rounds differ too much" not in row.get("not_explained", ""):
            assert row["bound_by"], name
            assert row["bound_by"] != "mixed", name
        else:
            assert row.get("bound_by") or row["not_explained"], name
