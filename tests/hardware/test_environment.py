"""The environment in a record is complete and contains no secrets."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarker.hardware import read_environment as host
from benchmarker.hardware.device import CpuDevice, CudaDevice
from benchmarker.hardware.read_environment import commit_of, environment, recorded_variables
from tests.fakes import FakeNvml


def test_environment_of_a_cpu_run_is_recorded():
    recorded = environment(CpuDevice())

    assert recorded.device.kind == "cpu"
    assert recorded.device.name == recorded.cpu != ""
    assert recorded.device.index is recorded.device.uuid is recorded.device.driver is None
    assert recorded.cores >= 1
    assert recorded.threads == torch.get_num_threads()
    assert recorded.packages["torch"] == torch.__version__
    assert "transformers" in recorded.packages
    assert recorded.memory_bytes > 2**28


def test_reading_the_environment_is_fast():
    environment(CpuDevice())
    started = time.perf_counter()
    environment(CpuDevice())
    assert time.perf_counter() - started < 0.3


def test_secrets_and_paths_are_not_recorded(monkeypatch):
    secrets = {
        "HF_TOKEN": "hf_s3cret",
        "HUGGING_FACE_HUB_TOKEN": "hf_s3cret",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "TORCHINDUCTOR_API_KEY": "s3cret",
        "TORCHINDUCTOR_CACHE_DIR": "/home/s3cret/cache",
        "TORCHINDUCTOR_REDIS_URL": "redis://s3cret",
        "OMP_NUM_THREADS_TOKEN": "s3cret",
        "MY_OMP_NUM_THREADS": "s3cret",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")

    recorded = environment(CpuDevice())

    assert "s3cret" not in recorded.model_dump_json()
    assert recorded.variables["OMP_NUM_THREADS"] == "2"


def test_variables_that_affect_speed_are_recorded_sorted_by_name():
    variables = {
        "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "backend:native",
        "HIP_VISIBLE_DEVICES": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_API_KEY": "secret",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_PROFILE": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/home/somebody/cache",
        "HF_TOKEN": "secret",
        "HOME": "/home/somebody",
    }
    private = {"HOME", "HF_TOKEN", "VLLM_API_KEY", "TORCHINDUCTOR_CACHE_DIR"}
    assert list(recorded_variables(variables)) == sorted(set(variables) - private)


def test_commit_of_clean_modified_and_installed_packages(tmp_path):
    package = tmp_path / "benchmarker"
    package.mkdir()
    (package / "a.py").write_text("1")
    assert commit_of(package) is None

    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert commit_of(package) is None  # no commit
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    clean = commit_of(package)
    assert clean is not None
    assert len(clean) == 40

    (tmp_path / "results.json").write_text("a record is no change of the program")
    assert commit_of(package) == clean
    (package / "b.py").write_text("2")
    assert commit_of(package) == f"{clean}+changes"


def test_environment_contains_the_commit_of_this_checkout():
    checkout = Path(__file__).parents[2]
    commit = commit_of(checkout / "benchmarker")
    assert environment(CpuDevice()).commit == commit
    assert (commit is not None) == (checkout / ".git").exists()


def test_commit_is_none_without_git(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", "")
    assert commit_of(tmp_path / "benchmarker") is None


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Make /proc and /sys/fs/cgroup for a process in the group /job/ours."""
    monkeypatch.setattr(host, "PROC", tmp_path / "proc")
    monkeypatch.setattr(host, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(host.psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * 2**30, available=32 * 2**30))
    (tmp_path / "proc/self").mkdir(parents=True)

    def write(own, files):
        (tmp_path / "proc/self/cgroup").write_text(own)
        for name, text in files.items():
            (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "cgroup" / name).write_text(text)

    return write


def test_affinity_and_total_memory_apply_without_control_groups(groups):
    assert host.cores() == 16
    assert host.memory_bytes() == 64 * 2**30


def test_smallest_quota_of_a_group_and_its_parents_applies(groups):
    groups(
        "0::/job/ours\n",
        {
            "cpu.max": "max 100000\n",
            "job/cpu.max": "250000 100000\n",
            "job/ours/cpu.max": "max 100000\n",
            "job/memory.max": "max\n",
            "job/ours/memory.max": str(8 * 2**30),
        },
    )
    assert host.cores() == 3  # 2.5, rounded up
    assert host.memory_bytes() == 8 * 2**30


def test_control_groups_of_version_1_are_read(groups):
    groups(
        "5:memory:/job\n4:cpu,cpuacct:/job\n",
        {
            "cpu,cpuacct/job/cpu.cfs_quota_us": "200000\n",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "memory/job/memory.limit_in_bytes": str(4 * 2**30),
            "memory/memory.limit_in_bytes": str(2**63 - 4096),
        },
    )
    assert host.cores() == 2
    assert host.memory_bytes() == 4 * 2**30


def test_root_control_group_applies_in_a_container(groups):
    groups("0::/docker/0123abc\n", {"cpu.max": "150000 100000"})
    assert host.cores() == 2


def properties(**more):
    defaults = {"name": "NVIDIA H100 80GB HBM3", "total_memory": 80 * 2**30, "major": 9, "minor": 0, "uuid": "12-ab"}
    return SimpleNamespace(**(defaults | more))


def test_nvidia_gpu_is_recorded(monkeypatch):
    nvml = FakeNvml(nvmlDeviceGetUUID="GPU-12-ab", nvmlDeviceGetPowerManagementLimit=700_000)
    nvml.answers["nvmlDeviceGetHandleByUUID"] = nvml.lookup({"GPU-12-ab": "handle"})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties())
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    recorded = environment(CudaDevice(1)).device

    assert recorded.model_dump() == {
        "kind": "cuda",
        "name": "NVIDIA H100 80GB HBM3",
        "index": 1,
        "uuid": "GPU-12-ab",
        "memory_bytes": 80 * 2**30,
        "capability": "9.0",
        "driver": "580.159.04",
        "runtime": "13.0",
        "power_limit_w": 700.0,
    }


def test_nvidia_gpu_without_nvml_has_a_uuid(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties())

    recorded = environment(CudaDevice(0)).device

    assert recorded.uuid == "GPU-12-ab"
    assert recorded.driver is None


def test_amd_gpu_without_amdsmi_is_recorded(monkeypatch):
    amd = properties(
        name="AMD Instinct MI210",
        gcnArchName="gfx90a:sramecc+:xnack-",
        pci_domain_id=0,
        pci_bus_id=3,
        pci_device_id=0,
        uuid="61356236",
    )
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: amd)
    monkeypatch.setattr(torch.version, "hip", "6.4.1")

    recorded = environment(CudaDevice(0)).device

    assert (recorded.kind, recorded.name, recorded.capability, recorded.runtime) == (
        "rocm",
        "AMD Instinct MI210",
        "gfx90a",
        "6.4.1",
    )
    assert recorded.uuid is None
    assert recorded.driver is None


def test_cached_files_of_a_control_group_are_available_memory(groups):
    groups("0::/job/ours\n", {"memory.max": "max\n"})
    assert host.available_bytes() == 32 * 2**30
    groups(
        "0::/job/ours\n",
        {
            "job/ours/memory.max": f"{8 * 2**30}\n",
            "job/ours/memory.current": f"{6 * 2**30}\n",
            "job/ours/memory.stat": f"anon {3 * 2**30}\ninactive_file {3 * 2**30}\n",
        },
    )
    assert host.available_bytes() == 5 * 2**30
