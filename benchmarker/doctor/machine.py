"""What the doctor looks at, gathered once: the judging is done on these values alone."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import psutil

from benchmarker.checkpoints.cache import cache_folder
from benchmarker.checkpoints.hub import transport_error
from benchmarker.core.packages import installed_version
from benchmarker.doctor.card import Card, all_cards
from benchmarker.hardware.device import Device
from benchmarker.hardware.read_environment import environment
from benchmarker.schema.environment import Environment

HUB_LIMIT_S = 5.0
COMPILERS = ("g++", "c++", "clang++")
LIBRARIES = ("torchao", "bitsandbytes", "optimum", "gptqmodel", "matplotlib", "nvidia-ml-py", "ray")


@dataclass(frozen=True)
class Machine:
    """Everything that is judged."""

    environment: Environment
    """Of the device that would be measured."""
    torch_for: Literal["cuda", "rocm", "cpu"]
    """What the installed torch is built for."""
    torch_runtime: str | None
    """The CUDA or HIP version that it is built for."""
    torch_sees_gpu: bool
    torch_says: str | None
    """Why it sees none, where it says."""
    architectures: tuple[str, ...]
    """Architectures that torch has kernels for: `sm_90`, `gfx90a`."""
    cards: tuple[Card, ...]
    has_amd: bool
    has_triton: bool
    compiler: str | None
    """Path of a C++ compiler."""
    hub: str | None
    """Why the Hugging Face hub cannot be reached; None where it answers."""
    cache: Path
    """Folder of the hub's cache, where a model goes."""
    free_bytes: int
    """Free space in the caches: the hub's, and benchmarker's own where that has less."""
    busy_processors: float
    """Processors that other programs kept busy over one second."""
    missing: tuple[str, ...]
    """Of LIBRARIES, those that are not installed."""


def look(device: Device) -> Machine:
    """Gather it; asks the hub one question."""
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
    """What torch answers when it is asked for a GPU."""
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
        # A refusal is an answer too.
        return f"it answers {error.response.status_code}" if error.response.status_code >= 500 else None
    except (OSError, transport_error()) as error:
        return type(error).__name__
    return None


def _is_installed(package: str) -> bool:
    return installed_version(package) is not None


def _free_bytes(folder: Path) -> int:
    """On the disk that the folder is on, or would be."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free
