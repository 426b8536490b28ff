"""Peak memory of a cell, and memory growth of the whole GPU as its driver reports it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from benchmarker.hardware.device import CpuDevice, CudaDevice, PeakMemory
from benchmarker.hardware.gpu import DeviceMemory, find_amd_gpu, find_nvidia_gpu, recorded_gpu
from benchmarker.measure.repeat import memory_of
from benchmarker.schema.record import DeviceFacts, Memory
from tests.fakes import FakeNvml

GIB = 2**30


@pytest.fixture
def nvml(monkeypatch):
    """Return pynvml with two GPUs. The second is torch's device 0, as with CUDA_VISIBLE_DEVICES=1."""
    fake = FakeNvml(nvmlDeviceGetUUID=lambda handle: handle)
    fake.used = {"GPU-aa": 1 * GIB, "GPU-bb": 2 * GIB}
    used_by = fake.lookup(fake.used)
    fake.answers["nvmlDeviceGetHandleByUUID"] = lambda uuid: fake.lookup({name: name for name in fake.used})(uuid)
    fake.answers["nvmlDeviceGetMemoryInfo"] = lambda handle: SimpleNamespace(used=used_by(handle))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="bb"))
    return fake


def test_growth_is_of_the_gpu_with_the_uuid_of_torch(nvml):
    memory = DeviceMemory(CudaDevice(0))
    nvml.used["GPU-aa"] += 50 * GIB
    nvml.used["GPU-bb"] += 3 * GIB
    assert memory.before_bytes == 2 * GIB
    assert memory.growth_bytes() == 3 * GIB


def test_negative_growth_is_none(nvml):
    memory = DeviceMemory(CudaDevice(0))
    nvml.used["GPU-bb"] -= GIB
    assert memory.growth_bytes() is None


def test_unreported_memory_is_none(nvml):
    nvml.used["GPU-bb"] = None
    assert DeviceMemory(CudaDevice(0)).growth_bytes() is None


def test_growth_without_nvml_or_on_cpu_is_none(monkeypatch, nvml):
    assert DeviceMemory(CpuDevice()).growth_bytes() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert DeviceMemory(CudaDevice(0)).growth_bytes() is None


def test_nvml_without_driver_has_no_gpu(nvml, monkeypatch):
    def refuse():
        raise nvml.NVMLError("driver not loaded")

    monkeypatch.setattr(nvml, "nvmlInit", refuse)
    assert find_nvidia_gpu("bb") is None


def test_mig_instance_is_found_by_uuid(nvml):
    nvml.used["MIG-cc"] = GIB
    gpu = find_nvidia_gpu("cc")
    assert gpu is not None
    assert (gpu.uuid, gpu.driver, gpu.used_bytes()) == ("MIG-cc", "580.159.04", GIB)
    assert find_nvidia_gpu("dd") is None


def test_gpu_of_a_record_is_found_by_uuid(nvml):
    nvml.used["MIG-cc"] = GIB
    for uuid in ("GPU-bb", "MIG-cc"):
        gpu = recorded_gpu(DeviceFacts(kind="cuda", name="NVIDIA H100", uuid=uuid))
        assert gpu is not None
        assert gpu.uuid == uuid
    assert recorded_gpu(DeviceFacts(kind="cuda", name="NVIDIA H100", uuid="MIG-bb")) is None
    assert recorded_gpu(DeviceFacts(kind="cuda", name="NVIDIA H100")) is None
    assert recorded_gpu(DeviceFacts(kind="cpu", name="a processor", uuid="GPU-bb")) is None


class FakeAmdsmi(ModuleType):
    """Two GPUs with memory in MiB, as in amdsmi."""

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


def test_amd_gpu_is_found_by_pci_address(monkeypatch):
    fake = FakeAmdsmi()
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x83, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    memory = DeviceMemory(CudaDevice(0))
    fake.used["0000:83:00.0"] += 2048

    assert memory.before_bytes == 300 * 2**20
    assert memory.growth_bytes() == 2 * GIB


def test_values_that_amdsmi_does_not_report_are_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", FakeAmdsmi())
    gpu = find_amd_gpu("0000:03:00")
    assert gpu is not None
    assert gpu.driver is None
    assert gpu.uuid == "a4ff740f-0000-1000-80e5-a36ee91f2b6d"
    assert find_amd_gpu("0000:04:00") is None
    recorded = recorded_gpu(DeviceFacts(kind="rocm", name="AMD Instinct MI300X", uuid=gpu.uuid))
    assert recorded is not None
    assert recorded.uuid == gpu.uuid


def test_memory_of_a_cell_is_the_maximum_over_its_repeats():
    peaks = [PeakMemory(allocated_bytes=size * GIB, reserved_bytes=6 * GIB) for size in (3, 5, 4)]
    assert memory_of(peaks) == Memory(peak_allocated_bytes=5 * GIB, peak_reserved_bytes=6 * GIB)


def test_cpu_cell_has_only_resident_memory():
    peaks = [PeakMemory(resident_bytes=GIB, growth_bytes=5), PeakMemory(resident_bytes=GIB - 1, growth_bytes=3)]
    assert memory_of(peaks) == Memory(peak_resident_bytes=GIB, resident_growth_bytes=5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device")
def test_growth_includes_an_allocation_of_torch():
    # torch may still reserve memory from earlier tests. An allocation within it would not change the driver's value.
    torch.cuda.empty_cache()
    reserved_bytes = torch.cuda.memory_reserved(0) - torch.cuda.memory_allocated(0)
    memory = DeviceMemory(CudaDevice(0))
    if memory.before_bytes is None:
        pytest.skip("neither NVML nor amdsmi answers here")
    assert memory.growth_bytes() < 64 * 2**20 or torch.cuda.memory_reserved(0), "reading the memory created a context"
    block = torch.empty(GIB + reserved_bytes, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    growth = memory.growth_bytes()
    assert growth is not None
    assert growth >= block.numel()
