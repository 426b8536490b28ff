"""Test the table of checkpoint formats."""

from __future__ import annotations

from benchmarker.core.tables import Sheet
from benchmarker.quantization.checkpoint_table import ROWS, local_format_sheet
from benchmarker.quantization.registry import LOADERS


def test_every_stored_format_has_a_table_row():
    stored = {name for name, loader in LOADERS.items() if loader.stored_only or name == "gguf"}
    assert stored <= {row.quant for row in ROWS} <= LOADERS.keys()


def test_nvfp4_row_names_its_activations_on_hopper():
    row = next(row for row in ROWS if row.name == "compressed-tensors NVFP4")
    assert (row.packed_on, row.vllm) == ("no: unpacked to 16 bits", "on Hopper weights only, activations in 16 bits")


def test_local_table_names_missing_packages(monkeypatch):
    monkeypatch.setattr("benchmarker.quantization.checkpoint_table.installed_version", lambda name: None)
    assert _needs(local_format_sheet()) == "optimum, gptqmodel"
    monkeypatch.setattr("benchmarker.quantization.checkpoint_table.installed_version", lambda name: "1.0")
    assert _needs(local_format_sheet()) == "-"


def _needs(sheet: Sheet) -> str:
    column = next(column for column in sheet.columns if column.heading == "not installed")
    return column.text(next(row for row in ROWS if row.name == "GPTQ"))
