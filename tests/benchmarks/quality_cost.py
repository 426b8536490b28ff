"""Measure the cost of --quality at a model's full shapes: seconds, memory in addition to the model, and disk.

    python tests/benchmarks/quality_cost.py --model Qwen/Qwen3-4B              on a GPU, without the hub
    python tests/benchmarks/quality_cost.py --model qwen3-tiny fp16 int8       anywhere, to try the script

benchmarker does not score dummy models, so the script makes a checkpoint of random weights with the small model's
tokenizer and passes the folder to `benchmarker run`. The last norm is scaled so that logits have a standard deviation
of about 5 instead of 1. Its perplexity and divergence are meaningless. The script fails if a variant takes more than
60 s, or more than 3 GiB of device memory in addition to the model.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file

from benchmarker.checkpoints.files import INDEX, SINGLE, shipped_shape
from benchmarker.core.formatting import GIB, gib
from benchmarker.hardware.device import find_device
from benchmarker.quantization.load import find_checkpoint
from benchmarker.schema.model import ModelSpec
from benchmarker.schema.record_io import read_record
from benchmarker.workloads.generation.spec import VariantSpec

NORM = "model.norm.weight"
NORM_FACTOR = 5.0
LIMIT_S = 60.0
LIMIT_BYTES = 3 * GIB
VARIANTS = ("fp16", "int8", "bnb4")
TOKENIZER_OF = "qwen3-small"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", default=VARIANTS)
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--size", default="quick", choices=("quick", "full"))
    parser.add_argument("--topk", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        os.environ["BENCHMARKER_CACHE"] = str(Path(work) / "cache")
        folder = random_checkpoint(options.model)
        slow = [name for name in options.variants if not is_cheap(name, folder, Path(work), options.size, options.topk)]
    if slow:
        sys.exit(f"over {LIMIT_S:.0f} s or {gib(LIMIT_BYTES)}: {', '.join(slow)}")


def random_checkpoint(model: str) -> Path:
    """Return the folder of a checkpoint with random weights that benchmarker treats as a real model."""
    dummy, variant = ModelSpec(id=model, load_format="dummy"), VariantSpec(name="fp16", quant="fp16")
    folder = find_checkpoint(dummy, variant, device=find_device().torch_name).folder
    (folder / "benchmarker.json").unlink()
    tokenizer = shipped_shape(TOKENIZER_OF)
    assert tokenizer is not None
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, folder / name)
    index = folder / INDEX
    shard = folder / (json.loads(index.read_text())["weight_map"][NORM] if index.exists() else SINGLE)
    weights = load_file(shard)
    weights[NORM] = weights[NORM] * NORM_FACTOR
    # Written to another file first, because the tensors are views of the old file.
    save_file(weights, folder / "shard.tmp", metadata={"format": "pt"})
    (folder / "shard.tmp").replace(shard)
    return folder


def is_cheap(variant: str, folder: Path, work: Path, size: str, top_k: int | None) -> bool:
    """Run one variant with minimal timing, print the cost of its quality, and return True if within the limits."""
    output = work / variant
    extra = [] if top_k is None else ["--quality-topk", str(top_k)]
    words = (
        f"--model {folder} --quant {variant} --quality {size} --runs 1 --warmup 1 --no-profile --prompt-tokens 3 "
        f"--new-tokens 8 --output {output} --quiet"
    )
    command = [sys.executable, "-m", "benchmarker.run", *words.split(), *extra]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (path,) = output.glob("*.json")
    record = read_record(path)
    quality = record.quality
    assert quality is not None, record.no_quality
    print(
        f"{variant:6} {quality.positions:,} tokens on {find_device().kind}: "
        f"{quality.seconds:.1f} s with loading the baseline, {gib(quality.extra_bytes)} beyond the model, "
        f"{gib(quality.file_bytes)} of disk; perplexity {quality.perplexity:.1f} (random weights), "
        f"KL divergence {quality.against.kl_mean:.3g}, noise floor {quality.noise.kl_mean:.3g}",
        flush=True,
    )
    return quality.seconds <= LIMIT_S and (quality.extra_bytes or 0) <= LIMIT_BYTES


if __name__ == "__main__":
    main()
