"""Text generation, the work that this program was made for.

One repeat is one greedy generation of exactly N tokens after a prompt of P. TTFT is the time until the first new
token is known (prefill); TPOT the mean time of each further one, over N - 1 intervals; the latency runs until the
device is drained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import first_line
from benchmarker.hardware.device import Device, torch_device
from benchmarker.measure.memory import DeviceMemory, memory_of
from benchmarker.measure.repeat import measure
from benchmarker.runtimes.base import Generation, UnsupportedError
from benchmarker.runtimes.registry import RUNTIMES
from benchmarker.schema.experiment import Procedure
from benchmarker.schema.record import Cell, Sample
from benchmarker.workloads.generation.demand import Weights
from benchmarker.workloads.generation.prompts import Prompt, check_fits, make_prompt
from benchmarker.workloads.generation.spec import Grid, Point

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def sample_of(generation: Generation) -> Sample:
    """The raw times of one generation in seconds."""
    tokens = int(generation.tokens.shape[1])
    # The first token belongs to prefill, so N tokens have N - 1 intervals between them.
    decode_s = (generation.last_ns - generation.first_ns) / 1e9
    return Sample(
        latency_s=(generation.end_ns - generation.start_ns) / 1e9,
        ttft_s=(generation.first_ns - generation.start_ns) / 1e9,
        tpot_s=decode_s / (tokens - 1) if tokens > 1 else None,
        new_tokens=tokens,
    )


class WrongTokenCountError(Exception):
    """A generation came out shorter or longer than asked: its time means nothing."""


class GenerationStep:
    """One cell's repeat. Remembers the first generation's tokens: every later one must make the same."""

    def __init__(self, generate: Callable[[], Generation], *, new_tokens: int) -> None:
        self._generate = generate
        self._new_tokens = new_tokens
        self._tokens: Any = None
        self.flags: set[str] = set()
        self.first_token_ns: int | None = None
        """When the newest repeat had its first token, on `time.perf_counter_ns`."""

    def __call__(self) -> Sample:
        generation = self._generate()
        self.first_token_ns = generation.first_ns
        made = int(generation.tokens.shape[1])
        if made != self._new_tokens:
            raise WrongTokenCountError(f"{made} tokens came instead of {self._new_tokens}")
        if self._tokens is None:
            self._tokens = generation.tokens
        elif not bool((self._tokens == generation.tokens).all()):
            self.flags.add("nondeterministic_tokens")
        return sample_of(generation)

    @property
    def first_tokens(self) -> tuple[int, ...]:
        """At most 64 tokens of the first sequence."""
        return () if self._tokens is None else tuple(self._tokens[0, :64].tolist())


class ModelBenchmarker:
    """Measures a loaded model cell by cell.

    model = load_model("qwen3-small", "int8", dtype="bfloat16")
    for cell in ModelBenchmarker(model).run(Grid(prompt_tokens=(26,), new_tokens=(50,))):
        print(cell.samples)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        runtime: str = "eager",
        device: Device | None = None,
        tokenizer: Any | None = None,
        chat_template: bool = False,
        device_memory: DeviceMemory | None = None,
    ) -> None:
        """Wrap a model that `load_model` returned.

        Args:
            device: Where the model is; found from the model if not given.
            tokenizer: For prompts of real text; without one the prompt is random ids.
            device_memory: Whole-device memory from before the model was loaded, to report the growth.
        """
        from benchmarker.hardware.device import find_device

        self.model = model
        self.device = device or find_device(str(model.device))
        self._weights = Weights(model)
        self.runtime = RUNTIMES[runtime](model, self.device)
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._device_memory = device_memory

    def run(
        self,
        grid: Grid,
        procedure: Procedure | None = None,
        *,
        after_each: Callable[[int, Sample], None] = lambda number, sample: None,
    ) -> Iterator[Cell]:
        """Measure every cell of the grid, smallest first; yield each as soon as it is done."""
        for point in grid.points():
            yield self.measure(point, procedure or Procedure(), after_each=after_each)

    def prompt(self, point: Point) -> Prompt:
        """The prompt of a cell, checked against the model's length."""
        config = self.model.config
        prompt = make_prompt(
            point, tokenizer=self._tokenizer, vocabulary=config.vocab_size, chat_template=self._chat_template
        )
        positions = getattr(config, "max_position_embeddings", None)
        check_fits(point, len(prompt.ids), positions=positions, model=config.model_type)
        return prompt

    def step(self, point: Point) -> GenerationStep:
        """What one repeat of this cell runs."""
        import torch

        prompt = self.prompt(point)
        where = torch_device(self.device)
        ids = torch.tensor([prompt.ids], device=where).repeat(point.batch_size, 1)
        context = torch.tensor([prompt.context], device=where).repeat(point.batch_size, 1) if prompt.context else None
        return GenerationStep(
            lambda: self.runtime.generate(ids, point.new_tokens, context=context), new_tokens=point.new_tokens
        )

    def measure(
        self,
        point: Point,
        procedure: Procedure,
        *,
        after_each: Callable[[int, Sample], None] = lambda number, sample: None,
    ) -> Cell:
        """Measure one cell. Running out of memory, or a runtime that cannot do it, is a cell with that status."""
        prompt = self.prompt(point)
        cell = Cell(
            prompt_tokens=len(prompt.ids),
            new_tokens=point.new_tokens,
            batch_size=point.batch_size,
            depth=point.depth,
            status="ok",
            prompt_sha256=prompt.sha256,
            prompt_source=prompt.source,
            demand=self._weights.demand(
                prompt_tokens=len(prompt.ids),
                new_tokens=point.new_tokens,
                batch_size=point.batch_size,
                depth=point.depth,
            ),
        )
        try:
            return self._measure(cell, self.step(point), procedure, after_each)
        except UnsupportedError as error:
            return cell.model_copy(update={"status": "unsupported", "reason": str(error)})
        except WrongTokenCountError as error:
            return cell.model_copy(update={"status": "invalid", "reason": str(error)})
        except Exception as error:
            if not self.device.is_out_of_memory(error):
                raise
            reason = first_line(error)
        # Outside the except block, whose traceback keeps the failed generation's tensors alive.
        self.device.release()
        status = "oom_host" if self.device.kind == "cpu" else "oom_gpu"
        return cell.model_copy(update={"status": status, "reason": reason})

    def _measure(
        self, cell: Cell, step: GenerationStep, procedure: Procedure, after_each: Callable[[int, Sample], None]
    ) -> Cell:
        measured = measure(
            step,
            self.device,
            warmup=procedure.warmup,
            warmup_limit=procedure.warmup_limit,
            runs=procedure.runs,
            timed=self.runtime.timed,
            after_each=after_each,
        )
        self.runtime.check()
        growth = self._device_memory.growth_bytes() if self._device_memory else None
        return cell.model_copy(
            update={
                "warmup": measured.warmup,
                "samples": measured.samples,
                "timed_at": measured.timed_at,
                "memory": memory_of(measured, growth, graph_pool_bytes=self.runtime.graph_pool_bytes),
                "step": self.runtime.step_facts(),
                "first_tokens": step.first_tokens,
                "flags": (*measured.flags, *sorted(step.flags)),
            }
        )
