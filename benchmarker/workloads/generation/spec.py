"""Config values of text generation: model, variants and grid.

They are checked before torch is imported or anything is downloaded. `generation_job.py` looks up the names of
quantizations and engines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from benchmarker.engines.registry import ENGINES, MODEL_ENGINES
from benchmarker.schema.base import Plain, Scalar, Split
from benchmarker.schema.job import ExperimentBase, GridBase, Job, NotNegative, Positive, VariantBase
from benchmarker.schema.model import AUTO, ModelSpec, QuantSpec
from benchmarker.schema.quality import QualitySpec

LONGEST_CHECKPOINT = 40  # Maximum number of characters of a checkpoint's name in a variant's name.


class VariantSpec(QuantSpec, VariantBase):
    checkpoint: str | None = None
    """Folder, GGUF file or hub id of a checkpoint of the model. `quant` is then by default the checkpoint's own."""
    engine: str = "eager"
    """`eager`: `model.generate`; `cuda_graph`: static KV cache, and a decode step captured as a CUDA or HIP graph;
    `compile`: as `cuda_graph`, with the step compiled by torch; `native`: as `compile`, with benchmarker's GPU kernels.
    """
    engine_options: dict[str, Scalar] = Field(default_factory=dict)
    """Options of the engine."""
    gpus: Positive = 1
    """Number of GPUs of this host that share the model, beginning with `--device`; on a CPU, number of processes."""
    split: Split = "tensors"
    """`tensors` divides every weight, so that all GPUs compute each token (tensor parallelism); `layers` gives each GPU
    some of the layers, so that GPUs compute one after the other, for a model that does not fit into one GPU."""

    @model_validator(mode="after")
    def _several_gpus(self) -> Self:
        if self.gpus == 1 and self.split != "tensors":
            raise ValueError(f"split: {self.split} says how several GPUs share the model; give gpus too")
        return self

    @model_validator(mode="before")
    @classmethod
    def _name_after_quant(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if isinstance(data.get("checkpoint"), str):
            data = {"quant": AUTO, **data}
        return {**data, "name": name_of(data)} if "name" not in data and isinstance(data.get("quant"), str) else data


def name_of(data: Mapping[str, Any]) -> str:
    """Return the default name of a variant: `gptq group_size=64 compile`, `w4a16 Qwen3-4B-W4A16`, `vllm fp8`."""
    options, engine_options = (
        dict(given) if isinstance(given := data.get(field), dict) else {} for field in ("options", "engine_options")
    )
    name = str(data.get("engine", "eager"))
    engine = ENGINES.get(name, ENGINES["eager"])
    quant = str(options.pop("scheme", data["quant"]))
    if quant == "fp16" and engine_options.get(engine.quantizing_option):
        quant = str(engine_options.pop(engine.quantizing_option))
    parts = [quant, *(f"{key}={value}" for key, value in options.items())]
    if data.get("checkpoint"):
        parts = parts if quant != AUTO else []
        parts.append(str(data["checkpoint"]).rstrip("/").rpartition("/")[2][:LONGEST_CHECKPOINT])
    parts += [f"{key}={value}" for key, value in engine_options.items() if key not in engine.sizing_options]
    if name != "eager":
        parts = [*parts, name] if name in MODEL_ENGINES else [name, *parts]
    if data.get("gpus", 1) != 1:
        parts += [f"{data['gpus']} GPUs", *(["by layers"] if data.get("split") == "layers" else [])]
    return " ".join(parts)


class Point(NamedTuple):
    prompt_tokens: int | None  # None if the prompt is a text.
    prompt: str | None
    new_tokens: int
    batch_size: int
    depth: int = 0
    has_distinct_prompts: bool = False
    """True if each sequence of the batch has a different prompt or context. False for a single sequence."""

    @property
    def positions(self) -> int:
        """Length of one sequence at the end: depth + prompt + new tokens. A text prompt counts as one token."""
        return self.depth + (self.prompt_tokens or 1) + self.new_tokens


class Grid(GridBase):
    """Shapes to measure: every prompt with every generation length, batch size and depth."""

    prompt_tokens: tuple[Positive, ...] = (3, 26)
    """Prompt lengths, cut from a text that ships with benchmarker."""
    prompts: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Prompt texts, in place of prompt_tokens."""
    new_tokens: Annotated[tuple[Positive, ...], Field(min_length=1)] = (50, 100)
    """Exact number of tokens to generate; an end-of-text token does not end the generation."""
    batch_size: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1,)
    """Sequences per generation. Each has a different prompt of the same length."""
    same_prompt: bool = False
    """Use the same prompt for all sequences of a batch. Prompt texts are always the same for all sequences."""
    depth: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0,)
    """Tokens in the KV cache before the prompt. The cache is filled before the clock starts."""

    @model_validator(mode="after")
    def _something_to_ask(self) -> Self:
        if not self.prompt_tokens and not self.prompts:
            raise ValueError("no prompt: give prompt_tokens or prompts")
        return self

    def combinations(self) -> list[Point]:
        sources: list[tuple[int | None, str | None]] = [(None, text) for text in self.prompts] or [
            (length, None) for length in self.prompt_tokens
        ]
        cells = []
        for batch, depth, (length, text), new in product(self.batch_size, self.depth, sources, self.new_tokens):
            is_distinct = batch > 1 and not self.same_prompt and (text is None or depth > 0)
            cells.append(Point(length, text, new, batch, depth, has_distinct_prompts=is_distinct))

        def size(point: Point) -> tuple[int, ...]:
            return point.batch_size, point.depth, point.prompt_tokens or len(point.prompt or ""), point.new_tokens

        return sorted(dict.fromkeys(cells), key=size)

    def point_key(self, point: Point) -> dict[str, Any]:
        """Return the values of a point for the key of a result. `has_distinct_prompts` is left out if it is False, as
        in older results."""
        return {name: value for name, value in point._asdict().items() if name != "has_distinct_prompts" or value}

    def text_of(self, point: Point) -> int | None:
        """Return the index in `prompts` of a cell's prompt text; None if the prompt is given by its length."""
        return None if point.prompt is None else self.prompts.index(point.prompt)


class ModelSubject(Plain):
    model: ModelSpec = ModelSpec()


class GenerationSubject(ModelSubject):
    quality: QualitySpec = QualitySpec()


TOKEN_S = 0.03  # First estimate of the seconds of a decode step: Qwen3-4B in fp16 by `generate`.
SMALL_TOKEN_S = {"qwen3-small": 0.005}  # The same of shipped models, which have fewer layers.
SLOW_TOKEN_S = 0.5
CPU_BYTES_PER_S = 0.8e9
"""Bytes of 16-bit weights per second and core in the engine `eager`: 0.83e9 with 135 million parameters on one Intel
core, 0.74e9 with 4 billion parameters on two AMD cores."""


def guess_parameters(model_id: str) -> float:
    """Return the parameters used per token, from a folder's files or the name (`30B-A3B`: 3e9); 0 if unknown."""
    if size_bytes := sum(path.stat().st_size for path in Path(model_id).expanduser().glob("*.safetensors")):
        return size_bytes / 2
    sizes = re.findall(r"(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", model_id.lower())
    return float(sizes[-1][0]) * (1e9 if sizes[-1][1] == "b" else 1e6) if sizes else 0.0


def checkpoint_of(model: ModelSpec, checkpoint: str | None) -> ModelSpec:
    """Return `model` with the id `checkpoint` and without a revision; unchanged if `checkpoint` is None."""
    return model if checkpoint in (None, model.id) else model.model_copy(update={"id": checkpoint, "revision": None})


class ModelJob(Job):
    """One run of a variant of a model, with properties that depend on both."""

    subject: ModelSubject
    variant: VariantSpec

    @property
    def source(self) -> ModelSpec:
        return self.model

    @property
    def model(self) -> ModelSpec:
        """The checkpoint of the model that this variant loads."""
        return checkpoint_of(self.subject.model, self.variant.checkpoint)

    @property
    def gpus(self) -> int:
        return self.variant.gpus

    @property
    def matmul_dtype(self) -> str:
        return self.model.dtype


class GenerationJob(ModelJob):
    subject: GenerationSubject
    grid: Grid

    @property
    def quality(self) -> QualitySpec:
        return self.subject.quality

    @property
    def title(self) -> str:
        return self.subject.model.id

    @property
    def processes(self) -> int:
        """Number of processes on the device: this process, and the process of an external engine."""
        return 1 if self.variant.engine in MODEL_ENGINES else 2

    @property
    def cpu_token_s(self) -> float:
        """Estimated seconds of a decode step on this CPU; 0 for a GPU and for a model of unknown size."""
        from benchmarker.hardware.gpu import has_gpu_driver
        from benchmarker.hardware.read_environment import cores

        is_cpu = self.device == "cpu" or (self.device == "auto" and not has_gpu_driver())
        return 2 * guess_parameters(self.model.id) / CPU_BYTES_PER_S / cores() if is_cpu else 0.0

    @property
    def slowness(self) -> str:
        if self.cpu_token_s < SLOW_TOKEN_S:
            return ""
        billions = guess_parameters(self.model.id) / 1e9
        return (
            f"no GPU: an estimated {self.cpu_token_s:.1f} s per token for {billions:.1f} billion parameters "
            f"({CPU_BYTES_PER_S / 1e9} GB/s per core); --model qwen3-small takes minutes"
        )

    def repeat_s(self, point: Point) -> float:
        return point.new_tokens * self.token_s

    @property
    def token_s(self) -> float:
        return max(SMALL_TOKEN_S.get(self.model.id, TOKEN_S), self.cpu_token_s)

    @property
    def is_judged(self) -> bool:
        return self.quality.is_asked and (self.part is None or self.part.only == "quality")


class Experiment(ExperimentBase):
    workload: Literal["generation"] = "generation"
    model: ModelSpec = ModelSpec()
    grid: Grid = Grid()
    quality: QualitySpec = QualitySpec()
    variants: Annotated[tuple[VariantSpec, ...], Field(min_length=1)]

    @property
    def first_baseline(self) -> str:
        plain = [variant.name for variant in self.variants if variant.checkpoint and variant.quant == "fp16"]
        return next(iter(plain), super().first_baseline)

    def subject_values(self) -> dict[str, Any]:
        model, first = self.model, self.variants[0].checkpoint
        if first and "model" not in self.model_fields_set:
            model = ModelSpec(id=first)
        return {"model": model.model_dump(mode="json"), "quality": self.quality.model_dump(mode="json")}
