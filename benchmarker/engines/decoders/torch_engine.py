"""Engines that run a transformers model in this process: they load alike, and differ in who runs the decode step.

A decoder is that difference. The token source around it turns ids of the host into tensors before the clock starts, and
back after it has stopped. Importing this file needs no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarker.checkpoints.base import Checkpoint, Progress, Target
from benchmarker.checkpoints.cache import quantize_s
from benchmarker.checkpoints.read_model import import_architecture, import_libraries
from benchmarker.engines.base import Form, Generation, Scores, TokenIds, TokenSource
from benchmarker.engines.decoders.decoder import Decoder
from benchmarker.engines.decoders.kv_cache import asked, missing, value_bytes
from benchmarker.hardware.device import CudaDevices, Device, torch_device
from benchmarker.quantization.base import Options
from benchmarker.quantization.output_layer import asks_for_head
from benchmarker.quantization.prepare import file_refusal
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.engine_facts import EngineFacts, StepFacts
from benchmarker.schema.model_facts import LoadFacts

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class TorchSource(TokenSource):
    """A loaded model and its decoder."""

    def __init__(
        self, model: PreTrainedModel, decoder: Decoder, device: Device, *, loaded: LoadFacts | None = None
    ) -> None:
        self.model = model
        self.decoder = decoder
        self.loaded = loaded
        self._device = torch_device(device)
        self._device_kind = device
        self._context: tuple[Sequence[TokenIds], Tensor] | None = None
        kv_form = getattr(decoder, "kv_cache", None)
        self.kv_value_bytes = value_bytes(kv_form, model.dtype.itemsize) if kv_form else None

    def generate(
        self, prompt_ids: Sequence[TokenIds], new_tokens: int, *, context: Sequence[TokenIds] | None = None
    ) -> Generation:
        """See TokenSource.generate."""
        decoded = self.decoder.generate(self._tensor(prompt_ids), new_tokens, context=self._context_tensor(context))
        return Generation(
            tokens=tuple(tuple(row) for row in decoded.tokens.tolist()),
            start_ns=decoded.start_ns,
            first_ns=decoded.first_ns,
            last_ns=decoded.last_ns,
            end_ns=decoded.end_ns,
        )

    def continued(self, ids: TokenIds, new_tokens: int) -> tuple[int, ...]:
        """See TokenSource.continued."""
        pieces = self.decoder.stream(self._tensor([ids]), new_tokens, frozenset())
        return tuple(token for piece in pieces for token in piece)

    def score(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        """See TokenSource.score."""
        return Scores(self.decoder.score(self._tensor([ids]), prompt_tokens=prompt_tokens).numpy())

    def forward(self, ids: TokenIds) -> Scores | None:
        """See TokenSource.forward."""
        import torch

        assert self.model is not None
        with torch.no_grad():
            logits = self.model(input_ids=self._tensor([ids]), use_cache=False).logits
        return Scores(logits[0].float().log_softmax(dim=-1).cpu().numpy())

    @property
    def scores_plainly(self) -> bool:
        """See TokenSource.scores_plainly: true of `generate`."""
        from benchmarker.engines.decoders.eager import EagerDecoder

        is_plain = isinstance(self.decoder, EagerDecoder) and self.kv_value_bytes is None
        return is_plain and not self._has_own_kernels

    def score_plainly(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        """See TokenSource.score_plainly: `generate` takes the place of the decoder."""
        from benchmarker.engines.decoders.eager import EagerDecoder

        if self.model is None or self.scores_plainly or self._has_own_kernels:
            return None
        decoder = EagerDecoder(self.model, self._device_kind)
        return Scores(decoder.score(self._tensor([ids]), prompt_tokens=prompt_tokens).numpy())

    @property
    def _has_own_kernels(self) -> bool:
        """Whether this program's kernels have taken the place of the libraries' in the model itself."""
        return any(use.origin == "benchmarker" for use in self.decoder.facts().kernels_used)

    def _tensor(self, ids: Sequence[TokenIds]) -> Tensor:
        import torch

        return torch.tensor([list(row) for row in ids], device=self._device)

    def _context_tensor(self, context: Sequence[TokenIds] | None) -> Tensor | None:
        """The context's ids as a tensor: the same one for the same object, so that a decoder knows its cache holds it.

        None where there is no context.
        """
        if context is None:
            return None
        if self._context is None or self._context[0] is not context:
            self._context = context, self._tensor(context)
        return self._context[1]

    def per_gpu_bytes(self) -> tuple[int, ...]:
        """See TokenSource.per_gpu_bytes."""
        return self._device_kind.peaks() if isinstance(self._device_kind, CudaDevices) else ()

    def facts(self) -> EngineFacts:
        """See TokenSource.facts."""
        return self.decoder.facts()

    def timed(self) -> AbstractContextManager[None]:
        """See TokenSource.timed."""
        return self.decoder.timed()

    def check(self) -> None:
        """See TokenSource.check."""
        self.decoder.check()

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:
        """See TokenSource.kernels_per_token."""
        return self.decoder.kernels_per_token(count)

    @property
    def graph_pool_bytes(self) -> int | None:
        """See Memory.graph_pool_bytes."""
        return self.decoder.graph_pool_bytes

    def step_facts(self) -> StepFacts | None:
        """See TokenSource.step_facts."""
        return self.decoder.step_facts()


@dataclass(frozen=True)
class TorchEngine:
    """An engine whose model is a transformers model in this process."""

    name: str
    summary: str
    decoder: Callable[..., Decoder]
    """Makes the decoder of a model on a device, with each of the options by its name; imports torch inside."""
    options: type[Options] = Options
    packages: tuple[str, ...] = ()
    """Modules that it imports when it first runs: imported early, they are no part of the memory that a model takes."""
    whole_only: str | None = None
    """Why several GPUs cannot share its model; None where they can."""

    def installed(self) -> str | None:
        """torch and transformers are there wherever this program is; a quantization asks for its own library."""
        return None

    def splits(self, form: Form) -> str | None:
        """See Engine.splits."""
        if self.whole_only:
            return f"{self.whole_only}; use --engine eager"
        if asked(form.engine_options):
            return "a quantized KV cache over several GPUs was never tried; leave kv_cache out"
        if form.split in LOADERS[form.quant].splits and not (form.split == "tensors" and asks_for_head(form.options)):
            return None
        if form.split == "tensors":
            what = "lm_head=int8" if asks_for_head(form.options) else form.quant
            return f"transformers divides plain 16-bit weights, and not those of {what}; use --quant fp16"
        able = ", ".join(name for name, loader in LOADERS.items() if "layers" in loader.splits)
        return f"{form.quant} by layers over several GPUs was never tried; it is there for {able}"

    def takes(self, form: Form, checkpoint: Checkpoint) -> str | None:
        """Every quantization's loader refuses for itself what it cannot read in a folder."""
        return file_refusal(form.quant, checkpoint) or missing(form.engine_options)

    def source(
        self,
        model: PreTrainedModel,
        device: Device,
        *,
        loaded: LoadFacts | None = None,
        options: Options | None = None,
    ) -> TorchSource:
        """A token source over a model that is loaded already.

        Args:
            options: Of the type that `options` of the engine names; its defaults if not given.
        """
        decoder = self.decoder(model, device, **(options or self.options()).model_dump())
        return TorchSource(model, decoder, device, loaded=loaded)

    @contextmanager
    def open(self, checkpoint: Checkpoint, form: Form, device: Device, progress: Progress) -> Iterator[TokenSource]:
        """See Engine.open."""
        if form.gpus > 1 and form.split == "tensors":
            from benchmarker.engines.decoders.tensor_parallel import open_divided

            with open_divided(self, checkpoint, form, device, progress) as source:
                yield source
        else:
            yield self.opened(checkpoint, form, device, progress)

    def opened(self, checkpoint: Checkpoint, form: Form, device: Device, progress: Progress) -> TorchSource:
        """A token source over a model that is loaded now."""
        model, facts = load(checkpoint, form, device, progress, packages=self.packages)
        return self.source(model, device, loaded=facts, options=form.engine_options)


def load(
    checkpoint: Checkpoint, form: Form, device: Device, progress: Progress, *, packages: Sequence[str] = ()
) -> tuple[PreTrainedModel, LoadFacts]:
    """The model on the device, and what that cost. Neither importing libraries counts, nor quantizing a checkpoint
    where it is done once.

    Args:
        packages: Modules that the engine imports later.

    Raises:
        BenchmarkerError: It cannot be loaded in this form.
    """
    from benchmarker.quantization.inspect import load_facts
    from benchmarker.quantization.load import load_form

    loader, target = LOADERS[form.quant], Target(device.torch_name, form.dtype, form.gpus, form.split)
    prepared = loader.prepare(checkpoint, form.options, target, progress)
    import_libraries(*loader.packages, *packages)
    import_architecture(checkpoint.config)
    progress.note(f"loading {checkpoint.model_id} as {loader.summary}")
    device.begin_growth()
    device.reset_peak()
    started = time.perf_counter()
    loaded = load_form(form.quant, prepared, form.options, target, progress)
    device.synchronize()
    load_s = time.perf_counter() - started
    peak = device.peak()
    facts = load_facts(
        loaded.model,
        load_s=load_s,
        quantize_s=quantize_s(prepared.folder),
        peak_bytes=peak.growth_bytes if peak.allocated_bytes is None else peak.allocated_bytes,
        notes=loaded.notes,
        file_types=loaded.file_types,
    )
    return loaded.model, facts
