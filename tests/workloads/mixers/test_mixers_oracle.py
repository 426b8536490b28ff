"""Rows of mixers equal an independent computation from their files."""

from __future__ import annotations

import pytest

from benchmarker.schema.record_io import collect, write_json
from benchmarker.workloads.mixers.mixer import GATED_DELTA, LINEAR, SOFTMAX, demand_of
from benchmarker.workloads.mixers.mixers_reading import timed_mixer
from benchmarker.workloads.mixers.record import (
    MixersCell,
    MixersChecked,
    MixersRecord,
    MixersTensorError,
    MixersVariantFacts,
)
from benchmarker.workloads.mixers.spec import MixersSubject, shape_of
from benchmarker.workloads.operation.record import OperationSample, PassMemory, SeenKernel
from benchmarker.workloads.operation.spec import LengthPoint
from tests.comparison.test_oracles import differing
from tests.explained import LIMITS
from tests.records import environment


def cell(mixer, subject, point, latency_s):
    both = point.mode != "forward"
    parts = {"forward": 0.3 * latency_s, "backward": 0.7 * latency_s} if both else {}
    output = MixersTensorError(tensor="o", error=3e-3, tolerance=0.01)
    tensors = (output, output.model_copy(update={"tensor": "dq", "error": 4e-3}))
    return MixersCell(
        status="ok",
        seq_len=point.seq_len,
        batch_size=point.batch_size,
        mode=point.mode,
        demand=demand_of(mixer, shape_of(subject, point)),
        checked=MixersChecked(
            against="float64", error=4e-3, tolerance=0.01, tensors=tensors, rows=512, heads=2, causal_error=0.0
        ),
        passes=PassMemory(forward_peak_bytes=5000, kept_bytes=3000 if both else None, backward_peak_bytes=9000),
        samples=tuple(OperationSample(latency_s=latency_s * more, parts_s=parts) for more in (1.0, 1.01, 1.03)),
    )


def record_of(name, mixer, number, cells, **fields) -> MixersRecord:
    """Return the record of one process in round `number`."""
    defaults = {
        "benchmarker": "0.1.0",
        "run_id": f"{name}-{number}",
        "started_at": f"2026-03-01T10:{number:02}:00Z",
        "status": "complete",
        "round": number,
        "sweep": "2026-03-01T10:00:00Z",
        "subject": MixersSubject(),
        "variant": MixersVariantFacts(name=name, variant=name, mixer=mixer, implementation="test"),
        "environment": environment(),
        "procedure": {"warmup": 3, "runs": len(cells[0].samples)},
        "cells": tuple(cells),
        "reproduce": "benchmarker run mixers",
    }
    return MixersRecord(**{**defaults, **fields})


def write_records(tmp_path):
    """Write three rounds of three mixers and return the folder."""
    subject = MixersSubject(heads=4, head_dim=64, value_dim=96)
    points = [LengthPoint(s, 2, mode) for s in (512, 2048) for mode in ("forward", "forward_backward")]
    for number in range(3):
        for mixer, base_s in ((SOFTMAX, 2e-3), (LINEAR, 1e-3), (GATED_DELTA, 1.5e-3)):
            cells = [cell(mixer, subject, point, base_s * (1 + 0.02 * number)) for point in points]
            record = record_of(mixer.name, mixer.name, number, cells, subject=subject, limits=LIMITS)
            write_json(record, tmp_path / f"{mixer.name}-{number}.json")
    return tmp_path


def test_call_is_explained_by_its_kernels_and_device_limits(tmp_path):
    records = []
    for _, record in collect([write_records(tmp_path)]).files:
        if record.variant.name == "gdn":
            kernel = SeenKernel(name="chunk_gated_delta_rule_fwd_kernel_h_blockdim64", calls=1, total_s=1e-4)
            cells = tuple(cell.model_copy(update={"kernels": (kernel,)}) for cell in record.cells)
            records.append(record.model_copy(update={"cells": cells}))
    explained = timed_mixer("gdn", records)
    assert explained.phase.busy_s == pytest.approx(1e-4)
    assert set(explained.phase.categories) == {"linear attention"}
    demand = records[0].cells[-1].demand
    computing_s, moving_s = demand.flops / LIMITS.matmul_flops_per_s, demand.bytes / LIMITS.bytes_per_s
    assert explained.floor.seconds == pytest.approx(max(computing_s, moving_s))


def test_call_on_a_cpu_is_not_explained(tmp_path):
    records = [record for _, record in collect([write_records(tmp_path)]).files if record.variant.name == "gdn"]
    device = records[0].environment.device.model_copy(update={"kind": "cpu"})
    surroundings = records[0].environment.model_copy(update={"device": device})
    explained = timed_mixer("gdn", [record.model_copy(update={"environment": surroundings}) for record in records])
    assert explained.why == "on a CPU the operators of a mixer cannot be identified"


def test_every_number_of_a_row_equals_the_oracle(tmp_path):
    assert differing(write_records(tmp_path)) == []


@pytest.mark.parametrize(
    ("constant", "value", "wrong"),
    [
        ("attention.attention_flops.BACKWARD_FLOPS", 2.0, "tflops_flop_per_s"),
        ("mixers.mixer.GATE_BYTES", 400, "floor_s"),
    ],
)
def test_wrong_count_of_flops_or_bytes_is_detected(tmp_path, monkeypatch, constant, value, wrong):
    monkeypatch.setattr(f"benchmarker.workloads.{constant}", value)
    assert wrong in differing(write_records(tmp_path))
