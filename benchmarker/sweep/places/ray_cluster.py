"""Places on Ray: every GPU of a running cluster, or of this host where there is none.

An order goes out as a task that holds one GPU, and its files come back through Ray's store, so that no disk is shared.
Ray itself runs a task again whose worker or host died; one that it cannot save is a round to be run again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarker.core.errors import DeviceError, MissingLibraryError, SpecError
from benchmarker.core.packages import install_hint
from benchmarker.sweep.places.order import Order, files_of, write_files
from benchmarker.sweep.places.place import Ended, Place
from benchmarker.sweep.places.ray_task import LineQueue, card_variables, serve_order

RETRIES = 2
"""How often Ray runs a task again whose worker or host died, before it is ours to."""
END_S = 20.0
"""For what is stopped to end by itself."""


@dataclass(frozen=True)
class Running:
    """A task under way."""

    place: Place
    parcel: Path
    reference: Any


class RayPlaces:
    """GPUs of a Ray cluster. See Places."""

    def __init__(self, runtime_env: Path | None = None) -> None:
        """Connect to the cluster that runs, or start one of this host's GPUs.

        Raises:
            MissingLibraryError: Ray is not installed.
            DeviceError: There is no GPU in the cluster.
        """
        self._ray = _import_ray()
        self._runtime_env = _read_runtime_env(runtime_env)
        _connect(self._ray, self._runtime_env)
        if not self.places():
            self._ray.shutdown()
            raise DeviceError("--places ray: the cluster has no GPU; 'ray status' shows what it has")
        # On this host, so that it lives as long as the sweep, and takes no share of what is measured.
        self._line_queue = self._ray.remote(num_cpus=0)(LineQueue).options(scheduling_strategy=self._on_here()).remote()
        self._running: list[Running] = []

    def places(self) -> Sequence[Place]:
        """See Places.places."""
        return places_of(self._ray.nodes())

    def start(self, place: Place, parcel: Path, order: Order) -> None:
        """See Places.start."""
        task = self._ray.remote(serve_order).options(
            num_gpus=1,
            num_cpus=cores_each(self._ray.nodes()),
            max_retries=RETRIES,
            name=f"{order.task} {order.round + 1}",
            scheduling_strategy=self._near(place.host),
        )
        reference = task.remote(files_of(parcel), self._line_queue, place.name, card_variables(os.environ))
        self._running.append(Running(place, parcel, reference))

    def ended(self, timeout_s: float) -> list[Ended]:
        """See Places.ended."""
        if not self._running:
            time.sleep(timeout_s)
            return []
        references = [running.reference for running in self._running]
        ready, _ = self._ray.wait(references, num_returns=1, timeout=timeout_s)
        over = [running for running in self._running if running.reference in ready]
        for running in over:
            self._running.remove(running)
        return [self._ended(running) for running in over]

    def lines(self) -> list[tuple[Place, str]]:
        """See Places.lines."""
        by_name = {running.place.name: running.place for running in self._running}
        with contextlib.suppress(self._ray.exceptions.RayError):
            lines = self._ray.get(self._line_queue.take.remote(), timeout=END_S)
            return [(by_name.get(name) or Place(name, name, 0, 1), line) for name, line in lines]
        return []

    def stop(self) -> None:
        """See Places.stop."""
        if not self._ray.is_initialized():
            return
        references = [running.reference for running in self._running]
        for is_forced in (False, True):
            for reference in references:
                self._ray.cancel(reference, force=is_forced)
            if references:
                _, references = self._ray.wait(references, num_returns=len(references), timeout=END_S)
        self._running.clear()
        self._ray.shutdown()

    def _ended(self, running: Running) -> Ended:
        try:
            files: Mapping[str, bytes] = self._ray.get(running.reference)
        except self._ray.exceptions.RayError as error:
            return Ended(running.place, running.parcel, f"Ray lost it: {type(error).__name__}")
        if isinstance(files, str):
            return Ended(running.place, running.parcel, files)
        write_files(running.parcel, files)
        return Ended(running.place, running.parcel)

    def _near(self, host: str) -> Any:
        """At this host; elsewhere where it is lost meanwhile."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=host, soft=True)

    def _on_here(self) -> Any:
        return self._near(self._ray.get_runtime_context().get_node_id())


def places_of(nodes: Sequence[Mapping[str, Any]]) -> tuple[Place, ...]:
    """A place for each GPU of each host that lives; a host is known by the id that Ray gives it."""
    living = [node for node in nodes if node["Alive"] and node["Resources"].get("GPU", 0) >= 1]
    return tuple(
        Place(name=f"{_name(node, living)}/{slot}", host=node["NodeID"], slot=slot, slots=int(node["Resources"]["GPU"]))
        for node in living
        for slot in range(int(node["Resources"]["GPU"]))
    )


def cores_each(nodes: Sequence[Mapping[str, Any]]) -> int:
    """Cores that a task asks of Ray's count: as many as the poorest host has for each of its GPUs, at least 1."""
    shares = [
        int(node["Resources"].get("CPU", 0) // node["Resources"]["GPU"])
        for node in nodes
        if node["Alive"] and node["Resources"].get("GPU", 0) >= 1
    ]
    return max(1, min(shares, default=1))


def _name(node: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """The host's name, with the beginning of its id where two have the same."""
    name = str(node["NodeManagerHostname"])
    namesakes = [node for node in nodes if node["NodeManagerHostname"] == name]
    return f"{name}-{node['NodeID'][:6]}" if len(namesakes) > 1 else name


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingLibraryError(f"--places ray: Ray is not installed; {install_hint('ray')}") from error
    return ray


def _connect(ray: Any, runtime_env: dict[str, Any] | None) -> None:
    """To the cluster that runs here or that RAY_ADDRESS names; else start one of this host's GPUs."""
    quiet = {"logging_level": "ERROR", "log_to_driver": False, "runtime_env": runtime_env}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        ray.init(address="local", include_dashboard=False, **quiet)


def _read_runtime_env(path: Path | None) -> dict[str, Any] | None:
    """Content of the file.

    Raises:
        SpecError: It cannot be read, or is not a mapping.
    """
    if path is None:
        return None
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise SpecError(f"--runtime-env {path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise SpecError(f"--runtime-env {path}: is not a mapping, such as 'pip: [benchmarker]'")
    return content
