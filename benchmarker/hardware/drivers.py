"""The libraries of the cards' drivers: NVML on NVIDIA, amdsmi on AMD. Neither is required."""

from __future__ import annotations

from typing import Any


def open_nvml() -> Any | None:
    """`pynvml`, ready to be asked; None without it or its driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def open_amdsmi() -> Any | None:
    """`amdsmi`, ready to be asked; None without it or its driver."""
    try:
        import amdsmi
    except (ImportError, OSError, KeyError, AttributeError):
        # Importing it loads a library of ROCm, and fails in these ways where that is missing or does not match.
        return None
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException:
        return None
    return amdsmi
