"""Explanation of a token's time: the profiled decode step and its floor.

    floor = max(weight bytes / bandwidth, FLOPs of a step / matmul rate)

The bytes are those of the weights only, because bytes of the KV cache are part of attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from benchmarker.comparison.results import make_row
from benchmarker.comparison.roofline import Floor, floor_of
from benchmarker.comparison.rows import CellKey, cell_of, cell_words, is_wide, keys_of
from benchmarker.core.formatting import ms, percent, seconds, significant
from benchmarker.core.tables import plain_line
from benchmarker.explain import phases
from benchmarker.explain.explain import loaded_proof
from benchmarker.explain.verdict import SLOWED_FROM, all_share_words, bounds_of_shares
from benchmarker.explain.waterfall import NotExplained, Timed, why_no_profile
from benchmarker.profiling.printed_reader import read_tables
from benchmarker.schema.model import multiplies_all_packed
from benchmarker.schema.record import Demand, Limits
from benchmarker.workloads.generation.reading.generation_advice import ADVICE, can_be_captured, communication
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow as Row
from benchmarker.workloads.generation.record import (
    GenerationCell,
    GenerationDemand,
    GenerationProfile,
    GenerationRecord,
)

FEWEST_BITS = 5.5
"""Bits per weight of 4-bit quantization, scales and 16-bit output layer included: 5.3 to 5.6 for 4e9 parameters."""
FLOORS = {"bytes": "reading the weights", "flops": "arithmetic at the measured rate"}
SHOWN_SHARE = 0.10  # Smallest share of the prefill's time that is printed.
INTEGER_SAVES = 0.5  # Share of time that 8-bit products save, because they run at twice the rate of 16-bit products.


def timed_token(name: str, records: Sequence[GenerationRecord]) -> Timed | NotExplained:
    """Return the decode step to explain: from a profile or, for an imported log, from its profiler table."""
    profiled = next((record for record in records if record.profile and not record.is_disturbed), None)
    if profiled is not None and profiled.profile is not None:
        return _from_profile(name, profiled, profiled.profile, records)
    listed = next((record for record in records if record.imported and record.imported.profiler_tables), None)
    if listed is not None:
        return _from_table(name, listed)
    load = next((record.load for record in records if record.load), None)
    # Compiled code may multiply with inductor's or benchmarker's kernels instead of the library's.
    replaces_linears = records[0].variant.engine in ("compile", "native")
    proof = loaded_proof(load, replaces_linears=replaces_linears) if load else None
    row = _longest(name, records)
    unknown = any(record.no_demand for record in records)
    why = why_no_profile(records)
    limits = next((record.limits for record in records if record.limits), None)
    allows = _allows(row, why, limits, has_unknown_bytes=unknown) if row else None
    return NotExplained(name, f"no profile ({why})", proof, allows, row.mbu if row else None)


def floor_of_step(demand: GenerationDemand | None, limits: Limits | None, bits: float | None) -> Floor | None:
    """Return the floor of a decode step's products, None if unknown. `bits`: average bits per weight."""
    floor = floor_of(Demand(bytes=demand.weight_bytes, flops=demand.decode_flops), limits) if demand else None
    if floor is None or floor.by == "flops":
        return replace(floor, fewer=INTEGER_SAVES) if floor else None
    return replace(floor, fewer=max(0.0, 1 - FEWEST_BITS / bits) if bits else 0.0)


def _from_profile(
    name: str, record: GenerationRecord, profile: GenerationProfile, records: Sequence[GenerationRecord]
) -> Timed | NotExplained:
    row = _row(name, records, profile)
    if row is None or row.cell is None:
        return NotExplained(name, "the cell that was profiled was not measured")
    phase = decode_phase(profile)
    total_s = _token_s(row, phase, profile.new_tokens)
    if total_s is None:
        return NotExplained(name, "a single token was generated, and decoding takes two")
    cell = cast("GenerationCell | None", cell_of(record, row.cell))
    notes = () if phase.is_decode else ("prefill and decode are not told apart: a token is a share of the whole",)
    return replace(
        _timed(record, phase, row.cell, total_s),
        floor=floor_of_step(cell.demand if cell else None, record.limits, row.bits_per_weight),
        conversion=phases.conversion_of(phase, record.load),
        mbu=row.mbu,
        notes=(*notes, *communication(profile, phase, total_s=total_s)),
        prefill=_prefill(record, profile, row),
    )


def _from_table(name: str, record: GenerationRecord) -> Timed | NotExplained:
    """Return the decode step of an imported run's last cell, to which the log's table of the profiler is assigned."""
    assert record.imported is not None
    table = read_tables(record.imported.profiler_tables[-1])[0]
    last = next((cell for cell in reversed(record.cells) if cell.status == "ok" and cell.samples), None)
    if last is None or not table.listed:
        return NotExplained(name, "its log has no timed run, or no time on the device, to hold against each other")
    if table.by == "cpu" and record.environment.device.kind != "cpu":
        return NotExplained(name, "its log's table has a processor's time alone, and its runs may be of another device")
    if table.known_total_s is None:
        return NotExplained(
            name,
            f"its log's table has no line `Self {table.device or 'CPU'} time total`, and no percentages to work it out "
            "from: how much time the table leaves out is not known",
        )
    row = _row(name, [record], last)
    assert row is not None
    assert row.cell is not None
    assert row.latency is not None
    notes = [
        f"the profiled generation is taken to be of {last.new_tokens} tokens, as the last runs above its table",
        "prefill and decode are not told apart: a token is a share of the whole",
    ]
    if not table.is_total_printed:
        notes.append("the line with its table's total is missing: it is worked out from the percentage of a row")
    if table.is_total_too_small:
        notes.append("its table's rows add up to more than the total below them: their sum is used")
    timed = _timed(record, phases.table_phase(table, last.new_tokens), row.cell, row.latency.value / last.new_tokens)
    return replace(timed, conversion=phases.table_conversion(table), notes=tuple(notes))


def decode_phase(profile: GenerationProfile) -> phases.Phase:
    tokens = profile.new_tokens - 1
    decode = phases.section_phase(profile, "decode", units=tokens) if tokens else None
    return replace(decode, is_decode=True) if decode else phases.phase_of(profile, units=profile.new_tokens)


def _row(name: str, records: Sequence[GenerationRecord], like: GenerationProfile | GenerationCell) -> Row | None:
    shape = like.prompt_tokens, like.batch_size, like.distinct_prompts > 1
    keys: list[CellKey] = [
        key
        for record in records
        for key in keys_of(record)
        if (key.prompt_tokens, key.batch_size, key.has_distinct_prompts) == shape and like.depth in (None, key.depth)
    ]
    longest_first = sorted(set(keys), key=lambda key: (key.depth, key.new_tokens), reverse=True)
    rows = (cast("Row", make_row(name, key, records)) for key in longest_first)
    return next((row for row in rows if row.status == "ok"), None)


def _token_s(row: Row, phase: phases.Phase, profiled_tokens: int) -> float | None:
    if phase.is_decode:
        return row.tpot.value if row.tpot else None
    if row.ttft and row.tpot:
        return (row.ttft.value + (profiled_tokens - 1) * row.tpot.value) / profiled_tokens
    return row.latency.value / row.cell.new_tokens if row.latency and row.cell else None


def _prefill(record: GenerationRecord, profile: GenerationProfile, row: Row) -> str | None:
    phase = phases.section_phase(profile, "prefill")
    if phase is None or row.ttft is None:
        return None
    # Without `profiled_s`: the record has no time of the first token with the profiler on.
    phase = replace(phases.unpacking(phase, phases.conversion_of(phase, record.load)), profiled_s=None)
    cell = cast("GenerationCell | None", cell_of(record, row.cell))
    demand = cell.demand if cell else None
    floor = floor_of(Demand(bytes=demand.weight_bytes, flops=demand.prefill_flops), record.limits) if demand else None
    timed = Timed(record=record, phase=phase, total_s=row.ttft.value, floor=floor, floors=FLOORS)
    is_slowed = timed.busy_share > SLOWED_FROM
    slowed = "; the profiled one took longer than that in its kernels alone" if is_slowed else ""
    bounds = " and ".join(bounds_of_shares(timed.shares, phase, floor))
    first = f"{row.spread_text(row.ttft, scale=1e3)} ms" if is_wide(row.ttft) else seconds(row.ttft.value)
    return (
        f"prefill of {profile.prompt_tokens} tokens: {first} to the first token, bound by {bounds}: "
        f"{all_share_words(timed.shares, least=SHOWN_SHARE)}{slowed}"
    )


def _longest(name: str, records: Sequence[GenerationRecord]) -> Row | None:
    keys = sorted({key for record in records for key in keys_of(record)}, reverse=True)
    rows = [cast("Row", make_row(name, key, records)) for key in keys]
    rows = [row for row in rows if row.status == "ok" and row.tpot]
    return next((row for row in rows if row.mbu is not None), rows[0] if rows else None)


def _allows(row: Row, why: str, limits: Limits | None, *, has_unknown_bytes: bool) -> str:
    """Return a conclusion from the time and the bytes of a token that was not profiled."""
    assert row.tpot is not None
    where = f"not profiled ({plain_line(why, longest=300)}): at {cell_words(row.cell)}"
    if is_wide(row.tpot):
        return f"{where}, a token takes {row.spread_text(row.tpot, scale=1e3)} ms"
    if row.mbu is not None:
        remainder = max(0.0, 1 - row.mbu)
        return (
            f"{where}, reading what a token needs takes {percent(row.mbu)} of its {ms(row.tpot.value)} at the measured "
            f"bandwidth, so that all else is at most {percent(remainder)} of it"
        )
    if row.weight_bytes is None or has_unknown_bytes or row.is_divided:
        return f"{where}, a token takes {ms(row.tpot.value)}; its bytes are not known"
    rate = significant(row.weight_bytes / row.tpot.value / 1e9, 3)
    bandwidth = f"is {significant(limits.bytes_per_s / 1e9, 3)} GB/s" if limits else "was not measured"
    return (
        f"{where}, a token takes {ms(row.tpot.value)} and reads {row.weight_bytes / 1e9:.3g} GB of weights, "
        f"{rate} GB/s; the device's bandwidth {bandwidth}"
    )


def _timed(record: GenerationRecord, phase: phases.Phase, cell: CellKey, total_s: float) -> Timed:
    engine = record.engine
    return Timed(
        record=record,
        phase=phase,
        total_s=total_s,
        cell=cell,
        units=cell.batch_size,
        form={"quant": record.variant.quant, "engine": record.variant.engine},
        floors=FLOORS,
        advice=ADVICE,
        loaded=record.load,
        replaces_linears=cell.batch_size == 1 and engine is not None and multiplies_all_packed(engine.kernels_used),
        can_replay=record.profile is not None
        and phase.by == "device"
        and record.variant.engine == "eager"
        and can_be_captured(record),
    )
