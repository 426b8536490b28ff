"""Environments of external engines at another host: whoever can write to its cache folder must not decide what runs.

A place uses only those that the host of the sweep itself has, made from the same pins, or with the same interpreter
where they are the user's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarker.engines.external.environments import EnvironmentState, environment_states
from benchmarker.schema.job import Job
from benchmarker.sweep.places.order import Order


def given_engines() -> dict[str, str]:
    """The environments of this host that are ready, with a fingerprint of each."""
    return {state.spec.name: _fingerprint(state) for state in environment_states() if state.problem is None}


def engine_refusal(order: Order, jobs: Iterable[Job]) -> str | None:
    """Why an environment that a job would use here was not given with the order; None where none is used."""
    engines = {getattr(job.variant, "engine", None) for job in jobs}
    for state in environment_states():
        if state.spec.engine not in engines or state.problem is not None:
            continue
        if order.engines.get(state.spec.name) != _fingerprint(state):
            return (
                f"its environment {state.spec.name} is not the one of the host that the sweep was started on; "
                f"'benchmarker engine install {state.spec.name}' on both makes them equal"
            )
    return None


def _fingerprint(state: EnvironmentState) -> str:
    marker = state.interpreter
    if marker.pins_sha256:
        return f"{marker.version} from pins {marker.pins_sha256}"
    return f"{marker.version} in {marker.python}, libraries in {marker.library}"
