"""Properties of a machine, gathered once, and the findings: obstacles to good numbers, with remedies."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import psutil
import torch
from huggingface_hub import HfApi, errors
from huggingface_hub.constants import HF_HUB_CACHE

from benchmarker.checkpoints.cache import cache_folder
from benchmarker.core.errors import installed_version
from benchmarker.core.formatting import GIB, gib, plural
from benchmarker.hardware.device import Device
from benchmarker.hardware.gpu import Gpu, all_gpus, has_amd_driver
from benchmarker.hardware.monitor import BUSY_CORES
from benchmarker.hardware.read_environment import environment
from benchmarker.schema.record import Environment

HUB_LIMIT_S = 5.0
COMPILERS = ("g++", "c++", "clang++")
LIBRARIES = ("torchao", "bitsandbytes", "optimum", "gptqmodel", "matplotlib", "nvidia-ml-py", "ray")
MODEL_BYTES = 8_100_000_000  # Size of Qwen3-4B in 16 bit. Quantized checkpoints need additional space.
BUSY_BYTES = 2 * GIB
LEAST_CAPABILITY = (7, 0)


@dataclass(frozen=True)
class Machine:
    environment: Environment
    torch_for: Literal["cuda", "rocm", "cpu"]
    torch_runtime: str | None  # CUDA or HIP version that torch is built for.
    torch_sees_gpu: bool
    torch_says: str | None
    architectures: tuple[str, ...]  # Architectures for which torch has kernels: `sm_90`, `gfx90a`.
    gpus: tuple[Gpu, ...]  # GPUs of every driver, whether or not torch can use them.
    has_amd: bool  # True for an AMD driver, even if no GPU can be read through it.
    has_triton: bool
    compiler: str | None
    hub: str | None
    cache: Path
    free_bytes: int  # Free bytes for the hub's cache or benchmarker's own, whichever has less.
    busy_processors: float  # Mean number of processors that programs used over one second.
    missing: tuple[str, ...]


def look(device: Device) -> Machine:
    """Return the properties of this machine. Sends one request to the Hugging Face hub."""
    gpus = all_gpus()
    sees_gpu = torch.cuda.is_available()
    cache = Path(HF_HUB_CACHE)
    return Machine(
        environment=environment(device),
        torch_for="rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu",
        torch_runtime=torch.version.hip or torch.version.cuda,
        torch_sees_gpu=sees_gpu,
        torch_says=None if sees_gpu else _why_no_gpu(),
        architectures=tuple(torch.cuda.get_arch_list()) if sees_gpu else (),
        gpus=gpus,
        has_amd=has_amd_driver() or any(gpu.vendor == "AMD" for gpu in gpus),
        has_triton=find_spec("triton") is not None,
        compiler=next(filter(None, map(shutil.which, (os.environ.get("CXX") or "", *COMPILERS))), None),
        hub=_why_no_hub(),
        cache=cache,
        free_bytes=min(_free_bytes(cache), _free_bytes(cache_folder())),
        busy_processors=psutil.cpu_percent(interval=1.0) / 100 * (psutil.cpu_count() or 1),
        missing=tuple(name for name in LIBRARIES if installed_version(name) is None),
    )


def _why_no_gpu() -> str | None:
    if not torch.version.cuda and not torch.version.hip:
        return None
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())
    return None


def _why_no_hub() -> str | None:
    try:
        HfApi().model_info("Qwen/Qwen3-4B", timeout=HUB_LIMIT_S)
    except errors.OfflineModeIsEnabled:
        return "HF_HUB_OFFLINE is set"
    except errors.HfHubHTTPError as error:
        # A refused request still shows that the hub can be reached.
        return f"HTTP status {error.response.status_code}" if error.response.status_code >= 500 else None
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        return type(error).__name__
    return None


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free


@dataclass(frozen=True)
class Finding:
    level: Literal["no", "note", "ok"]
    """`no`: something does not work; `note`: a condition affects the numbers or needs a remark; `ok`: no problem."""
    what: str
    do: str | None = None


_no = partial(Finding, "no")
_note = partial(Finding, "note")


def findings(machine: Machine) -> list[Finding]:
    conclusions = [finding for rule in RULES for finding in rule(machine)]
    return sorted(conclusions, key=lambda finding: ("no", "note", "ok").index(finding.level))


def _gpu(machine: Machine) -> Iterator[Finding]:
    if machine.torch_sees_gpu:
        yield Finding("ok", f"torch uses {machine.environment.device.name}")
        return
    if not machine.gpus and not machine.has_amd:
        yield _note("there is no GPU: everything is measured on the processor")
        return
    gpu = next(iter(machine.gpus), None)
    name, driver, newest = (_name(gpu), gpu.driver, gpu.newest_cuda) if gpu else ("an AMD card", None, None)
    if machine.torch_for != ("rocm" if machine.has_amd else "cuda"):
        wanted = "ROCm" if machine.has_amd else "CUDA"
        built_for = {"rocm": "ROCm", "cuda": "CUDA", "cpu": "CPUs only"}[machine.torch_for]
        yield _no(
            f"there is {name}, but this torch is built for {built_for}",
            f"install a torch built for {wanted}: the selector on pytorch.org gives the command",
        )
    # A driver supports every CUDA of its major version. HIP's version ends with a commit.
    elif newest and machine.torch_runtime and int(newest.split(".")[0]) < int(machine.torch_runtime.split(".")[0]):
        yield _no(
            f"driver {driver} runs CUDA {newest}, and this torch is built for {machine.torch_runtime}",
            f"update the driver, or install a torch built for CUDA {newest} or older",
        )
    else:
        reason = f": {machine.torch_says}" if machine.torch_says else ""
        yield _no(
            f"there is {name}, but torch does not see it{reason}",
            "check CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES, and in a container that the card is passed in"
            if not machine.has_amd
            else "check HIP_VISIBLE_DEVICES, and that you may use /dev/kfd (groups render and video)",
        )


def _name(gpu: Gpu) -> str:
    return gpu.name or f"an {gpu.vendor} card"


def _architecture(machine: Machine) -> Iterator[Finding]:
    capability = machine.environment.device.capability
    if not machine.torch_sees_gpu or not capability or not machine.architectures:
        return
    if machine.torch_for == "rocm":
        if capability not in machine.architectures:
            yield _no(
                f"this torch has no kernels for {capability}, only for {', '.join(machine.architectures)}",
                "install a torch built for it, or set HSA_OVERRIDE_GFX_VERSION to a close relative that is in the list",
            )
        return
    card = _numbers(capability)
    architectures = [
        _numbers(f"{name[3:-1]}.{name[-1]}") for name in machine.architectures if re.fullmatch(r"sm_\d{2,3}", name)
    ]
    if card < LEAST_CAPABILITY or not any(
        architecture[0] == card[0] and architecture <= card for architecture in architectures
    ):
        yield _no(
            f"this torch has no kernels for compute capability {capability}, only for "
            f"({', '.join(machine.architectures)})",
            "install a torch built for this card: an older one for an old card, a newer one for a new card",
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _card(machine: Machine) -> Iterator[Finding]:
    for gpu in machine.gpus:
        used_bytes, limit_w, default_w = gpu.used_bytes(), gpu.power_limit_w(), gpu.power_default_w()
        # A container may hide some of the programs.
        programs = len({*(gpu.process_ids() or ())} - {os.getpid()})
        if (used_bytes or 0) > BUSY_BYTES or programs:
            by = f" by {plural(programs, 'other program', 'other programs')}" if programs else ""
            yield _note(
                f"{_name(gpu)} is in use{by}: {gib(used_bytes)} of its memory are taken",
                "end these programs, or choose another card with --device cuda:N; they would affect the times",
            )
        if limit_w and default_w and limit_w < 0.99 * default_w:
            yield _note(
                f"{_name(gpu)} is capped at {limit_w:.0f} W of {default_w:.0f}",
                "raise the cap with nvidia-smi -pl or amd-smi set --power-cap, or report it with the numbers",
            )
        if gpu.is_sliced:
            yield _note(
                f"{_name(gpu)} is divided into instances (MIG): the times are those of an instance, not of the card",
                "report the instance with the numbers; nvidia-smi -mig 0 removes the division",
            )


def _surroundings(machine: Machine) -> Iterator[Finding]:
    if machine.torch_sees_gpu and not machine.has_triton:
        yield _no(
            "Triton is not installed: nothing can be compiled for the GPU",
            "pip install triton, in the version of torch's own wheel",
        )
    if machine.compiler is None:
        yield _no(
            "there is no C++ compiler: nothing can be compiled, and GPTQ's kernels cannot be built",
            "install one: apt-get install g++",
        )
    if "nvidia-ml-py" in machine.missing and machine.torch_for == "cuda":
        yield _note("no clocks, temperatures and energy without NVML", "pip install nvidia-ml-py")
    if "ray" not in machine.missing:
        yield _note("Ray: the authors tested sweep --places ray on CPUs only, not on GPUs")
    if machine.torch_for == "rocm" and machine.torch_sees_gpu:
        yield _note(
            "ROCm: this code was written from the libraries' sources and not tested by its authors",
            "compare the numbers with rocm-bandwidth-test, and report differences",
        )
    if machine.hub:
        yield _note(f"the Hugging Face hub cannot be reached ({machine.hub})", "give --model qwen3-small, or a folder")
    if machine.free_bytes < MODEL_BYTES:
        yield _no(
            f"{gib(machine.free_bytes)} are free for {machine.cache}, and Qwen3-4B takes {gib(MODEL_BYTES)}",
            "make room, or point HF_HOME and BENCHMARKER_CACHE at a larger disk",
        )
    if machine.busy_processors > BUSY_CORES:
        yield _note(
            f"other programs keep {machine.busy_processors:.1f} processors busy", "end them: times may be too long"
        )


RULES: tuple[Callable[[Machine], Iterator[Finding]], ...] = (_gpu, _architecture, _card, _surroundings)
