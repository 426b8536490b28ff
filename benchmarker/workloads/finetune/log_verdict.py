"""What the printed profiler table of a fine-tuning run with 4-bit weights says: where a step's time goes.

Such a table holds more than its longest rows: how often each weight is unpacked, which products were left in float32,
what gradient checkpointing runs twice, and which of its rows must not be added up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarker.core.numbers import percent
from benchmarker.core.units import seconds
from benchmarker.profiling.categories import category
from benchmarker.profiling.float32 import is_float32
from benchmarker.profiling.printed_values import ProfilerTable, TableRow

PACKED = "MatMul4Bit"
PACKED_BACKWARD = "MatMul4BitBackward"
CHECKPOINTED = "CheckpointFunction"
CHECKPOINTED_BACKWARD = "CheckpointFunctionBackward"
UNPACKING = "bitsandbytes::dequantize_4bit"
ATTENTION = "aten::_scaled_dot_product_efficient_attention"
CUT = 0.05
"""Of the calls of an operator: more of its kernels missing, and the recording began or ended inside a step."""
FEW_CALLS = 2.5
"""A step: products that run no more often are of one layer, forward and backward."""
SMALL = 0.10
"""Of the kernel time: what takes less is not the price."""


@dataclass(frozen=True)
class Steps:
    """How often what ran, from the calls of operators."""

    table: ProfilerTable
    total_s: float
    """Of all kernels."""
    steps: int | None
    """Calls of the annotation around a step; None where there is none."""
    layers: int | None
    """Checkpointed layers of one step."""

    def row(self, name: str) -> TableRow | None:
        """The operator's row of this name."""
        return next((row for row in self.table.rows if row.name == name and row.kind == "operator"), None)

    def share(self, time_s: float) -> str:
        """Of the kernel time."""
        return percent(time_s / self.total_s, places=1)


def finetune_sentences(tables: Sequence[ProfilerTable], text: str = "") -> tuple[str, ...]:  # noqa: ARG001
    """Where the time goes, for a text with one table of a training run over 4-bit weights; nothing for any other."""
    trained = [table for table in tables if _is_trained(table)]
    if len(trained) != 1 or not trained[0].device_s:
        return ()
    table = trained[0]
    run = Steps(table, table.total_s, *_steps_and_layers(table))
    parts = (_shape, _products, _dequantizing, _float32, _recomputing, _waiting, _annotation, _cut, _memory)
    return (*(line for part in parts for line in part(run)), UNKNOWN)


UNKNOWN = (
    "not in the log: tokens, batch and length, and so tokens/s; memory in use, the loss, and the time without the "
    "profiler; `benchmarker run finetune` measures all of them"
)


def _is_trained(table: ProfilerTable) -> bool:
    return any(row.name == PACKED_BACKWARD for row in table.rows)


def _steps_and_layers(table: ProfilerTable) -> tuple[int | None, int | None]:
    """From an annotation around each step, which stands twice: on the host, and on the device as a span."""
    spans = {row.name for row in table.spans}
    around = [row for row in table.rows if row.kind == "operator" and row.name in spans]
    steps = max((row.calls for row in around), default=None)
    checkpointed = next((row for row in table.rows if row.name == CHECKPOINTED), None)
    if not steps or checkpointed is None or checkpointed.calls % steps:
        return steps, None
    return steps, checkpointed.calls // steps


def _shape(run: Steps) -> list[str]:
    """`20 steps of 28 layers with 7 packed weights each`."""
    forward, backward = run.row(PACKED), run.row(PACKED_BACKWARD)
    if not run.steps or not run.layers or forward is None or backward is None:
        return []
    weights = backward.calls // run.steps
    passes = forward.calls / backward.calls
    again = ", each multiplied twice forward: gradient checkpointing is on everywhere" if passes == 2 else ""
    return [f"{run.steps} steps of {run.layers} layers with {weights // run.layers} packed weights each{again}"]


def _products(run: Steps) -> list[str]:
    products = run.row("aten::mm")
    if products is None or not products.self_device_s:
        return []
    return [f"matrix products are {run.share(products.self_device_s)} of the kernel time"]


def _dequantizing(run: Steps) -> list[str]:
    unpacking, backward = run.row(UNPACKING), run.row(PACKED_BACKWARD)
    if unpacking is None or not unpacking.self_device_s or backward is None:
        return []
    unpacking_s = unpacking.self_device_s
    price = ": it is not the price" if unpacking_s < SMALL * run.total_s else ""
    times = unpacking.calls / backward.calls
    return [
        f"dequantizing is {run.share(unpacking_s)} ({unpacking.calls:,} calls, {times:.3g} for each weight and step)"
        f"{price}"
    ]


def _float32(run: Steps) -> list[str]:
    """Products and attention without tensor cores, which k-bit preparation leaves behind."""
    products = [row for row in run.table.kernels if category(row.name) == "matmul" and is_float32(row.name)]
    kernels = [row for row in run.table.kernels if category(row.name) == "attention" and is_float32(row.name)]
    single_s = sum(row.self_device_s or 0.0 for row in products)
    attention_s = sum(row.self_device_s or 0.0 for row in kernels)
    forward = run.row(ATTENTION)
    if kernels and forward is not None and not any("cutlassF" in row.name for row in kernels):
        # The forward kernel's row is cut off with the table's rest; its operator's total is not.
        attention_s += forward.device_total_s or 0.0
    sentences = []
    if single_s:
        calls = sum(row.calls for row in products)
        is_one = run.steps is not None and calls <= FEW_CALLS * run.steps
        whose = f", so few that they are one layer's: the output layer, in {run.steps} steps" if is_one else ""
        sentences.append(
            f"float32 products without tensor cores are {run.share(single_s)} "
            f"({seconds(single_s)} in {calls} calls{whose})"
        )
    if attention_s:
        sentences.append(
            f"attention in float32 is {run.share(attention_s)} ({seconds(attention_s)}, of which "
            f"{code(kernels[0].name)} is {run.share(kernels[0].self_device_s or 0.0)})"
        )
    if single_s and attention_s:
        sentences.append(
            f"together {run.share(single_s + attention_s)} is float32, as peft's prepare_model_for_kbit_training "
            "leaves norms and output layer: most of it comes back where these stay in 16 bit"
        )
    return sentences


def code(name: str) -> str:
    """As code in markdown, without what stands behind the name itself."""
    return f"`{re.split(r'[(<]', name)[0].strip()}`"


def _recomputing(run: Steps) -> list[str]:
    forward, backward = run.row(CHECKPOINTED), run.row(CHECKPOINTED_BACKWARD)
    if forward is None or backward is None or not forward.device_total_s:
        return []
    return [
        f"recomputing is about {run.share(forward.device_total_s)}: the forward passes of the checkpointed layers take "
        f"{seconds(forward.device_total_s)}, and run a second time inside {CHECKPOINTED_BACKWARD}"
    ]


def _waiting(run: Steps) -> list[str]:
    if not run.table.cpu_s:
        return []
    busy = run.total_s / run.table.cpu_s
    if busy >= 1:
        return []
    return [
        f"the device waits: {seconds(run.total_s)} of kernels in {seconds(run.table.cpu_s)} of host time, "
        f"{percent(busy)} busy with the profiler on"
    ]


def _annotation(run: Steps) -> list[str]:
    """An annotation holds what its own thread launched, and on the device the gaps too."""
    for span in run.table.spans:
        around, backward = run.row(span.name), run.row(CHECKPOINTED_BACKWARD)
        if around is None or not around.device_total_s or not span.self_device_s:
            continue
        sentences = [
            f"{code(span.name)} stands twice: {seconds(span.self_device_s)} is a span on the device, idle gaps "
            f"included, and is no kernel's time"
        ]
        if backward is not None and backward.device_total_s:
            sentences.append(
                f"its {seconds(around.device_total_s)} of device total is the forward pass alone: the backward pass "
                f"({CHECKPOINTED_BACKWARD}, {seconds(backward.device_total_s)}) runs on autograd's own thread"
            )
        return sentences
    return []


def _cut(run: Steps) -> list[str]:
    """Kernels that an operator launched and that were not recorded."""
    operator = run.row(UNPACKING)
    kernel = next((row for row in run.table.kernels if category(row.name) == "dequantize"), None)
    if operator is None or kernel is None or not run.steps or kernel.calls >= operator.calls:
        return []
    missing = operator.calls - kernel.calls
    of_step = missing / (operator.calls / run.steps)
    if missing > CUT * operator.calls:
        return []
    return [
        f"{missing} of {operator.calls:,} unpacking kernels are missing, {of_step:.2f} of a step: the recording began "
        "or ended inside a step"
    ]


def _memory(run: Steps) -> list[str]:
    largest = min(run.table.rows, key=lambda row: row.self_device_memory_bytes or 0, default=None)
    if largest is None or (largest.self_device_memory_bytes or 0) >= 0:
        return []
    freed = (largest.self_device_memory_bytes or 0) / 2**30
    return [f"{freed:,.0f} GiB at {code(largest.name)} is what was allocated less what was freed, and no memory in use"]
