"""Autotuning of the quantized GEMM: the candidates of each shape are timed once on a machine, and the choice is stored.

Candidates are tiles of `quantized_gemm_triton`, cuts of `w4a16_gemm` and `prefill_gemm`, and dequantization followed by
cuBLAS. Each candidate is timed in a CUDA graph, so without the host, with a cold L2 cache as in a model.

If two candidates take nearly the same time, two processes could choose differently; sums would round differently, and
models with random weights would generate different texts. So all processes that share the compilers' caches use the
first measurement. It is stored in a file per GPU model, version of torch and Triton, and content of this folder.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarker.kernels.launch_support import triton
from benchmarker.kernels.packed_weights import Packed

REPEATS = 12  # GEMMs per timed graph.
REPLAYS = 3  # Replays of the graph; the shortest time counts.
COMPILERS = 8  # Kernels compiled in parallel.
COMPARED_ROWS = 256  # Number of first and of last rows of a result that are compared.
MOST_OFF = 0.01  # Largest relative difference from the dequantized product that passes; rounding causes 0.001.


@dataclass(frozen=True)
class Way:
    """One candidate kernel. Both functions are called with the rows, in the order of `order_of`, and the weights."""

    name: str  # Name in records.
    compile: Callable[[Tensor, Packed], object]
    """Function that compiles the kernel without running it. Several threads may call it at once."""
    launch: Callable[[Tensor, Packed], Tensor]  # Function that returns the product, [rows, outputs].


@dataclass(frozen=True)
class Choice:
    form: str  # Value of `Packed.form`.
    rows: int
    inputs: int
    outputs: int
    way: str  # Name of the fastest candidate, a key of `us`.
    us: dict[str, float] = field(default_factory=dict)  # Time of each candidate, in microseconds.
    refused: dict[str, str] = field(default_factory=dict)
    """Errors of candidates that did not compile, did not run or returned a wrong result, by name."""
    is_lasting: bool = True
    """False if a candidate failed while it ran (out of memory, for example). The choice is then not stored."""


_choices: dict[tuple[object, ...], tuple[Choice, Way]] = {}


def choices() -> tuple[Choice, ...]:
    return tuple(choice for choice, _ in _choices.values())


def chosen(hidden: Tensor, packed: Packed, ways_for: Callable[[Tensor, Packed], Sequence[Way]], expected: Way) -> Way:
    """Return the fastest candidate for a product. It is measured at the first product of this shape on the machine;
    the result of `expected` is the correct one."""
    key = (
        packed.form, packed.outputs, packed.length, packed.in_group, packed.scales.dtype, packed.is_in_place,
        len(hidden), hidden.dtype, hidden.device,
    )  # fmt: skip
    if key not in _choices:
        ways = {way.name: way for way in ways_for(hidden, packed)}
        if not hidden.is_cuda or torch.cuda.is_current_stream_capturing():
            return next(iter(ways.values()))
        name, path = ", ".join(map(str, key[:-1])), file_for(hidden.device)
        choice = read_choice(kept(name, path), ways)
        if choice is None:
            choice = measure(hidden, packed, list(ways.values()), expected)
            if choice.is_lasting:
                # If another process stored its measurement first, use that measurement.
                choice = read_choice(kept(name, path, asdict(choice)), ways) or choice
        _choices[key] = choice, ways[choice.way]
    return _choices[key][1]


def read_choice(fields: dict[str, Any] | None, names: Collection[str]) -> Choice | None:
    try:
        choice = Choice(**fields) if fields else None
    except TypeError:
        return None
    return choice if choice and choice.way in names else None


def measure(hidden: Tensor, packed: Packed, ways: Sequence[Way], expected: Way) -> Choice:
    # Pseudo-random inputs, because a model's rows may still be zero.
    hidden = torch.empty_like(hidden).copy_(torch.arange(hidden.numel(), device=hidden.device).sin().view_as(hidden))

    def compiled(way: Way) -> str | None:
        try:
            way.compile(hidden, packed)
        except Exception as error:  # noqa: BLE001 - whatever a compiler says, the other candidates are left
            return _first_line(error)
        return None

    with ThreadPoolExecutor(COMPILERS) as pool:
        reasons = dict(zip((way.name for way in ways), pool.map(compiled, ways), strict=True))
    us: dict[str, float] = {}
    is_lasting = True
    refused = {name: reason for name, reason in reasons.items() if reason is not None}
    right, emptied = _ends(expected.launch(hidden, packed)), emptied_for(hidden.device)
    empty_us = graph_us(lambda: None, emptied)
    for way in ways:
        if way.name in refused:
            continue
        product = partial(way.launch, hidden, packed)
        try:
            off = difference(_ends(product()), right)
            if off > MOST_OFF:
                refused[way.name] = f"its result is {off:.2g} of its norm off"
                continue
            us[way.name] = max(0.01, graph_us(product, emptied) - empty_us)
        except RuntimeError as error:
            refused[way.name], is_lasting = _first_line(error), False
    assert us, f"no way to multiply by {packed.form}: {refused}"
    inputs, best = packed.length * packed.in_word, min(us, key=us.__getitem__)
    return Choice(packed.form, len(hidden), inputs, packed.outputs, best, us, refused, is_lasting)


def _ends(result: Tensor) -> Tensor:
    return result if len(result) <= 2 * COMPARED_ROWS else torch.cat([result[:COMPARED_ROWS], result[-COMPARED_ROWS:]])


def difference(result: Tensor, expected: Tensor) -> float:
    """Return the relative difference in the Frobenius norm; inf for NaN or infinity."""
    off = float((result.float() - expected.float()).norm() / expected.float().norm())
    return off if off < float("inf") else float("inf")


def emptied_for(device: torch.device) -> Tensor:
    """Return a buffer of twice the size of the L2 cache."""
    return torch.empty(2 * torch.cuda.get_device_properties(device).L2_cache_size, dtype=torch.int8, device=device)


def graph_us(way: Callable[[], Tensor | None], emptied: Tensor) -> float:
    """Return the microseconds of a product in a graph, including the time to overwrite the L2 cache (`emptied`)."""
    way()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(emptied.device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(REPEATS):
                emptied.fill_(1)
                way()
        finally:
            graph.capture_end()
        times: list[float] = []
        for _ in range(REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1000 * start.elapsed_time(end) / REPEATS)
    torch.cuda.current_stream().wait_stream(stream)
    return min(times)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:200]


def kept(name: str, path: Path, fields: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the fields stored in the file for `name`. If there are none, store and return `fields` (may be None)."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            found = _parsed(file.read())
            if name not in found and fields is not None:
                found[name] = dict(fields)
                file.truncate(0)
                file.write(json.dumps(found, indent=1))
    except OSError:
        return None
    known = found.get(name)
    return known if isinstance(known, dict) else None


def file_for(device: torch.device) -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "benchmarker-products" / f"{_fingerprint(torch.cuda.get_device_name(device))}.json"


@cache
def _fingerprint(card: str) -> str:
    files = [path for path in Path(__file__).parent.iterdir() if path.suffix in (".py", ".cu", ".cuh")]
    sources = [path.read_text() for path in sorted(files)]
    parts = [card, torch.__version__, str(triton.__version__), *sources]
    return sha256("\0".join(parts).encode()).hexdigest()[:16]


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
