"""The environment of a comparison, as lines of a table: what is the same in all records once, what differs with all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarker.core.formatting import abridged, gib
from benchmarker.core.tables import plain_line
from benchmarker.schema.environment import Environment
from benchmarker.schema.record import RunRecord

MOST_VALUES = 4
"""Values of one line that are shown; the others are counted."""


def surroundings(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Name and value of each line, as plain text; what no record knows is left out."""
    lines = [(name, _values(records, value_of)) for name, value_of in _FIELDS]
    packages = sorted({name for record in records for name in record.environment.packages})
    variables = sorted({name for record in records for name in record.environment.variables})
    lines += [(plain_line(name), _values(records, _package(name))) for name in packages]
    lines += [(plain_line(name), _values(records, _variable(name))) for name in variables]
    return [(name, value) for name, value in lines if value]


def _values(records: Sequence[RunRecord], value_of: Callable[[Environment], str | None]) -> str:
    """The values that the records have, each once: `A or B and 2 more`."""
    values = list(dict.fromkeys(plain_line(value) for record in records if (value := value_of(record.environment))))
    return abridged(values, MOST_VALUES, separator=" or ")


def _package(name: str) -> Callable[[Environment], str | None]:
    return lambda environment: environment.packages.get(name)


def _variable(name: str) -> Callable[[Environment], str | None]:
    return lambda environment: environment.variables.get(name)


def _device_memory(environment: Environment) -> str | None:
    return gib(environment.device.memory_bytes) if environment.device.memory_bytes else None


def _memory(environment: Environment) -> str | None:
    return gib(environment.memory_bytes) if environment.memory_bytes else None


def _number(number: int | None) -> str | None:
    return None if number is None else str(number)


_FIELDS: tuple[tuple[str, Callable[[Environment], str | None]], ...] = (
    ("device", lambda environment: environment.device.name),
    ("device memory", _device_memory),
    ("capability", lambda environment: environment.device.capability),
    ("driver", lambda environment: environment.device.driver),
    ("CUDA or HIP of torch", lambda environment: environment.device.runtime),
    ("processor", lambda environment: environment.cpu),
    ("logical processors", lambda environment: _number(environment.cores)),
    ("threads of torch", lambda environment: _number(environment.threads)),
    ("main memory", _memory),
    ("system", lambda environment: environment.system),
    ("Python", lambda environment: environment.python),
    ("benchmarker's commit", lambda environment: environment.commit),
)
