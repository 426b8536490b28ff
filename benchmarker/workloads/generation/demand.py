"""What a model's work cannot do without, counted from its loaded tensors: bytes of a decode step, FLOPs of both parts.

The bytes are those that the model keeps, not those that a kernel happens to move: a cache that is copied at every
step, or a weight that is unpacked to memory first, makes MBU low, and that is what it is for.

    step bytes    = weights + one row of the embedding a sequence + KV cache
    decode FLOPs  = batch * (2 * weights of all linears + 4 * heads * head_dim * layers * context)
    prefill FLOPs = batch * (2 * S * weights of the body + 2 * weights of lm_head
                             + 4 * heads * head_dim * layers * (S * depth + S * (S + 1) / 2))
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.read_model import head_dim, import_libraries, key_heads
from benchmarker.core.errors import MemoryNeededError
from benchmarker.core.formatting import gib
from benchmarker.engines.decoders.eager import value_bytes
from benchmarker.engines.registry import MODEL_ENGINES
from benchmarker.hardware.device import Device
from benchmarker.hardware.read_environment import available_bytes
from benchmarker.quantization.load import flat, is_linear, module_tensors, shares_storage, storage_bytes, weights_of
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.record import Limits
from benchmarker.workloads.generation.record import GenerationDemand
from benchmarker.workloads.generation.spec import GenerationJob, Point

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


class Weights:
    """What a model's weights need of every step, whatever the prompt. Make it before an engine alters the model.

    Attributes:
        body: Weights of all linears but lm_head, as far as one GPU has them.
        head: Weights of lm_head, likewise.
        read_bytes: Bytes of weights that a step reads.
        row_bytes: Bytes of one row of the embedding, which a step reads for each sequence.
    """

    def __init__(self, model: PreTrainedModel, *, shares: int = 1, kv_value_bytes: float | None = None) -> None:
        """Look a model over.

        Args:
            shares: Among how many GPUs every weight is divided; all that is counted is then the share of one.
            kv_value_bytes: See TokenSource.
        """
        self._shares = shares
        linears: list[Any] = [module for module in model.modules() if is_linear(module)]
        head: Any = model.get_output_embeddings()
        self.body = sum(weights_of(linear) for linear in linears if linear is not head) // shares
        self.head = weights_of(head) // shares if head is not None else 0
        embedding: Any = model.get_input_embeddings()
        is_tied = head is not None and shares_storage(head.weight, embedding.weight)
        # A tied embedding is read as the output layer; of one by itself only a row a sequence is looked up.
        skipped = set() if is_tied else {id(tensor) for tensor in module_tensors(embedding)}
        self.read_bytes = storage_bytes(
            tensor for module in model.modules() for tensor in module_tensors(module) if id(tensor) not in skipped
        )
        self.row_bytes = sum(part[0].numel() * part.element_size() for part in flat(embedding.weight) if part.ndim)
        self._config = model.config.get_text_config()
        self._kv_value_bytes = kv_value_bytes or _activation_bytes(model)

    def cache_bytes(self, point: Point) -> int:
        return cache_bytes(self._config, point, value_bytes=self._kv_value_bytes)

    def demand(self, *, prompt_tokens: int, new_tokens: int, batch_size: int, depth: int) -> GenerationDemand:
        """The bytes and FLOPs of one cell.

        The first new token comes from the prefill, so N tokens are N - 1 steps; the first of them finds the prompt in
        the cache, each later one a token more.
        """
        config = self._config
        context = depth + prompt_tokens + max(0, new_tokens - 2) / 2
        contexts = [min(context, window) if window else context for window in _windows(config)]
        per_token = round(2 * key_heads(config) // self._shares * head_dim(config) * self._kv_value_bytes)
        per_score = 4 * config.num_attention_heads // self._shares * head_dim(config)
        attended = prompt_tokens * depth + prompt_tokens * (prompt_tokens + 1) / 2
        weight_bytes = self.read_bytes + batch_size * self.row_bytes
        kv_bytes = round(batch_size * per_token * sum(contexts))
        decode_flops = round(batch_size * (2 * (self.body + self.head) + per_score * sum(contexts)))
        prefill_flops = round(
            batch_size * (2 * (prompt_tokens * self.body + self.head) + per_score * len(contexts) * attended)
        )
        steps = new_tokens - 1
        return GenerationDemand(
            flops=prefill_flops + steps * decode_flops,
            # The prefill reads the weights once; what it reads and writes of activations depends on the kernels.
            bytes=weight_bytes + steps * (weight_bytes + kv_bytes),
            weight_bytes=weight_bytes,
            kv_bytes_per_token=per_token * config.num_hidden_layers,
            context_tokens=context,
            kv_bytes=kv_bytes,
            decode_flops=decode_flops,
            prefill_flops=prefill_flops,
        )


def cache_bytes(config: Any, point: Point, *, value_bytes: float) -> int:
    """Return the bytes of the KV cache at the end of a cell; a prompt of text counts as one token."""
    length = point.depth + (point.prompt_tokens or 1) + point.new_tokens
    lengths = [min(length, window) if window else length for window in _windows(config)]
    return round(2 * key_heads(config) * head_dim(config) * value_bytes * point.batch_size * sum(lengths))


def least_weight_bytes(config: Mapping[str, Any], *, bits: float, value_bytes: int) -> int:
    """Return the bytes of the weights: `bits` each in the blocks, without scales; 0 if transformers lacks the model."""
    import_libraries()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    except (ValueError, KeyError, TypeError, AttributeError, ImportError):
        return 0
    ends = {id(model.get_input_embeddings().weight), *map(id, getattr(model.get_output_embeddings(), "weight", ()))}
    sizes = [(tensor.numel(), tensor.ndim > 1 and id(tensor) not in ends) for tensor in model.parameters()]
    return round(sum(count * (bits / 8 if is_quantized else value_bytes) for count, is_quantized in sizes))


def refuse_too_large(job: GenerationJob, device: Device, config: Mapping[str, Any]) -> None:
    """Refuse a job on a CPU of which no cell fits into the free memory, before its weights are made or loaded.

    Raises:
        MemoryNeededError: With the needed bytes, which are a lower bound, and the free ones.
    """
    variant = job.variant
    if device.kind != "cpu" or variant.engine not in MODEL_ENGINES:
        return
    element_bytes = 4 if job.model.dtype == "float32" else 2
    stored = config.get("quantization_config") or {}
    given = stored.get("bits") or variant.options.get("bits") or min(LOADERS[variant.quant].bits, default=16)
    bits = 8 * element_bytes if variant.quant == "fp16" else float(given)
    weight_bytes = least_weight_bytes(config, bits=bits, value_bytes=element_bytes)
    kv_form: Any = variant.engine_options.get("kv_cache")
    kv_bytes = value_bytes(kv_form, element_bytes) if kv_form else element_bytes
    text = SimpleNamespace(**config)
    least = min(job.points(), key=lambda point: cache_bytes(text, point, value_bytes=kv_bytes))
    refuse_cell(least, cache_bytes(text, least, value_bytes=kv_bytes), weight_bytes=weight_bytes)


def refuse_cell(point: Point, needed_bytes: int, *, weight_bytes: int = 0) -> None:
    """Raise MemoryNeededError if a cell's KV cache and weights that are not loaded yet exceed the free memory."""
    total_bytes, free_bytes = weight_bytes + needed_bytes, available_bytes()
    if total_bytes > free_bytes:
        cache = f"the KV cache of a batch of {point.batch_size}"
        if weight_bytes:
            cache = f"the weights ({gib(weight_bytes)}) and {cache} ({gib(needed_bytes)})"
        raise MemoryNeededError(
            f"memory for {cache}: {gib(total_bytes)} needed, {gib(free_bytes)} free; use a smaller model, batch, depth "
            "or prompt"
        )


def _windows(config: Any) -> list[int | None]:
    """Tokens that each layer's attention looks back; None for all."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _activation_bytes(model: nn.Module) -> int:
    """Bytes of one value of the KV cache, which has the type of the activations."""
    return next(tensor.element_size() for tensor in model.parameters() if tensor.is_floating_point())


MBU_LIMIT = 1.02
"""Above it the bytes are counted wrong, or the bandwidth was measured wrong."""


def floor_s(demand: GenerationDemand, limits: Limits) -> float:
    """The least time that one decode step can take."""
    return max(demand.step_bytes / limits.bytes_per_s, demand.decode_flops / limits.matmul_flops_per_s)


def mbu(demand: GenerationDemand, limits: Limits, *, tpot_s: float) -> float:
    """Share of the memory's bandwidth that decoding used for what it had to read."""
    return demand.step_bytes / (tpot_s * limits.bytes_per_s)


def prefill_mfu(demand: GenerationDemand, limits: Limits, *, ttft_s: float) -> float:
    """Share of the matmul rate that the prefill used for what it had to compute."""
    return demand.prefill_flops / (ttft_s * limits.matmul_flops_per_s)
