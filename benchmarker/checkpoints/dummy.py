"""Random weights in a model's exact shapes, written once as a checkpoint.

Time, memory and energy equal those of trained weights to the extent that docs/values.md measured, so a model can be
measured without a download. Names and shapes are those of transformers' model on torch's meta device. The checkpoint is
loaded like a trained one; every table states that the generated text is meaningless.

All experts of a mixture of experts are used evenly: the embedding has a standard deviation of 1, so that hidden states
of different tokens stay different through all layers, and the rows of a router have equal norms, so that no expert is
preferred. Otherwise the greedy text soon repeats one token, which always selects the same experts.

A model without tokenizer files gets a tokenizer with one word per id, for servers that take text: `w5` is the id 5.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints import cache
from benchmarker.checkpoints.base import Checkpoint, Fill, PlannedLinear, PlannedTensor, Progress, QuantizationNeeds
from benchmarker.checkpoints.files import INDEX, TOKENIZER_FILES, write_word_tokenizer
from benchmarker.checkpoints.read_model import model_errors, transformers_config
from benchmarker.core.errors import ModelError
from benchmarker.core.formatting import GIB
from benchmarker.schema.model import ModelSpec

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def plan_tensors(
    source: Path, config: dict[str, Any], needs: QuantizationNeeds, *, trusted: bool
) -> tuple[PlannedTensor, ...]:
    """Return the checkpoint's tensors, shared ones once. `source`: folder with config.json and remote code."""
    model = empty_model(source, trusted=trusted)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    has_experts = any("router" in type(module).__name__.lower() for module in model.modules())
    embedding = model.get_input_embeddings() if has_experts else None
    std = float(getattr(model.config, "initializer_range", None) or 0.02)
    packed = packable_linears(model) if needs.packing else {}
    if needs.packing and not packed:
        raise ModelError(
            f"{type(model).__name__} has no nn.Linear, and packed formats quantize no other layers; use --quant fp16"
        )
    planned: list[PlannedTensor] = []
    for name, linear in packed.items():
        assert needs.packing is not None
        shape = PlannedLinear(name, linear.in_features, linear.out_features, std)
        planned += needs.packing.tensors(shape, needs.options)
        if linear.bias is not None:
            fill = _fill("Linear", "bias", std)
            planned.append(plain_tensor(f"{name}.bias", "float16", (linear.out_features,), fill))
    parameters = dict(model.named_parameters())
    shared = {name for name, _ in model.named_parameters(remove_duplicate=False)} - parameters.keys()
    for name, tensor in model.state_dict().items():
        module, _, last = name.rpartition(".")
        if name not in shared and module not in packed:
            owner = model.get_submodule(module)
            fill = _fill(type(owner).__name__, last, 1.0 if owner is embedding else std)
            planned.append(plain_tensor(name, dtype, tuple(tensor.shape), fill))
    return tuple(planned)


def empty_model(source: Path, *, trusted: bool = False) -> PreTrainedModel:
    """Return transformers' model of a folder's config.json on the meta device; ModelError if it cannot be built."""
    config = transformers_config(source, str(source), trusted=trusted).get_text_config(decoder=True)
    with model_errors(f"{source}: transformers cannot build this model"):
        return model_of(config, trust_remote_code=trusted)


def model_of(config: Any, **arguments: Any) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, **arguments)
    return model


def packable_linears(model: PreTrainedModel) -> dict[str, torch.nn.Linear]:
    """Return the model's `nn.Linear` layers by name, except the output layer."""
    import torch

    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        # The class must be exact, as in optimum: routers, for example, are subclasses.
        if type(module) is torch.nn.Linear and module is not head
    }


def _fill(owner: str, name: str, std: float) -> Fill:
    if "norm" in owner.lower() and name == "weight":
        return lambda tensor, _: tensor.fill_(1.0)
    # `e_score_correction_bias` (DeepSeek) would make the choice of experts uneven.
    if name in ("bias", "e_score_correction_bias"):
        return lambda tensor, _: tensor.zero_()
    if "router" in owner.lower() and name == "weight":
        return lambda tensor, generator: _equal_norms(tensor.normal_(0.0, std, generator=generator), std)
    return lambda tensor, generator: tensor.normal_(0.0, std, generator=generator)


def _equal_norms(rows: torch.Tensor, std: float) -> torch.Tensor:
    norms = rows.float().norm(dim=-1, keepdim=True)
    return rows.copy_(rows.float() * (std * rows.shape[-1] ** 0.5 / norms))


def plain_tensor(name: str, dtype: str, shape: tuple[int, ...], fill: Fill) -> PlannedTensor:
    import torch

    return PlannedTensor(name, torch.empty(shape, dtype=getattr(torch, dtype), device="meta"), fill)


LAYOUT = 4  # Version in the cache key; to be increased if the same inputs give another checkpoint.
SEED = 0
SHARD_BYTES = 2 * GIB  # The tensors of a shard are in memory together.
COPIED = ("generation_config.json", *TOKENIZER_FILES)


def make_dummy(
    model: ModelSpec,
    needs: QuantizationNeeds,
    config: dict[str, Any],
    *,
    source: Path,
    revision: str | None,
    progress: Progress,
    device: str,
) -> Checkpoint:
    """Return a model's dummy checkpoint from the cache, or make it; `source` is the folder with config.json."""
    config = {key: value for key, value in config.items() if key != "quantization_config"}
    if needs.packing:
        # Packed formats store scales and unquantized tensors in float16.
        config = {key: value for key, value in config.items() if key != "torch_dtype"}
        config |= {"dtype": "float16", "quantization_config": needs.packing.config(needs.options)}
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
        tensors = plan_tensors(source, config, needs, trusted=model.trust_remote_code)
        quantization = config.get("quantization_config") or {}
        described: dict[str, Any] = {
            name: value for name, value in quantization.items() if isinstance(value, str | int | float | bool)
        }
        if not described:
            described["dtype"] = config.get("dtype") or config.get("torch_dtype")
        needed_bytes = sum(tensor.meta.nbytes for tensor in tensors)
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


def _write(
    folder: Path,
    config: dict[str, Any],
    extras: list[Path],
    tensors: tuple[PlannedTensor, ...],
    progress: Progress,
    device: str,
) -> None:
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for path in extras:
        shutil.copyfile(path, folder / path.name)
    if not any(path.name in TOKENIZER_FILES for path in extras):
        write_word_tokenizer(folder, int(config["vocab_size"]))
    generator = torch.Generator(device).manual_seed(SEED)
    planned = {tensor.name: tensor for tensor in tensors}
    metas = {name: tensor.meta for name, tensor in planned.items()}
    split = split_torch_state_dict_into_shards(metas, max_shard_size=SHARD_BYTES)
    steps = count(1)
    for file, names in split.filename_to_tensors.items():
        values: dict[str, torch.Tensor] = {}
        for name in names:
            empty = torch.empty_like(planned[name].meta, device=generator.device)
            values[name] = planned[name].fill(empty, generator).cpu()
            progress.step("writing random weights", next(steps), len(tensors))
        save_file(values, folder / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
