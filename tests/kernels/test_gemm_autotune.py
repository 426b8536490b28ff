"""Choice of a GEMM candidate, its storage and its record."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarker.engines.decoders.native import product_choices
from benchmarker.kernels import gemm_autotune
from benchmarker.kernels.gemm_autotune import (
    COMPARED_ROWS,
    MAX_ERROR,
    Candidate,
    Choice,
    difference,
    load_or_store,
    measure,
    read_choice,
)
from benchmarker.kernels.packed_weights import Packed
from benchmarker.kernels.quantized_gemm_triton import TileConfig


def test_difference_tolerates_rounding_but_not_wrong_or_infinite_results() -> None:
    expected = torch.arange(1.0, 65.0)
    assert difference(expected.to(torch.float16) * 1.001, expected) < MAX_ERROR
    assert difference(expected.roll(1), expected) > MAX_ERROR
    assert difference(expected / 0, expected) == difference(expected * float("nan"), expected) == float("inf")


def test_measure_chooses_the_fastest_correct_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncompiled(hidden: torch.Tensor, packed: Packed) -> None:
        raise ValueError("no such instruction\non sm_90")

    def unlaunched(hidden: torch.Tensor, packed: Packed) -> torch.Tensor:
        raise RuntimeError("too many registers")

    def candidate(name: str, factor: float) -> Candidate:
        return Candidate(name, lambda *_: None, lambda hidden, _: hidden * factor)

    times = iter((5.0, 25.0, 17.0) * 2)
    monkeypatch.setattr(gemm_autotune, "graph_us", lambda product, flush_buffer: next(times))
    monkeypatch.setattr(gemm_autotune, "l2_flush_buffer", lambda device: None)
    expected = candidate("unpacked", 2.0)
    candidates = [
        candidate("wrong", 3.0), Candidate("a", uncompiled, unlaunched), Candidate("b", lambda *_: None, unlaunched),
        expected, candidate("fast", 2.001),
    ]  # fmt: skip
    packed = Packed("nf4", torch.zeros(64, 32, dtype=torch.int16), torch.ones(64, 2))
    choice = measure(torch.zeros(8, 128), packed, candidates, expected)
    assert (choice.form, choice.rows, choice.inputs, choice.outputs) == ("nf4", 8, 128, 64)
    assert choice.us == {"unpacked": 20.0, "fast": 12.0}
    assert choice.way == "fast"
    assert choice.refused == {
        "wrong": "its result is 0.5 of its norm off",
        "a": "ValueError: no such instruction",
        "b": "RuntimeError: too many registers",
    }
    # A candidate that failed at run time, for example out of memory, may succeed later: the choice is not stored.
    assert not choice.is_permanent
    del candidates[2]
    assert measure(torch.zeros(8, 128), packed, candidates, expected).is_permanent


def test_record_has_the_choice_and_the_time_of_every_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    name = TileConfig(64, 16, 32, 2, 4, 6).name
    choice = Choice("int8 by row", 8, 2560, 6144, name, {name: 12.0, "unpacked to 16 bit, then cuBLAS": 58.6})
    monkeypatch.setattr(gemm_autotune, "choices", lambda: (choice,))
    (recorded,) = product_choices({1, 8})
    assert product_choices({64}) == ()
    assert (recorded.form, recorded.rows, recorded.inputs, recorded.outputs) == (
        "int8 by row",
        8,
        2560,
        6144,
    )
    assert (recorded.us[recorded.way], max(recorded.us.values()), len(recorded.us)) == (
        12.0,
        58.6,
        2,
    )


def test_stored_choice_is_used_by_later_processes(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "products.json"
    choice = Choice("int8 by row", 8, 2560, 6144, "a tile", {"a tile": 12.0})
    without = Choice("nf4", 8, 2560, 6144, "unpacked", {"unpacked": 58.6})
    assert load_or_store("a", path) is None
    assert read_choice(load_or_store("a", path, asdict(choice)), ["another", "a tile"]) == choice
    assert read_choice(load_or_store("b", path, asdict(without)), ["unpacked"]) == without
    # The first stored choice wins.
    assert read_choice(load_or_store("a", path, asdict(without)), ["a tile", "unpacked"]) == choice
    # An outdated candidate, an entry with other fields and a damaged file count as missing.
    assert read_choice(load_or_store("a", path), ["another"]) is None
    assert read_choice(load_or_store("c", path, {"tile": {"outputs": 1}}), ["a tile"]) is None
    path.write_text("{")
    assert load_or_store("b", path) is None
    (tmp_path / "file").write_text("")
    assert load_or_store("a", tmp_path / "file" / "products.json", asdict(choice)) is None


def test_measure_compares_first_and_last_rows_of_a_long_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_autotune, "l2_flush_buffer", lambda device: torch.empty(0))
    monkeypatch.setattr(gemm_autotune, "graph_us", lambda product, flush_buffer: 1.0)
    rows = 4 * COMPARED_ROWS
    right = torch.ones(rows, 8)

    def changed(row: int) -> Candidate:
        result = right.clone()
        result[row] = 9
        return Candidate(f"row {row}", lambda hidden, packed: None, lambda hidden, packed: result)

    expected = Candidate("right", lambda hidden, packed: None, lambda hidden, packed: right)
    packed = Packed("int8 by row", torch.zeros(8, 2, dtype=torch.int32), torch.ones(8))
    candidates = [expected, changed(0), changed(rows // 2), changed(rows - 1)]
    assert set(measure(torch.ones(rows, 8), packed, candidates, expected).refused) == {"row 0", f"row {rows - 1}"}
