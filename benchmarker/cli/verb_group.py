"""A group of verbs that answers `--help` without importing pydantic."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class VerbGroup(TyperGroup):
    """`benchmarker`, `benchmarker checkpoint` and `benchmarker engine`: their own options are all flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The flags, each False where it is not typed: typer imports pydantic to check a missing value."""
        flags = super().get_params(ctx)
        for flag in flags:
            flag.default = flag.default or False
        return flags
