"""Result, error and markdown of the gate on two sweeps with known latencies."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarker.comparison.gate import Gate, check, gate_blocks, what_changed
from benchmarker.core.errors import ResultsError
from benchmarker.core.tables import to_markdown
from benchmarker.report.compare import compare
from tests.records import cell, environment, failed_cell, failed_quality, record, rounds, save

STEADY = [1.000, 1.004, 0.998, 1.002, 0.996]


def gate(tmp_path: Path, before: list, after: list, limit: str = "slower:5%", **options: object) -> Gate:
    sides = [compare([save(tmp_path / name, *side)]) for name, side in (("before", before), ("after", after))]
    return check(*sides, limit=limit, **options)


def slower_by(percent: float) -> list[float]:
    return [latency_s * (1 + percent / 100) for latency_s in STEADY]


def test_significant_slowdown_above_the_limit_fails(tmp_path):
    assert gate(tmp_path, rounds("fp16", STEADY), rounds("fp16", slower_by(8))).is_failed


def test_significant_slowdown_below_the_limit_passes(tmp_path):
    checked = gate(tmp_path, rounds("fp16", STEADY), rounds("fp16", slower_by(3)))
    assert (checked.is_failed, checked.changes[0].verdict) == (False, "slower")


def test_large_slowdown_without_significance_passes(tmp_path):
    noisy = [1.0, 1.3, 0.9, 1.25, 1.1]
    checked = gate(tmp_path, rounds("fp16", STEADY), rounds("fp16", noisy))
    assert (checked.is_failed, checked.changes[0].verdict) == (False, "inconclusive")


def test_speed_up_passes(tmp_path):
    assert not gate(tmp_path, rounds("fp16", STEADY), rounds("fp16", slower_by(-20))).is_failed


def test_cell_that_now_fails_fails_the_gate(tmp_path):
    crashed = [record("fp16", failed_cell("oom_gpu", "no room"), round_number=number) for number in range(3)]
    assert gate(tmp_path, rounds("fp16", STEADY), crashed).is_failed


def test_variant_whose_quality_now_fails_fails_the_gate(tmp_path):
    after = rounds("fp16", STEADY)
    after[0] = after[0].model_copy(update={"quality": failed_quality()})
    checked = gate(tmp_path, rounds("fp16", STEADY), after)
    assert (checked.is_failed, checked.changes[0].ratio) == (True, None)


def test_cell_that_crashes_in_most_rounds_fails_the_gate(tmp_path):
    after = rounds("fp16", STEADY)
    for number in (1, 2, 3):
        after[number] = record("fp16", failed_cell("crash", "SIGSEGV"), round_number=number)
    checked = gate(tmp_path, rounds("fp16", STEADY), after)
    assert checked.is_failed
    assert "(crashed in others)" in to_markdown(gate_blocks(checked))


def test_unreadable_file_and_changed_quantization_are_listed(tmp_path):
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / "int8.json").write_text('{"schema_version": 1, "ru')
    fp16 = rounds("fp16", STEADY)
    gptq = fp16[0].variant.model_copy(update={"quant": "gptq"})
    after = [run_record.model_copy(update={"variant": gptq}) for run_record in fp16]
    output = to_markdown(gate_blocks(gate(tmp_path, rounds("fp16", STEADY), after)))
    assert "- left out: " in output
    assert "int8.json: not valid JSON" in output
    assert "- quant of fp16: fp16 before, gptq after" in output


def test_missing_variant_fails(tmp_path):
    before = [*rounds("fp16", STEADY), *rounds("int8", STEADY)]
    checked = gate(tmp_path, before, rounds("fp16", STEADY))
    assert [change.variant for change in checked.changes if change.is_failed] == ["int8"]
    assert "not measured" in to_markdown(gate_blocks(checked))


def test_gate_without_tests_raises(tmp_path):
    with pytest.raises(ResultsError) as caught:
        gate(tmp_path, rounds("fp16", STEADY[:2]), rounds("fp16", STEADY))
    assert str(caught.value) == (
        "--fail-if slower:5%: nothing can be tested; both sides need a cell in common with 3 rounds or more "
        "(`benchmarker sweep --rounds 3`)"
    )


@pytest.mark.parametrize("limit", ["5%", "slower", "slower:5", "slower:-5%", "slower:0%", "faster:5%", "slower:5%%"])
def test_invalid_limit_raises_with_an_example(tmp_path, limit):
    with pytest.raises(ResultsError) as caught:
        gate(tmp_path, rounds("fp16", STEADY), rounds("fp16", STEADY), limit)
    assert str(caught.value) == f"--fail-if {limit}: write it as slower:5%, with a percentage above 0"


def test_gate_over_two_devices_raises(tmp_path):
    other = environment(device={"name": "NVIDIA L4"})
    with pytest.raises(ResultsError, match="these records do not compare: device is NVIDIA H100 80GB HBM3 in 5"):
        gate(tmp_path, rounds("fp16", STEADY), rounds("fp16", STEADY, environment=other))


def test_markdown_has_summary_table_changes_and_caption(tmp_path):
    def sweep(factor: float, **fields: object) -> list:
        return [
            record(
                "fp16",
                cell([latency_s], prompt_tokens=3),
                cell([latency_s * factor], prompt_tokens=26),
                round_number=number,
                **fields,
            )
            for number, latency_s in enumerate(STEADY)
        ]

    newer = environment(packages={"torch": "2.12.0", "transformers": "5.17.0"}, commit="b" * 8)
    checked = gate(tmp_path, sweep(1.0, environment=environment(commit="a" * 8)), sweep(1.1, environment=newer))
    assert to_markdown(gate_blocks(checked)) == (
        """\
**Failed (slower:5%): 1 of 2 cells**

| prompt | variant |  before decode tok/s |   after decode tok/s |            after / before | gate       |
| -----: | :------ | -------------------: | -------------------: | ------------------------: | :--------- |
|      3 | fp16    | 50.00 [49.80, 50.20] | 50.00 [49.80, 50.20] |   1.00x [1.00, 1.00] same | passed     |
|     26 | fp16    | 50.00 [49.80, 50.20] | 45.45 [45.28, 45.63] | 0.91x [0.90, 0.91] slower | **failed** |

- torch: 2.11.0+cu130 before, 2.12.0 after
- commit: aaaaaaaa before, bbbbbbbb after

The ratio is that of the rates shown. A cell fails if its rate before is more than 5.0 % above its rate after """
        "and a ratio of 1 is excluded, after Holm's correction over the table; if it was measured before and fails "
        "now, in all rounds or in so many that it cannot be tested; or if its variant is missing now. "
        "[low, high] is the 95 % interval from one median per process, unpaired (Welch); same: within ±2 %.\n"
    )


def test_libraries_of_unmatched_variants_are_no_difference():
    versions = {"torch": "2.11.0", "transformers": "5.17.0"}
    libraries = [versions, versions | {"torchao": "0.18.0"}, versions | {"gptqmodel": "7.6.0"}]
    fp16, int8, gptq = (
        record(quant, environment=environment(packages=packages))
        for quant, packages in zip(("fp16", "int8", "gptq"), libraries, strict=True)
    )
    assert what_changed([int8], [fp16, int8, gptq], force=False) == ()
    assert what_changed([fp16], [int8, gptq], force=False) == ()


def test_external_engine_has_the_load_format_of_its_job():
    # An external engine loads the model itself, so that its record has no load facts.
    vllm, eager = record(name="vllm fp16", runtime="vllm", load=None), record()
    assert what_changed([vllm], [eager], force=False) == ()
