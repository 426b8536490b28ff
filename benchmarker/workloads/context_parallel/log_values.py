"""What a printed log of attention over several GPUs holds beside its profiler table: shapes, times, and its claims.

Such logs print a labelled value a line, as `- Sequence Length: 524288` or `Forward+Backward Time: 1941.49 ms`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarker.workloads.attention.spec import Shape


@dataclass(frozen=True)
class RingLog:
    """The printed values of one run, as printed. None for what is not said."""

    shape: Shape
    """Of the whole call, forward and backward; 16 bits, which no FLOP count depends on."""
    ranks: int
    call_s: float
    """Of forward and backward together."""
    forward_s: float | None = None
    tflops: float | None = None
    """TFLOP/s, of what the log does not say."""
    attention_percent: float | None = None
    communication_percent: float | None = None
    memory_mb: float | None = None


_VALUE = r"\s*[:=]\s*([\d.]+)"
_NEEDED = {
    "ranks": r"(?:world size|cp size|ranks)",
    "seq_len": r"(?:sequence length|seq_?len)",
    "heads": r"(?:num(?:ber of)? heads|heads)",
    "head_dim": r"(?:head dim(?:ension)?|head_dim)",
    "call_ms": r"(?:forward|fwd) ?\+ ?(?:backward|bwd) time",
}
_FURTHER = {
    "batch_size": r"batch(?: |_)size",
    "forward_ms": r"(?<!\+)\b(?:forward|fwd) time",
    "tflops": r"(?:performance|tflops?(?:/s)?)",
    "attention_percent": r"flash ?attention kernel",
    "communication_percent": r"(?:ring ?comm|communication)",
    "memory_mb": r"memory usage",
}


def read_values(text: str) -> RingLog | None:
    """The first of each value; None for a text without shape, ranks and the time of both passes."""
    found = {
        name: float(match[1])
        for name, label in {**_NEEDED, **_FURTHER}.items()
        if (match := re.search(label + _VALUE, text, re.IGNORECASE))
    }
    if not found.keys() >= _NEEDED.keys() or not all(found[name] > 0 for name in _NEEDED):
        return None
    heads = int(found["heads"])
    shape = Shape(
        batch_size=int(found.get("batch_size", 1)),
        seq_len=int(found["seq_len"]),
        heads=heads,
        kv_heads=heads,
        head_dim=int(found["head_dim"]),
        causal=bool(re.search(r"(?i)mask\s*[:=]\s*causal|causal\s*[:=]\s*true", text)),
        window=None,
        dtype="bfloat16",
        mode="forward_backward",
    )
    return RingLog(
        shape=shape,
        ranks=int(found["ranks"]),
        call_s=found["call_ms"] / 1e3,
        forward_s=found["forward_ms"] / 1e3 if "forward_ms" in found else None,
        **{name: found.get(name) for name in ("tflops", "attention_percent", "communication_percent", "memory_mb")},
    )
