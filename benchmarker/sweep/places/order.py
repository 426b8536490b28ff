"""What a place is told to do and what it sends back: a folder with an order and jobs, and later with records.

The folder is all that travels. On this host it lies in the sweep's own; to another host its files go through Ray.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from benchmarker.core.errors import ErrorKind
from benchmarker.execution.job_file import is_job_file, job_path, write_job
from benchmarker.schema.base import Plain
from benchmarker.schema.collect import UNDER_WAY
from benchmarker.schema.environment import Environment
from benchmarker.schema.job import Job
from benchmarker.schema.record_io import write_atomically
from benchmarker.sweep.folder import SweepFile

ORDER = "order.json"
DELIVERY = "delivery.json"
"""Written last: a folder that has it is whole."""


class GivenUp(Plain):
    """A cell that is not tried again."""

    variant: str
    position: int
    kind: ErrorKind
    reason: str


class FailureFacts(Plain):
    """One thing that failed at a place."""

    what: str
    kind: ErrorKind
    reason: str
    log: str
    """Name of the child's log, which is delivered with the records."""
    tail: tuple[str, ...]
    alone: str


class Order(Plain):
    """What a place is to do, with the jobs that lie beside it as files."""

    task: Literal["visit", "round", "judge"]
    """`visit`: say what there is, and prepare the checkpoints. `judge`: what is measured after everything timed."""
    place: str
    card: str
    """By what the environment of this place's card is found in `environments`."""
    slot: int = 0
    """Which share of the host's cores is the place's, counted from 0."""
    slots: int = 1
    """Shares of the host's cores."""
    beside: int = 0
    """How many other places of the same host measure meanwhile."""
    sweep: SweepFile
    config_sha256: str
    commit: str | None = None
    """Hub commit that the sweep began with, where it goes on."""
    variants: tuple[str, ...]
    """In the order of the tables."""
    display: tuple[str, ...] = ()
    round: int = 0
    given_up: tuple[GivenUp, ...] = ()
    profiled: tuple[str, ...] = ()
    """Variants whose profile another round makes."""
    cell_s: tuple[tuple[str, int, float], ...] = ()
    """Variant, position and longest time of the cells that were measured."""
    environments: dict[str, Environment] = Field(default_factory=dict)
    """As earlier orders found them, by card."""
    prepares: bool = True
    """Whether a visit is to make the checkpoints, or only to look around."""
    engines: dict[str, str]
    """Environments of external engines that may be used, with a fingerprint of each, as the driver has them."""
    load_timeout_s: float
    cell_timeout_s: float | None
    allow_shared: bool
    shared_imports: bool = False
    run: tuple[str, ...] | None = None
    """What a child is started with; None for this program in the place's own interpreter."""
    probe: tuple[str, ...] | None = None
    """What prints the environment; likewise."""
    prepare: tuple[str, ...] | None = None
    """What prepares the checkpoints; likewise."""


class Delivery(Plain):
    """What came of an order, beside the records."""

    place: str
    card: str
    environment: Environment | None = None
    refused: str | None = None
    """Why nothing can be measured here that compares with the rest of the sweep."""
    wrong: str | None = None
    """Why nothing can be measured anywhere: a mistake of the user's."""
    given_up: tuple[GivenUp, ...] = ()
    profiled: tuple[str, ...] = ()
    cell_s: tuple[tuple[str, int, float], ...] = ()
    failures: tuple[FailureFacts, ...] = ()
    seconds: float = 0.0


def write_parcel(parcel: Path, order: Order, jobs: Mapping[str, Job], records: Sequence[Path] = ()) -> None:
    """Lay an order into a new folder, with its jobs and with the records that it is to complete."""
    parcel.mkdir(parents=True)
    for job in jobs.values():
        write_job(job, parcel)
    for record in records:
        shutil.copyfile(record, parcel / record.name)
    write_atomically(parcel / ORDER, order.model_dump_json())


def read_order(parcel: Path) -> Order:
    """The order in a folder that this program wrote."""
    return Order.model_validate_json((parcel / ORDER).read_bytes())


def read_delivery(parcel: Path) -> Delivery | None:
    """What was delivered; None where the place did not come to its end."""
    path = parcel / DELIVERY
    return Delivery.model_validate_json(path.read_bytes()) if path.is_file() else None


def files_of(parcel: Path) -> dict[str, bytes]:
    """Content of every file in a folder, by name."""
    return {path.name: path.read_bytes() for path in sorted(parcel.iterdir()) if path.is_file()}


def write_files(parcel: Path, files: Mapping[str, bytes]) -> None:
    """Lay files into a folder, the delivery last."""
    parcel.mkdir(parents=True, exist_ok=True)
    for name in sorted(files, key=lambda name: name == DELIVERY):
        (parcel / Path(name).name).write_bytes(files[name])


def take_in(parcel: Path, folder: Path) -> None:
    """Move what a place delivered into the sweep's folder. Interrupted, it is gone on with the next time."""
    for path in sorted(parcel.iterdir()):
        if path.name not in (ORDER, DELIVERY) and not is_job_file(path):
            os.replace(path, folder / path.name)
    shutil.rmtree(parcel)


def clear_parcels(folder: Path) -> int:
    """Take in what was delivered and not taken in yet, remove what was not finished; the number of the latter."""
    unfinished = 0
    for parcel in sorted(folder.glob(f"{UNDER_WAY}*")):
        if read_delivery(parcel):
            take_in(parcel, folder)
        else:
            shutil.rmtree(parcel)
            unfinished += 1
    return unfinished


def jobs_in(parcel: Path, variants: tuple[str, ...]) -> dict[str, Path]:
    """Files of the jobs, by variant."""
    return {name: job_path(parcel, name) for name in variants}
