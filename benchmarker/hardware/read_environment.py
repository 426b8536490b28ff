"""Environment of a measurement: device, processor, versions, settings and the commit of this program.

Environment variables are taken by an allow-list of those that change speed or memory. Records are made to be shared, so
variables that could hold a token, a password or the user's paths are left out.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from benchmarker.core.errors import COMPUTING, installed_version
from benchmarker.hardware.device import Device
from benchmarker.hardware.gpu import find_gpu
from benchmarker.schema.record import DeviceFacts, Environment

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def cpu_name() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _text(PROC / "cpuinfo"), re.MULTILINE)
    return " ".join(match[1].split()) if match else platform.processor() or platform.machine()


def cores() -> int:
    """Return the number of logical processors in this process's affinity, limited by the control group's quota."""
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, _processor_quotas())]))


def memory_bytes() -> int:
    """Return the machine's main memory, limited by the control group."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _memory_limits())])


def available_bytes() -> int:
    """Return the main memory that this process can still allocate, limited by the control group."""
    return max(0, min([psutil.virtual_memory().available, *(limit - used for limit, used in _memory_limits())]))


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield limit and use of each control group in bytes. Cached files do not count: the kernel can drop them."""
    for folder in _control_groups("memory"):
        for limit_file, use_file in ("max", "current"), ("limit_in_bytes", "usage_in_bytes"):
            limit, used = _text(folder / f"memory.{limit_file}"), _text(folder / f"memory.{use_file}")
            if limit.isdigit():
                cached = re.findall(r"^(?:total_)?inactive_file (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
                yield int(limit), int(used or 0) - max(map(int, cached), default=0)


def _processor_quotas() -> Iterator[float]:
    for folder in _control_groups("cpu"):
        # Version 2 has both numbers in one file (`max 100000`: no quota), version 1 two files (-1: none).
        version_1 = f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}"
        quota, _, period = (_text(folder / "cpu.max") or version_1).partition(" ")
        if quota.isdigit() and period.isdigit() and int(quota) > 0:
            yield int(quota) / int(period)


def _control_groups(controller: str) -> Iterator[Path]:
    for line in _text(PROC / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controllers if controllers else CGROUPS
        folder = root / group.lstrip("/")
        # In a container the path may be the host's, which is not mounted; the root is then the container's group.
        yield from (path for path in [folder, *folder.parents] if path.is_relative_to(root) and path.is_dir())


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


PACKAGES = (*COMPUTING, "numpy", "safetensors", "huggingface_hub", "tokenizers")

VARIABLES = re.compile(
    r"""
    (CUDA|HIP|ROCR)_VISIBLE_DEVICES | CUDA_(DEVICE_ORDER|LAUNCH_BLOCKING|MODULE_LOADING|DEVICE_MAX_CONNECTIONS)
    | NVIDIA_TF32_OVERRIDE | CUBLAS(LT)?_WORKSPACE_(CONFIG|SIZE)
    | HSA_OVERRIDE_GFX_VERSION | HSA_ENABLE_SDMA | HIP_LAUNCH_BLOCKING | AMD_SERIALIZE_KERNEL | GPU_MAX_HW_QUEUES
    | PYTORCH_((CUDA|HIP)_)?ALLOC_CONF | PYTORCH_(NO_CUDA_MEMORY_CACHING|TUNABLEOP_ENABLED|TUNABLEOP_TUNING)
    | TORCH_(BLAS_PREFER_HIPBLASLT|BLAS_PREFER_CUBLASLT|ROCM_AOTRITON_ENABLE_EXPERIMENTAL|ALLOW_TF32_CUBLAS_OVERRIDE)
    | TORCH_COMPILE_(DEBUG|DISABLE) | TORCHDYNAMO_DISABLE | TORCHINDUCTOR_\w+ | (NCCL|NVSHMEM|TORCH_SYMM_MEM)_\w+
    | (OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS | OMP_(PROC_BIND|PLACES|SCHEDULE) | KMP_(AFFINITY|BLOCKTIME)
    | GOMP_CPU_AFFINITY | MKL_DYNAMIC | (ONEDNN|DNNL)_(MAX_CPU_ISA|DEFAULT_FPMATH_MODE) | ATEN_CPU_CAPABILITY
    | VLLM_(CPU|USE|(EN|DIS)ABLED?|ALLREDUCE|ATTENTION|FLASH|MARLIN|MOE)_\w+ | (SGLANG|GGML)_(CUDA|USE|(EN|DIS)ABLE)_\w+
    | HF_HUB_OFFLINE | TRANSFORMERS_OFFLINE | TOKENIZERS_PARALLELISM | PYTORCH_NVML_BASED_CUDA_CHECK
    """,
    re.VERBOSE,
)

# Variables of the families above that contain paths or identities. They do not affect speed.
_NOT_RECORDED = re.compile(r"(^|_)TOKEN(_|$)|SECRET|PASSWORD|CREDENTIAL|_KEY|DIR$|PATH$|_FILE$|URL|HOST|USER")


def environment(device: Device) -> Environment:
    """Return the current environment, without creating a context on the device."""
    import torch

    versions = {name: version for name in PACKAGES if (version := installed_version(name))}
    return Environment(
        device=_device_facts(device),
        cpu=cpu_name(),
        cores=cores(),
        threads=torch.get_num_threads(),
        memory_bytes=memory_bytes(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        # The version in torch itself names its build, as in 2.11.0+cu130; the wheel's does not.
        packages=versions | {"torch": torch.__version__},
        variables=recorded_variables(os.environ),
        governor=_text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")) or None,
        commit=commit_of(Path(__file__).parents[1]),
    )


def recorded_variables(variables: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in sorted(variables) if VARIABLES.fullmatch(name) and not _NOT_RECORDED.search(name)]
    return {name: variables[name][:200] for name in names}


def commit_of(package: Path) -> str | None:
    """Return the package's git commit, with `+changes` if files are modified; None if it is no git checkout."""
    checkout = package.parent
    # Otherwise an installation inside another repository would get that repository's commit.
    if not (checkout / ".git").exists():
        return None
    commit = _git(checkout, "rev-parse", "HEAD")
    changes = _git(checkout, "status", "--porcelain", "--", package.name)
    if not commit or changes is None:
        return None
    return f"{commit}+changes" if changes else commit


def _git(checkout: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
        process = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def _device_facts(device: Device) -> DeviceFacts:
    if device.kind == "cpu":
        return DeviceFacts(kind="cpu", name=cpu_name(), memory_bytes=psutil.virtual_memory().total)
    import torch

    properties = torch.cuda.get_device_properties(device.torch_name)
    gpu = find_gpu(device)
    amd = device.kind == "rocm"
    return DeviceFacts(
        kind=device.kind,
        name=properties.name,
        index=device.indices[0],
        uuid=(gpu.uuid if gpu else None) or (None if amd else f"GPU-{properties.uuid}"),
        memory_bytes=properties.total_memory,
        # An architecture with options is written `gfx90a:sramecc+:xnack-`.
        capability=properties.gcnArchName.split(":")[0] if amd else f"{properties.major}.{properties.minor}",
        driver=gpu.driver if gpu else None,
        power_limit_w=gpu.power_limit_w() if gpu else None,
        runtime=torch.version.hip if amd else torch.version.cuda,
    )
