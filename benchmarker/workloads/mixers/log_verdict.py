"""What a printed log of a comparison of mixers says, and what it cannot say.

The sentences hold the log's numbers against each other: times of profiler tables against times without the profiler,
a model's parameters against a formula, accuracies against chance, and two names of one operation against each other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from benchmarker.core.numbers import percent
from benchmarker.core.units import seconds
from benchmarker.profiling.categories import category
from benchmarker.profiling.printed_values import ProfilerTable
from benchmarker.workloads.mixers.log_values import MixerLog, named, read_values

DEFAULT_HEAD_DIM, DEFAULT_EXPAND = 256, 2
"""Of fla's layer GatedDeltaNet, where they are not said."""
CONVOLUTION = 4
"""Positions of its short convolution."""
FITS = 0.02
DEVICE_BOUND = 0.9
OFF_THE_LINE = 0.02
AT_CHANCE = 10.0
"""An accuracy below so many times chance was not learned."""
_TITLE = re.compile(r"\[(\w+)\].*?(\d+)\s*$")


def mixer_sentences(tables: Sequence[ProfilerTable], text: str = "") -> tuple[str, ...]:
    """What is odd and what follows, for a log with the speeds of two models or more; nothing for any other.

    Args:
        text: The whole log, with what is printed around the tables.
    """
    log = read_values(text)
    if len(log.step_s) < 2:
        return ()
    rules = (
        _bound(log, tables),
        _sections(tables),
        _parts(tables),
        _larger_state(log),
        _same_softmax(log),
        _tasks(log),
        _characters(log),
        _other_vocabulary(log),
        _no_crossing(log),
        _first_reading(log),
        _does_not_fit(log),
    )
    return tuple(sentence for rule in rules for sentence in rule)


def _bound(log: MixerLog, tables: Sequence[ProfilerTable]) -> Iterator[str]:
    """Kernel time of a table over the steps that it profiles, in their time without the profiler."""
    shares: dict[str, list[tuple[int, float]]] = {}
    for table in tables:
        match = _TITLE.search(table.title or "")
        steps = next((row.calls for row in table.rows if row.name in ("optimizer", "forward")), None)
        step_s = log.step_s.get(match[1], {}).get(int(match[2])) if match else None
        if match and steps and step_s and table.device_s:
            shares.setdefault(match[1], []).append((int(match[2]), table.device_s / steps / step_s))
    if not shares:
        return
    every = [share for of_model in shares.values() for _, share in of_model]
    spans = "; ".join(
        f"{model} {', '.join(f'{percent(share)} at {length:,}' for length, share in of_model)}"
        for model, of_model in shares.items()
    )
    if min(every) >= DEVICE_BOUND:
        yield (
            f"bound by the device, all of them: kernels take {percent(min(every))} or more of the step without the "
            f"profiler ({spans}); rows such as `Command Buffer Full` are the host waiting for the device"
        )
    else:
        yield f"kernels in a step without the profiler: {spans}; the rest is the host's"


def _sections(tables: Sequence[ProfilerTable]) -> Iterator[str]:
    """Forward, optimizer and what is left, from rows that have all that they called; of each model's first table."""
    by_model: dict[str, str] = {}
    for table in tables:
        totals = {row.name: row.device_total_s or 0.0 for row in table.rows if row.name in ("forward", "optimizer")}
        match = _TITLE.search(table.title or "")
        if match and match[1] not in by_model and table.device_s and len(totals) == 2:
            forward, optimizer = (totals[name] / table.device_s for name in ("forward", "optimizer"))
            by_model[match[1]] = (
                f"{match[1]} at {match[2]} forward {percent(forward)}, backward {percent(1 - forward - optimizer)}, "
                f"optimizer {percent(optimizer)}"
            )
    if by_model:
        yield f"the kernel time is {'; '.join(by_model.values())}"


def _parts(tables: Sequence[ProfilerTable]) -> Iterator[str]:
    """Share of a mixer's own kernels, where the table lists them."""
    for table in tables:
        own_s = sum(table.own_s(row) for row in table.listed if category(row.name) == "linear attention")
        convolution_s = sum(table.own_s(row) for row in table.listed if category(row.name) == "convolution")
        if table.device_s and own_s:
            also = f", {percent(convolution_s / table.device_s)} in the short convolution" if convolution_s else ""
            yield (
                f"{table.title or f'table in line {table.line}'}: {percent(own_s / table.device_s)} of the kernel time "
                f"is in the mixer's own kernels{also}"
            )


def _larger_state(log: MixerLog) -> Iterator[str]:
    """A gated delta net whose parameters fit fla's defaults, which nobody printed."""
    delta, plain = named(log.sizes, "delta"), named(log.sizes, "linear")
    if delta is None or plain is None or log.vocabulary is None or delta not in log.parameters:
        return
    by_formula = delta_net_parameters(log.sizes[delta], log.vocabulary)
    if abs(by_formula / log.parameters[delta] - 1) > FITS:
        return
    heads = log.sizes[delta]["num_heads"]
    state = heads * DEFAULT_HEAD_DIM * DEFAULT_HEAD_DIM * DEFAULT_EXPAND
    plain_state = (
        log.sizes[plain]["num_heads"] * (log.sizes[plain]["hidden_size"] // log.sizes[plain]["num_heads"]) ** 2
    )
    yield (
        f"{delta} is not comparable: its {by_formula / 1e6:.2f} M parameters are those of fla's defaults head_dim "
        f"{DEFAULT_HEAD_DIM} and expand_v {DEFAULT_EXPAND}, so that a layer carries {state:,} numbers, "
        f"{state / plain_state:.0f} times {plain}'s {plain_state:,}, and has a short convolution that the others lack"
    )


def delta_net_parameters(sizes: dict[str, int], vocabulary: int) -> int:
    """Of a language model with fla's layer GatedDeltaNet as it is where only hidden size and heads are said.

    A layer: queries, keys, values, gate and output projections, a decay and a strength for each head, three
    convolutions of 4 positions, norms, and a feed-forward of 4 times the width. Embedding and head are two matrices.
    """
    hidden, heads = sizes["hidden_size"], sizes["num_heads"]
    keys, values = heads * DEFAULT_HEAD_DIM, heads * DEFAULT_HEAD_DIM * DEFAULT_EXPAND
    mixer = hidden * (2 * keys + 3 * values + 2 * heads) + CONVOLUTION * (2 * keys + values) + 2 * heads
    layer = mixer + DEFAULT_HEAD_DIM * DEFAULT_EXPAND + 8 * hidden**2 + 4 * hidden
    return sizes["num_layers"] * layer + 2 * vocabulary * hidden


def _same_softmax(log: MixerLog) -> Iterator[str]:
    """Two names of one operation: equal peaks say that one kernel ran, and their scores differ by chance alone."""
    plain, flash = named(log.step_s, "softmax"), named(log.step_s, "flash")
    if plain is None or flash is None:
        return
    if log.peak_mb[plain] == log.peak_mb[flash]:
        length, peak = min(log.peak_mb[plain].items())
        yield (
            f"{plain} ran flash attention too: the same peak to the digit at every length ({peak:,} MB at {length:,}), "
            f"and {seconds(log.step_s[plain][length])} and {seconds(log.step_s[flash][length])} a step"
        )
    if plain in log.perplexity and flash in log.perplexity:
        first, second = sorted((log.perplexity[plain], log.perplexity[flash]))
        yield (
            f"the noise of one seed: {plain} and {flash} are one operation, and their perplexities {first} and "
            f"{second} differ by {percent(second / first - 1)}; no smaller difference means anything"
        )


def _tasks(log: MixerLog) -> Iterator[str]:
    if not log.accuracy or not log.vocabulary:
        return
    every, chance = [value for values in log.accuracy.values() for value in values], 1 / log.vocabulary
    if max(every) < AT_CHANCE * chance:
        low, high = (percent(value, places=2) for value in (min(every), max(every)))
        yield (
            f"copy and recall say nothing: {low} to {high} is at chance (1 of {log.vocabulary:,} is "
            f"{percent(chance, places=4)}): the models were not trained on these tasks"
        )


def _characters(log: MixerLog) -> Iterator[str]:
    if log.is_by_character and log.perplexity:
        name, value = next(iter(log.perplexity.items()))
        yield (
            f"perplexity is for each character ({name}'s {value} is {math.log2(value):.1f} bits): after so short a "
            "training it ranks how soon local statistics are learned, where a convolution helps"
        )


def _other_vocabulary(log: MixerLog) -> Iterator[str]:
    """A table of parameters that are not those of the trained models."""
    for name, total in log.totals.items():
        trained, hidden = log.parameters.get(name), log.sizes.get(name, {}).get("hidden_size")
        if log.vocabulary and trained and hidden and abs(total / trained - 1) > FITS:
            vocabulary = log.vocabulary + (total - trained) / (2 * hidden)
            yield (
                f"the table's {total:,} parameters of {name} are not the trained model's {trained / 1e6:.2f} M: they "
                f"are of a vocabulary of about {round(vocabulary, -1):,.0f}, not {log.vocabulary:,}"
            )
            return


def _no_crossing(log: MixerLog) -> Iterator[str]:
    """Share of the scores' products in the arithmetic of a layer, forward: an upper limit for what any mixer saves."""
    softmax = named(log.sizes, "softmax")
    if softmax is None or not log.lengths or not log.vocabulary:
        return
    sizes, length = log.sizes[softmax], log.lengths[-1]
    hidden = sizes["hidden_size"]
    scores = 2 * length * hidden * sizes["num_layers"]
    others = 24 * hidden**2 * sizes["num_layers"] + 2 * hidden * log.vocabulary
    yield (
        f"no crossing is in range: at {length:,} positions and width {hidden} the scores are "
        f"{percent(scores / (scores + others))} of the arithmetic, which no mixer can more than save"
    )


def _first_reading(log: MixerLog) -> Iterator[str]:
    """A first reading off the line through the others: workspace that later readings have in both."""
    for name, readings in log.forward_mb.items():
        (first, measured), *others = sorted(readings.items())
        if len(others) < 3:
            continue
        (shorter, low), (longer, high) = others[0], others[-1]
        expected = low - (high - low) / (longer - shorter) * (shorter - first)
        if abs(measured / expected - 1) > OFF_THE_LINE:
            yield (
                f"memory: the first reading, {name}'s {measured} MB at {first}, is {expected - measured:.0f} MB below "
                "the line through its others: they hold a workspace that was made at first use"
            )
            break
    odd = [
        name
        for name, backward in log.backward_mb.items()
        if all(backward[length] < log.forward_mb[name][length] for length in backward)
    ]
    if odd:
        yield f"memory: backward below forward ({', '.join(odd)}) is two definitions of peak in one table"


def _does_not_fit(log: MixerLog) -> Iterator[str]:
    for name, length in log.out_of_memory.items():
        peak = log.peak_mb.get(name, {}).get(length)
        if peak:
            yield (
                f"{name} at {length:,} fits in the test of speed ({peak:,.1f} MB) and not under the profiler: that "
                "process held other models still"
            )
