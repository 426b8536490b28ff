"""Group of verbs whose `--help` does not import libraries that it does not need."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from typer.core import TyperGroup

UNUSED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
"""Classes, by module, that typer imports for help in markdown and for tracebacks. This program uses neither. Their
markdown parser and code highlighter take a third of the time of `--help`."""


class VerbGroup(TyperGroup):
    """Group for `benchmarker`, `benchmarker checkpoint` and `benchmarker engine`, whose own options are all flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or set(args) & set(ctx.help_option_names):
            import_help_printer()
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the flags with False as default: typer imports pydantic to check a missing value."""
        flags = super().get_params(ctx)
        for flag in flags:
            flag.default = flag.default or False
        return flags


def import_help_printer() -> None:
    """Import typer's help printer with empty classes in place of the unused ones."""
    absent = {module: name for module, name in UNUSED.items() if module not in sys.modules}
    for module, name in absent.items():
        sys.modules[module] = ModuleType(module)
        setattr(sys.modules[module], name, type(name, (), {}))
    try:
        import_module("typer.rich_utils")
    except (ImportError, AttributeError, TypeError):
        # Another version of typer needs more of them. It then imports its printer itself, and the help takes longer.
        pass
    finally:
        for module in absent:
            del sys.modules[module]
