"""On a GPU: the instruments compared with known values, and energy from the real counter."""

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
    found = find_device("cuda")
    assert isinstance(found, CudaDevice)
    return found


def test_every_instrument_is_accurate(device):
    shown = {one.instrument: one for one in readings(device)}
    assert all(one.is_right is not False for one in shown.values()), shown
    assert shown["clock"].is_right
    assert shown["memory"].is_right


def test_work_takes_more_energy_than_idling(device):
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
