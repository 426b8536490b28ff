"""Config files in YAML, and `key=value` of the command line. Functions raise SpecError with file, key and remedy."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import ValidationError

from benchmarker.core.errors import FieldError, SpecError, read_problem
from benchmarker.schema.base import Plain, Scalar, first_problem
from benchmarker.schema.job import VariantBase
from benchmarker.schema.registry import DEFAULT_WORKLOAD, WORKLOADS, workload_of

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload


PlainT = TypeVar("PlainT", bound=Plain)
FOLDER = Path(str(files("benchmarker") / "configs"))
NO_FLAGS: Mapping[str, str] = MappingProxyType({})


class _Yaml(yaml.SafeLoader):
    """Safe YAML loader that rejects duplicate keys, and reads `1e6` as a number and dates as text."""


_Yaml.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1 requires a dot in a float, so PyYAML reads 1e6 as text.
_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _unique_keys(loader: _Yaml, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    keys: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, str):
            if key in keys:
                raise SpecError(f"line {key_node.start_mark.line + 1}: the key '{key}' is given twice")
            keys.add(key)
    return loader.construct_mapping(node, deep=deep)


_Yaml.add_constructor("tag:yaml.org,2002:map", _unique_keys)


def read_experiment(path: Path) -> Any:
    """Return the experiment in a config file, which may be the name of a shipped config."""
    return parse_experiment(read_config_bytes(path), path)


def read_config_bytes(path: Path) -> bytes:
    try:
        return find_config(path).read_bytes()
    except FileNotFoundError as error:
        near = get_close_matches(path.stem, shipped_configs(), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; configs that ship: {', '.join(shipped_configs())}"
        raise SpecError(f"{path}: there is no such file{hint}") from error
    except OSError as error:
        raise SpecError(read_problem(path, error)) from error


def parse_experiment(content: bytes, path: Path) -> Any:
    """Return the experiment in a config file's content; `path` is for messages."""
    data = _mapping(content, path)
    if isinstance(name := data.get("workload", DEFAULT_WORKLOAD), dict):
        raise SpecError(f"{path}: workload: write a name such as {DEFAULT_WORKLOAD}; its sizes belong under grid")
    try:
        workload = workload_of(str(name))
    except SpecError as error:
        raise SpecError(f"{path}: workload: {error}") from error
    experiment = validated(workload.experiment, data, where=str(path))
    variants = tuple(
        resolved(workload, variant, where=f"{path}: variants[{position}].")
        for position, variant in enumerate(experiment.variants)
    )
    renamed = {variant.name: new.name for variant, new in zip(experiment.variants, variants, strict=True)}
    baseline = experiment.baseline and renamed[experiment.baseline]
    return experiment.model_copy(update={"variants": variants, "baseline": baseline})


def _mapping(content: bytes, path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(content.decode("utf-8"), Loader=_Yaml)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = re.sub(r'in "<unicode string>", (line \d+, column \d+)(:\n.*\n *\^)?', r"at \1", str(error))
        raise SpecError(f"{path}: not valid YAML: {' '.join(text.split())}") from error
    if not isinstance(data, dict):
        raise SpecError(f"{path}: a config is a mapping with the keys model, grid, procedure and variants")
    return data


def workload_in(path: Path) -> str | None:
    """Return the workload that a config names; None if it names none or cannot be read."""
    with contextlib.suppress(SpecError):
        name = _mapping(read_config_bytes(path), path).get("workload")
        return name if isinstance(name, str) and name in WORKLOADS else None
    return None


def resolved(
    workload: Workload,
    variant: VariantBase,
    *,
    where: str,
    flags: Mapping[str, str] = NO_FLAGS,
    subject: Plain | None = None,
) -> VariantBase:
    """Return the variant with aliases replaced. An error names the field's option from `flags`, else `where`."""
    try:
        variant = workload.resolve(variant, subject)
    except FieldError as error:
        place = f"{where}{error.field}" if error.field else where.rstrip(".: ")
        raise SpecError(f"{flags.get(error.field, place)}: {error}") from error
    return variant


def validated(kind: type[PlainT], data: dict[str, Any], *, where: str, flags: Mapping[str, str] = NO_FLAGS) -> PlainT:
    """Return `data` as a value of class `kind`, validated like JSON: numbers strictly, but lists become tuples."""
    try:
        return kind.model_validate_json(json.dumps(data, allow_nan=True))
    except ValidationError as error:
        problem, place = first_problem(error, kind), error.errors()[0]["loc"]
        flag = flags.get(str(place[0])) if place else None
        raise SpecError(f"{flag}: {problem.partition(': ')[2]}" if flag else f"{where}: {problem}") from error
    except TypeError as error:
        raise SpecError(f"{where}: {error}") from error


def parse_option(text: str) -> tuple[str, Scalar]:
    """Return `("group_size", 64)` for `group_size=64`; the value is a YAML scalar."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"--option {text}: write it as key=value")
    try:
        parsed = yaml.load(value, Loader=_Yaml) if value else ""
    except yaml.YAMLError as error:
        raise SpecError(f"--option {text}: not a plain value") from error
    if not isinstance(parsed, str | int | float | bool | None):
        raise SpecError(f"--option {text}: the value must be a single number, word or true/false")
    return key.strip(), parsed


def shipped_configs() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def find_config(path: Path) -> Path:
    """Return the user's file if it exists, else the shipped one named `quickstart` or `configs/quickstart.yaml`."""
    if path.exists() or path.parent.name not in ("", "configs") or path.is_absolute():
        return path
    shipped = FOLDER / f"{path.name.removesuffix('.yaml')}.yaml"
    return shipped if shipped.is_file() else path
