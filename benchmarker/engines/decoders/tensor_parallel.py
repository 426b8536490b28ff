"""One model divided among several GPUs, with one process for each: transformers' tensor parallelism.

Every rank holds a part of each weight and runs the same generation. After the attention and after the MLP of each layer
the ranks sum their results (all-reduce), and they gather the logits, so that every rank computes every token. Rank 0
is this process; its clock and its tokens are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from benchmarker.checkpoints.base import Checkpoint, Progress, Silent
from benchmarker.core.errors import DeviceError, SpecError, WrongResultError
from benchmarker.distributed.rank import Rank, barrier
from benchmarker.distributed.ranks import Ranks, open_ranks
from benchmarker.engines.base import Form, Scores, TokenIds, TokenSource, why_uneven
from benchmarker.engines.decoders.torch_engine import TorchDecoder, TorchEngine
from benchmarker.hardware.device import Device, devices_from
from benchmarker.measure.clock import Generation
from benchmarker.schema.model import EngineFacts, LoadFacts


class DividedSource(TokenSource):
    """A model divided among ranks. Every method runs on rank 0 and makes the other ranks run the same work."""

    def __init__(self, own: TorchDecoder, ranks: Ranks, loaded: LoadFacts) -> None:
        self.model = own.model
        self.loaded = loaded
        self.shares = ranks.count
        self._own = own
        self._ranks = ranks
        self._per_gpu_bytes: tuple[int, ...] = ()

    def generate(
        self, prompt_ids: Sequence[TokenIds], new_tokens: int, *, context: Sequence[TokenIds] | None = None
    ) -> Generation:
        depth = len(context[0]) if context else 0
        (own, peak_bytes), answers = self._ranks.together(
            {"do": "generate", "prompt_ids": prompt_ids, "new_tokens": new_tokens, "context": context},
            lambda: generated(self._own, prompt_ids, new_tokens, context),
            kind=f"{len(prompt_ids)} sequences, {depth} + {len(prompt_ids[0])} + {new_tokens}",
        )
        for rank, answer in enumerate(answers, start=1):
            if answer["tokens"] != [list(row) for row in own.tokens]:
                raise WrongResultError(f"rank {rank} made other tokens than rank 0: the ranks are out of step")
        self._per_gpu_bytes = (peak_bytes, *(answer["peak_bytes"] for answer in answers))
        return own

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:
        return self._ranks.together({"do": "count"}, lambda: self._own.kernels_per_token(count), kind="count")[0]

    def per_gpu_bytes(self) -> tuple[int, ...]:
        return self._per_gpu_bytes

    def facts(self) -> EngineFacts:
        return self._own.facts()

    def timed(self) -> AbstractContextManager[None]:
        return self._own.timed()

    def check(self) -> None:
        self._own.check()

    def step_scores(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        message = {"do": "score", "ids": ids, "prompt_tokens": prompt_tokens}
        work = partial(self._own.step_scores, ids, prompt_tokens=prompt_tokens)
        return self._ranks.together(message, work, kind=f"score {len(ids)}")[0]

    def forward_scores(self, ids: TokenIds) -> Scores | None:
        work = partial(self._own.forward_scores, ids)
        return self._ranks.together({"do": "forward", "ids": ids}, work, kind=f"forward {len(ids)}")[0]


def generated(
    decoder: TorchDecoder, prompt_ids: Sequence[TokenIds], new_tokens: int, context: Sequence[TokenIds] | None
) -> tuple[Generation, int]:
    """Wait for all ranks, generate on this rank, and return the generation and the rank's peak memory in bytes."""
    barrier(decoder.device)
    generation = decoder.generate(prompt_ids, new_tokens, context=context)
    peak = decoder.device.peak_memory()
    return generation, peak.allocated_bytes or peak.growth_bytes or 0


@contextmanager
def open_divided(
    engine: TorchEngine, checkpoint: Checkpoint, form: Form, device: Device, progress: Progress
) -> Iterator[DividedSource]:
    """Start the other ranks and load a share of the model in each. Raises SpecError, DeviceError or RankError."""
    if reason := why_uneven(checkpoint, form.gpus):
        raise SpecError(f"--gpus {form.gpus}: {reason}, or --split layers")
    if device.kind == "cpu" and torch.cuda.is_available():
        raise DeviceError(
            "--device cpu with several processes: transformers divides a model over the GPUs that torch sees; "
            "hide them with CUDA_VISIBLE_DEVICES="
        )
    devices = [part.torch_name for part in devices_from(device, form.gpus)]
    progress.note(f"starting {form.gpus - 1} more process{'es' if form.gpus > 2 else ''} for {', '.join(devices[1:])}")
    form = replace(form, is_share=True)
    arguments = {
        "engine": engine.name,
        "checkpoint": {**asdict(checkpoint), "folder": str(checkpoint.folder.resolve())},
        "form": TypeAdapter(Form).dump_python(form, mode="json", serialize_as_any=True),
    }
    share = engine.open(checkpoint, form, device, progress)
    with open_ranks(serve, arguments, devices=devices, device=device) as ranks, ExitStack() as stack:
        own, others = ranks.together({"do": "load"}, lambda: stack.enter_context(share), kind="load")
        assert isinstance(own, TorchDecoder)
        assert own.loaded is not None
        yield DividedSource(own, ranks, _together(own.loaded, others))


def _together(own: LoadFacts, others: Sequence[dict[str, Any]]) -> LoadFacts:
    per_gpu = (own.weight_bytes, *(part["weight_bytes"] for part in others))
    peaks = [peak for peak in (own.peak_bytes, *(part["peak_bytes"] for part in others)) if peak is not None]
    return own.model_copy(
        update={
            "load_s": max(own.load_s, *(part["load_s"] for part in others)),
            "peak_bytes": max(peaks, default=None),
            "weight_bytes": sum(per_gpu),
            "bits_per_weight": 8 * sum(per_gpu) / own.parameters,
            "per_gpu_bytes": per_gpu,
        }
    )


def serve(rank: Rank, arguments: dict[str, Any]) -> None:
    """Run a rank other than 0: load its share of the model, then execute the messages of DividedSource."""
    decoder: TorchDecoder | None = None
    context: list[list[int]] | None = None
    stack = ExitStack()

    def answer(message: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal decoder, context
        if decoder is None:
            source = stack.enter_context(_open_share(rank.device, **arguments))
            assert isinstance(source, TorchDecoder)
            decoder, facts = source, source.loaded
            assert facts is not None
            return {"load_s": facts.load_s, "weight_bytes": facts.weight_bytes, "peak_bytes": facts.peak_bytes}
        match message["do"]:
            case "generate":
                if message["context"] != context:
                    # Equal ids must be the same object, because the decoder fills its cache once per object.
                    context = message["context"]
                rank.device.reset_peak()
                generation, peak_bytes = generated(decoder, message["prompt_ids"], message["new_tokens"], context)
                return {"tokens": [list(row) for row in generation.tokens], "peak_bytes": peak_bytes}
            case "score":
                decoder.step_scores(message["ids"], prompt_tokens=message["prompt_tokens"])
            case "forward":
                decoder.forward_scores(message["ids"])
            case "count":
                decoder.kernels_per_token(_uncounted)
        return None

    with stack:
        rank.serve(answer)


def _open_share(
    device: Device, *, engine: str, checkpoint: dict[str, Any], form: dict[str, Any]
) -> AbstractContextManager[TokenSource]:
    from benchmarker.engines.registry import torch_engine
    from benchmarker.quantization.registry import LOADERS

    opened_by = torch_engine(engine)
    form |= {
        "options": LOADERS[form["quant"]].options.model_validate(form["options"]),
        "engine_options": opened_by.options.model_validate(form["engine_options"]),
    }
    checkpoint |= {"folder": Path(checkpoint["folder"])}
    return opened_by.open(Checkpoint(**checkpoint), Form(**form), device, Silent())


def _uncounted(work: Callable[[], object]) -> int:
    work()
    return 0
