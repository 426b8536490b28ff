"""Findings: each rule examines the machine and reports obstacles to good numbers, with remedies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarker.core.formatting import GIB, gib
from benchmarker.doctor.machine import Machine

MODEL_BYTES = 8_100_000_000
"""Size of Qwen3-4B in 16 bit. Quantized checkpoints need additional space."""
BUSY_BYTES = 2 * GIB
BUSY = 0.5
"""Mean number of busy cores above which another program is running."""
LEAST_CAPABILITY = (7, 0)


@dataclass(frozen=True)
class Finding:
    """One result of a rule."""

    level: Literal["no", "note", "ok"]
    """`no`: something does not work; `note`: it works, but affects the numbers or needs a remark."""
    what: str
    do: str | None = None
    """Remedy."""


def findings(machine: Machine) -> list[Finding]:
    """Return the findings of all rules, the most serious first."""
    conclusions = [finding for rule in RULES for finding in rule(machine)]
    return sorted(conclusions, key=lambda finding: ("no", "note", "ok").index(finding.level))


def _gpu(machine: Machine) -> Iterator[Finding]:
    if machine.torch_sees_gpu:
        yield Finding("ok", f"torch uses {machine.environment.device.name}")
        return
    if not machine.cards:
        yield Finding("note", "there is no GPU: everything is measured on the processor")
        return
    name = machine.cards[0].name
    if machine.torch_for == "cpu":
        wanted = "ROCm" if machine.has_amd else "CUDA"
        yield Finding(
            "no",
            f"there is {name}, but this torch is built for CPUs only",
            f"install a torch built for {wanted}: the selector on pytorch.org gives the command",
        )
    elif machine.has_amd != (machine.torch_for == "rocm"):
        wanted = "ROCm" if machine.has_amd else "CUDA"
        yield Finding(
            "no",
            f"there is {name}, but this torch is built for {'ROCm' if machine.torch_for == 'rocm' else 'CUDA'}",
            f"install a torch built for {wanted}: the selector on pytorch.org gives the command",
        )
    elif _is_older(machine.cards[0].supports, machine.torch_runtime):
        card = machine.cards[0]
        yield Finding(
            "no",
            f"driver {card.driver} runs CUDA {card.supports}, and this torch is built for {machine.torch_runtime}",
            f"update the driver, or install a torch built for CUDA {card.supports} or older",
        )
    else:
        reason = f": {machine.torch_says}" if machine.torch_says else ""
        yield Finding(
            "no",
            f"there is {name}, but torch does not see it{reason}",
            "check CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES, and in a container that the card is passed in"
            if not machine.has_amd
            else "check HIP_VISIBLE_DEVICES, and that you may use /dev/kfd (groups render and video)",
        )


def _is_older(supported: str | None, built_for: str | None) -> bool:
    """Compare major versions: a driver supports every CUDA of its major version."""
    if not supported or not built_for:
        return False
    return int(supported.split(".")[0]) < int(built_for.split(".")[0])


def _architecture(machine: Machine) -> Iterator[Finding]:
    capability = machine.environment.device.capability
    if not machine.torch_sees_gpu or not capability or not machine.architectures:
        return
    if machine.torch_for == "rocm":
        if capability not in machine.architectures:
            yield Finding(
                "no",
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
        yield Finding(
            "no",
            f"this torch has no kernels for compute capability {capability}, only for "
            f"({', '.join(machine.architectures)})",
            "install a torch built for this card: an older one for an old card, a newer one for a new card",
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _card(machine: Machine) -> Iterator[Finding]:
    for card in machine.cards:
        if (card.used_bytes or 0) > BUSY_BYTES or card.programs:
            by = f" by {card.programs} other programs" if card.programs else ""
            yield Finding(
                "note",
                f"{card.name} is in use{by}: {gib(card.used_bytes)} of its memory are taken",
                "end these programs, or choose another card with --device cuda:N; they would affect the times",
            )
        if card.power_limit_w and card.power_default_w and card.power_limit_w < 0.99 * card.power_default_w:
            yield Finding(
                "note",
                f"{card.name} is capped at {card.power_limit_w:.0f} W of {card.power_default_w:.0f}",
                "raise the cap with nvidia-smi -pl or amd-smi set --power-cap, or report it with the numbers",
            )
        if card.is_sliced:
            yield Finding(
                "note",
                f"{card.name} is divided into instances (MIG): the times are those of an instance, not of the card",
                "report the instance with the numbers; nvidia-smi -mig 0 removes the division",
            )


def _libraries(machine: Machine) -> Iterator[Finding]:
    if machine.torch_sees_gpu and not machine.has_triton:
        yield Finding(
            "no",
            "Triton is not installed: nothing can be compiled for the GPU",
            "pip install triton, in the version of torch's own wheel",
        )
    if machine.compiler is None:
        yield Finding(
            "no",
            "there is no C++ compiler: nothing can be compiled, and GPTQ's kernels cannot be built",
            "install one: apt-get install g++",
        )
    if "nvidia-ml-py" in machine.missing and machine.torch_for == "cuda":
        yield Finding("note", "no clocks, temperatures and energy without NVML", "pip install nvidia-ml-py")
    if "ray" not in machine.missing:
        yield Finding("note", "Ray: the authors tested sweep --places ray on CPUs only, not on GPUs")
    if machine.torch_for == "rocm" and machine.torch_sees_gpu:
        yield Finding(
            "note",
            "ROCm: this code was written from the libraries' sources and not tested by its authors",
            "compare the numbers with rocm-bandwidth-test, and report differences",
        )


def _hub(machine: Machine) -> Iterator[Finding]:
    if machine.hub:
        yield Finding(
            "note",
            f"the Hugging Face hub cannot be reached ({machine.hub})",
            "measure with --load-format dummy, or give --model a folder",
        )
    if machine.free_bytes < MODEL_BYTES:
        yield Finding(
            "no",
            f"{gib(machine.free_bytes)} are free for {machine.cache}, and Qwen3-4B takes {gib(MODEL_BYTES)}",
            "make room, or point HF_HOME and BENCHMARKER_CACHE at a larger disk",
        )


def _host(machine: Machine) -> Iterator[Finding]:
    if machine.busy_processors > BUSY:
        yield Finding(
            "note",
            f"other programs keep {machine.busy_processors:.1f} processors busy",
            "end them: generate is host-bound on fast cards, so that they affect its times",
        )


RULES: tuple[Callable[[Machine], Iterator[Finding]], ...] = (_gpu, _architecture, _card, _libraries, _hub, _host)
