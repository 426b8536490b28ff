"""Caveats of text generation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from benchmarker.comparison.rows import CellKey, cell_words, headline_rows, keys_of
from benchmarker.core.formatting import gib, percent, range_text
from benchmarker.core.stats import MIN_ROUNDS
from benchmarker.core.tables import plain_line
from benchmarker.report.caveats import (
    REASON_LENGTH,
    conditions,
    disturbed,
    failed,
    names,
    origins,
    unfinished,
    variants_by,
)
from benchmarker.schema.model import DISAGREEMENT, EngineFacts, ExternalFacts, TensorTypes, kinds_words
from benchmarker.schema.record import Memory
from benchmarker.workloads.generation.reading.baseline import checkpoint_notes, greedy_tokens_in_common
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow
from benchmarker.workloads.generation.reading.limit_tables import impossible
from benchmarker.workloads.generation.reading.quality_tables import text_line
from benchmarker.workloads.generation.record import NO_TOKENIZER, GenerationRecord


def caveats(
    records: Sequence[GenerationRecord], rows: Sequence[GenerationRow], *, baseline: str | None = None
) -> tuple[str, ...]:
    return (
        *impossible(rows),
        *disturbed(rows),
        *_partly_quantized(records),
        *_partly_native(records),
        *_dummy(rows),
        *checkpoint_notes(records),
        *_other_tokenizers(records),
        *_types(records),
        *origins(records),
        *_tuned_once(records),
        *_other_texts(records),
        *failed(rows),
        *unfinished(records),
        *_unjudged(records),
        *_routing(rows),
        *_whole_calls(rows),
        *conditions(records, rows),
        *_notes(records),
        *text_line(headline_rows(rows), baseline),
    )


NOTE_LENGTH = 3000  # Maximum characters of a note. A note that lists kernels is longer than a reason.
MOST_UNQUANTIZED = 0.1  # Share of unquantized weights above which a caveat is printed for a quantized variant.


def _partly_quantized(records: Sequence[GenerationRecord]) -> list[str]:
    def words(record: GenerationRecord) -> str | None:
        coverage = record.load.coverage if record.load else None
        return coverage.words if coverage and coverage.unquantized_share > MOST_UNQUANTIZED else None

    return [f"{names(variants)}: {text}." for text, variants in variants_by(records, words).items()]


def _partly_native(records: Sequence[GenerationRecord]) -> list[str]:
    def words(record: GenerationRecord) -> str | None:
        kernels = record.engine.modules if record.engine else ()
        return None if all(use.origin == "benchmarker" for use in kernels) else kinds_words(kernels)

    return [f"{names(variants)} by kind of module: {text}." for text, variants in variants_by(records, words).items()]


def _other_tokenizers(records: Sequence[GenerationRecord]) -> list[str]:
    tokenizers = variants_by(records, lambda record: record.model.tokenizer_sha256)
    with_tokenizer = [record for record in records if record.model.tokenizer_sha256]
    templates = variants_by(with_tokenizer, lambda record: record.model.chat_template_sha256 or "none")
    different = {"tokenizers": tokenizers, "chat templates": templates}
    nouns = [noun for noun, variants in different.items() if len(variants) > 1]
    if not nouns:
        return []
    groups = "; ".join(names(variants) for variants in different[nouns[0]].values())
    return [f"The checkpoints have different {' and '.join(nouns)}: {groups}. Their texts and quality differ by it."]


def _dummy(rows: Sequence[GenerationRow]) -> list[str]:
    dummies = dict.fromkeys(row.variant for row in rows if row.has_random_weights)
    which = "" if all(row.has_random_weights for row in rows) else f" in {names(dummies)}"
    sentence = (
        f"Random weights (load_format dummy){which}: the time of a dense model was within 1.3 % of that of real-shaped "
        "weights (docs/values.md); text and quality mean nothing."
    )
    return [sentence] if dummies else []


def _routing(rows: Sequence[GenerationRow]) -> list[str]:
    """Return sentences on the number of experts that a decode step reads, and on the library's copies of experts."""
    variants: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        work = row.step_demand
        if work is None or work.experts_per_step is None or row.status != "ok":
            continue
        line = f"{cell_words(row.cell)}: a step reads {work.experts_per_step:.3g} of {work.experts} experts of a layer"
        copied = "; the library copies the experts of each token first, {} a step that are not in the floor"
        variants[line + (copied.format(gib(work.copied_bytes)) if work.copied_bytes else "")].append(row.variant)
    return [f"{names(members)} at {line}." for line, members in variants.items()]


def _whole_calls(rows: Sequence[GenerationRow]) -> list[str]:
    ranked = [row for row in rows if row.is_ranked_by_call]
    engines = names(dict.fromkeys(row.engine for row in ranked if row.mixes_prefill))
    batches = ", ".join(str(size) for size in sorted({row.cell.batch_size for row in ranked if row.cell}))
    line = f"Rates, speed-ups and order at batch {batches} are those of whole calls: {engines} decodes some sequences "
    return [f"{line}while it prefills others, so that its decode rate has another meaning."] if ranked else []


def _types(records: Sequence[GenerationRecord]) -> list[str]:
    types = variants_by(records, lambda record: record.model.dtype)
    texts = "; ".join(f"{plain_line(dtype)}: {names(variants)}" for dtype, variants in types.items())
    return [f"Not all variants compute in the same type: {texts}."] if len(types) > 1 else []


def _tuned_once(records: Sequence[GenerationRecord]) -> list[str]:
    caches: dict[str, list[str]] = defaultdict(list)
    for record in records:
        # The engine compiles one layer for all layers only if it captures the step, which requires a GPU.
        if record.engine and record.engine.compiled == "layer" and record.engine.setup_cache:
            caches[record.variant.name].append(record.engine.setup_cache)
    variants = [name for name, states in caches.items() if len(states) >= MIN_ROUNDS and states.count("cold") <= 1]
    sentence = (
        f"{names(variants)}: all processes ran the kernels of one compilation. Another one tunes them anew, and may "
        "come out faster or slower by more than the interval."
    )
    return [sentence] if variants else []


def _other_texts(records: Sequence[GenerationRecord]) -> list[str]:
    """Return a caveat on variants whose greedy text differs between rounds, which indicates a change or randomness."""
    firsts: dict[tuple[str, str, CellKey], tuple[int, ...]] = {}
    others: dict[str, dict[CellKey, str]] = {}
    # Single runs are left out, because they may have been made with other settings or versions.
    for record in sorted((record for record in records if record.sweep), key=lambda each: each.moment):
        name = record.variant.name
        for key, cell in zip(keys_of(record), record.cells, strict=True):
            if cell.status != "ok" or not cell.first_tokens:
                continue
            first = firsts.setdefault((record.sweep or "", name, key), cell.first_tokens)
            if first != cell.first_tokens:
                token = (greedy_tokens_in_common(first, cell.first_tokens) or 0) + 1
                others.setdefault(name, {}).setdefault(
                    key,
                    f"{plain_line(name)} at {cell_words(key)}: the text of round {record.round + 1} is not that of the "
                    f"first round, from token {token} on",
                )
    return [
        next(iter(cells.values()))
        + (f"; {len(cells) - 1} more of its cells made another text too." if len(cells) > 1 else ".")
        for cells in others.values()
    ]


def _unjudged(records: Sequence[GenerationRecord]) -> list[str]:
    """Return reasons why quality, tasks, floor or the check of the step are missing in all processes of a variant."""
    results = [
        (kind, record.variant.name, result, refusal)
        for record in records
        for kind, result, refusal in (
            ("floor or memory-bandwidth utilization", record.no_demand is None, record.no_demand),
            ("quality", record.quality, record.no_quality),
            ("tasks", record.tasks, record.no_tasks),
            ("check of the timed step", record.step_divergence, record.no_step_divergence),
        )
    ]
    judged = {(kind, name) for kind, name, result, _ in results if result}
    return [
        f"{plain_line(name)}: no {kind}: {plain_line(refusal.reason, longest=REASON_LENGTH)}"
        for kind, name, _, refusal in results
        if refusal and (kind, name) not in judged
    ]


def _kernel_notes(engine: EngineFacts) -> list[str]:
    ours = "; ".join(use.words() for use in engine.kernels_used if use.origin == "benchmarker")
    cache = f"its KV cache is {engine.kv_cache_stored}" if engine.kv_cache_stored else ""
    return [*filter(None, (ours, cache))]


def types_note(facts: ExternalFacts | TensorTypes) -> str:
    """Return a note on the types in which a GGUF file stores its tensors."""
    sizes = facts.weight_bytes_by_type
    types = ", ".join(f"{name} {count} ({gib(sizes[name])})" for name, count in facts.tensors_by_type.items())
    tied = " (the embedding too)" if facts.is_tied else ""
    return f"tensors by type: {types}; the output layer{tied} is {facts.output_type}"


CLOCKS = {
    "TTFT": "its TTFT is that of each sequence from its arrival at the engine, ours from the call until every sequence "
    "has a token",
    "time per token": "its time per token begins at the sequence's own first token, ours when every sequence has one",
}
"""Reason why a time reported by an engine differs from the time by our clock."""
SHOWN_SETTINGS = (
    *("dtype", "cudagraph_mode", "cuda_graph_decode", "cuda_graph_prefill", "async_scheduling", "enable_torch_compile"),
    *("max_num_seqs", "max_num_batched_tokens", "chunked_prefill_size", "flash_attention", "threads"),
)
"""Names of the engine settings that notes show, because they affect the speed."""


def settings_note(record: GenerationRecord) -> str | None:
    """Return a line with the version, the kernels and the settings of an external engine."""
    if record.engine is None or (facts := record.engine.external) is None:
        return None
    kernels = [f"{name} in {count} linears" for name, count in facts.linear_kernels.items()]
    settings = {name: value for name in SHOWN_SETTINGS if (value := facts.settings.get(name)) is not None}
    parts = [*kernels, *facts.attention, *(f"{name}={value}" for name, value in settings.items())]
    return ", ".join([f"ran with version {facts.version}", *parts])


def external_notes(rounds: Sequence[ExternalFacts], *, has_peak: bool = True) -> list[str]:
    """Return notes on an external engine: its details, and differences between its reported times and our clock."""
    facts = max(rounds, key=lambda each: each.disagreement or 0.0)
    notes = [types_note(facts)] if facts.tensors_by_type else []
    notes += [facts.fallback] if facts.fallback else []
    if facts.kv_cache_bytes and has_peak:
        notes.append(
            f"{gib(facts.kv_cache_bytes)} are reserved for its KV cache, which its peak contains on a CPU and not on a "
            "GPU; the peaks of engines without a reserve contain their KV cache"
        )
    if facts.disagreement is not None and facts.disagreement > DISAGREEMENT:
        shares = {"TTFT": facts.ttft_disagreement, "time per token": facts.tpot_disagreement}
        times = [name for name, share in shares.items() if share is not None and share > DISAGREEMENT]
        line = f"its own {' and '.join(times) or ' or '.join(shares)} differs from our clock's by "
        line += f"{percent(facts.disagreement)}, more than {percent(DISAGREEMENT, places=0)}"
        # Older records have neither difference; no reason is printed for them.
        notes.append(line + "".join(f"; {CLOCKS[name]}" for name in times))
    if parts := [f"{100 * share:.1f}" for share in sorted(each.choosing_share or 0.0 for each in rounds) if share]:
        notes.append(f"choosing tokens on the host takes {range_text(parts)} % of a step")
    return notes


def _notes(records: Sequence[GenerationRecord]) -> list[str]:
    loaded = [(record, record.load) for record in records if record.load]
    notes = [(record, types_note(load.file_types)) for record, load in loaded if load.file_types]
    notes += [(record, note) for record, load in loaded for note in load.notes]
    trained = [record for record in records if record.model.load_format != "dummy"]
    without = [record for record in trained if any(cell.prompt_source == NO_TOKENIZER for cell in record.cells)]
    notes += [(record, "the model has no tokenizer: its prompts are random token ids") for record in without]
    notes += [(record, note) for record in records if record.engine for note in _kernel_notes(record.engine)]
    for name in dict.fromkeys(record.variant.name for record in records):
        members = [record for record in records if record.variant.name == name]
        rounds = [record.engine.external for record in members if record.engine and record.engine.external]
        has_peak = any(cell.memory != Memory() for record in members for cell in record.cells)
        notes += [(members[0], note) for note in external_notes(rounds, has_peak=has_peak)] if rounds else []
    lines = [f"{plain_line(record.variant.name)}: {plain_line(note, longest=NOTE_LENGTH)}" for record, note in notes]
    settings = variants_by(records, settings_note)
    lines += [f"{names(variants)}: {plain_line(note, longest=NOTE_LENGTH)}." for note, variants in settings.items()]
    return [*dict.fromkeys(lines)]
