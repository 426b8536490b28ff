"""Energy is measured with a plausible counter and divided by the number of tokens."""

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
    """Fake GPU and clock: energy grows with idle power during `sleep` and with busy power during `work`."""

    now_s: float = 0.0
    joules: float = 5000.0
    counts: bool = True
    reported_w: float | None = BUSY_W
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
        return self.reported_w

    def temperature_c(self) -> float | None:
        return 40.0

    def perf_counter(self) -> float:
        return self.now_s


def measure(gpu: CountingGpu, *, seconds: float = 0.5) -> Energy:
    with mock.patch("benchmarker.measure.energy.time", gpu):
        return measure_energy(gpu, generation=lambda: gpu.work(seconds), prefill=lambda: gpu.work(0.1))


def test_windows_contain_whole_generations_for_at_least_ten_seconds():
    energy = measure(CountingGpu())
    assert len(energy.generation) == len(energy.prefill) == WINDOWS
    for window in energy.generation:
        assert window.seconds >= WINDOW_S
        assert window.energy_j == pytest.approx(BUSY_W * window.seconds)
        assert window.generations == window.seconds / 0.5
    assert energy.idle_power_w == pytest.approx(IDLE_W)


def test_long_generation_is_repeated_the_minimum_number_of_times():
    assert measure(CountingGpu(), seconds=8.0).generation[0].generations == LEAST_GENERATIONS


def test_idle_power_is_measured_over_one_window():
    gpu = CountingGpu()
    measure(gpu)
    assert gpu.slept_s == [WINDOW_S]


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (None, "only GPUs have the counter"),
        (CountingGpu(counts=False), "no energy counter"),
        (CountingGpu(reported_w=100.0), "gives 300 W and the power readings 100 W; one is wrong"),
    ],
)
def test_missing_or_implausible_counter_raises_with_a_reason(gpu, reason):
    with mock.patch("benchmarker.measure.energy.time", gpu), pytest.raises(DeviceError, match=reason):
        measure_energy(gpu, generation=gpu.work if gpu else list, prefill=None)


def test_constant_counter_is_refused():
    class Stuck(CountingGpu):
        def energy_j(self) -> float | None:
            return 7.0

    with pytest.raises(DeviceError, match="did not move"):
        measure(Stuck())


def test_gpu_without_power_readings_is_accepted():
    assert measure(CountingGpu(reported_w=None)).generation


def energy(per_generation_j: float, *, prefill_j: float = 2.0) -> Energy:
    """Return windows of ten generations of 1 s and of 100 prefills of 0.1 s, on a GPU with an idle power of 10 W."""
    return Energy(
        idle_power_w=10.0,
        generation=(EnergyWindow(seconds=10.0, energy_j=10 * per_generation_j, generations=10),) * 3,
        prefill=(EnergyWindow(seconds=10.0, energy_j=100 * prefill_j, generations=100),) * 3,
    )


def test_energy_is_divided_by_the_number_of_tokens(tmp_path):
    save(tmp_path, record("fp16", cell(new_tokens=50, energy=energy(100.0))))
    (row,) = compare([tmp_path]).rows
    assert row.energy is not None
    assert row.energy.per_token.value == pytest.approx(100.0 / 50)
    assert row.energy.net_per_token_j == pytest.approx((100.0 - 10.0) / 50)
    assert row.energy.decode_per_token_j == pytest.approx((100.0 - 2.0) / 49)
    assert row.energy.prefill_j == pytest.approx(2.0)


def test_energy_of_a_batch_is_divided_by_its_sequences(tmp_path):
    save(tmp_path, record("fp16", cell(new_tokens=50, batch_size=4, energy=energy(100.0))))
    (row,) = compare([tmp_path]).rows
    assert row.energy is not None
    assert row.energy.per_token.value == pytest.approx(100.0 / 200)
    assert row.energy.prefill_j == pytest.approx(0.5)


def test_energy_has_an_interval_over_rounds_or_a_dash(tmp_path):
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


def test_reason_for_missing_energy_is_one_caveat(tmp_path):
    no_energy = missing("this board or its driver has no energy counter", "device")
    text = to_markdown(
        compare([save(tmp_path, record("fp16", no_energy=no_energy), record("int8", no_energy=no_energy))])
    )
    assert f"- fp16, int8: no energy: {no_energy.reason}." in text


class FakeLibrary:
    """Fake of NVML and amdsmi that returns values in their units."""

    NVMLError = AmdSmiException = RuntimeError
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def __getattr__(self, name):
        raise self.NVMLError(name)

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


def test_amd_gpu_state_uses_a_single_reading(monkeypatch):
    readings = []

    def read(handle):
        readings.append(handle)
        return {"average_socket_power": 250 + len(readings), "temperature_hotspot": 61, "current_gfxclk": 1700}

    library = FakeLibrary()
    monkeypatch.setattr(library, "amdsmi_get_gpu_metrics_info", read, raising=False)
    state = AmdGpu(library, None).state()
    assert (state.power_w, state.temperature_c, state.clock_mhz, state.throttled_by) == (251, 61, 1700, None)
    assert len(readings) == 1


def test_gpu_readings_are_in_base_units():
    nvidia, amd = NvidiaGpu(FakeLibrary(), None), AmdGpu(FakeLibrary(), None)
    assert nvidia.energy_j() == 5000.0
    assert nvidia.power_w() == 310.5
    assert nvidia.temperature_c() is None
    assert nvidia.memory_bytes_per_s() == pytest.approx(3.352e12, rel=1e-3)
    assert amd.energy_j() == pytest.approx(15.3)
    assert amd.power_w() == 250.0
    assert amd.temperature_c() == 61.0
    assert amd.memory_bytes_per_s() is None


def test_energy_outside_the_first_table_is_shown_in_the_grid(tmp_path):
    cell_energy = energy(600.0)
    small = cell([1.0] * 3, batch_size=1)
    save(
        tmp_path,
        record(
            "fp16", cell([1.0] * 3, batch_size=1, energy=cell_energy), failed_cell("oom_gpu", "full", batch_size=32)
        ),
        record("int8", small, cell([1.5] * 3, batch_size=32, energy=cell_energy)),
        record("bnb4", small),
    )
    grid = to_markdown(compare([tmp_path])).split("**Every cell**")[1]
    assert "J/token" in grid.split("\n\n")[1]
