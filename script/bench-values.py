"""Measure time, power and energy of one model with three sets of weight values, alternating, in one process.

    python script/bench-values.py                                       Qwen3-4B's shapes on a GPU, two minutes
    python script/bench-values.py --model qwen3-tiny --seconds 1        a trial on any machine

The weights are overwritten in place, so that all sets run the same captured kernels on the same addresses.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarker import ModelBenchmarker, find_device, load_model
from benchmarker.core.stats import paired_ratio
from benchmarker.core.tables import Column
from benchmarker.core.tables import table as to_table
from benchmarker.hardware.gpu import Gpu, find_gpu
from benchmarker.workloads.generation.spec import Point

SPREAD = 0.02
"""Standard deviation of the sets other than zeros; transformers initializes weights with the same value."""
HEADINGS = ("work", "weights", "ms", "time, ratio", "J a call", "energy, ratio", "MHz")
SETTLE_S = 1.0
"""Seconds of warm-up before each window, after which the clocks are stable."""


def zeros(weight: torch.Tensor) -> None:
    """Fill with zeros, so that no bit in the arithmetic units changes between cycles."""
    weight.zero_()


def random(weight: torch.Tensor) -> None:
    """Fill with normal values, as `--load-format dummy`."""
    weight.normal_(std=SPREAD)


def real_shaped(weight: torch.Tensor) -> None:
    """Fill with heavy tails and rows of different size, as in a trained model.

    Student's t with 5 degrees of freedom, each row scaled by a log-normal factor (sigma 0.5).
    """
    for rows in weight.split(4096):
        chi_squared = torch.zeros_like(rows, dtype=torch.float32)
        for _ in range(5):
            chi_squared += torch.randn_like(chi_squared) ** 2
        student = torch.randn_like(chi_squared) / (chi_squared / 5).sqrt()
        rows.copy_(student * SPREAD * torch.randn(len(rows), 1, device=rows.device).mul(0.5).exp())


FILLINGS: dict[str, Callable[[torch.Tensor], None]] = {"random": random, "zeros": zeros, "real-shaped": real_shaped}
"""Sets of values; the first is the reference."""


def main() -> None:
    """Measure the sets alternately, print a table and write the samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration per filling, round and kind of work")
    parser.add_argument("--prefill", type=int, default=4096, help="tokens of the long prompt")
    parser.add_argument("--output", type=Path, help="all samples, as JSON")
    arguments = parser.parse_args()

    device = find_device("auto")
    dtype = "float32" if device.kind == "cpu" else "bfloat16"
    model = load_model(arguments.model, "fp16", dtype=dtype, load_format="dummy")
    benchmarker = ModelBenchmarker(model, engine="eager" if device.kind == "cpu" else "cuda_graph", device=device)
    gpu = find_gpu(device)
    name = gpu.name if gpu else "a processor"
    points = {"decode": Point(26, None, 100, 1), "prefill": Point(arguments.prefill, None, 1, 1)}
    samples: list[dict[str, Any]] = []
    for turn in range(arguments.rounds):
        names = list(FILLINGS)
        for filling in names if turn % 2 == 0 else reversed(names):
            with torch.no_grad():
                # Weights of norms stay 1, because those of a trained model are near 1.
                for weight in model.parameters():
                    if weight.dim() == 2:
                        FILLINGS[filling](weight)
            for work, point in points.items():
                window = measured(benchmarker, point, gpu, seconds=arguments.seconds)
                samples.append({"round": turn, "filling": filling, "work": work, **window})
    print(f"{arguments.model}'s shapes, {dtype}, {name}: {arguments.rounds} alternating rounds, one process\n")
    print(table(samples, points))
    if arguments.output:
        facts = {"device": name, "model": arguments.model, "dtype": dtype, "torch": torch.__version__}
        arguments.output.write_text(json.dumps({**facts, "samples": samples}, indent=1) + "\n")


def measured(source: ModelBenchmarker, point: Point, gpu: Gpu | None, *, seconds: float) -> dict[str, float | None]:
    """Measure one window of repeated steps after a second of warm-up.

    Returns:
        Median seconds to the first token (prompt) or per token after the first (generation), joules of a call by the
        board's counter and the mean clock in MHz, None without a counter.
    """
    step = source.step(point)
    deadline = time.perf_counter() + SETTLE_S
    step()
    while time.perf_counter() < deadline:
        step()
    times: list[float] = []
    clocks: list[int] = []
    started, joules = time.perf_counter(), gpu.energy_j() if gpu else None
    while not times or time.perf_counter() - started < seconds:
        sample = step()
        times.append(sample.tpot_s or sample.ttft_s or sample.latency_s)
        if gpu and (clock := gpu.clock_mhz()):
            clocks.append(clock)
    after = gpu.energy_j() if gpu else None
    return {
        "seconds": median(times),
        "joules": (after - joules) / len(times) if after is not None and joules is not None else None,
        "clock_mhz": sum(clocks) / len(clocks) if clocks else None,
    }


def table(samples: list[dict[str, Any]], points: Iterable[str]) -> str:
    """Return medians over the rounds, and ratios to the first set with 95 % intervals over the rounds."""
    rows: list[tuple[str, ...]] = []
    for work in points:
        for filling in FILLINGS:
            windows = [sample for sample in samples if (sample["work"], sample["filling"]) == (work, filling)]
            base = [sample for sample in samples if (sample["work"], sample["filling"]) == (work, next(iter(FILLINGS)))]
            cells = [work, filling]
            for key, scale, digits in (("seconds", 1e3, 4), ("joules", 1, 4)):
                cells.append(f"{scale * median(w[key] for w in windows):.{digits}g}" if windows[0][key] else "–")
                cells.append(ratio(base, windows, key))
            cells.append(f"{median(w['clock_mhz'] for w in windows):.0f}" if windows[0]["clock_mhz"] else "–")
            rows.append(tuple(cells))
    columns = [Column[tuple[str, ...]](heading, itemgetter(number)) for number, heading in enumerate(HEADINGS)]
    return to_table(columns, rows)


def ratio(base: list[dict[str, Any]], windows: list[dict[str, Any]], key: str) -> str:
    """Return the ratios of the windows to those of the first set, round by round."""
    if base == windows or not base[0][key]:
        return "–"
    # paired_ratio divides its first argument by its second.
    paired = paired_ratio({w["round"]: w[key] for w in windows}, {w["round"]: w[key] for w in base})
    if paired.low is None or paired.high is None:
        return f"{paired.value:.3f}"
    return f"{paired.value:.3f} [{paired.low:.3f}, {paired.high:.3f}]"


if __name__ == "__main__":
    main()
