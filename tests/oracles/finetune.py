"""Recompute the numbers of fine-tuning from the raw JSON of records, without the code of the workload.

Weights are counted from the shapes in Qwen3's config.json, bytes from the storage of each recipe.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarker.comparison.recompute import centre, spread
from tests.oracles.attention import Numbers, Raw, largest, times_by_round

MODELS = Path(__file__).parents[2] / "benchmarker" / "models"
LINEARS_IN_LAYER = 7
TENSORS_IN_LAYER = 11
"""Seven matrices and the weights of four norms."""
ROTARY_BYTES = 4
"""Bytes per head dimension: one float32 inverse frequency for every two dimensions, stored twice."""
NF4_BYTES = 0.5 + 4 / 64
"""Bytes per weight: a 4-bit code, and a float32 scale per 64 weights."""
NF4_TABLE_BYTES = 16 * 4


def numbers_of(records: Sequence[Raw], shape: Sequence[Any]) -> Numbers:
    """Return the numbers of a row except its speed-up.

    Args:
        shape: Length, batch size and micro-batches.
    """
    pairs = [(record, cell) for record in records if (cell := _cell(record, shape))]
    needed, recomputed = operations(pairs[0][0], *shape)
    latency_s = centre(times_by_round(pairs, lambda sample: sample["latency_s"]))
    assert latency_s is not None
    medians = [
        (record["limits"]["matmul_flops_per_s"], float(np.median([sample["latency_s"] for sample in cell["samples"]])))
        for record, cell in pairs
        if record["limits"]
    ]
    return {
        "tokens_per_s": int(np.prod(shape)) / latency_s,
        "mfu": _median([needed / time_s / rate for rate, time_s in medians]),
        "hfu": _median([(needed + recomputed) / time_s / rate for rate, time_s in medians]),
        **{f"{part}_s": centre(times_by_round(pairs, _part(part))) for part in ("forward", "backward", "optimizer")},
        "weights_bytes": frozen_bytes(pairs[0][0]),
        "trained_bytes": trained_bytes(pairs[0][0]),
        "activations_bytes": largest([cell["step_memory"]["kept_bytes"] for _, cell in pairs]),
        "peak_memory_bytes": largest([peak for _, cell in pairs for peak in _peaks(cell)]),
        "floor_s": float(np.exp(np.mean(np.log([needed / rate for rate, _ in medians])))) if medians else None,
        "rounds": len(times_by_round(pairs, lambda sample: sample["latency_s"])),
        "runs": sum(len(cell["samples"]) for _, cell in pairs),
    }


def spreads_of(records: Sequence[Raw], shape: Sequence[Any]) -> Numbers:
    """Return intervals and deviations of latency, rate and the parts of a step."""
    tokens, numbers = int(np.prod(shape)), {}
    pairs = [(record, cell) for record in records if (cell := _cell(record, shape))]
    samples = [sample for _, cell in pairs for sample in cell["samples"]]
    for name in ("forward", "backward", "optimizer"):
        times = list(times_by_round(pairs, _part(name)).values())
        numbers |= spread(name, times, [sample["drained_parts_s"][name] for sample in samples])
    times = list(times_by_round(pairs, lambda sample: sample["latency_s"]).values())
    repeats = [sample["latency_s"] for sample in samples]
    rates, of_repeats = [tokens / time_s for time_s in times], [tokens / time_s for time_s in repeats]
    return {**numbers, **spread("latency_s", times, repeats), **spread("tokens", rates, of_repeats)}


def widths(record: Raw) -> tuple[list[tuple[int, int]], Raw]:
    """Return input and output width of each matrix of a layer, and the config."""
    config = json.loads((MODELS / record["model"]["id"].split("/")[-1].lower() / "config.json").read_text())
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    attention = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    return [*attention, (hidden, inner), (hidden, inner), (inner, hidden)], config


def operations(record: Raw, seq_len: int, batch_size: int, accumulate: int) -> tuple[int, int]:
    """Return the FLOPs of a step, and those that checkpointing recomputes.

    Each weight and token takes two FLOPs forward, two for the gradient of the input and, if trained, two for its own.
    """
    matrices, config = widths(record)
    layers, tokens = config["num_hidden_layers"], seq_len * batch_size * accumulate
    inside = layers * sum(width_in * width_out for width_in, width_out in matrices)
    head = config["hidden_size"] * config["vocab_size"]
    pairs = sum(query + 1 for query in range(seq_len))
    scores = config["num_attention_heads"] * config["head_dim"] * layers * pairs * batch_size * accumulate
    attention = 2 * 2 * scores
    if record["variant"]["train"] == "full":
        needed, recomputed = 3 * 2 * tokens * (inside + head), inside
    else:
        adapters = trained_parameters(record)
        needed, recomputed = 2 * 2 * tokens * (inside + head) + 3 * 2 * tokens * adapters, inside + adapters
    is_checkpointed = record["variant"]["checkpointing"] == "all"
    return needed + round(3.5 * attention), (2 * tokens * recomputed + attention) if is_checkpointed else 0


def trained_parameters(record: Raw) -> int:
    """Return the parameters of two low-rank matrices per matrix of a layer, or of the model if all of it is trained."""
    matrices, config = widths(record)
    layers = config["num_hidden_layers"]
    if record["variant"]["train"] == "full":
        return (
            layers * sum(width_in * width_out for width_in, width_out in matrices) + _embedding(config) + _norms(config)
        )
    return layers * sum(record["variant"]["rank"] * (width_in + width_out) for width_in, width_out in matrices)


def trained_bytes(record: Raw) -> int:
    """Return bytes of weights, gradients, Adam's two moments and its float32 step count per tensor."""
    layers = widths(record)[1]["num_hidden_layers"]
    is_full = record["variant"]["train"] == "full"
    # Two more: the embedding, which is tied, and the last norm.
    tensors = layers * TENSORS_IN_LAYER + 2 if is_full else 2 * layers * LINEARS_IN_LAYER
    element = 2 if is_full and record["model"]["dtype"] == "bfloat16" else 4
    return 4 * element * trained_parameters(record) + 4 * tensors


def frozen_bytes(record: Raw) -> int | None:
    """Return bytes of packed matrices, and of embedding and norms (float32 after peft's preparation)."""
    variant = record["variant"]
    if variant["train"] == "full":
        return None
    matrices, config = widths(record)
    layers, width = config["num_hidden_layers"], 2 if record["model"]["dtype"] == "bfloat16" else 4
    inside = layers * sum(width_in * width_out for width_in, width_out in matrices)
    packed = round(NF4_BYTES * inside) + layers * LINEARS_IN_LAYER * NF4_TABLE_BYTES
    stored = {"plain": width * inside, "nf4": packed}[variant["base"]]
    rest = 4 if variant["prepare"] == "peft" else width
    return stored + rest * (_embedding(config) + _norms(config)) + ROTARY_BYTES * config["head_dim"]


def _embedding(config: Raw) -> int:
    """Return the parameters of the embedding, which is tied to the output layer."""
    return int(config["vocab_size"] * config["hidden_size"])


def _norms(config: Raw) -> int:
    each = 2 * config["hidden_size"] + 2 * config["head_dim"]
    return int(config["num_hidden_layers"] * each + config["hidden_size"])


def _part(name: str) -> Callable[[Raw], float]:
    def read(sample: Raw) -> float:
        seconds: float = sample["drained_parts_s"][name]
        return seconds

    return read


def _cell(record: Raw, shape: Sequence[Any]) -> Raw | None:
    """Return the measured cell of the shape."""
    expected = list(shape)
    cells = (cell for cell in record["cells"] if cell["status"] == "ok")
    return next(
        (cell for cell in cells if [cell[name] for name in ("seq_len", "batch_size", "accumulate")] == expected), None
    )


def _peaks(cell: Raw) -> list[float | None]:
    """Return the allocated peak of each repeat on a GPU, the growth of the process on a CPU."""
    peaks = [sample["peak_allocated_bytes"] for sample in cell["samples"]]
    return [cell["memory"].get("resident_growth_bytes")] if None in peaks else peaks


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
