"""One repeat of text generation: one greedy generation of exactly N tokens after a prompt of P.

TTFT is the time until the first new token is known (prefill); TPOT is the mean time of each further token, over N - 1
intervals; the latency ends when the device is drained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarker.engines.base import TokenSource
from benchmarker.engines.registry import torch_engine
from benchmarker.hardware.device import Device, find_device
from benchmarker.hardware.monitor import Surroundings
from benchmarker.measure.clock import Generation, GenerationSample
from benchmarker.measure.repeat import Step
from benchmarker.quantization.base import EXPERT_COUNTS
from benchmarker.schema.job import Procedure
from benchmarker.schema.record import Flag, Memory, Missing
from benchmarker.workloads.generation.architecture import Architecture
from benchmarker.workloads.generation.expert_routing import experts_per_step
from benchmarker.workloads.generation.generation_job import refuse_cell
from benchmarker.workloads.generation.prompts import Prompt, check_fits, distinct_count, inputs_sha256, make_prompts
from benchmarker.workloads.generation.read_architecture import describe
from benchmarker.workloads.generation.record import GenerationCell, GenerationDemand
from benchmarker.workloads.generation.spec import Grid, Point
from benchmarker.workloads.measure_cell import measure_cell
from benchmarker.workloads.session import Bench, tried

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class Repeats:
    """Outputs of the repeats of a cell, which must all generate the same tokens."""

    inputs: Sequence[Sequence[int]]  # Token ids of context and prompt of each sequence.
    peaks: list[tuple[int, ...]] = field(default_factory=list)
    """Peak memory of each GPU in every repeat, [repeats][GPUs]; empty for a single GPU."""
    tokens: tuple[tuple[int, ...], ...] | None = None
    flags: set[Flag] = field(default_factory=set)
    first_token_ns: int | None = None
    """Time of the newest repeat's first token, on the clock `time.perf_counter_ns`."""

    def add(self, generation: Generation, per_gpu_bytes: tuple[int, ...]) -> None:
        self.peaks.append(per_gpu_bytes)
        self.first_token_ns = generation.first_ns
        self.tokens = self.tokens or generation.tokens
        if self.tokens != generation.tokens:
            self.flags.add("nondeterministic_tokens")

    @property
    def sequences(self) -> list[tuple[int, ...]]:
        """Token ids in the KV cache after the last step: context, prompt and all generated tokens except the last."""
        return [(*ids, *tokens[:-1]) for ids, tokens in zip(self.inputs, self.tokens or (), strict=True)]


class SourceBenchmarker(Bench):
    def __init__(
        self,
        source: TokenSource,
        config: dict[str, Any],
        device: Device,
        *,
        tokenizer: Any | None = None,
        chat_template: bool = False,
        outline: PreTrainedModel | None = None,
    ) -> None:
        """Wrap an open token source.

        Args:
            config: The model's config.json, parsed.
            tokenizer: Tokenizer for text prompts. If None, prompts are random ids.
            outline: The model without weights, if another process runs it in the outline's type.
        """
        self.source = source
        self.device = device
        self._config = config
        self._architecture, self.no_demand = self._described(outline)
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self.repeats = Repeats(())

    def run(
        self,
        grid: Grid,
        procedure: Procedure | None = None,
        *,
        after_each: Callable[[int, GenerationSample], None] = lambda number, sample: None,
    ) -> Iterator[GenerationCell]:
        """Measure every cell of the grid, the smallest first; yield each when it is done.

        If memory runs out or a cell is unsupported, the cell's status shows this. A cell is flagged `disturbed` if
        other programs may have made its times too long.
        """
        surroundings = Surroundings()
        for point in grid.points():
            cell: GenerationCell = measure_cell(
                self,
                self.cell(point),
                point,
                procedure or Procedure(),
                self.device,
                after_each=after_each,
                after_warmup=lambda number, sample: surroundings.read(now=True),
            )
            surroundings.read(now=True)
            yield surroundings.beside(cell, own_processes=1)[0]

    def prompts(self, point: Point) -> tuple[Prompt, ...]:
        """Return the prompt of each sequence, after checking that it fits the model's maximum length."""
        config = self._config
        prompts = make_prompts(
            point, tokenizer=self._tokenizer, vocabulary=config["vocab_size"], chat_template=self._chat_template
        )
        check_fits(point, len(prompts[0].ids), config, model=config.get("model_type", "the model"))
        return prompts

    def text(self, tokens: int) -> tuple[int, ...]:
        """Return the first `tokens` ids of the text from which prompts are cut."""
        point = Point(tokens, None, new_tokens=1, batch_size=1)
        return make_prompts(
            point, tokenizer=self._tokenizer, vocabulary=self._config["vocab_size"], chat_template=False
        )[0].ids

    def correct(self, point: Point) -> dict[str, Any]:
        """Raise MemoryNeededError if the KV cache exceeds the free memory of a CPU."""
        if self._architecture and self.device.kind == "cpu":
            refuse_cell(point, self._architecture.cache_bytes(point.positions, point.batch_size))
        return {}

    def step(self, point: Point) -> Step[GenerationSample]:
        """Return a function that times one repeat of a cell and adds its outputs to `repeats`."""
        prompts = self.prompts(point)
        ids = [prompt.ids for prompt in prompts]
        context = [prompt.context for prompt in prompts] if point.depth else None
        repeats = self.repeats = Repeats([(*(prompt.context or ()), *prompt.ids) for prompt in prompts])

        def repeat() -> GenerationSample:
            generation = self.source.generate(ids, point.new_tokens, context=context)
            repeats.add(generation, self.source.per_gpu_bytes())
            return generation.sample(point.new_tokens)

        return repeat

    def cell(self, point: Point) -> GenerationCell:
        prompts = self.prompts(point)
        shape: dict[str, Any] = {name: getattr(point, name) for name in ("new_tokens", "batch_size", "depth")}
        shape["prompt_tokens"] = len(prompts[0].ids)
        return GenerationCell(
            **shape,
            status="ok",
            distinct_prompts=distinct_count(prompts),
            inputs_sha256=inputs_sha256(prompts),
            prompt_source=prompts[0].source,
            demand=self._architecture.demand(**shape) if self._architecture else None,
        )

    def facts(self) -> dict[str, Any]:
        return {"engine": self.source.facts(), **({"no_demand": self.no_demand} if self.no_demand else {})}

    def settling_times(self, sample: GenerationSample) -> tuple[float, ...]:
        # The first prefills of an external engine are slow; in the latency of many tokens this hardly shows.
        if self.source.is_elsewhere and sample.ttft_s:
            return sample.latency_s, sample.ttft_s
        return (sample.latency_s,)

    def timed(self) -> AbstractContextManager[None]:
        return self.source.timed()

    def measured(self, cell: GenerationCell, step: Step[GenerationSample]) -> dict[str, Any]:  # noqa: ARG002
        """Return the fields of the cell that are known after it was timed.

        Raises:
            UnsupportedError: The engine did not run as the variant's name states.
        """
        self.source.check()
        return {
            **self._peaks(cell),
            "demand": self._demand(cell),
            "step": self.source.step_facts(),
            "first_tokens": self.repeats.tokens[0][:64] if self.repeats.tokens else (),
            "flags": (*cell.flags, *sorted(self.repeats.flags)),
        }

    def _described(self, outline: PreTrainedModel | None) -> tuple[Architecture | None, Missing | None]:
        source, model = self.source, self.source.model or outline
        if source.model is None and any(self._config.get(name) for name in EXPERT_COUNTS):
            reason = "the engine runs in a process of its own, which does not count the experts of a step"
            return None, Missing(error_kind="unsupported", reason=reason)
        if model is None:
            return None, None
        described = tried(
            lambda: describe(model, shares=source.shares, kv_value_bytes=source.kv_value_bytes), self.device
        )
        return (None, described) if isinstance(described, Missing) else (described, None)

    def _demand(self, cell: GenerationCell) -> GenerationDemand | None:
        """Return the least work of a cell, with the counted experts of an MoE model; None if it is unknown."""
        architecture, model = self._architecture, self.source.model
        if architecture is None or model is None or architecture.experts is None:
            return cell.demand
        experts, batch_size = architecture.experts, cell.batch_size
        used: float | Missing = experts.per_token
        if batch_size > 1 and self.source.shares > 1:
            used = Missing(error_kind="unsupported", reason="the experts of a divided model are not counted")
        elif batch_size > 1:
            steps = max(1, cell.new_tokens - 1)
            used = tried(lambda: experts_per_step(model, self.repeats.sequences, steps=steps), self.device)
        if isinstance(used, Missing):
            self.no_demand = used
            return None
        shape = {name: getattr(cell, name) for name in ("prompt_tokens", "new_tokens", "batch_size", "depth")}
        demand = architecture.demand(**shape, used_experts=used)
        copied_bytes = 2 * batch_size * experts.per_token * experts.bytes_each
        facts = self.source.facts()
        is_copied = facts.experts == "batched_mm" and facts.compiled is None
        return demand.model_copy(update={"copied_bytes": copied_bytes if is_copied else None})

    def _peaks(self, cell: GenerationCell) -> dict[str, tuple[GenerationSample, ...] | Memory]:
        """Return the cell's samples and memory, with peaks of the engine's process or of several GPUs."""
        peaks, samples, memory = self.source.peak_bytes(), cell.samples, cell.memory
        # The peak of an external engine is unknown if another program freed memory; this process's would be wrong.
        if self.source.is_elsewhere or peaks:
            samples = tuple(sample.model_copy(update={"peak_allocated_bytes": None}) for sample in samples)
            peak_bytes, is_cpu = max(peaks, default=None), self.device.kind == "cpu"
            used_bytes, per_gpu = memory.device_used_bytes, peaks if len(peaks) > 1 else ()
            on_gpu = Memory(peak_allocated_bytes=peak_bytes, device_used_bytes=used_bytes, per_gpu_bytes=per_gpu)
            return {"samples": samples, "memory": Memory(resident_growth_bytes=peak_bytes) if is_cpu else on_gpu}
        memory = memory.model_copy(update={"graph_pool_bytes": self.source.graph_pool_bytes})
        per_repeat = self.repeats.peaks[-len(samples) :]
        if not any(per_repeat):
            return {"samples": samples, "memory": memory}
        per_gpu = tuple(max(peaks) for peaks in zip(*per_repeat, strict=True))
        if memory.peak_allocated_bytes is None:
            return {"samples": samples, "memory": memory.model_copy(update={"per_gpu_bytes": per_gpu})}
        # The reserved memory is that of the first GPU only, so it is left out.
        changes = {"per_gpu_bytes": per_gpu, "peak_allocated_bytes": max(per_gpu), "peak_reserved_bytes": None}
        pairs = zip(samples, per_repeat, strict=True)
        return {
            "samples": tuple(sample.model_copy(update={"peak_allocated_bytes": max(peaks)}) for sample, peaks in pairs),
            "memory": memory.model_copy(update=changes),
        }


class ModelBenchmarker(SourceBenchmarker):
    """Measurement of a loaded model, cell by cell.

    model = load_model("qwen3-small", "int8", dtype="bfloat16")
    for cell in ModelBenchmarker(model).run(Grid(prompt_tokens=(26,), new_tokens=(50,))):
        print(cell.samples, cell.flags)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        engine: str = "eager",
        device: Device | None = None,
        tokenizer: Any | None = None,
        chat_template: bool = False,
    ) -> None:
        """Wrap a model that `load_model` returned.

        Args:
            engine: Engine that runs a torch model: eager, cuda_graph, compile or native.
            device: Device of the model. Default: the device of its parameters.
            tokenizer: Tokenizer for text prompts. If None, prompts are random ids.

        Raises:
            SpecError: There is no such engine, or it loads its models itself.
        """
        device = device or find_device(str(model.device))
        super().__init__(
            torch_engine(engine).decoder(model, device),
            model.config.to_dict(),
            device,
            tokenizer=tokenizer,
            chat_template=chat_template,
        )
