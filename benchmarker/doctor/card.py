"""One GPU as its driver shows it, for the doctor to judge, whether or not torch can use it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from benchmarker.hardware.amd import has_amd_driver
from benchmarker.hardware.find_gpu import all_gpus
from benchmarker.hardware.gpu import Gpu


@dataclass(frozen=True)
class Card:
    """What the driver says of one GPU. None for what it does not say."""

    name: str
    vendor: str = "NVIDIA"
    """`NVIDIA` or `AMD`."""
    driver: str | None = None
    supports: str | None = None
    """The newest CUDA that its driver runs, as `13.0`."""
    used_bytes: int | None = None
    """Memory in use by all programs together."""
    memory_bytes: int | None = None
    programs: int | None = None
    """Other programs that compute on it now; in a container perhaps fewer than there are."""
    power_limit_w: float | None = None
    power_default_w: float | None = None
    is_sliced: bool = False
    """Whether it is divided into instances (MIG)."""


def all_cards() -> tuple[Card, ...]:
    """Every GPU that a driver shows; an AMD driver that nothing else tells of gives one without a name."""
    cards = tuple(card_of(gpu) for gpu in all_gpus())
    is_nameless = has_amd_driver() and not any(card.vendor == "AMD" for card in cards)
    return (*cards, Card("an AMD card", vendor="AMD")) if is_nameless else cards


def card_of(gpu: Gpu) -> Card:
    """The driver's answers for one GPU, as values."""
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
