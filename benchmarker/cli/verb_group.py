"""A group of verbs that answers `--help` without importing libraries which a help has no use for."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from typer.core import TyperGroup

UNUSED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
"""Classes, by module, that typer's printer of help imports for help in markdown and for tracebacks. This program has
neither. With them come a parser of markdown and a highlighter of code: a third of the time that a help takes."""


class VerbGroup(TyperGroup):
    """`benchmarker`, `benchmarker checkpoint` and `benchmarker engine`: their own options are all flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or set(args) & set(ctx.help_option_names):
            import_help_printer()
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """The flags, each False where it is not typed: typer imports pydantic to check a missing value."""
        flags = super().get_params(ctx)
        for flag in flags:
            flag.default = flag.default or False
        return flags


def import_help_printer() -> None:
    """Import typer's printer of help with empty classes in place of those that it does not use here."""
    absent = {module: name for module, name in UNUSED.items() if module not in sys.modules}
    for module, name in absent.items():
        sys.modules[module] = ModuleType(module)
        setattr(sys.modules[module], name, type(name, (), {}))
    try:
        import_module("typer.rich_utils")
    except (ImportError, AttributeError, TypeError):
        # Another typer needs more of them. It then imports its printer itself, and the help takes longer.
        pass
    finally:
        for module in absent:
            del sys.modules[module]
