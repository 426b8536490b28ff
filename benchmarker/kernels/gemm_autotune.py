"""Autotuning of the quantized GEMM: the candidates of each shape are timed once on a machine, and the choice is stored.

Candidates are tile configs of `quantized_gemm_triton`, `w4a16_gemm` and `prefill_gemm`, and dequantization followed by
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
MAX_ERROR = 0.01  # Largest relative difference from the dequantized product that passes; rounding causes 0.001.


@dataclass(frozen=True)
class Candidate:
    """A kernel that autotuning times. Both functions take the rows, in the order of `order_of`, and the weights."""

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
    is_permanent: bool = True
    """False if a candidate failed while it ran (out of memory, for example). The choice is then not stored."""


_choices: dict[tuple[object, ...], tuple[Choice, Candidate]] = {}


def choices() -> tuple[Choice, ...]:
    return tuple(choice for choice, _ in _choices.values())


def best_candidate(
    hidden: Tensor, packed: Packed, candidates_for: Callable[[Tensor, Packed], Sequence[Candidate]], expected: Candidate
) -> Candidate:
    """Return the fastest candidate, timed at the machine's first product of this shape; `expected` is the reference."""
    key = (
        packed.form, packed.outputs, packed.length, packed.group_words, packed.scales.dtype, packed.is_aligned,
        len(hidden), hidden.dtype, hidden.device,
    )  # fmt: skip
    if key not in _choices:
        candidates = {candidate.name: candidate for candidate in candidates_for(hidden, packed)}
        if not hidden.is_cuda or torch.cuda.is_current_stream_capturing():
            return next(iter(candidates.values()))
        name, path = ", ".join(map(str, key[:-1])), file_for(hidden.device)
        choice = read_choice(load_or_store(name, path), candidates)
        if choice is None:
            choice = measure(hidden, packed, list(candidates.values()), expected)
            if choice.is_permanent:
                # If another process stored its measurement first, use that measurement.
                choice = read_choice(load_or_store(name, path, asdict(choice)), candidates) or choice
        _choices[key] = choice, candidates[choice.way]
    return _choices[key][1]


def read_choice(fields: dict[str, Any] | None, names: Collection[str]) -> Choice | None:
    try:
        choice = Choice(**fields) if fields else None
    except TypeError:
        return None
    return choice if choice and choice.way in names else None


def measure(hidden: Tensor, packed: Packed, candidates: Sequence[Candidate], expected: Candidate) -> Choice:
    # Pseudo-random inputs, because a model's rows may still be zero.
    hidden = torch.empty_like(hidden).copy_(torch.arange(hidden.numel(), device=hidden.device).sin().view_as(hidden))

    def compile_error(candidate: Candidate) -> str | None:
        try:
            candidate.compile(hidden, packed)
        except Exception as error:  # noqa: BLE001 - the other candidates remain, whatever error a compiler raises
            return _first_line(error)
        return None

    with ThreadPoolExecutor(COMPILERS) as pool:
        errors = pool.map(compile_error, candidates)
        reasons = dict(zip((candidate.name for candidate in candidates), errors, strict=True))
    us: dict[str, float] = {}
    is_permanent = True
    refused = {name: reason for name, reason in reasons.items() if reason is not None}
    reference, flush_buffer = _compared_rows(expected.launch(hidden, packed)), l2_flush_buffer(hidden.device)
    empty_us = graph_us(lambda: None, flush_buffer)
    for candidate in candidates:
        if candidate.name in refused:
            continue
        product = partial(candidate.launch, hidden, packed)
        try:
            error = difference(_compared_rows(product()), reference)
            if error > MAX_ERROR:
                refused[candidate.name] = f"its result is {error:.2g} of its norm off"
                continue
            us[candidate.name] = max(0.01, graph_us(product, flush_buffer) - empty_us)
        except RuntimeError as failure:
            refused[candidate.name], is_permanent = _first_line(failure), False
    assert us, f"no candidate to multiply by {packed.form}: {refused}"
    inputs, best = packed.length * packed.pack_factor, min(us, key=us.__getitem__)
    return Choice(packed.form, len(hidden), inputs, packed.outputs, best, us, refused, is_permanent)


def _compared_rows(result: Tensor) -> Tensor:
    return result if len(result) <= 2 * COMPARED_ROWS else torch.cat([result[:COMPARED_ROWS], result[-COMPARED_ROWS:]])


def difference(result: Tensor, expected: Tensor) -> float:
    """Return the relative difference in the Frobenius norm; inf for NaN or infinity."""
    error = float((result.float() - expected.float()).norm() / expected.float().norm())
    return error if error < float("inf") else float("inf")


def l2_flush_buffer(device: torch.device) -> Tensor:
    """Return a buffer of twice the size of the L2 cache."""
    return torch.empty(2 * torch.cuda.get_device_properties(device).L2_cache_size, dtype=torch.int8, device=device)


def graph_us(function: Callable[[], Tensor | None], flush_buffer: Tensor) -> float:
    """Return the microseconds of a call in a CUDA graph, including the time to overwrite the L2 cache."""
    function()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(flush_buffer.device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(REPEATS):
                flush_buffer.fill_(1)
                function()
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


def load_or_store(name: str, path: Path, fields: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the fields stored in the file for `name`. If there are none, store and return `fields` (may be None)."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            entries = _parsed(file.read())
            if name not in entries and fields is not None:
                entries[name] = dict(fields)
                file.truncate(0)
                file.write(json.dumps(entries, indent=1))
    except OSError:
        return None
    entry = entries.get(name)
    return entry if isinstance(entry, dict) else None


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
        entries = json.loads(text or "{}")
    except ValueError:
        return {}
    return entries if isinstance(entries, dict) else {}
