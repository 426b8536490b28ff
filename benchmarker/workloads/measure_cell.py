"""Measurement of one cell of any workload: check the result, then time it. An error is stored as the cell's status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarker.core.errors import ErrorKind, UnsupportedError, WrongResultError, first_line, status_of
from benchmarker.distributed.ranks import RankError
from benchmarker.hardware.device import Device, error_kind_of
from benchmarker.hardware.gpu import DeviceMemory
from benchmarker.measure.repeat import measure
from benchmarker.schema.job import Procedure
from benchmarker.workloads.session import Bench


def measure_cell(
    bench: Bench,
    cell: Any,
    point: Any,
    procedure: Procedure,
    device: Device,
    *,
    device_memory: DeviceMemory | None = None,
    after_each: Callable[[int, Any], None] = lambda number, sample: None,
    after_warmup: Callable[[int, Any], None] = lambda number, sample: None,
) -> Any:
    """Return the measured cell. Its status shows if memory ran out or the variant is unsupported.

    Args:
        cell: The cell of the point, as `bench.cell` makes it.
        device_memory: Memory of the whole device before the model was loaded, to report its growth.
        after_each: Called after each repeat with its number from 1.
        after_warmup: Called after each warm-up.
    """
    kind: ErrorKind
    try:
        cell = cell.model_copy(update=dict(bench.correct(point)))
        step = bench.step(point)
        measured = measure(
            step,
            device,
            warmup=procedure.warmup,
            warmup_limit=procedure.warmup_limit,
            runs=procedure.runs,
            times=bench.settling_times,
            timed=bench.timed,
            after_each=after_each,
            after_warmup=after_warmup,
        )
        growth_bytes = device_memory.growth_bytes() if device_memory else None
        memory = measured.memory.model_copy(update={"device_used_bytes": growth_bytes})
        # The fields of `Measured` have the names of the cell's fields.
        timed = cell.model_copy(update={**vars(measured), "memory": memory})
        return timed.model_copy(update=dict(bench.measured(timed, step)))
    except (UnsupportedError, WrongResultError, RankError) as error:
        kind, reason = error.kind, str(error)
    except Exception as error:
        # Memory may run out in this process, or in that of an external engine, whose error then has an oom kind.
        if not device.is_out_of_memory(error) and error_kind_of(error, device) not in ("oom_gpu", "oom_host"):
            raise
        kind, reason = error_kind_of(error, device), first_line(error)
    # After the except block: inside it, the traceback keeps the failed repeat's tensors alive.
    device.release()
    return cell.model_copy(update={"status": status_of(kind), "error_kind": kind, "reason": reason})
