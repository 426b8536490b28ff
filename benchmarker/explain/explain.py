"""From the records of a variant to its explanation."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker.comparison.comparing import keys_of
from benchmarker.comparison.rows import CellKey
from benchmarker.core.numbers import percent
from benchmarker.core.units import seconds
from benchmarker.explain.advice import graph_ceiling
from benchmarker.explain.evidence import Case
from benchmarker.explain.numbers import code, ms
from benchmarker.explain.phases import conversion_of, decode_phase, prefill_phase, table_conversion, table_phase
from benchmarker.explain.values import Conversion, Explanation, NotExplained, Phase
from benchmarker.explain.verdict import COMPUTE_FROM, DEQUANTIZE_FROM, HOST_BELOW, verdict_of
from benchmarker.explain.waterfall import waterfall
from benchmarker.explain.what_ran import loaded_proof, proof_of
from benchmarker.profiling.categories import UNKNOWN_LIMIT, category
from benchmarker.profiling.printed_table import read_tables
from benchmarker.schema.kernels_used import multiplies_all_packed
from benchmarker.workloads.generation.reading.rows import GenerationRow as Row
from benchmarker.workloads.generation.reading.rows import generation_cell as cell_of
from benchmarker.workloads.generation.reading.rows import generation_row as make_row
from benchmarker.workloads.generation.record import GenerationProfile, GenerationRecord

FASTER_PROFILED = 0.97
"""The profiler only slows: a profiled token below this share of the others' time is another process's speed."""
BUSIER_THAN_TIMED = 1.05
"""Of the time without the profiler: kernels do not take longer than the whole."""


def explain(name: str, records: Sequence[GenerationRecord]) -> Explanation | NotExplained:
    """Why this variant is as fast as it is.

    Args:
        records: All of the variant's, one a process: the profile is the first that there is, the times are of all.
    """
    profiled = next((record for record in records if record.profile), None)
    if profiled is not None and profiled.profile is not None:
        return _from_profile(name, profiled, profiled.profile, records)
    listed = next((record for record in records if record.imported and record.imported.profiler_tables), None)
    if listed is not None:
        return _from_table(name, listed)
    said = next((record.no_profile.reason for record in records if record.no_profile), None)
    loaded = next((record for record in records if record.load), None)
    proof = loaded_proof(loaded.load, loaded.variant.engine) if loaded and loaded.load else None
    return NotExplained(name, said or "it has no profile: left out, or the run ended before it", proof)


def _from_profile(
    name: str, record: GenerationRecord, profile: GenerationProfile, records: Sequence[GenerationRecord]
) -> Explanation | NotExplained:
    row = _row(name, records, prompt_tokens=profile.prompt_tokens, batch_size=profile.batch_size, depth=profile.depth)
    if row is None or row.cell is None:
        return NotExplained(name, "the cell that was profiled was not measured")
    phase = decode_phase(profile)
    total_s = _token_s(row, phase, profile.new_tokens)
    if total_s is None:
        return NotExplained(name, "a single token was generated, and decoding takes two")
    if phase.busy_s > BUSIER_THAN_TIMED * total_s:
        return NotExplained(
            name,
            f"the profiled kernels alone took {ms(phase.busy_s)} a token, longer than the {ms(total_s)} of a whole one "
            "without the profiler: it slowed them, and their times tell nothing",
            has_profile=True,
        )
    return _explanation(name, record, row, phase, conversion_of(phase), total_s=total_s, profile=profile)


def _from_table(name: str, record: GenerationRecord) -> Explanation | NotExplained:
    """An imported run: its last cell is what was profiled, as far as the log tells."""
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
    row = _row(name, [record], prompt_tokens=last.prompt_tokens, batch_size=last.batch_size)
    assert row is not None
    assert row.latency is not None
    phase = table_phase(table, last.new_tokens)
    notes = [f"the profiled generation is taken to be of {last.new_tokens} tokens, as the last runs above its table"]
    if not table.is_total_printed:
        notes.append("the line with its table's total is missing: it is worked out from the percentage of a row")
    if table.is_total_too_small:
        notes.append("its table's rows add up to more than the total below them: their sum is used")
    return _explanation(
        name,
        record,
        row,
        phase,
        table_conversion(table),
        total_s=row.latency.value / last.new_tokens,
        notes=tuple(notes),
    )


def _explanation(
    name: str,
    record: GenerationRecord,
    row: Row,
    phase: Phase,
    conversion: Conversion | None,
    *,
    total_s: float,
    profile: GenerationProfile | None = None,
    notes: tuple[str, ...] = (),
) -> Explanation:
    assert row.cell is not None
    cell = cell_of(record, row.cell)
    demand = cell.demand if cell else None
    fall = waterfall(phase, total_s=total_s, demand=demand, limits=record.limits)
    case = Case(
        quant=record.variant.quant,
        engine=record.variant.engine,
        batch_size=row.cell.batch_size,
        device=record.environment.device.kind,
        phase=phase,
        waterfall=fall,
        linears=frozenset(record.load.linear_classes) if record.load else frozenset(),
        conversion=conversion,
        demand=demand,
        limits=record.limits,
        mbu=row.mbu,
    )
    return Explanation(
        variant=name,
        quant=case.quant,
        engine=case.engine,
        cell=row.cell,
        phase=phase,
        waterfall=fall,
        verdict=verdict_of(case),
        proof=proof_of(phase, record.load, conversion, own=case.batch_size == 1 and _multiplies_words(record)),
        conversion=conversion,
        mbu=case.mbu,
        ceiling=graph_ceiling(phase, record.limits, batch_size=case.batch_size)
        if profile and phase.by == "device" and case.engine == "eager" and case.can_be_captured
        else None,
        prefill=_prefill(profile, row) if profile else None,
        notes=(*notes, *_notes(case)),
    )


def _multiplies_words(record: GenerationRecord) -> bool:
    """Whether all of GPTQ's products are ours, which they are for one query."""
    engine = record.engine
    return engine is not None and multiplies_all_packed(engine.kernels_used)


def _row(
    name: str, records: Sequence[GenerationRecord], *, prompt_tokens: int, batch_size: int, depth: int | None = None
) -> Row | None:
    """The longest cell with the profiled prompt and depth, over all processes.

    Args:
        depth: None where it was not kept: then the deepest is taken, which is what is profiled if it ran.
    """
    keys: list[CellKey] = [
        key
        for record in records
        for key in keys_of(record)
        if (key.prompt_tokens, key.batch_size) == (prompt_tokens, batch_size) and depth in (None, key.depth)
    ]
    longest_first = sorted(set(keys), key=lambda key: (key.depth, key.new_tokens), reverse=True)
    rows = (make_row(name, key, records) for key in longest_first)
    return next((row for row in rows if row.status == "ok"), None)


def _token_s(row: Row, phase: Phase, profiled_tokens: int) -> float | None:
    """A token's time without the profiler, over the same part of a generation as the phase."""
    if phase.is_decode:
        return row.tpot.value if row.tpot else None
    if row.ttft and row.tpot:
        return (row.ttft.value + (profiled_tokens - 1) * row.tpot.value) / profiled_tokens
    return row.latency.value / row.cell.new_tokens if row.latency and row.cell else None


def _notes(case: Case) -> tuple[str, ...]:
    phase, fall = case.phase, case.waterfall
    said = []
    if fall.slow_down is not None and fall.slow_down < FASTER_PROFILED:
        said.append(
            f"the process that was profiled was faster than the others ({fall.slow_down:.2f}x their time a token): the "
            "gaps are uncertain by as much"
        )
    elif fall.slow_down is not None and phase.profiled_s is not None:
        said.append(
            f"with the profiler a token took {ms(phase.profiled_s)}, {fall.slow_down:.2f}x the {ms(fall.total_s)} "
            "without it: the gaps are of the time without"
        )
    if not phase.is_decode:
        said.append("prefill and decode are not told apart: a token is the whole generation over its tokens")
    if case.limits is None or case.demand is None:
        said.append("bandwidth or bytes a token were not measured: the ideal time of reading the weights is not known")
    if phase.share("other") > UNKNOWN_LIMIT:
        unknown = next(one.name for one in phase.kernels if category(one.name) == "other")
        said.append(
            f"{percent(phase.share('other'))} of the {phase.what} has no category: the table in profiling/kernels.py "
            f"needs names such as {code(unknown)}"
        )
    if phase.not_listed_s:
        said.append(f"{percent(phase.not_listed_s / phase.kernel_s)} of the {phase.what} is not in the table")
    return tuple(said)


def _prefill(profile: GenerationProfile, row: Row) -> str | None:
    """What the prompt waits for; None where the profile does not tell it apart."""
    phase = prefill_phase(profile)
    if phase is None or row.ttft is None:
        return None
    ttft_s = row.ttft.value
    busy = phase.busy_s / ttft_s
    first = f"prefill of {profile.prompt_tokens} tokens: {seconds(ttft_s)} to the first token"
    if busy > BUSIER_THAN_TIMED:
        return f"{first}; the profiled one took longer than that in its kernels alone, which tells nothing"
    mfu = row.prefill_mfu
    rated = f", {percent(mfu)} of the measured matmul rate" if mfu is not None else ""
    bound = (
        "compute-bound"
        if (mfu or 0.0) >= COMPUTE_FROM
        else "dequantize-bound"
        if phase.share("dequantize") >= DEQUANTIZE_FROM and busy >= HOST_BELOW
        else "host-bound"
        if busy < HOST_BELOW
        else "mixed"
    )
    return f"{first}, busy {percent(busy)}{rated}: {bound}"
