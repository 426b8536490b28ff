"""Peak memory, and what the driver says of the whole board."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from benchmarker.hardware.device import CpuDevice, CudaDevice, PeakMemory
from benchmarker.hardware.gpu import DeviceMemory, find_amd_gpu, find_nvidia_gpu, recorded_gpu
from benchmarker.measure.repeat import memory_of
from benchmarker.schema.record import DeviceFacts, Memory

GIB = 2**30


class FakeNvml(ModuleType):
    """Two cards; the second is the one torch calls number 0 when CUDA_VISIBLE_DEVICES=1."""

    class NVMLError(Exception):
        pass

    def __init__(self):
        super().__init__("pynvml")
        self.used = {"GPU-aa": 1 * GIB, "GPU-bb": 2 * GIB}

    def nvmlInit(self): ...

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in self.used:
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        assert version is None
        if self.used[handle] is None:
            raise self.NVMLError("not supported")
        return SimpleNamespace(used=self.used[handle])

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlSystemGetDriverVersion(self):
        return "580.159.04"


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="bb"))
    return fake


def test_growth_is_of_the_card_that_torch_uses_not_of_the_one_with_its_number(nvml):
    memory = DeviceMemory(CudaDevice(0))
    nvml.used["GPU-aa"] += 50 * GIB
    nvml.used["GPU-bb"] += 3 * GIB
    assert memory.before_bytes == 2 * GIB
    assert memory.growth_bytes() == 3 * GIB


def test_growth_is_not_known_where_another_program_gave_memory_back(nvml):
    memory = DeviceMemory(CudaDevice(0))
    nvml.used["GPU-bb"] -= GIB
    assert memory.growth_bytes() is None


def test_a_driver_that_does_not_say_is_none_and_not_zero(nvml):
    nvml.used["GPU-bb"] = None
    assert DeviceMemory(CudaDevice(0)).growth_bytes() is None


def test_without_a_library_or_on_cpu_there_is_no_growth(monkeypatch, nvml):
    assert DeviceMemory(CpuDevice()).growth_bytes() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert DeviceMemory(CudaDevice(0)).growth_bytes() is None


def test_a_library_without_its_driver_is_no_gpu(nvml, monkeypatch):
    def refuse():
        raise nvml.NVMLError("driver not loaded")

    monkeypatch.setattr(nvml, "nvmlInit", refuse)
    assert find_nvidia_gpu("bb") is None


def test_a_slice_of_a_card_is_found_too(nvml):
    nvml.used["MIG-cc"] = GIB
    gpu = find_nvidia_gpu("cc")
    assert gpu is not None
    assert (gpu.uuid, gpu.driver, gpu.used_bytes()) == ("MIG-cc", "580.159.04", GIB)
    assert find_nvidia_gpu("dd") is None


def test_a_gpu_is_found_by_the_uuid_of_its_record(nvml):
    nvml.used["MIG-cc"] = GIB
    for uuid in ("GPU-bb", "MIG-cc"):
        gpu = recorded_gpu(DeviceFacts(kind="cuda", name="NVIDIA H100", uuid=uuid))
        assert gpu is not None
        assert gpu.uuid == uuid
    assert recorded_gpu(DeviceFacts(kind="cuda", name="NVIDIA H100", uuid="MIG-bb")) is None
    assert recorded_gpu(DeviceFacts(kind="cuda", name="NVIDIA H100")) is None
    assert recorded_gpu(DeviceFacts(kind="cpu", name="a processor", uuid="GPU-bb")) is None


class FakeAmdsmi(ModuleType):
    """Two cards, with readings in units of 2^20 bytes as the real one has them."""

    class AmdSmiException(Exception):  # noqa: N818 - amdsmi's name
        pass

    def __init__(self):
        super().__init__("amdsmi")
        self.used = {"0000:03:00.0": 100, "0000:83:00.0": 300}

    def amdsmi_init(self): ...

    def amdsmi_get_processor_handles(self):
        return list(self.used)

    def amdsmi_get_gpu_device_bdf(self, handle):
        return handle

    def amdsmi_get_gpu_vram_usage(self, handle):
        return {"vram_total": 65520, "vram_used": self.used[handle]}

    def amdsmi_get_gpu_device_uuid(self, handle):
        return "a4ff740f-0000-1000-80e5-a36ee91f2b6d"

    def amdsmi_get_gpu_driver_info(self, handle):
        raise self.AmdSmiException("not supported")


def test_an_amd_card_is_found_by_its_address(monkeypatch):
    fake = FakeAmdsmi()
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    place = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x83, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: place)

    memory = DeviceMemory(CudaDevice(0))
    fake.used["0000:83:00.0"] += 2048

    assert memory.before_bytes == 300 * 2**20
    assert memory.growth_bytes() == 2 * GIB


def test_what_amdsmi_cannot_say_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", FakeAmdsmi())
    gpu = find_amd_gpu("0000:03:00")
    assert gpu is not None
    assert gpu.driver is None
    assert gpu.uuid == "a4ff740f-0000-1000-80e5-a36ee91f2b6d"
    assert find_amd_gpu("0000:04:00") is None
    recorded = recorded_gpu(DeviceFacts(kind="rocm", name="AMD Instinct MI300X", uuid=gpu.uuid))
    assert recorded is not None
    assert recorded.uuid == gpu.uuid


def test_a_cells_memory_is_the_peak_over_its_repeats():
    peaks = [PeakMemory(allocated_bytes=size * GIB, reserved_bytes=6 * GIB) for size in (3, 5, 4)]
    assert memory_of(peaks) == Memory(peak_allocated_bytes=5 * GIB, peak_reserved_bytes=6 * GIB)


def test_on_cpu_only_resident_memory_is_known():
    peaks = [PeakMemory(resident_bytes=GIB, growth_bytes=5), PeakMemory(resident_bytes=GIB - 1, growth_bytes=3)]
    assert memory_of(peaks) == Memory(peak_resident_bytes=GIB, resident_growth_bytes=5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device")
def test_the_driver_sees_what_torch_takes():
    # What earlier tests gave back torch may still hold: an allocation that fits in it would be no news to the driver.
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved(0) - torch.cuda.memory_allocated(0)
    memory = DeviceMemory(CudaDevice(0))
    if memory.before_bytes is None:
        pytest.skip("neither NVML nor amdsmi answers here")
    assert memory.growth_bytes() < 64 * 2**20 or torch.cuda.memory_reserved(0), "looking made a context"
    taken = torch.empty(GIB + held, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    growth = memory.growth_bytes()
    assert growth is not None
    assert growth >= taken.numel()
