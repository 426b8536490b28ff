"""Devices are selected and report their memory; GPUs are simulated."""

import pytest
import torch

from benchmarker.core.errors import DeviceError
from benchmarker.hardware.device import CpuDevice, CudaDevice, devices_from, find_device


@pytest.fixture
def gpus(monkeypatch):
    """Let torch report two GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_auto_selects_an_available_gpu(gpus):
    assert find_device().torch_name == "cuda:0"


def test_auto_selects_the_cpu_without_a_gpu(no_gpu):
    assert find_device("auto").torch_name == "cpu"


def test_gpu_is_selected_by_number(gpus):
    assert find_device("cuda").torch_name == "cuda:0"
    assert find_device("cuda:1").torch_name == "cuda:1"
    assert find_device("cuda:1").torch_name == "cuda:1"


def test_missing_gpu_number_is_refused(gpus):
    with pytest.raises(DeviceError, match=r"^--device cuda:2: there is no GPU 2; torch sees 2, numbered from 0$"):
        find_device("cuda:2")


def test_cuda_is_refused_without_a_gpu(no_gpu):
    with pytest.raises(DeviceError, match=r"^--device cuda: torch sees no GPU here .*use --device cpu"):
        find_device("cuda")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:a", "", "CPU", "cpu:0"])
def test_invalid_device_name_is_refused(name, gpus):
    with pytest.raises(DeviceError, match="write auto, cpu, cuda or cuda:N"):
        find_device(name)


def test_torch_cuda_on_amd_is_rocm(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    assert CudaDevice(0).kind == "rocm"
    monkeypatch.setattr(torch.version, "hip", None)
    assert CudaDevice(0).kind == "cuda"


def test_reset_lowers_the_resident_peak_to_current_usage():
    device = CpuDevice()
    device.reset_peak()
    before = device.peak_memory().resident_bytes
    if before is None:
        pytest.skip("no /proc here")
    block = torch.ones(2**26, dtype=torch.uint8)
    grown = device.peak_memory().resident_bytes
    assert grown is not None
    assert grown - before > 2**25
    del block
    # Returns freed memory to the system. The block may lie in glibc's heap if earlier tests freed large tensors there.
    device.begin_growth()
    device.reset_peak()
    after = device.peak_memory().resident_bytes
    assert after is not None
    assert after < grown - 2**25


def test_growth_excludes_memory_before_the_load():
    device = CpuDevice()
    device.begin_growth()
    device.reset_peak()
    if device.peak_memory().resident_bytes is None:
        pytest.skip("no /proc here")
    block = torch.ones(2**26, dtype=torch.uint8)
    peak = device.peak_memory()
    assert peak.growth_bytes is not None
    assert peak.resident_bytes is not None
    # Python and torch alone use more than 128 MiB.
    assert 2**25 < peak.growth_bytes < 2**27 < peak.resident_bytes
    del block


def test_growth_includes_reused_heap_memory():
    device = CpuDevice()
    # Each block is smaller than glibc's threshold for mmap; the last block keeps the memory of the others in the heap.
    blocks = [torch.ones(2**16, dtype=torch.uint8) for _ in range(2**10)]
    last = blocks.pop()
    del blocks
    device.begin_growth()
    device.reset_peak()
    if device.peak_memory().resident_bytes is None:
        pytest.skip("no /proc here")
    blocks = [torch.ones_like(last) for _ in range(2**10)]
    growth_bytes = device.peak_memory().growth_bytes
    assert growth_bytes is not None
    assert growth_bytes > 2**25, len(blocks)


def test_growth_requires_begin_growth():
    device = CpuDevice()
    device.reset_peak()
    assert device.peak_memory().growth_bytes is None


def test_cpu_has_no_allocator_peaks():
    peak = CpuDevice().peak_memory()
    assert peak.allocated_bytes is None
    assert peak.reserved_bytes is None


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), True),
        (RuntimeError("HIP out of memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_out_of_memory_errors_of_a_gpu_are_recognized(error, is_memory):
    assert CudaDevice(0).is_out_of_memory(error) is is_memory


def test_out_of_memory_errors_of_a_cpu_are_recognized():
    device = CpuDevice()
    assert device.is_out_of_memory(MemoryError())
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert device.is_out_of_memory(caught.value)
    assert not device.is_out_of_memory(RuntimeError("other"))


def test_peak_that_cannot_be_reset_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarker.hardware.device.CLEAR_REFS", tmp_path / "missing" / "clear_refs")
    device = CpuDevice()
    device.reset_peak()
    assert device.peak_memory().resident_bytes is None


def test_devices_beyond_the_last_gpu_are_refused(gpus):
    assert [device.torch_name for device in devices_from(find_device("cuda:0"), 2)] == ["cuda:0", "cuda:1"]
    with pytest.raises(DeviceError, match="there is no GPU 2"):
        devices_from(find_device("cuda:1"), 2)
