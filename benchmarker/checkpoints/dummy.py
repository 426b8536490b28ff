"""Random weights in a model's exact shapes, written once as a real checkpoint.

Time, memory and energy are those of weights that are shaped like trained ones (docs/values.md), so a model can be
measured without being downloaded. The checkpoint goes through the same loading code as a real one. Its text is
meaningless, and says so in every table.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from benchmarker.checkpoints import cache
from benchmarker.checkpoints.base import Checkpoint, Form, PlannedTensor, Progress
from benchmarker.checkpoints.dummy_tensors import plan_tensors
from benchmarker.checkpoints.files import INDEX, SINGLE, TOKENIZER_FILES
from benchmarker.checkpoints.tensor_files import tensor_bytes, write_tensors
from benchmarker.core.formatting import GIB
from benchmarker.schema.model import ModelSpec

LAYOUT = 2
"""Goes into the key; raised when the same inputs make another checkpoint."""
SEED = 0
SHARD_BYTES = 4 * GIB
COPIED = ("generation_config.json", *TOKENIZER_FILES)


def make_dummy(
    model: ModelSpec,
    form: Form,
    config: dict[str, Any],
    *,
    source: Path,
    revision: str | None,
    progress: Progress,
    device: str,
) -> Checkpoint:
    """The dummy checkpoint of a model for a quantization, from the cache where it was made before.

    Args:
        source: A folder with config.json, and the tokenizer's files if there are any.

    Raises:
        ModelError: No such architecture, or no room on the disk.
    """
    config = {key: value for key, value in config.items() if key != "quantization_config"}
    if form.packing:
        # The packed formats keep their scales, and all that is not packed, in this type.
        config = {key: value for key, value in config.items() if key != "torch_dtype"}
        config |= {"dtype": "float16", "quantization_config": form.packing.config(form.options)}
    extras = [source / name for name in COPIED if (source / name).is_file()]
    extras += sorted(source.glob("*.py")) if model.trust_remote_code else []
    key = cache.key_of(
        {
            "kind": "dummy",
            "layout": LAYOUT,
            "seed": SEED,
            "config": config,
            "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in extras},
        }
    )
    if cache.find(key) is None:
        tensors = plan_tensors(source, config, form, trusted=model.trust_remote_code)
        described = _described(config)
        needed_bytes = sum(map(tensor_bytes, tensors))
        with cache.new_entry(key, kind="dummy", model=model.id, options=described, needed_bytes=needed_bytes) as draft:
            _write(draft, config, extras, tensors, progress, device)
    return Checkpoint(
        folder=cache.whole(key),
        model_id=model.id,
        revision=revision,
        dummy=True,
        config=config,
        trust_remote_code=model.trust_remote_code,
    )


def _described(config: dict[str, Any]) -> dict[str, Any]:
    """What sets this dummy apart from others of the same model, as `benchmarker checkpoint list` shows it."""
    quantization = config.get("quantization_config") or {}
    scalars: dict[str, Any] = {
        key: value for key, value in quantization.items() if isinstance(value, str | int | float | bool)
    }
    return scalars if scalars else {"dtype": config.get("dtype") or config.get("torch_dtype")}


def _write(
    folder: Path,
    config: dict[str, Any],
    extras: list[Path],
    tensors: tuple[PlannedTensor, ...],
    progress: Progress,
    device: str,
) -> None:
    import torch

    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for path in extras:
        shutil.copyfile(path, folder / path.name)
    generator = torch.Generator(device).manual_seed(SEED)
    shards = tuple(_shards(tensors))
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    )
    steps = count(1)
    for name, shard in zip(names, shards, strict=True):
        for _ in write_tensors(folder / name, shard, generator):
            progress.step("writing random weights", next(steps), len(tensors))
    if len(shards) > 1:
        weight_map = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": sum(map(tensor_bytes, tensors))}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(tensors: tuple[PlannedTensor, ...]) -> Iterator[tuple[PlannedTensor, ...]]:
    """Cut into files of at most SHARD_BYTES."""
    shard: list[PlannedTensor] = []
    size_bytes = 0
    for tensor in tensors:
        if shard and size_bytes + tensor_bytes(tensor) > SHARD_BYTES:
            yield tuple(shard)
            shard, size_bytes = [], 0
        shard.append(tensor)
        size_bytes += tensor_bytes(tensor)
    yield tuple(shard)
