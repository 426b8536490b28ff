"""Recompute the numbers of token mixers from the raw JSON of records, without the code of the workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarker.comparison.recompute import centre, spread
from tests.oracles.attention import Numbers, Raw, floor_s, part_s, times_by_round

READS = {"linear": 2, "retention": 2, "gdn": 3}
"""Passes over the state per token: a write, a read, and for the delta rule a comparison."""
TRAINING = "training_step"
ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2}


def numbers_of(records: Sequence[Raw], shape: Sequence[Any]) -> Numbers:
    """Return the numbers of a row except its speed-up.

    Args:
        shape: Length, batch size and mode.
    """
    pairs = [(record, cell) for record in records for cell in _cells(record, shape)]
    flops, tokens = operations(pairs[0][0], *shape), shape[0] * shape[1]
    latency_s = centre(times_by_round(pairs, lambda sample: sample["latency_s"]))
    assert latency_s is not None
    return {
        "tokens_per_s": tokens / latency_s,
        "tflops_flop_per_s": flops / latency_s,
        "forward_s": centre(times_by_round(pairs, lambda sample: part_s(sample, "forward", shape[2]))),
        "backward_s": centre(times_by_round(pairs, lambda sample: part_s(sample, "backward", shape[2]))),
        "peak_bytes": _largest(pairs, "passes", "forward_peak_bytes", "backward_peak_bytes"),
        "kept_bytes": _largest(pairs, "passes", "kept_bytes"),
        "state": state(pairs[0][0], shape[0]),
        "parameters": parameters(pairs[0][0], shape[0]) if shape[2] == TRAINING else None,
        "error": max(tensor["error"] for _, cell in pairs for tensor in cell["checked"]["tensors"]),
        "floor_s": floor_s(pairs, flops, lambda record: least_bytes(record, *shape)),
        "rounds": len({(record["sweep"], record["round"]) for record, _ in pairs}),
        "runs": sum(len(cell["samples"]) for _, cell in pairs),
    }


def spreads_of(records: Sequence[Raw], shape: Sequence[Any]) -> Numbers:
    """Return intervals and deviations of latency and rate."""
    pairs = [(record, cell) for record in records for cell in _cells(record, shape)]
    times = list(times_by_round(pairs, lambda sample: sample["latency_s"]).values())
    repeats = [sample["latency_s"] for _, cell in pairs for sample in cell["samples"]]
    tokens = shape[0] * shape[1]
    rates, of_repeats = [tokens / time_s for time_s in times], [tokens / time_s for time_s in repeats]
    return {**spread("latency_s", times, repeats), **spread("tokens", rates, of_repeats)}


def operations(record: Raw, seq_len: int, batch_size: int, mode: str) -> int:
    """Return FLOPs: two per number of the state and pass over it, or for softmax two per number of each pair of tokens.

    A training step takes those of every layer with its backward pass, and six per weight of a product and token.
    """
    if mode == TRAINING:
        block, alone = record["subject"]["block"], operations(record, seq_len, batch_size, "forward_backward")
        looked_up = (block["vocabulary"] + seq_len) * block["hidden"]
        weights = parameters(record, seq_len) - looked_up
        return 6 * weights * seq_len * batch_size + block["layers"] * alone
    subject, mixer = record["subject"], record["variant"]["mixer"]
    keys, values = subject["head_dim"], subject["value_dim"] or subject["head_dim"]
    if mixer == "softmax":
        pairs = sum(query + 1 for query in range(seq_len))
        forward, with_gradients = 2 * batch_size * subject["heads"] * (keys + values) * pairs, 3.5
    else:
        forward, with_gradients = READS[mixer] * 2 * batch_size * seq_len * subject["heads"] * keys * values, 3
    return forward if mode == "forward" else round(with_gradients * forward)


def state(record: Raw, seq_len: int) -> int:
    """Return the size of the state at the end of one sequence, in numbers."""
    subject = record["subject"]
    keys, values = subject["head_dim"], subject["value_dim"] or subject["head_dim"]
    each = seq_len * (keys + values) if record["variant"]["mixer"] == "softmax" else keys * values
    return int(subject["heads"] * each)


def parameters(record: Raw, seq_len: int) -> int:
    """Return the parameters of the small model: embeddings of tokens and positions, output head, norms and layers.

    A layer is a mixer and a feed-forward network, which is 4 times as wide as the model for softmax. For other mixers
    its width compensates for their parameters.
    """
    block = record["subject"]["block"]
    hidden, plain = block["hidden"], mixer_parameters(record["subject"], "softmax")
    mixer = mixer_parameters(record["subject"], record["variant"]["mixer"])
    middle = 4 * hidden
    if block["match"] == "parameters":
        middle += round((plain - mixer) / (2 * hidden))
    layers = block["layers"] * (mixer + 2 * hidden * middle + 2 * hidden)
    return int(layers + 2 * block["vocabulary"] * hidden + seq_len * hidden + hidden)


def mixer_parameters(subject: Raw, mixer: str) -> int:
    """Return the parameters of a mixer: q, k, v, output, two gates per head with biases, four taps per channel."""
    heads, keys, values = subject["heads"], subject["head_dim"], subject["value_dim"] or subject["head_dim"]
    hidden, channels = subject["block"]["hidden"], heads * (2 * keys + values)
    gates = 2 * heads * hidden + 2 * heads if mixer == "gdn" else 0
    taps = 4 * channels if subject["block"]["short_conv"] else 0
    return int(hidden * channels + heads * values * hidden + gates + taps)


def least_bytes(record: Raw, seq_len: int, batch_size: int, mode: str) -> int:
    """Return bytes of inputs and output; with gradients inputs and output gradient are read, input gradients written.

    A training step moves ten numbers per weight.
    """
    if mode == TRAINING:
        # Float32 weights: forward, backward, gradient written; AdamW reads four numbers a weight and writes three.
        return 40 * parameters(record, seq_len)
    subject = record["subject"]
    element, keys, values = ELEMENT[subject["dtype"]], subject["head_dim"], subject["value_dim"] or subject["head_dim"]
    rows = batch_size * seq_len * subject["heads"]
    gates = rows * (element + 4) if record["variant"]["mixer"] == "gdn" else 0
    inputs, output = rows * element * (2 * keys + values) + gates, rows * element * values
    if mode == "forward":
        return inputs + output
    # Attention also reads its output, and writes and reads one float32 per row.
    extra = output + 2 * 4 * rows if record["variant"]["mixer"] == "softmax" else 0
    return 3 * inputs + 2 * output + extra


def _largest(pairs: Sequence[tuple[Raw, Raw]], group: str, *names: str) -> float | None:
    values = [cell[group][name] for _, cell in pairs if cell[group] for name in names if cell[group][name] is not None]
    return max(values, default=None)


def _cells(record: Raw, shape: Sequence[Any]) -> list[Raw]:
    return [
        cell
        for cell in record["cells"]
        if [cell["seq_len"], cell["batch_size"], cell["mode"]] == list(shape) and cell["status"] == "ok"
    ]
