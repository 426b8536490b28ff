"""One run: open the model, measure each cell, then profile. The record on disk grows with every finished cell."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarker.core.console import Terminal
from benchmarker.core.errors import sentence_of
from benchmarker.core.formatting import gib, plural, slug
from benchmarker.core.process import FORKED
from benchmarker.execution.jobs import blank_record, changed_files, check_unchanged, result_key
from benchmarker.hardware.device import error_kind_of, find_device
from benchmarker.hardware.gpu import DeviceMemory
from benchmarker.hardware.monitor import Surroundings
from benchmarker.hardware.read_environment import environment
from benchmarker.measure.device_limits import measure_limits
from benchmarker.schema.job import Job
from benchmarker.schema.record import CellBase, Environment, RunRecord, SampleBase
from benchmarker.schema.record_io import check_writable, write_json
from benchmarker.schema.registry import workload_of
from benchmarker.workloads.measure_cell import measure_cell
from benchmarker.workloads.session import Session


class Run(Session):
    """Execution of one job: the session of the workload's bench, and the record so far."""

    def __init__(self, job: Job, terminal: Terminal, surroundings: Surroundings | None = None) -> None:
        """Prepare a run. `surroundings` is None in a sweep, whose own process observes host and GPU."""
        self.job = job
        self.terminal = terminal
        self.workload = workload_of(job.workload)
        self.device = find_device(job.device)
        self._surroundings = surroundings
        # Made before this process uses the device, so that memory of other programs does not count.
        self.device_memory = DeviceMemory(self.device)
        self._is_ready = False
        started, facts = datetime.now(UTC), environment(self.device)
        facts, self._threads_line = self._with_threads(facts)
        run_id = f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        folder = job.output or Path("results") / slug(facts.device.name.lower()) / slug(job.title.lower())
        self.path = job.part.record if job.part else folder / f"{slug(job.variant.name)}-{run_id}.json"
        blank: RunRecord = blank_record(job, facts, run_id=run_id, started=started)
        self.record = blank.model_copy(update={"forked": FORKED in os.environ})

    def execute(self) -> RunRecord:
        self._begin()
        with self._failure_kept():
            check_unchanged(self.job, self.record.environment)
            with self.workload.open(self.job, self.device, self) as bench:
                self.ready()
                # Files may change during loading, which takes minutes for a large model.
                check_unchanged(self.job, self.record.environment)
                self.keep(opened_at=time.time())
                for point in self.job.points():
                    before = bench.cell(point)
                    self.terminal.line(self.workload.cell_text(before))
                    self._read(now=True)
                    cell: CellBase = measure_cell(
                        bench,
                        before,
                        point,
                        self.job.procedure,
                        self.device,
                        device_memory=self.device_memory,
                        after_each=partial(self._print_run, before),
                        after_warmup=self._slow_warmup,
                    )
                    self.keep(cells=(*self.record.cells, self._finished(cell, point)), **bench.facts())
                    if self.job.part and cell.status in ("oom_gpu", "oom_host"):
                        # After an allocation failure the allocator is fragmented: the sweep starts a fresh process.
                        break
                self.keep(**bench.afterwards(self.record, self.path))
        self.keep(status="complete")
        return self.record

    def _begin(self) -> None:
        check_writable(self.path.parent)
        environment = self.record.environment
        self.terminal.line(f"{self.job.variant.name}: {self.job.title} on {environment.device.name}")
        if self._threads_line:
            self.terminal.line(self._threads_line)
        for line in self._surroundings.before(environment) if self._surroundings else ():
            self.terminal.line(f"note: {line}")
        for name in changed_files(self.job) if self.job.part is None else ():
            self.terminal.line(f"note: {name} has changed since the job was saved")
        # A sweep can now read the progress of this process, also if it dies.
        self.keep()

    @contextmanager
    def _failure_kept(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # In a sweep, a variant that could not be loaded still gets a row.
            if self.record.cells or self.job.part:
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                self.keep(status=status, error_kind=error_kind_of(error, self.device), reason=sentence_of(error))
            if self.record.cells:
                finished = f"{len(self.record.cells)} of {len(self.job.points())} cells"
                self.terminal.line(f"{finished} are in the record: {self.path}")
            elif isinstance(error, KeyboardInterrupt):
                self.terminal.line("no cell was finished: there is no record")
            raise

    def _with_threads(self, found: Environment) -> tuple[Environment, str | None]:
        """Set torch's number of threads on a CPU: by the free cores, or as the sweep chose for all of its processes."""
        part, origin = self.job.part, self.job.origin
        chosen, line = self._surroundings.with_free_threads(found) if self._surroundings else (found, None)
        if not self._surroundings and origin and found.device.kind == "cpu" and not (part and part.place):
            chosen = found.model_copy(update={"threads": origin.environment.threads})
        if chosen.threads != found.threads:
            torch.set_num_threads(chosen.threads or 1)
        return chosen, line

    def keep(self, **changes: Any) -> None:
        self.record = self.record.model_copy(update=changes)
        if self.record.cells or self.job.part or self.record.status == "complete":
            write_json(self.record, self.path)

    def ready(self) -> None:
        """Measure the device's limits if requested, and start counting memory growth; later calls do nothing."""
        if self._is_ready:
            return
        self._is_ready = True
        if self.job.procedure.limits and self.job.is_timed:
            self._measure_limits()
        # A workload that loads a model calls `begin_growth` again after importing its libraries.
        self.device.begin_growth()

    def _finished(self, cell: CellBase, point: Any) -> CellBase:
        self._read(now=True)
        if self._surroundings:
            cell, why = self._surroundings.beside(cell, own_processes=self.job.processes)
            if why:
                self.terminal.note(f"  disturbed: {why}; the numbers are kept and marked")
        if cell.status != "ok":
            self.terminal.line(f"  {cell.status}: {cell.reason}")
        return cell.model_copy(update={"key": result_key(self.job, point, self.record.environment)})

    def _read(self, *, now: bool = False) -> None:
        if self._surroundings:
            self._surroundings.read(now=now)

    def _measure_limits(self) -> None:
        try:
            limits = measure_limits(self.device, self.job.matmul_dtype)
        except Exception as error:
            if not self.device.is_out_of_memory(error):
                raise
            self.terminal.line("limits: not measured, there is no memory for the arrays")
            return
        self.keep(limits=limits)
        product = f"{limits.matmul_flops_per_s / 1e12:.3g} TFLOP/s in {limits.matmul_dtype}"
        self.terminal.line(f"limits: {limits.bytes_per_s / 1e9:.4g} GB/s memory bandwidth, {product}")

    def _slow_warmup(self, number: int, sample: SampleBase) -> None:
        self._read()
        # A slow cell must not seem to hang.
        if sample.latency_s > 10:
            procedure = self.job.procedure
            last = max(procedure.warmup, procedure.warmup_limit)
            total = f"{procedure.warmup} to {last}" if last > procedure.warmup else str(last)
            runs = plural(procedure.runs, "timed run follows", "timed runs follow")
            self.terminal.line(f"  warm-up {number} of {total} took {sample.latency_s:.0f} s; {runs}")

    def _print_run(self, cell: CellBase, number: int, sample: SampleBase) -> None:
        self._read()
        # If several processes run the model, this one's memory is not the model's.
        peak_bytes = sample.peak_allocated_bytes if self.job.processes == 1 else None
        memory = f", memory {gib(peak_bytes)}" if peak_bytes else ""
        run, words = f"run {number}/{self.job.procedure.runs}", self.workload.sample_text(cell, sample)
        latency_s = f"{sample.latency_s:.{4 if sample.latency_s >= 0.1 else 7}f}"
        self.terminal.line(f"  {run}: latency {latency_s} s, {words}{memory}")
