"""Energy: readings of the counter, their plausibility, and joules per token."""

from __future__ import annotations

from dataclasses import dataclass, field
from unittest import mock

import pytest

from benchmarker.core.errors import DeviceError
from benchmarker.hardware.gpu import AmdGpu, NvidiaGpu
from benchmarker.measure.energy import LEAST_GENERATIONS, WINDOW_S, WINDOWS, measure_energy
from benchmarker.report.compare import compare, to_markdown
from benchmarker.schema.record import Energy, EnergyWindow
from tests.fakes import FakeGpu
from tests.records import cell, failed_cell, missing, record, rounds, save

IDLE_W, BUSY_W = 100.0, 300.0


@dataclass
class CountingGpu(FakeGpu):
    """Counts energy as its own clock passes: at idle while it sleeps, more while it works."""

    now_s: float = 0.0
    joules: float = 5000.0
    counts: bool = True
    shown_w: float | None = BUSY_W
    generations: int = 0
    slept_s: list[float] = field(default_factory=list)

    def work(self, seconds: float = 0.5) -> None:
        self.generations += 1
        self._pass(seconds, BUSY_W)

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self._pass(seconds, IDLE_W)

    def _pass(self, seconds: float, watts: float) -> None:
        self.now_s += seconds
        self.joules += seconds * watts

    def energy_j(self) -> float | None:
        return self.joules if self.counts else None

    def power_w(self) -> float | None:
        return self.shown_w

    def temperature_c(self) -> float | None:
        return 40.0

    def perf_counter(self) -> float:
        return self.now_s


def counted(gpu: CountingGpu, *, seconds: float = 0.5) -> Energy:
    with mock.patch("benchmarker.measure.energy.time", gpu):
        return measure_energy(gpu, generation=lambda: gpu.work(seconds), prefill=lambda: gpu.work(0.1))


def test_every_window_holds_whole_generations_for_at_least_ten_seconds():
    energy = counted(CountingGpu())
    assert len(energy.generation) == len(energy.prefill) == WINDOWS
    for window in energy.generation:
        assert window.seconds >= WINDOW_S
        assert window.energy_j == pytest.approx(BUSY_W * window.seconds)
        assert window.generations == window.seconds / 0.5
    assert energy.idle_power_w == pytest.approx(IDLE_W)


def test_a_long_generation_is_repeated_often_enough():
    assert counted(CountingGpu(), seconds=8.0).generation[0].generations == LEAST_GENERATIONS


def test_idle_power_is_read_with_the_board_at_rest_for_as_long():
    gpu = CountingGpu()
    counted(gpu)
    assert gpu.slept_s == [WINDOW_S]


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        (None, "only GPUs have the counter"),
        (CountingGpu(counts=False), "no energy counter"),
        (CountingGpu(shown_w=100.0), "gives 300 W and the power readings 100 W; one is wrong"),
    ],
)
def test_a_missing_counter_gives_a_reason_instead_of_a_number(gpu, why):
    with mock.patch("benchmarker.measure.energy.time", gpu), pytest.raises(DeviceError, match=why):
        measure_energy(gpu, generation=gpu.work if gpu else list, prefill=None)


def test_a_constant_counter_is_refused():
    class Stuck(CountingGpu):
        def energy_j(self) -> float | None:
            return 7.0

    with pytest.raises(DeviceError, match="did not move"):
        counted(Stuck())


def test_a_board_without_power_readings_is_accepted():
    assert counted(CountingGpu(shown_w=None)).generation


def energy(per_generation_j: float, *, prefill_j: float = 2.0) -> Energy:
    """Ten generations of a second each, a tenth of it for the prefill, on a board that idles at 10 W."""
    return Energy(
        idle_power_w=10.0,
        generation=(EnergyWindow(seconds=10.0, energy_j=10 * per_generation_j, generations=10),) * 3,
        prefill=(EnergyWindow(seconds=10.0, energy_j=100 * prefill_j, generations=100),) * 3,
    )


def test_joules_become_joules_per_token(tmp_path):
    save(tmp_path, record("fp16", cell(new_tokens=50, energy=energy(100.0))))
    (row,) = compare([tmp_path]).rows
    assert row.energy is not None
    assert row.energy.per_token.value == pytest.approx(100.0 / 50)
    assert row.energy.net_per_token_j == pytest.approx((100.0 - 10.0) / 50)
    assert row.energy.decode_per_token_j == pytest.approx((100.0 - 2.0) / 49)
    assert row.energy.prefill_j == pytest.approx(2.0)


def test_a_batch_shares_its_energy(tmp_path):
    save(tmp_path, record("fp16", cell(new_tokens=50, batch_size=4, energy=energy(100.0))))
    (row,) = compare([tmp_path]).rows
    assert row.energy is not None
    assert row.energy.per_token.value == pytest.approx(100.0 / 200)
    assert row.energy.prefill_j == pytest.approx(0.5)


def test_rounds_give_an_interval_and_a_variant_without_energy_a_dash(tmp_path):
    latencies = [1.40, 1.41, 1.39]
    fp16 = [
        record("fp16", cell([latency], energy=energy(100.0 + number)), round_number=number)
        for number, latency in enumerate(latencies)
    ]
    text = to_markdown(compare([save(tmp_path, *fp16, *rounds("int8", latencies))]))
    assert "J/token | net J/token | decode J/token | prefill J |" in text
    fp16_line, int8_line = (line for line in text.splitlines() if line.startswith(("| fp16", "| int8")))
    assert "2.020 [1.971, 2.070] |       1.820 |          2.020 |     2.000 |" in fp16_line
    assert int8_line.endswith("|                    – |           – |              – |         – |")
    assert "It is not what the wall socket gives." in text


def test_a_reason_for_no_energy_is_a_caveat_once(tmp_path):
    why = missing("this board or its driver has no energy counter", "device")
    text = to_markdown(compare([save(tmp_path, record("fp16", no_energy=why), record("int8", no_energy=why))]))
    assert f"- fp16, int8: no energy: {why.reason}." in text


class FakeLibrary:
    """Answers as NVML and amdsmi do, in their units."""

    NVMLError = AmdSmiException = RuntimeError
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return 5_000_000

    def nvmlDeviceGetPowerUsage(self, handle):
        return 310_500

    def nvmlDeviceGetMemoryBusWidth(self, handle):
        return 5120

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return 2619

    def nvmlDeviceGetTemperature(self, handle, sensor):
        raise RuntimeError

    def amdsmi_get_energy_count(self, handle):
        return {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 0}

    def amdsmi_get_gpu_metrics_info(self, handle):
        return {"current_socket_power": "N/A", "average_socket_power": 250, "temperature_hotspot": 61}


def test_the_values_of_an_amd_gpus_state_are_of_one_reading(monkeypatch):
    readings = []

    def read(handle):
        readings.append(handle)
        return {"average_socket_power": 250 + len(readings), "temperature_hotspot": 61, "current_gfxclk": 1700}

    library = FakeLibrary()
    monkeypatch.setattr(library, "amdsmi_get_gpu_metrics_info", read, raising=False)
    state = AmdGpu(library, None).state()
    assert (state.power_w, state.temperature_c, state.clock_mhz, state.throttled_by) == (251, 61, 1700, None)
    assert len(readings) == 1


def test_the_gpus_give_base_units():
    nvidia, amd = NvidiaGpu(FakeLibrary(), None), AmdGpu(FakeLibrary(), None)
    assert nvidia.energy_j() == 5000.0
    assert nvidia.power_w() == 310.5
    assert nvidia.temperature_c() is None
    assert nvidia.memory_bytes_per_s() == pytest.approx(3.352e12, rel=1e-3)
    assert amd.energy_j() == pytest.approx(15.3)
    assert amd.power_w() == 250.0
    assert amd.temperature_c() == 61.0
    assert amd.memory_bytes_per_s() is None


def test_energy_of_a_cell_that_is_not_the_first_tables_is_shown_where_it_was_counted(tmp_path):
    counted = energy(600.0)
    small = cell([1.0] * 3, batch_size=1)
    save(
        tmp_path,
        record("fp16", cell([1.0] * 3, batch_size=1, energy=counted), failed_cell("oom_gpu", "full", batch_size=32)),
        record("int8", small, cell([1.5] * 3, batch_size=32, energy=counted)),
        record("bnb4", small),
    )
    grid = to_markdown(compare([tmp_path])).split("**Every cell**")[1]
    assert "J/token" in grid.split("\n\n")[1]
