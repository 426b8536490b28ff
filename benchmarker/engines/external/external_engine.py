"""Base class of the engines that run in a process and environment of their own, and their token source.

A new engine needs a subclass, a driver in external/drivers, an entry in `ENVIRONMENTS` and a file of pinned versions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.core.errors import ProcessError, WrongTokenCountError
from benchmarker.engines.base import Engine, Form, PrefillScores, Scores, TokenIds, TokenSource, UnsupportedError
from benchmarker.engines.external.driver_process import Driver
from benchmarker.engines.external.environments import EngineError, Marker, ready_environment, why_not_installed
from benchmarker.hardware.device import Device, devices_from
from benchmarker.hardware.gpu import DeviceMemory
from benchmarker.measure.clock import Generation
from benchmarker.quantization.base import has_int8_head
from benchmarker.schema.model import EngineFacts, ExternalFacts, LoadFacts

FACTS_S = 60.0
TRACE_S = 120.0  # Time limit for starting the profiler, and for writing a trace.


class ExternalEngine(Engine):
    limit_s = 1800.0  # Time limit of one request. The first start of vLLM on a new machine compiles for minutes.

    def why_not_installed(self) -> str | None:
        return why_not_installed(self.name)

    def why_not_split(self, form: Form) -> str | None:  # noqa: ARG002
        return "it is given one GPU here; use --engine eager or vllm"

    def marker(self, device: str) -> Marker:
        return ready_environment(self.name, device)

    def command(self, marker: Marker) -> list[str]:
        return marker.driver_command(self.name.replace("-", "_"))

    def arguments(
        self, checkpoint: Checkpoint, form: Form, device: Device, marker: Marker, progress: Progress
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return arguments of the driver's `open`, and fields of ExternalFacts that are unknown to the driver."""
        raise NotImplementedError

    def prove(self, form: Form, checkpoint: Checkpoint, facts: ExternalFacts) -> None:
        """Check that the open model has the quantization of its label. Raises UnsupportedError."""

    def loaded(self, checkpoint: Checkpoint, facts: ExternalFacts, *, load_s: float) -> LoadFacts | None:  # noqa: ARG002
        if not facts.parameters or facts.weight_bytes is None:
            return None
        return LoadFacts(
            load_s=load_s,
            weight_bytes=facts.weight_bytes,
            parameters=facts.parameters,
            bits_per_weight=8 * facts.weight_bytes / facts.parameters,
            quantized_fraction=min(1.0, (facts.packed_parameters or 0) / facts.parameters),
            linear_classes=facts.linear_methods,
            weight_classes=facts.tensors_by_type,
            lm_head_dtype=str(facts.output_type or facts.settings.get("dtype") or "none"),
            lm_head_tied=bool(facts.is_tied),
        )

    @contextmanager
    def open(self, checkpoint: Checkpoint, form: Form, device: Device, progress: Progress) -> Iterator[ExternalSource]:
        import torch

        marker = self.marker(device.kind)
        arguments, fields = self.arguments(checkpoint, form, device, marker, progress)
        progress.note(f"{self.name}: opening {checkpoint.model_id} in a process of its own")
        memories = [DeviceMemory(part) for part in devices_from(device, form.gpus) if part.kind != "cpu"]
        if any(memory.before_bytes is None for memory in memories):
            raise EngineError("the driver does not report the GPU's memory, so that an engine's own cannot be measured")
        # A record states one number of threads, and the rows of a table compare by it.
        variables = {} if memories else {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        with closing(Driver(self.name, self.command(marker), on_gpu=bool(memories), variables=variables)) as driver:
            opened = driver.request("open", limit_s=self.limit_s, **arguments)
            source = ExternalSource(
                name=self.name,
                driver=driver,
                limit_s=self.limit_s,
                environment=marker.name,
                fields=fields,
                gpus=form.gpus,
                growths=tuple(memory.growth_bytes for memory in memories),
                speculates=getattr(form.engine_options, "speculative", None) is not None,
            )
            facts = source.facts().external
            assert facts is not None
            self.prove(form, checkpoint, facts)
            source.loaded = self.loaded(checkpoint, facts, load_s=opened["load_s"])
            yield source


def head_refusal(form: Form) -> str | None:
    """Return why an engine with its own quantizations refuses `lm_head=int8`; None if it is not requested."""
    if not has_int8_head(form.options):
        return None
    return "lm_head=int8 is torchao's, for the engines that run here: eager, compile, cuda_graph and native"


@dataclass(eq=False, kw_only=True)
class ExternalSource(TokenSource):
    is_elsewhere = True
    name: str
    driver: Driver
    limit_s: float
    environment: str
    fields: dict[str, Any] = field(default_factory=dict)  # Fields of ExternalFacts unknown to the driver.
    gpus: int = 1  # On a CPU, number of processes.
    growths: Sequence[Callable[[], int | None]] = ()
    """Functions that return the growth of each GPU's used memory since before the driver started; empty on a CPU."""
    choosing_share: float | None = None
    step_s: float | None = None
    speculates: bool = False
    disagreements: list[tuple[float, float]] = field(default_factory=list)

    def generate(
        self, prompt_ids: Sequence[TokenIds], new_tokens: int, *, context: Sequence[TokenIds] | None = None
    ) -> Generation:
        answer = self.driver.request(
            "generate",
            limit_s=self.limit_s,
            prompt_ids=[list(row) for row in prompt_ids],
            new_tokens=new_tokens,
            context=None if context is None else [list(row) for row in context],
        )
        times = [answer[key] for key in ("start_ns", "first_ns", "last_ns", "end_ns")]
        if times != sorted(times) or times[0] == times[-1]:
            raise ProcessError(f"{self.name}: its driver answered 'generate' with times that make no sense: {times}")
        start_ns, first_ns, last_ns, end_ns = times
        tokens = tuple(map(tuple, answer["tokens"]))
        generation = Generation(tokens, start_ns, first_ns, last_ns, end_ns, answer.get("accepted_tokens"))
        counts = [len(row) for row in generation.tokens]
        if counts != [new_tokens] * len(prompt_ids):
            raise WrongTokenCountError(
                f"{self.name}: answered {counts} tokens where {len(prompt_ids)} x {new_tokens} were asked for, so "
                "that its row could not be compared; the engine's own limits, such as max_model_len, may be too small"
            )
        if self.speculates and generation.accepted_tokens is None:
            raise UnsupportedError(f"{self.name}: speculative decoding without the engine's number of accepted tokens")
        decode_ns = last_ns - first_ns
        if "choosing_ns" in answer and decode_ns:
            self.choosing_share = answer["choosing_ns"] / decode_ns
        if answer.get("step_ns"):
            self.step_s = answer["step_ns"] / 1e9
        differences = disagreement(generation, answer.get("engine_times") or [])
        if differences is not None:
            self.disagreements.append(differences)
        return generation

    def peak_bytes(self) -> tuple[int, ...]:
        """Return the growth of memory: of each GPU without the reserved KV cache, or of a single process on a CPU."""
        answer = self.driver.request("facts", limit_s=FACTS_S)
        if not self.growths:
            return (int(answer["growth_bytes"]),) if self.gpus == 1 and "growth_bytes" in answer else ()
        reserved_bytes = answer.get("kv_cache_bytes") or 0
        grown = [grown_bytes() for grown_bytes in self.growths]
        known = [each - reserved_bytes for each in grown if each is not None]
        return tuple(known) if len(known) == len(grown) else ()

    def trace(self, work: Callable[[], object], path: Path) -> None:
        self.driver.request("start_trace", limit_s=TRACE_S)
        try:
            work()
        finally:  # Later measurements must not run under the profiler.
            self.driver.request("stop_trace", limit_s=TRACE_S, path=str(path))

    def facts(self) -> EngineFacts:
        answer = self.driver.request("facts", limit_s=FACTS_S)
        fields = {name: answer[name] for name in ExternalFacts.model_fields if name in answer}
        ttfts, tpots = zip(*self.disagreements, strict=True) if self.disagreements else ((), ())
        external = ExternalFacts.model_validate(
            {
                **fields,
                **self.fields,
                "environment": self.environment,
                "attention": tuple(answer.get("attention", ())),
                "choosing_share": self.choosing_share,
                "step_s": self.step_s,
                "disagreement": median(max(pair) for pair in self.disagreements) if ttfts else None,
                "ttft_disagreement": median(ttfts) if ttfts else None,
                "tpot_disagreement": median(tpots) if tpots else None,
            }
        )
        return EngineFacts(
            name=self.name,
            tokens_read="each",
            kv_cache=answer["kv_cache"],
            engine_version=answer["version"],
            external=external,
        )

    def step_scores(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        scores = self._scores(ids, together=prompt_tokens, rows_from=prompt_tokens - 1)
        return scores if isinstance(scores, Scores) else None

    def forward_scores(self, ids: TokenIds) -> Scores | None:
        scores = self._scores(ids, together=len(ids), rows_from=0)
        return scores if isinstance(scores, Scores) else None

    def prefill_scores(self, ids: TokenIds) -> PrefillScores | None:
        scores = self._scores(ids, together=1, rows_from=0)
        return scores if isinstance(scores, PrefillScores) else None

    def _scores(self, ids: TokenIds, *, together: int, rows_from: int) -> Scores | PrefillScores:
        import numpy

        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "log_probabilities.f32")
            arguments: dict[str, Any] = {"ids": list(ids), "together": together, "rows_from": rows_from}
            answer = self.driver.request("score", limit_s=self.limit_s, output=str(output), **arguments)
            if "rows" not in answer:
                values = numpy.fromfile(output, dtype=numpy.float32)
                rows, vocabulary = len(ids) - rows_from, answer["vocabulary"]
                if len(values) != rows * vocabulary:
                    raise ProcessError(
                        f"{self.name}: its driver scored {len(values)} values where {rows} x {vocabulary} are due"
                    )
                return Scores(values.reshape(rows, vocabulary))
        shape = len(answer["rows"]), max(map(len, answer["rows"]))
        top_ids = numpy.full(shape, -1, dtype=numpy.int64)
        top = numpy.full(shape, -numpy.inf, dtype=numpy.float32)
        for index, row in enumerate(answer["rows"]):
            top_ids[index, : len(row)], top[index, : len(row)] = zip(*row, strict=True)
        return PrefillScores(top_ids, top)


def disagreement(generation: Generation, engine_times: Sequence[dict[str, Any] | None]) -> tuple[float, float] | None:
    """Return the largest relative differences of the engine's TTFT and TPOT from ours; None if it reported no times."""
    ours = generation.sample(len(generation.tokens[0]))
    reported = [times for times in engine_times if times is not None]

    def largest(name: str, our_s: float | None) -> float | None:
        engine_s = [times[name] for times in reported if times[name] is not None]
        return max((abs(value - our_s) / our_s for value in engine_s), default=None) if our_s else None

    ttft, tpot = largest("ttft_s", ours.ttft_s), largest("tpot_s", ours.tpot_s)
    return None if ttft is None and tpot is None else (ttft or 0.0, tpot or 0.0)
