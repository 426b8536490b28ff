"""Properties of a machine, gathered once; the findings depend on nothing else."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import psutil

from benchmarker.checkpoints.cache import cache_folder
from benchmarker.checkpoints.find import transport_error
from benchmarker.core.errors import installed_version
from benchmarker.hardware.device import Device
from benchmarker.hardware.gpu import Gpu, all_gpus, has_amd_driver
from benchmarker.hardware.read_environment import environment
from benchmarker.schema.record import Environment

HUB_LIMIT_S = 5.0
COMPILERS = ("g++", "c++", "clang++")
LIBRARIES = ("torchao", "bitsandbytes", "optimum", "gptqmodel", "matplotlib", "nvidia-ml-py", "ray")


@dataclass(frozen=True)
class Card:
    """A GPU as its driver reports it, whether or not torch can use it. None for unreported properties."""

    name: str
    vendor: str = "NVIDIA"
    """`NVIDIA` or `AMD`."""
    driver: str | None = None
    supports: str | None = None
    """Newest CUDA version that the driver supports, as `13.0`."""
    used_bytes: int | None = None
    """Memory in use by all programs."""
    memory_bytes: int | None = None
    programs: int | None = None
    """Other programs that compute on it now. A container may hide some of them."""
    power_limit_w: float | None = None
    power_default_w: float | None = None
    is_sliced: bool = False
    """True if the GPU is divided into instances (MIG)."""


def all_cards() -> tuple[Card, ...]:
    """Return every GPU of every driver. An AMD driver without a readable GPU gives one without a name."""
    cards = tuple(card_of(gpu) for gpu in all_gpus())
    is_nameless = has_amd_driver() and not any(card.vendor == "AMD" for card in cards)
    return (*cards, Card("an AMD card", vendor="AMD")) if is_nameless else cards


def card_of(gpu: Gpu) -> Card:
    """Return the properties of one GPU."""
    processes = gpu.process_ids()
    return Card(
        name=gpu.name or f"an {gpu.vendor} card",
        vendor=gpu.vendor,
        driver=gpu.driver,
        supports=gpu.newest_cuda,
        used_bytes=gpu.used_bytes(),
        memory_bytes=gpu.total_bytes(),
        programs=None if processes is None else len([process for process in processes if process != os.getpid()]),
        power_limit_w=gpu.power_limit_w(),
        power_default_w=gpu.power_default_w(),
        is_sliced=gpu.is_sliced,
    )


@dataclass(frozen=True)
class Machine:
    """Everything that the findings depend on."""

    environment: Environment
    """Environment of a run on the device."""
    torch_for: Literal["cuda", "rocm", "cpu"]
    """Platform that the installed torch is built for."""
    torch_runtime: str | None
    """CUDA or HIP version that torch is built for."""
    torch_sees_gpu: bool
    torch_says: str | None
    """Error of torch if it finds no GPU."""
    architectures: tuple[str, ...]
    """Architectures for which torch has kernels: `sm_90`, `gfx90a`."""
    cards: tuple[Card, ...]
    has_amd: bool
    has_triton: bool
    compiler: str | None
    """Path of a C++ compiler."""
    hub: str | None
    """Error of reaching the Hugging Face hub; None if it can be reached."""
    cache: Path
    """Folder of the hub's cache, which stores models."""
    free_bytes: int
    """Free bytes for the hub's cache or benchmarker's own, whichever has less."""
    busy_processors: float
    """Mean number of processors that programs used over one second."""
    missing: tuple[str, ...]
    """Libraries of LIBRARIES that are not installed."""


def look(device: Device) -> Machine:
    """Gather the properties, with one request to the hub."""
    import torch
    from huggingface_hub.constants import HF_HUB_CACHE

    cards = all_cards()
    sees_gpu = torch.cuda.is_available()
    cache = Path(HF_HUB_CACHE)
    return Machine(
        environment=environment(device),
        torch_for="rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu",
        torch_runtime=torch.version.hip or torch.version.cuda,
        torch_sees_gpu=sees_gpu,
        torch_says=None if sees_gpu else _why_no_gpu(),
        architectures=tuple(torch.cuda.get_arch_list()) if sees_gpu else (),
        cards=cards,
        has_amd=any(card.vendor == "AMD" for card in cards),
        has_triton=find_spec("triton") is not None,
        compiler=next(filter(None, map(shutil.which, (os.environ.get("CXX") or "", *COMPILERS))), None),
        hub=_why_no_hub(),
        cache=cache,
        free_bytes=min(_free_bytes(cache), _free_bytes(cache_folder())),
        busy_processors=psutil.cpu_percent(interval=1.0) / 100 * (psutil.cpu_count() or 1),
        missing=tuple(name for name in LIBRARIES if not _is_installed(name)),
    )


def _why_no_gpu() -> str | None:
    import torch

    if not torch.version.cuda and not torch.version.hip:
        return None
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())
    return None


def _why_no_hub() -> str | None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        HfApi().model_info("Qwen/Qwen3-4B", timeout=HUB_LIMIT_S)
    except OfflineModeIsEnabled:
        return "HF_HUB_OFFLINE is set"
    except HfHubHTTPError as error:
        # A refused request still shows that the hub can be reached.
        return f"HTTP status {error.response.status_code}" if error.response.status_code >= 500 else None
    except (OSError, transport_error()) as error:
        return type(error).__name__
    return None


def _is_installed(package: str) -> bool:
    return installed_version(package) is not None


def _free_bytes(folder: Path) -> int:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free
