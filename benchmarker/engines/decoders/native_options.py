"""Options of the engine `native`. Importing this file needs no torch."""

from __future__ import annotations

from typing import Literal

from benchmarker.quantization.base import Options


class NativeOptions(Options):
    """native's own."""

    prefill: Literal["plain", "captured"] = "captured"
    """captured: the prompt's prefill is one graph launch too, recorded for each padded length when it first comes.
    plain: launched kernel by kernel, as the model does it."""
