"""Sweep with fake child processes for the tests of faults."""

from __future__ import annotations

import io
import json
import os
import resource
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from benchmarker.cli.sweep_command import split_arguments, sweep_config
from benchmarker.core.console import Terminal
from benchmarker.core.process import Streams
from benchmarker.execution.jobs import blank_record, cell_keys
from benchmarker.hardware.monitor import Monitor, Surroundings, find_monitor
from benchmarker.schema.job import Job
from benchmarker.schema.record import Environment
from benchmarker.schema.record_io import RUN_ORDER, OrderLine, collect
from benchmarker.sweep.request import Settings, make_request, read_config
from benchmarker.sweep.workers import Tools
from benchmarker.workloads.generation.record import GenerationRecord
from tests import records

CHILD = Path(__file__).with_name("child.py")
QUICK = {"load_timeout_s": 20.0, "cell_timeout_s": 20.0, "seed": 1}


@dataclass
class Stage:
    """Folder with a config, and the fakes with which its sweep runs."""

    home: Path
    variants: Sequence[str] = ("a", "b")
    new_tokens: Sequence[int] = (50, 100)
    rounds: int | None = 1
    """Rounds in the config; None leaves them out."""
    baseline: str | None = None
    faults: Sequence[dict[str, Any]] = ()
    environment: Environment = field(default_factory=records.environment)
    find_monitor: Callable[[Environment], Monitor | None] = find_monitor
    model: str = "Qwen/Qwen3-4B"
    report: tuple[str, ...] = ("true",)
    """Command that draws the report."""
    watch_host: Callable[[int], Any] | None = None
    """Watcher of other processes during a child."""
    look_for: Callable[[Job], str | None] = lambda job: None
    load_per_core: float = 0.0
    surroundings: Callable[[], Surroundings] = lambda: quiet_surroundings()
    is_profiled: bool = False
    """True if children with a request for a profile write one."""
    wrap: tuple[str, ...] = ()
    """Prefix of the command of each child."""
    prepare_host: tuple[str, ...] = ()
    """Command that prints a worker's environment; prints that of the stage if empty."""
    printed: str = ""
    before: Callable[[], None] = lambda: None
    """Function called immediately before the sweep."""

    @property
    def config(self) -> Path:
        return self.home / "config.yaml"

    @property
    def results(self) -> Path:
        return self.home / "results"

    def order(self) -> list[OrderLine]:
        """Return the processes of the sweep in the order in which they ended."""
        lines = (self.results / RUN_ORDER).read_text().splitlines()
        return [OrderLine.model_validate_json(line) for line in lines]

    def sweep(self, *arguments: str, **settings: Any) -> list[str]:
        """Run the sweep in this process; return the failures."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._write_config()
        options = Settings(**{"output": self.results, **QUICK, **settings})
        self._write_script(options, arguments)
        out = io.StringIO()
        environment = self.home / "environment.json"
        environment.write_text(self.environment.model_dump_json())
        tools = Tools(
            run=(*self.wrap, sys.executable, "-S", "-E", str(CHILD), str(self.home / "script.json")),
            prepare_host=self.prepare_host or ("sh", "-c", f"cat {shlex.quote(str(environment))}"),
            watch_host=self.watch_host,
            find_monitor=self.find_monitor,
            look_for=self.look_for,
            load_per_core=lambda: self.load_per_core,
            surroundings=self.surroundings,
        )
        self.before()
        has_gpu = self.environment.device.kind != "cpu"
        try:
            terminal = Terminal(streams=Streams(out, out))
            with mock.patch("benchmarker.hardware.gpu.has_gpu_driver", return_value=has_gpu):
                return sweep_config(self.config, arguments, terminal, options, tools=tools, report=self.report)
        finally:
            self.printed = out.getvalue()

    def sweep_apart(self, before: Callable[[], None], **settings: Any) -> int:
        """Run the sweep in a fork that first calls `before`; return the fork's exit code."""
        child = os.fork()
        if child == 0:
            try:
                os._exit(self._sweep_in_fork(before, settings))
            finally:
                # The fork must never continue as a second pytest.
                os._exit(99)
        _, status = os.waitpid(child, 0)
        if (self.home / "printed").exists():
            self.printed = (self.home / "printed").read_text()
        return os.waitstatus_to_exitcode(status)

    def _sweep_in_fork(self, before: Callable[[], None], settings: dict[str, Any]) -> int:
        trace = ""
        try:
            self.before = before
            self.sweep(**settings)
        except BaseException:  # noqa: BLE001
            trace = traceback.format_exc()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        (self.home / "traceback").write_text(trace)
        (self.home / "printed").write_text(self.printed)
        return 1 if trace else 0

    def records(self) -> list[GenerationRecord]:
        """Return the saved records in the order of their names."""
        return list(collect([self.results]).records)

    def cells(self) -> list[tuple[int, str, int, str]]:
        """Return the round, variant, new tokens and status of every saved cell."""
        return sorted(
            (record.round, record.variant.name, cell.new_tokens, cell.status)
            for record in self.records()
            for cell in record.cells
        )

    def _write_config(self) -> None:
        self.config.write_text(
            yaml.safe_dump(
                {
                    "model": {"id": self.model},
                    "grid": {"prompt_tokens": [26], "new_tokens": list(self.new_tokens)},
                    "procedure": {"runs": 2} | ({"rounds": self.rounds} if self.rounds else {}),
                    "variants": [{"name": name, "quant": "fp16"} for name in self.variants],
                    "baseline": self.baseline,
                }
            )
        )

    def _write_script(self, settings: Settings, arguments: Sequence[str]) -> None:
        config = read_config(self.config)
        selected, options = split_arguments(arguments, config.experiment.workload)
        request = make_request(config, selected, options, settings)
        keys = {name: cell_keys(job, self.environment) for name, job in request.jobs.items()}
        variants = {
            name: {
                "record": json.loads(
                    blank_record(job, self.environment, run_id="", started=datetime.now(UTC)).model_dump_json()
                ),
                "load": json.loads(records.load().model_dump_json()),
                "cells": [
                    json.loads(records.cell([1.0, 1.01], new_tokens=point.new_tokens, key=key).model_dump_json())
                    for point, key in zip(job.grid.points(), keys[name], strict=True)
                ],
            }
            for name, job in request.jobs.items()
        }
        quality = json.loads(records.quality(path="step").model_dump_json())
        profile = json.loads(records.profile().model_dump_json()) if self.is_profiled else None
        script = {"variants": variants, "faults": list(self.faults), "quality": quality, "profile": profile}
        (self.home / "script.json").write_text(json.dumps(script))


def quiet_surroundings() -> Surroundings:
    """Return surroundings without a reading of the load, which leave the number of threads unchanged."""
    with mock.patch("benchmarker.hardware.monitor.HostGauge") as gauge:
        gauge.return_value.between.return_value = None
        return Surroundings()


def killed_at_write(number: int) -> Callable[[], None]:
    """Return a function that makes the process kill itself before its n-th flush to disk or rename."""

    def install() -> None:
        remaining = [number]

        def dying(original: Callable[..., Any]) -> Callable[..., Any]:
            def step(*arguments: Any) -> Any:
                if remaining[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                remaining[0] -= 1
                return original(*arguments)

            return step

        for name in ("fsync", "replace"):
            setattr(os, name, dying(getattr(os, name)))

    return install
