"""Engines that run a transformers model in this process. They load alike and differ in how the decode step runs.

Importing this file needs no torch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarker.checkpoints.base import Checkpoint, Progress, Target
from benchmarker.checkpoints.cache import quantize_s
from benchmarker.checkpoints.read_model import import_architecture, import_libraries
from benchmarker.engines.base import Engine, Form, Scores, TokenIds, TokenSource, why_uneven
from benchmarker.hardware.device import CudaDevice, Device
from benchmarker.quantization.base import Loaded, Loader, Options
from benchmarker.quantization.coverage import coverage_after_forward, weight_coverage
from benchmarker.quantization.load import file_refusal, is_linear, load_facts, with_output_layer
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.model import KernelUse, LoadFacts

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

Batch: TypeAlias = "Sequence[TokenIds] | Tensor"  # Token ids, [batch][tokens].
PYTHON_RULE = "the gated delta rule is transformers' Python loop, because the package fla is not installed"
CHUNK = 4096  # Maximum tokens per forward pass of a prefill: above it, activations would exceed the KV cache.


class TorchDecoder(TokenSource):
    """A loaded transformers model. Subclasses implement `generate`, which is timed, and `stream`, which is not."""

    model: PreTrainedModel

    def __init__(self, model: PreTrainedModel, device: Device) -> None:
        self.model = model
        self.device = device
        self._context: tuple[Batch, Tensor] | None = None

    def stream(self, prompt: Tensor, new_tokens: int, stop: frozenset[int]) -> Iterator[list[int]]:
        """Yield greedy tokens of one sequence, [1, prompt_tokens], in pieces, until a token is in `stop`."""
        raise NotImplementedError

    def log_probabilities(self, ids: Tensor, *, prompt_tokens: int = 1) -> Tensor:
        """Return log-probabilities for `step_scores`: [rows, vocabulary], float32, on the CPU."""
        raise NotImplementedError

    def tensor(self, ids: Batch) -> Tensor:
        import torch

        if isinstance(ids, torch.Tensor):
            return ids
        return torch.tensor([list(row) for row in ids], device=self.device.torch_name)

    def context_tensor(self, context: Batch | None) -> Tensor | None:
        """Return ids as a tensor. An object passed again gives the same tensor, so that a decoder reuses its cache."""
        if context is None:
            return None
        if self._context is None or self._context[0] is not context:
            self._context = context, self.tensor(context)
        return self._context[1]

    def per_gpu_bytes(self) -> tuple[int, ...]:
        if not isinstance(self.device, CudaDevice) or len(self.device.indices) == 1:
            return ()
        return self.device.peaks()

    def greedy_tokens(self, ids: TokenIds, new_tokens: int) -> tuple[int, ...]:
        return tuple(token for piece in self.stream(self.tensor([ids]), new_tokens, frozenset()) for token in piece)

    def step_scores(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        return Scores(self.log_probabilities(self.tensor([ids]), prompt_tokens=prompt_tokens).numpy())

    def forward_scores(self, ids: TokenIds) -> Scores | None:
        import torch

        with torch.no_grad():
            logits = self.model(input_ids=self.tensor([ids]), use_cache=False).logits
        return Scores(logits[0].float().log_softmax(dim=-1).cpu().numpy())

    def perturbed_scores(self, ids: TokenIds) -> Scores | None:
        import torch

        dtype = self.model.dtype
        generator = torch.Generator(self.device.torch_name).manual_seed(0)

        def perturb(_module: nn.Module, _inputs: object, output: object) -> Tensor | None:
            if not isinstance(output, torch.Tensor) or output.dtype != dtype:
                return None
            noise = torch.rand(output.shape, generator=generator, device=output.device) - 0.5
            return (output * (1 + torch.finfo(dtype).eps * noise)).to(dtype)

        with torch.nn.modules.module.register_module_forward_hook(perturb):  # type: ignore[arg-type]
            return self.forward_scores(ids)


@dataclass(frozen=True)
class TorchEngine(Engine):
    name: str
    decoder: Callable[..., TorchDecoder]
    """Function that returns a decoder: `decoder(model, device, **options)`. It imports torch only when called."""
    options: type[Options] = Options
    packages: tuple[str, ...] = ()
    """Modules that the engine imports at its first run. They are imported before the memory of loading is measured."""

    def why_not_split(self, form: Form) -> str | None:  # noqa: ARG002
        return "its static KV cache holds every head on one GPU; use --engine eager"

    def why_not_taken(self, form: Form, checkpoint: Checkpoint) -> str | None:
        uneven = why_uneven(checkpoint, form.gpus) if form.split == "tensors" else None
        return file_refusal(form.quant, checkpoint) or uneven

    @contextmanager
    def open(self, checkpoint: Checkpoint, form: Form, device: Device, progress: Progress) -> Iterator[TokenSource]:
        """Load a model; measure time and memory of loading, without imports and `prepare`. Raises BenchmarkerError."""
        if form.gpus > 1 and form.split == "tensors" and not form.is_share:
            from benchmarker.engines.decoders.tensor_parallel import open_divided

            with open_divided(self, checkpoint, form, device, progress) as source:
                yield source
            return
        loader, target = LOADERS[form.quant], Target(device.torch_name, form.dtype, form.gpus, form.split)
        prepared = loader.prepare(checkpoint, form.options, target, progress)
        import_libraries(*loader.packages, *self.packages)
        import_architecture(checkpoint.config)
        progress.note(f"loading {checkpoint.model_id} as {loader.summary}")
        device.begin_growth()
        device.reset_peak()
        started = time.perf_counter()
        loaded = loader.load(prepared, form.options, target)
        loaded = with_output_layer(loaded, form.quant, prepared, form.options)
        device.synchronize()
        load_s = time.perf_counter() - started
        facts = _facts(loaded, loader, prepared, device, load_s=load_s)
        decoder = self.decoder(loaded.model, device, **form.engine_options.model_dump())
        decoder.loaded = facts
        yield decoder


def _facts(loaded: Loaded, loader: Loader, checkpoint: Checkpoint, device: Device, *, load_s: float) -> LoadFacts:
    peak = device.peak_memory()
    facts = load_facts(
        loaded,
        load_s=load_s,
        quantize_s=quantize_s(checkpoint.folder),
        peak_bytes=peak.growth_bytes if peak.allocated_bytes is None else peak.allocated_bytes,
    )
    coverage_of = weight_coverage if checkpoint.quantization is None else coverage_after_forward
    coverage = coverage_of(loaded.model) if loader.has_low_bits else None
    has_rule = any("GatedDelta" in type(module).__name__ for module in loaded.model.modules())
    notes = (*facts.notes, PYTHON_RULE) if has_rule and find_spec("fla") is None else facts.notes
    return facts.model_copy(update={"coverage": coverage, "notes": notes})


def expert_modules(model: nn.Module) -> list[Any]:
    """Return the modules with fused experts. `config._experts_implementation` selects the GEMM of these modules."""
    return [module for module in model.modules() if hasattr(module, "num_experts") and hasattr(module, "_apply_gate")]


def experts_implementation(model: nn.Module) -> str | None:
    """Return transformers' implementation of fused experts, such as "grouped_mm"; None without fused experts."""
    return next((str(module.config._experts_implementation) for module in expert_modules(model)), None)


def linear_kernels(model: nn.Module, *, compiled: bool) -> tuple[KernelUse, ...]:
    """Count the model's linears by class. If `compiled`, inductor writes the kernels of class `Linear`."""
    linears = [module for module in model.modules() if is_linear(module)]
    return kernels_by_class(linears, total=len(linears), compiled=compiled)


def kernels_by_class(linears: Sequence[Any], *, total: int, compiled: bool) -> tuple[KernelUse, ...]:
    counts = Counter(type(linear).__name__ for linear in linears)
    return tuple(
        KernelUse(
            purpose="linear",
            origin="inductor" if compiled and name == "Linear" else "library",
            name=name,
            covered=count,
            total=total,
        )
        for name, count in sorted(counts.items())
    )
