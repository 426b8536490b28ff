"""Complete workload in one module. It sleeps, and shows all that a new workload requires."""

from __future__ import annotations

PACKAGE = '''
"""Sleeping, which shows that a workload requires one module and one line of the registry."""

import time
from contextlib import nullcontext
from hashlib import sha256
from itertools import product
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from benchmarker.core.errors import SpecError, UnsupportedError, WrongResultError
from benchmarker.measure.repeat import calls_needed
from benchmarker.schema.base import Plain
from benchmarker.schema.job import ExperimentBase, GridBase, Positive, VariantBase
from benchmarker.schema.job import Job
from benchmarker.schema.record import CellBase, Checked, RunRecord, SampleBase
from benchmarker.schema.registry import Axis, Metric
from benchmarker.workloads.base import Workload
from benchmarker.workloads.session import Bench


class SleepSubject(Plain):
    """Sleeper."""

    dreams: bool = False
    """Sleep with dreams."""


class SleepVariant(VariantBase):
    """Manner of sleeping."""

    variant: Literal["still", "restless", "wrong", "insomniac"]
    """Manner of sleeping."""


class SleepPoint(NamedTuple):
    ms: int
    naps: int


class SleepGrid(GridBase):
    """Durations of sleep."""

    ms: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1, 2)
    """Milliseconds of one nap."""
    naps: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1,)
    """Naps per call."""

    def points(self):
        return sorted(SleepPoint(*cell) for cell in product(self.ms, self.naps))


class SleepExperiment(ExperimentBase):
    workload: Literal["sleep"] = "sleep"
    subject: SleepSubject = SleepSubject()
    grid: SleepGrid = SleepGrid()
    variants: Annotated[tuple[SleepVariant, ...], Field(min_length=1)]


class SleepJob(Job):
    subject: SleepSubject
    variant: SleepVariant
    grid: SleepGrid

    def repeat_s(self, point):
        return 0.02


class SleepCell(CellBase):
    ms: int
    naps: int


class SleepRecord(RunRecord):
    workload: Literal["sleep"] = "sleep"
    cells: tuple[SleepCell, ...] = ()


class SleepBench(Bench):
    def __init__(self, job, device):
        self.job, self.device = job, device

    def cell(self, point):
        return SleepCell(**point._asdict(), status="ok", inputs_sha256=sha256(repr(point).encode()).hexdigest())

    def correct(self, point):
        kind = self.job.variant.variant
        if kind == "insomniac":
            raise UnsupportedError("an insomniac does not sleep; use --variant still")
        if kind == "wrong":
            raise WrongResultError("it was awake")
        return {"checked": Checked(against="a clock", error=0.0, tolerance=0.1)}

    def step(self, point):
        extra = 2 if self.job.variant.variant == "restless" else 1

        def total_s(calls):
            started_s = time.perf_counter()
            for _ in range(calls):
                time.sleep(extra * point.naps * point.ms / 1e3)
            return time.perf_counter() - started_s

        calls = calls_needed(total_s)
        return lambda: SampleBase(latency_s=total_s(calls) / calls, calls=calls)


class Sleep(Workload):
    name = "sleep"
    unit = "nap"
    experiment = SleepExperiment
    job = SleepJob
    record = SleepRecord
    axes = (Axis("ms", "ms", lambda ms: f"{ms} ms"), Axis("naps", "naps", lambda naps: f"{naps} naps"))
    metrics = (
        Metric(
            "naps", "naps/s", "1/s", 1.0, "higher", "naps divided by the latency",
            of_sample=lambda cell, sample: cell.naps / sample.latency_s,
        ),
    )
    headline = "naps"
    imports = ("torch",)

    def open(self, job, device, session):
        return nullcontext(SleepBench(job, device))

    def check(self, job, typed):
        if job.subject.dreams:
            raise SpecError("--dreams: nobody can measure them; leave them out")

WORKLOAD = Sleep()
'''
NAME = "sleep"
MODULE = "throwaway_sleep"
SITE = f"""
from benchmarker.schema.registry import WORKLOADS
WORKLOADS["{NAME}"] = "{MODULE}"
"""
"""Content of `sitecustomize.py` for child processes, with the line of the registry."""
