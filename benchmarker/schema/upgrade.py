"""From a record of schema 1, as JSON, to one of schema 2. Files on disk stay as they are.

Schema 1 was text generation alone, and held some facts as sentences. What an old record does not hold stays unknown.
A value that schema 1 never had at its place is left as it is: reading the result says what is wrong with it.
"""

from __future__ import annotations

import re
from typing import Any

from benchmarker.core.errors import ErrorKind
from benchmarker.schema.kernels_used import read_attention, read_sentences
from benchmarker.schema.registry import DEFAULT_WORKLOAD

Json = dict[str, Any]

CLASSES: dict[str, ErrorKind] = {
    "SpecError": "spec",
    "ModelError": "model",
    "MissingLibraryError": "missing_library",
    "DeviceError": "device",
    "QualityError": "quality",
    "ResultsError": "results",
    "UnsupportedError": "unsupported",
}
"""This program's own errors, whose names stood before their sentences."""

SENTENCES: tuple[tuple[re.Pattern[str], ErrorKind], ...] = (
    (re.compile("^KeyboardInterrupt"), "interrupted"),
    (re.compile("^the system ran out of memory and killed|^MemoryError|can't allocate memory"), "oom_host"),
    (re.compile("^the process died of"), "crash"),
    (re.compile("took more than"), "timeout"),
    (re.compile(r"tokens came instead of|tokens were made where"), "wrong_token_count"),
    (re.compile("^the graph holds"), "incomplete_graph"),
    (re.compile("processes were on the device"), "shared_device"),
    (re.compile("^the board was throttled|^the clock was"), "throttled"),
    (re.compile("^nobody saw how the board was"), "unwatched"),
)
STATUS_KINDS: dict[str, ErrorKind] = {
    "oom_gpu": "oom_gpu",
    "oom_host": "oom_host",
    "timeout": "timeout",
    "crash": "crash",
    "unsupported": "unsupported",
}
"""Statuses of cells that tell the kind by themselves."""
NO_ENERGY = "no energy: "
DECODE_FIELDS = ("decode_busy_s", "decode_span_s", "decode_launches")
DECODE_KERNEL_FIELDS = ("decode_calls", "decode_s", "decode_alone_s")


def upgraded(data: Json) -> Json:
    """The same record as schema 2 has it.

    Args:
        data: The whole record, as JSON has it; it is not changed.
    """
    new = data | {"schema_version": 2, "workload": DEFAULT_WORKLOAD}
    on_cpu = _part(_part(data, "environment"), "device").get("kind") == "cpu"
    new |= _error(data, on_cpu=on_cpu)
    if "runtime" in new:
        new["engine"] = _engine_facts(new.pop("runtime"), data.get("cells"))
    if isinstance(data.get("variant"), dict):
        new["variant"] = _variant(data["variant"], new.get("engine"), on_gpu=not on_cpu)
        if isinstance(new.get("engine"), dict) and "engine" in new["variant"]:
            new["engine"]["name"] = new["variant"]["engine"]
    if isinstance(data.get("cells"), list):
        new["cells"] = [_cell(cell, on_cpu=on_cpu) if isinstance(cell, dict) else cell for cell in data["cells"]]
    if isinstance(data.get("profile"), dict):
        new["profile"] = _profile(data["profile"])
    for field in ("no_profile", "no_energy", "no_quality", "no_tasks"):
        if isinstance(data.get(field), str):
            new[field] = _missing(data[field], on_cpu=on_cpu)
    return new


def with_own_rounding(data: Json) -> Json:
    """The same record, `generate`'s decode step held against itself.

    Nothing is captured or compiled there: what it differs by is the form's ordinary rounding. Early records of schema
    2 held it against the fixed limit alone, and flagged it.

    Args:
        data: The whole record, as JSON has it; it is not changed.
    """
    checked, cells = data.get("step_divergence"), data.get("cells")
    is_plain = _part(data, "variant").get("engine") == "eager"
    if not is_plain or not isinstance(checked, dict) or checked.get("plain_kl_mean") is not None:
        return data
    new = data | {"step_divergence": checked | {"plain_kl_mean": checked.get("kl_mean")}}
    if isinstance(cells, list):
        new["cells"] = [_without_flag(cell, "step_differs") for cell in cells]
    return new


def _without_flag(cell: Any, flag: str) -> Any:
    if not isinstance(cell, dict) or not isinstance(cell.get("flags"), list):
        return cell
    return cell | {"flags": [other for other in cell["flags"] if other != flag]}


def _variant(variant: Json, facts: Any, *, on_gpu: bool) -> Json:
    """The variant with an engine for its runtime.

    A compiled step had this program's own kernels in it wherever they fitted, which its facts tell. A run that ended
    before it had facts is taken for one of them on a GPU, so that it stands with the others of its variant. The last
    records of schema 1 have engine options, and the name of an engine already.
    """
    new = {key: value for key, value in variant.items() if key != "runtime"}
    runtime = variant.get("runtime")
    engine = {"graph": "cuda_graph"}.get(runtime, runtime) if isinstance(runtime, str) else runtime
    if runtime == "compile" and "engine_options" not in variant:
        uses = facts.get("kernels_used") if isinstance(facts, dict) else None
        whole_uses = [use for use in uses if isinstance(use, dict)] if isinstance(uses, list) else []
        is_own = on_gpu if facts is None else any(use.get("origin") == "benchmarker" for use in whole_uses)
        engine = "native" if is_own else "compile"
    return new | ({"engine": engine} if "runtime" in variant else {})


def _engine_facts(facts: Any, cells: Any) -> Any:
    """Kernels as values, from the sentences; how the step of each cell attends is among them."""
    if not isinstance(facts, dict):
        return facts
    new = {key: value for key, value in facts.items() if key != "own_products"}
    if "kernels_used" in facts:
        return new
    sentences = facts.get("own_products")
    if sentences is not None and not isinstance(sentences, str):
        return new | {"kernels_used": sentences}
    steps = [_part(cell, "step") for cell in cells if isinstance(cell, dict)] if isinstance(cells, list) else []
    ways = [step.get("attention") for step in steps] + [facts.get("attention")]
    attention = [read_attention(way) for way in dict.fromkeys(way for way in ways if isinstance(way, str))]
    uses = (*read_sentences(sentences), *attention)
    return new | {"kernels_used": [use.model_dump(mode="json") for use in uses]}


def _part(data: Json, field: str) -> Json:
    part = data.get(field)
    return part if isinstance(part, dict) else {}


def _cell(cell: Json, *, on_cpu: bool) -> Json:
    new = cell | _error(cell, on_cpu=on_cpu)
    if "prompt_sha256" in new:
        new["inputs_sha256"] = new.pop("prompt_sha256")
    return new


def _error(part: Json, *, on_cpu: bool) -> Json:
    """Kind and sentence of a run's or a cell's reason."""
    status, reason = part.get("status"), part.get("reason")
    if not isinstance(reason, str):
        is_bad = isinstance(status, str) and status not in ("ok", "running", "complete", "interrupted")
        return {"error_kind": STATUS_KINDS.get(status, "other")} if is_bad and isinstance(status, str) else {}
    kind, sentence = _kind_and_sentence(reason, on_cpu=on_cpu)
    if isinstance(status, str) and status in STATUS_KINDS and kind not in ("device", "missing_library"):
        kind = STATUS_KINDS[status]
    return {"error_kind": kind, "reason": sentence}


def _kind_and_sentence(reason: str, *, on_cpu: bool) -> tuple[ErrorKind, str]:
    name, _, sentence = reason.partition(": ")
    if name in CLASSES and sentence:
        return CLASSES[name], sentence
    kind = next((kind for pattern, kind in SENTENCES if pattern.search(reason)), None)
    if kind is None and ("out of memory" in reason.lower() or "OutOfMemoryError" in reason):
        kind = "oom_host" if on_cpu else "oom_gpu"
    return kind or "other", reason


def _missing(reason: str, *, on_cpu: bool) -> Json:
    """Why something is not there. Only where energy could not be counted did the sentence begin with what is not."""
    kind, sentence = _kind_and_sentence(reason.removeprefix(NO_ENERGY), on_cpu=on_cpu)
    return {"error_kind": kind, "reason": sentence}


def _profile(profile: Json) -> Json:
    """What schema 1 told of decoding beside the whole, as a section; the rest is the prefill."""
    new = {key: value for key, value in profile.items() if key not in DECODE_FIELDS}
    if isinstance(profile.get("kernels"), list):
        new["kernels"] = [_kernel(kernel) if isinstance(kernel, dict) else kernel for kernel in profile["kernels"]]
    decode_s = profile.get("decode_busy_s")
    if decode_s is not None:
        decode = {
            "busy_s": decode_s,
            "span_s": profile.get("decode_span_s"),
            "launches": profile.get("decode_launches"),
        }
        new["sections"] = {"prefill": {"busy_s": _less(profile.get("busy_s"), decode_s)}, "decode": decode}
    return new


def _kernel(kernel: Json) -> Json:
    new = {key: value for key, value in kernel.items() if key not in DECODE_KERNEL_FIELDS}
    decode_calls, decode_s = kernel.get("decode_calls"), kernel.get("decode_s")
    if decode_calls is None or decode_s is None:
        return new
    new["sections"] = {}
    prefill_calls = _less(kernel.get("calls"), decode_calls)
    if prefill_calls:
        new["sections"]["prefill"] = {"calls": prefill_calls, "total_s": _less(kernel.get("total_s"), decode_s)}
    if decode_calls:
        alone_s = kernel.get("decode_alone_s")
        new["sections"]["decode"] = {"calls": decode_calls, "total_s": decode_s, "alone_s": alone_s}
    return new


def _less(whole: Any, part: Any) -> Any:
    """The difference of two numbers; what is no number comes back, for the reading to refuse."""
    for value in (whole, part):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
    return whole - part
