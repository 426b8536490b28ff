"""Which measurements are the same: a key of everything that determines a cell's result.

Two cells with one key may stand for each other. What is not in it: the variant's name, the round, the number of
rounds, the profile, and which card of several equal ones it was (a sweep sees to that: a round stays on one card).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from benchmarker import __version__
from benchmarker.schema.experiment import ModelSpec, Point, Procedure, VariantSpec
from benchmarker.schema.record import SCHEMA_VERSION, Environment

PROTOCOL_VERSION = 2
"""Goes up when cells are measured in another way, so that numbers from before and after are not mixed."""


def result_key(
    model: ModelSpec, variant: VariantSpec, point: Point, procedure: Procedure, environment: Environment
) -> str:
    """SHA-256 over the canonical JSON of all that matters, in hex."""
    device = environment.device
    determining = {
        "schema": SCHEMA_VERSION,
        "protocol": PROTOCOL_VERSION,
        "benchmarker": {"version": __version__, "commit": environment.commit},
        "model": model.model_dump(mode="json"),
        "files": _files(Path(model.id)),
        "quant": variant.quant,
        "runtime": variant.engine,
        "engine_options": variant.typed_engine_options.model_dump(mode="json"),
        "options": variant.loader_options.model_dump(mode="json"),
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
        "variables": environment.variables,
    }
    text = json.dumps(determining, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of a local model's files; empty for a model from elsewhere."""
    # A name as long as no folder's is an error to ask about; it is not one of ours.
    with contextlib.suppress(OSError, ValueError):
        if folder.is_dir():
            found = ((path, path.stat()) for path in folder.iterdir() if path.is_file())
            return sorted((path.name, status.st_size, status.st_mtime_ns) for path, status in found)
    return []
