"""The lines above a table: what was measured, on what, with what, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarker.core.tables import escaped
from benchmarker.core.units import gib, seconds
from benchmarker.core.words import plural
from benchmarker.workloads.generation.record import GenerationRecord

PACKAGES = ("torch", "transformers", "torchao", "bitsandbytes", "optimum", "gptqmodel")
"""Named in the header; the record holds more."""


def header(records: Sequence[GenerationRecord]) -> tuple[str, ...]:
    """What was measured, on what, with what, and how."""
    models = _each(records, lambda one: one.model.id)
    revisions = _each(records, lambda one: (one.model.revision or "")[:12])
    types = _each(records, lambda one: one.model.dtype)
    dummies = [one.model.load_format == "dummy" for one in records]
    weights = "dummy weights" if all(dummies) else "some dummy weights" if any(dummies) else ""
    devices = _each(records, lambda one: one.environment.device.name)
    programs = _each(records, lambda one: f"benchmarker {one.benchmarker}")
    drivers = _each(records, _platform)
    return (
        f"model: {models}{_in_brackets(types, revisions and f'revision {revisions}', weights)}",
        f"device: {devices}{_in_brackets(drivers)}",
        f"versions: {'; '.join(filter(None, (programs, _packages(records))))}",
        f"measured: {_procedure(records)}",
    )


def load_words(record: GenerationRecord) -> tuple[str, ...]:
    """What loading made, in one line."""
    load = record.load
    if load is None:
        return ()
    tied = "tied to the embedding" if load.lm_head_tied else "not tied"
    return (
        f"weights: {gib(load.weight_bytes)}, {load.bits_per_weight:.2f} bits a weight, "
        f"{100 * load.quantized_fraction:.0f} % of the parameters quantized, "
        f"lm_head {escaped(load.lm_head_dtype)} {tied}",
        f"load: {seconds(load.load_s)}",
    )


def _each(records: Sequence[GenerationRecord], of: Callable[[GenerationRecord], str]) -> str:
    return ", ".join(escaped(value) for value in dict.fromkeys(map(of, records)) if value)


def _in_brackets(*parts: str) -> str:
    said = ", ".join(filter(None, parts))
    return f" ({said})" if said else ""


def _platform(record: GenerationRecord) -> str:
    device = record.environment.device
    if device.kind == "cpu":
        return plural(record.environment.threads, "thread", "threads") if record.environment.threads else ""
    runtime = f"{'ROCm' if device.kind == 'rocm' else 'CUDA'} {device.runtime}" if device.runtime else ""
    return ", ".join(filter(None, (runtime, f"driver {device.driver}" if device.driver else "")))


def _packages(records: Sequence[GenerationRecord]) -> str:
    versions: dict[str, dict[str, None]] = {}
    for record in records:
        for name in PACKAGES:
            if name in record.environment.packages:
                versions.setdefault(name, {})[record.environment.packages[name]] = None
    return ", ".join(f"{escaped(name)} {escaped(' or '.join(found))}" for name, found in versions.items())


def _procedure(records: Sequence[GenerationRecord]) -> str:
    processes: dict[str, int] = {}
    for record in records:
        processes[record.variant.name] = processes.get(record.variant.name, 0) + 1
    runs = _each(records, lambda one: str(one.procedure.get("runs", "")))
    warmup = _each(records, lambda one: str(one.procedure.get("warmup", "")))
    counts = sorted(set(processes.values()))
    many = f"{counts[0]} to {counts[-1]} processes" if len(counts) > 1 else plural(counts[0], "process", "processes")
    each = f", {runs} timed runs a cell after at least {warmup} warm-ups" if runs and warmup else ""
    days = sorted({record.started_at[:10] for record in records})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{many} a variant{each}, {escaped(when)}"
