"""The environment of a comparison, as lines of a table: what is the same in all records once, what differs with all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarker.core.tables import plain_line
from benchmarker.core.units import gib
from benchmarker.schema.environment import Environment
from benchmarker.schema.record import RunRecord

SHOWN = 4


def surroundings(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Name and value, as plain text; what no record knows is left out."""
    lines = [(name, _values(records, of)) for name, of in _FIELDS]
    packages = sorted({name for record in records for name in record.environment.packages})
    variables = sorted({name for record in records for name in record.environment.variables})
    lines += [(plain_line(name), _values(records, _package(name))) for name in packages]
    lines += [(plain_line(name), _values(records, _variable(name))) for name in variables]
    return [(name, value) for name, value in lines if value]


def _values(records: Sequence[RunRecord], of: Callable[[Environment], str | None]) -> str:
    found = list(dict.fromkeys(plain_line(value) for record in records if (value := of(record.environment))))
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return " or ".join(found[:SHOWN]) + more


def _package(name: str) -> Callable[[Environment], str | None]:
    return lambda one: one.packages.get(name)


def _variable(name: str) -> Callable[[Environment], str | None]:
    return lambda one: one.variables.get(name)


def _device_memory(one: Environment) -> str | None:
    return gib(one.device.memory_bytes) if one.device.memory_bytes else None


def _memory(one: Environment) -> str | None:
    return gib(one.memory_bytes) if one.memory_bytes else None


def _number(number: int | None) -> str | None:
    return None if number is None else str(number)


_FIELDS: tuple[tuple[str, Callable[[Environment], str | None]], ...] = (
    ("device", lambda one: one.device.name),
    ("device memory", _device_memory),
    ("capability", lambda one: one.device.capability),
    ("driver", lambda one: one.device.driver),
    ("CUDA or HIP of torch", lambda one: one.device.runtime),
    ("processor", lambda one: one.cpu),
    ("logical processors", lambda one: _number(one.cores)),
    ("threads of torch", lambda one: _number(one.threads)),
    ("main memory", _memory),
    ("system", lambda one: one.system),
    ("Python", lambda one: one.python),
    ("benchmarker's commit", lambda one: one.commit),
)
