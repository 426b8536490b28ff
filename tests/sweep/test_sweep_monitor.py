"""Readings of the GPU during a measurement decide whether a cell is valid."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarker.hardware.gpu import GpuState, NvidiaGpu
from benchmarker.hardware.monitor import Monitor, conditions_of, find_monitor, why_invalid
from benchmarker.schema.record import Conditions
from benchmarker.schema.record_io import read_record, write_json
from tests import records
from tests.fakes import FakeGpu, FakeNvml
from tests.faults.stage import Stage


class ScriptedGpu(FakeGpu):
    """GPU with a sequence of readings, of which the last one repeats."""

    def __init__(self, *states: GpuState) -> None:
        self.show(*states)

    def show(self, *states: GpuState) -> None:
        self._states = list(states)

    def full_clock_mhz(self) -> int:
        return 1980

    def state(self) -> GpuState:
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return replace(state, time_s=time.time())


def reading(clock: int = 1980, temperature: float = 40.0, power: float = 300.0, *throttled_by: str) -> GpuState:
    return GpuState(0.0, clock, temperature, power, frozenset(throttled_by))


def test_readings_are_combined_to_conditions() -> None:
    readings = [reading(1980, 40, 300), reading(1950, 45, 400, "power_cap"), reading(1900, 44, 500)]
    assert conditions_of(readings, full_clock_mhz=1980) == Conditions(
        samples=3,
        sm_clock_mhz=1950,
        sm_clock_full_mhz=1980,
        temperature_c=45.0,
        power_w=400.0,
        throttled_by=("power_cap",),
    )
    assert conditions_of([], full_clock_mhz=1980) is None
    assert conditions_of([GpuState(0.0)], full_clock_mhz=None) == Conditions(samples=1)


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        (Conditions(samples=9), None),
        (Conditions(samples=9, throttled_by=("power_cap",)), None),
        (
            Conditions(samples=9, throttled_by=("hardware_thermal", "power_cap")),
            ("throttled", "the board was throttled meanwhile (hardware thermal)"),
        ),
        (Conditions(samples=9, processes=1), None),
        (
            Conditions(samples=9, processes=2),
            (
                "shared_device",
                "2 processes were on the device; end the others, or accept them with --allow-shared",
            ),
        ),
        (Conditions(samples=9, sm_clock_mhz=1490, sm_clock_full_mhz=1980), None),
        (
            Conditions(samples=9, sm_clock_mhz=1400, sm_clock_full_mhz=1980),
            ("throttled", "the clock was 1400 MHz of 1980"),
        ),
        (Conditions(samples=9, sm_clock_mhz=1400, sm_clock_full_mhz=1980, throttled_by=("power_cap",)), None),
    ],
)
def test_external_conditions_make_a_cell_invalid(conditions: Conditions, reason: tuple[str, str] | None) -> None:
    assert why_invalid(conditions) == reason


def test_process_of_an_engine_is_not_a_foreign_process() -> None:
    assert why_invalid(Conditions(samples=9, processes=2), own_processes=2) is None
    assert why_invalid(Conditions(samples=9, processes=3), own_processes=2) == (
        "shared_device",
        "3 processes were on the device, 2 of them the run's own; end the others, or accept them with --allow-shared",
    )


def test_background_readings_are_selected_by_time() -> None:
    monitor = Monitor(ScriptedGpu(reading()))
    started = time.time()
    with monitor.running():
        time.sleep(0.55)
    conditions = monitor.between(started, time.time())
    assert conditions
    assert 3 <= conditions.samples <= 6
    assert monitor.between(started - 10, started - 5) is None


def test_cell_between_two_readings_uses_both() -> None:
    monitor = Monitor(ScriptedGpu(reading()))
    with monitor.running():
        time.sleep(0.55)
    start_s = time.time() - 0.3
    conditions = monitor.between(start_s, start_s + 1e-6)
    assert conditions
    assert conditions.samples >= 2


def test_cool_down_waits_for_the_initial_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = ScriptedGpu(reading(temperature=40))
    monitor = Monitor(gpu)
    with monitor.running():
        time.sleep(0.25)
    slept: list[float] = []
    monkeypatch.setattr("benchmarker.hardware.monitor.time.sleep", slept.append)
    gpu.show(reading(temperature=80), reading(temperature=46), reading(temperature=45))
    monitor.cool_down()
    assert slept == [1.0, 1.0]
    monitor.cool_down()
    assert slept == [1.0, 1.0]


def test_cool_down_uses_the_first_reading_after_it_was_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarker.hardware.monitor.CAPACITY", 1)
    gpu = ScriptedGpu(reading(temperature=40), reading(temperature=80))
    monitor = Monitor(gpu)
    with monitor.running():
        time.sleep(0.35)
    slept: list[float] = []
    monkeypatch.setattr("benchmarker.hardware.monitor.time.sleep", slept.append)
    gpu.show(reading(temperature=80), reading(temperature=44))
    monitor.cool_down()
    assert slept == [1.0]


class BrokenGpu(ScriptedGpu):
    """GPU that raises an error at its last reading."""

    def state(self) -> GpuState:
        if len(self._states) == 1:
            raise AttributeError("no such attribute")
        return super().state()


def test_unreadable_gpu_is_reported_once_and_the_sweep_continues(tmp_path: Path) -> None:
    work = {"variant": "a", "at": "cell 0", "do": "work", "seconds": 1}
    monitor = Monitor(BrokenGpu(reading(), reading(), reading()))
    stage = Stage(tmp_path, rounds=2, faults=[work], find_monitor=lambda surroundings: monitor)
    assert stage.sweep() == []
    problem = (
        "the board cannot be read (AttributeError: no such attribute); "
        "clocks and throttling are not watched from here on"
    )
    assert " ".join(stage.printed.split()).count(problem) == 1
    monitor.cool_down()


def test_cpu_and_missing_driver_have_no_monitor() -> None:
    assert find_monitor(records.cpu_environment()) is None
    assert find_monitor(records.environment(device={"uuid": "GPU-0"})) is None


def test_nvml_values_are_converted_and_may_be_missing() -> None:
    nvml = FakeNvml(
        nvmlDeviceGetPowerUsage=350_500,
        nvmlDeviceGetCurrentClocksThrottleReasons=0x1 | 0x4 | 0x40,
        nvmlDeviceGetClockInfo=1755,
        nvmlDeviceGetTemperature=61,
        nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=7)],
    )
    held = nvml.lookup({policy: SimpleNamespace(violationTime=1000 * policy) for policy in (0, 1)})
    nvml.answers["nvmlDeviceGetViolationStatus"] = lambda handle, policy: held(policy)
    gpu = NvidiaGpu(nvml, "card")
    assert gpu.full_clock_mhz() is None
    expected = reading(1755, 61, 350.5, "power_cap", "hardware_thermal")
    assert replace(gpu.state(), time_s=0.0) == replace(expected, held_ns={"power_cap": 0, "thermal": 1000}, processes=1)


def test_driver_without_values_leaves_throttling_unknown() -> None:
    conditions = conditions_of([NvidiaGpu(FakeNvml(), "card").state()], full_clock_mhz=None)
    assert conditions == Conditions(samples=1, throttled_by=None)
    assert why_invalid(conditions) is None


def test_throttling_between_two_readings_is_detected() -> None:
    readings = [replace(reading(), held_ns={"thermal": 5_000, "power_cap": 7})] + 3 * [
        replace(reading(), held_ns={"thermal": 9_000, "power_cap": 7})
    ]
    assert conditions_of(readings, full_clock_mhz=None) == Conditions(
        samples=4, sm_clock_mhz=1980, temperature_c=40.0, power_w=300.0, throttled_by=("thermal",)
    )


def test_throttled_cell_is_measured_again_with_its_reason(tmp_path: Path) -> None:
    hot = [reading(1980, 40, 300.0, "hardware_thermal")] * 3
    work = {"variant": "a", "at": "cell 0", "do": "work", "seconds": 1}
    gpu = ScriptedGpu(*hot, reading(1980, 40, 300.0, "power_cap"))
    stage = Stage(
        tmp_path, variants=["a"], new_tokens=[50], faults=[work], find_monitor=lambda surroundings: Monitor(gpu)
    )
    assert stage.sweep() == []
    throttled, again = (record.cells[0] for record in stage.records())
    assert (throttled.status, throttled.reason) == ("invalid", "the board was throttled meanwhile (hardware thermal)")
    assert (again.status, again.flags) == ("ok", ("power_limited",))
    assert again.conditions
    assert again.conditions.throttled_by == ("power_cap",)


def throttled(environment: object) -> Monitor:
    return Monitor(ScriptedGpu(reading(1980, 90, 300.0, "hardware_thermal")))


def cool(environment: object) -> Monitor:
    return Monitor(ScriptedGpu(reading()))


SLOW = {"variant": "a", "at": "cell 0", "do": "slow"}
LONG_ENOUGH = [SLOW, {**SLOW, "at": "cell 1"}]
"""Each cell lasts until the monitor has a reading."""


@pytest.mark.parametrize(
    ("stop", "settings"), [("hang", {"timeout_s": 2.0}), ("interrupt", {})], ids=["--timeout", "Ctrl-C"]
)
def test_throttled_cell_of_a_stopped_sweep_is_invalid(tmp_path: Path, stop: str, settings: dict[str, float]) -> None:
    end = {"variant": "a", "at": "cell 1", "do": stop, "times": 1}
    stage = Stage(tmp_path, variants=["a"], find_monitor=throttled, faults=[SLOW, end])
    with contextlib.suppress(KeyboardInterrupt):
        stage.sweep(**settings)
    (record,) = stage.records()
    assert record.status == "interrupted"
    assert [(cell.status, cell.reason) for cell in record.cells] == [
        ("invalid", "the board was throttled meanwhile (hardware thermal)")
    ]
    stage.find_monitor = cool
    assert stage.sweep(resume=True) == []
    assert "0 of 2 cells are there already" in stage.printed
    assert stage.cells() == [(0, "a", 50, "ok"), (0, "a", 100, "ok")]


def test_cell_without_conditions_is_measured_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"], faults=LONG_ENOUGH)
    stage.sweep()
    stage.find_monitor = cool
    assert stage.sweep(resume=True) == []
    assert (
        "not used: the GPU's clocks and temperature were not read while it was measured; set aside as" in stage.printed
    )
    assert "0 of 2 cells are there already" in stage.printed
    assert [cell.conditions is not None for record in stage.records() for cell in record.cells] == [True, True]
    stage.sweep(resume=True)
    assert "2 of 2 cells are there already" in stage.printed


def test_cells_without_conditions_in_a_partly_judged_record_are_repeated(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"], find_monitor=cool, faults=LONG_ENOUGH)
    stage.sweep()
    (path,) = stage.results.glob("a-*.json")
    record = read_record(path)
    first, second = record.cells
    write_json(record.model_copy(update={"cells": (first, second.model_copy(update={"conditions": None}))}), path)
    assert stage.sweep(resume=True) == []
    assert "1 of 2 cells are there already" in stage.printed
    assert stage.cells() == [(0, "a", 50, "ok"), (0, "a", 100, "invalid"), (0, "a", 100, "ok")]
