"""The options of a run, made from the fields of a workload's job with their names, help and defaults.

An option sets one field of the job, such as `grid.new_tokens`. The command line parses it. This module imports neither
pydantic nor a workload, for a fast --help.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from benchmarker.schema.base import Plain
    from benchmarker.schema.job import Job
    from benchmarker.workloads.base import Workload

Kind = Literal["flag", "whole", "number", "text", "wholes", "numbers", "words", "texts", "pairs"]
"""`wholes`, `numbers` and `words` are lists with commas; these, `texts` and `pairs` (key=value) may be repeated."""


@dataclass(frozen=True)
class Option:
    flag: str
    place: str  # Field of the job that the option sets: `grid.new_tokens`.
    kind: Kind
    help: str
    panel: str
    default: str | None = None  # Default value for --help.
    value: Any = None  # Value that a flag sets.
    key: str | None = None  # Key in a field that is a mapping, if the option sets a single entry.


GROUPS = {"subject": "Subject", "variant": "Variant", "grid": "Grid", "procedure": "Procedure"}
"""Default heading in --help of each group of fields."""
HIDDEN = ("procedure.rounds", "variant.variant", "grid.exclude")
"""Fields without an option in `field_options`: `rounds` and `exclude` belong to sweeps; every run has `--variant`."""
COMMON = {
    **dict.fromkeys(("--config", "--job", "--variant", "--device", "--output", "--find-limit"), True),
    **dict.fromkeys(("--quiet", "--verbose"), False),
}
"""Options that set no field of a job, and whether each takes a value."""


def field_options(
    job: type[Job],
    *,
    flags: Mapping[str, str] | None = None,
    helps: Mapping[str, str] | None = None,
    panels: Mapping[str, str] = GROUPS,
    repeated: Collection[str] = (),
    shorthands: Sequence[Option] = (),
) -> list[Option]:
    """Return an option for each field of a job, group by group.

    Args:
        flags: Options by field, if not `--field-name`: `subject.quality.size` is `--quality`.
        helps: Help by field, if the first sentence of the field's docstring is not enough.
        panels: Headings by group of fields (`grid`), in the order of --help.
        repeated: Fields that are lists of sentences: the option is repeated, and not split at commas.
        shorthands: Additional options for fields that have an option already.
    """
    options = []
    for group, panel in panels.items():
        for place, info in _fields(job, group):
            option = _option(place, info, panel, (flags or {}).get(place), (helps or {}).get(place))
            options.append(replace(option, kind="texts") if place in repeated else option)
        options += [replace(short, panel=panel) for short in shorthands if short.place.rpartition(".")[0] == group]
    return options


def option_names(workload: Workload) -> dict[str, bool]:
    """Return every visible option of a run; True if it takes a value."""
    return COMMON | {option.flag: option.kind != "flag" for option in workload.options()}


def flags_of(options: Sequence[Option]) -> dict[str, str]:
    """Return the option of each field, such as `--new-tokens` for `grid.new_tokens`."""
    # The main option of a field precedes its shorthands; in reversed order it comes last and overwrites them.
    return {"variant.variant": "--variant", **{option.place: option.flag for option in reversed(options)}}


def _fields(job: type[Plain], group: str) -> Iterator[tuple[str, FieldInfo]]:
    kind: Any = job
    for name in group.split("."):
        kind = kind.model_fields[name].annotation
    for name, info in kind.model_fields.items():
        place = f"{group}.{name}"
        if place not in HIDDEN and not is_group(info.annotation):
            yield place, info


def is_group(annotation: Any) -> bool:
    return hasattr(annotation, "model_fields")


def _option(place: str, info: FieldInfo, panel: str, flag: str | None, text: str | None) -> Option:
    kind = option_kind(info.annotation)
    is_off = kind == "flag" and info.default is True
    plain, sentence = f"--{'no-' if is_off else ''}{place.rpartition('.')[2].replace('_', '-')}", _first_sentence(info)
    return Option(
        flag=flag or plain,
        place=place,
        kind=kind,
        help=text or (f"Do not {sentence[0].lower()}{sentence[1:]}" if is_off else sentence),
        panel=panel,
        default=None if text else _default(info, kind),
        value=not is_off if kind == "flag" else None,
    )


def option_kind(annotation: Any) -> Kind:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return option_kind(next(part for part in arguments if part is not type(None)))
    if origin is Annotated:
        return option_kind(arguments[0])
    if origin is tuple:
        lists: dict[Kind, Kind] = {"whole": "wholes", "number": "numbers"}
        return lists.get(option_kind(arguments[0]), "words")
    if origin is dict:
        return "pairs"
    kinds: dict[Any, Kind] = {bool: "flag", int: "whole", float: "number"}
    return kinds.get(annotation, "text")


def _default(info: FieldInfo, kind: Kind) -> str | None:
    default = info.get_default(call_default_factory=True)
    if kind in ("flag", "pairs") or info.is_required() or default in (None, ()):
        return None
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _first_sentence(info: FieldInfo) -> str:
    first = " ".join((info.description or "").split()).partition(". ")[0].removesuffix(".")
    choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    listed = f"{', '.join(choices[:-1])} or {choices[-1]}" if choices else ""
    return f"{first}." if listed in first else f"{first}: {listed}."
