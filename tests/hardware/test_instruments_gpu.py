"""Instruments of a GPU are compared with known values, and energy is read from its counter."""

from __future__ import annotations

import pytest

from benchmarker.doctor.instruments import readings
from benchmarker.hardware.device import CudaDevice, find_device
from benchmarker.hardware.gpu import find_gpu
from benchmarker.measure.energy import WINDOW_S, WINDOWS, measure_energy

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]


@pytest.fixture
def device() -> CudaDevice:
    cuda_device = find_device("cuda")
    assert isinstance(cuda_device, CudaDevice)
    return cuda_device


def test_every_instrument_is_accurate(device):
    by_name = {result.instrument: result for result in readings(device)}
    assert all(result.is_right is not False for result in by_name.values()), by_name
    assert by_name["clock"].is_right
    assert by_name["memory"].is_right


def test_work_uses_more_power_than_idling(device):
    matrix = torch.randn(4096, 4096, device=device.torch_name, dtype=torch.float16)

    def work() -> None:
        for _ in range(50):
            torch.mm(matrix, matrix)
        device.synchronize()

    energy = measure_energy(find_gpu(device), generation=work, prefill=None)
    assert len(energy.generation) == WINDOWS
    assert energy.idle_power_w is not None
    for window in energy.generation:
        assert window.seconds >= WINDOW_S
        assert window.energy_j / window.seconds > energy.idle_power_w
