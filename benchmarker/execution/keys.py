"""Which measurements are the same: a key of everything that determines a cell's result.

Two cells with one key may stand for each other. What is not in it: the variant's name, the round, the number of
rounds, the profile, and which card of several equal ones it was (a sweep sees to that: a round stays on one card).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from benchmarker import __version__
from benchmarker.schema.environment import Environment
from benchmarker.schema.job import Job
from benchmarker.schema.record import SCHEMA_VERSION
from benchmarker.schema.registry import workload_of

PROTOCOL_VERSION = 2
"""Goes up when cells are measured in another way, so that numbers from before and after are not mixed."""
WHICH_CARD = "_VISIBLE_DEVICES"
"""Ending of the variables that choose among equal cards."""


def result_key(job: Job, point: Any, environment: Environment) -> str:
    """SHA-256 over the canonical JSON of all that matters, in hex."""
    device, procedure = environment.device, job.procedure
    determining = {
        "schema": SCHEMA_VERSION,
        "protocol": PROTOCOL_VERSION,
        "benchmarker": {"version": __version__, "commit": environment.commit},
        "workload": job.workload,
        "parts": workload_of(job.workload).key_parts(job),
        "point": point._asdict(),
        "procedure": {
            "warmup": procedure.warmup,
            "warmup_limit": procedure.warmup_limit,
            "runs": procedure.runs,
        },
        "device": device.model_dump(mode="json", exclude={"index", "uuid"}),
        "host": {"cpu": environment.cpu, "cores": environment.cores, "threads": environment.threads},
        "python": environment.python,
        "packages": environment.packages,
        "variables": {name: value for name, value in environment.variables.items() if not name.endswith(WHICH_CARD)},
    }
    text = json.dumps(determining, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
