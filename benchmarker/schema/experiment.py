"""What is asked for: which model, in which forms, over which grid, measured how.

Frozen values, checked when they are made, before torch is imported or a byte is downloaded.
"""

from __future__ import annotations

import contextlib
import re
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from benchmarker.core.errors import did_you_mean
from benchmarker.engines.base import Form
from benchmarker.engines.registry import ENGINES, OLD_NAMES, engine_name
from benchmarker.quantization.base import Options
from benchmarker.quantization.registry import LOADERS, quant_named
from benchmarker.schema.base import DType, Plain, Scalar, first_problem

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]


class ModelSpec(Plain):
    """Where the weights come from."""

    id: Annotated[str, Field(min_length=1)] = "Qwen/Qwen3-4B"
    """A hub id, a folder, or a shape that ships with benchmarker (with load_format dummy)."""
    revision: str | None = None
    """Hub branch, tag or commit."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy` measures random weights in the model's exact shapes: right for time and memory, meaningless as text."""
    dtype: DType = "float16"
    """Type of what is not quantized."""
    trust_remote_code: bool = False
    """Run Python from the model's repository. Needs a revision of 40 hex digits: code that cannot change underneath."""
    chat_template: bool = False
    """Wrap text prompts in the model's own chat template."""

    @model_validator(mode="after")
    def _pin_remote_code(self) -> Self:
        if self.trust_remote_code and not re.fullmatch(r"[0-9a-f]{40}", self.revision or ""):
            raise ValueError(
                "trust_remote_code needs a revision of 40 hex digits (--revision), so that the code is pinned"
            )
        return self


class VariantSpec(Plain):
    """One form of the model: a quantization, its options, and how tokens are produced."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    """Shown in the tables."""
    quant: str
    engine: str = "eager"
    """Who makes the tokens: `eager` is `model.generate`; `cuda_graph` a static KV cache and a decode step captured as a
    CUDA or HIP graph; `compile` the same with the step compiled by torch; `native` that with benchmarker's own kernels,
    on a GPU. `runtime` is an older word for this key, and `graph` for `cuda_graph`."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """The loader's own."""
    engine_options: dict[str, Scalar] = Field(default_factory=dict)
    """The engine's own."""

    @field_validator("quant")
    @classmethod
    def _known_quant(cls, quant: str) -> str:
        return quant_named(quant)

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, engine: str) -> str:
        if engine not in ENGINES:
            raise ValueError(f"no engine '{engine}'{did_you_mean(engine, ENGINES)}")
        return engine

    @model_validator(mode="before")
    @classmethod
    def _name_after_quant(cls, data: Any) -> Any:
        if isinstance(data, dict) and "name" not in data and isinstance(data.get("quant"), str):
            with contextlib.suppress(ValueError):
                data = {**data, "quant": quant_named(data["quant"])}
            parts = [data["quant"]]
            if isinstance(data.get("options"), dict):
                parts += [f"{key}={value}" for key, value in data["options"].items()]
            if isinstance(data.get("engine_options"), dict):
                parts += [f"{key}={value}" for key, value in data["engine_options"].items()]
            if data.get("engine", "eager") != "eager":
                parts.append(str(data["engine"]))
            return {**data, "name": " ".join(parts)}
        return data

    @model_validator(mode="before")
    @classmethod
    def _older_words(cls, data: Any) -> Any:
        # pydantic calls the last of these first, so that the name is made of today's words.
        if not isinstance(data, dict):
            return data
        if "runtime" in data:
            if "engine" in data:
                raise ValueError("engine and runtime are one key; give one of them")
            data = {("engine" if key == "runtime" else key): value for key, value in data.items()}
        engine = data.get("engine")
        return {**data, "engine": engine_name(engine)} if isinstance(engine, str) and engine in OLD_NAMES else data

    @model_validator(mode="after")
    def _known_options(self) -> Self:
        try:
            _ = self.loader_options
        except ValidationError as error:
            raise ValueError(f"options: {first_problem(error, LOADERS[self.quant].options)}") from None
        try:
            _ = self.typed_engine_options
        except ValidationError as error:
            raise ValueError(f"engine_options: {first_problem(error, ENGINES[self.engine].options)}") from None
        return self

    @property
    def loader_options(self) -> Options:
        """The options as the loader's own type, defaults filled in."""
        return LOADERS[self.quant].options.model_validate(self.options)

    @property
    def typed_engine_options(self) -> Options:
        """The engine's options as its own type, defaults filled in."""
        return ENGINES[self.engine].options.model_validate(self.engine_options)

    @property
    def runtime(self) -> str:
        """An older word for `engine`."""
        return self.engine

    def form(self, dtype: DType) -> Form:
        """What an engine is told to open.

        Args:
            dtype: Of what is not quantized.
        """
        return Form(self.quant, self.loader_options, dtype, self.typed_engine_options)


class Point(NamedTuple):
    """One cell of the grid."""

    prompt_tokens: int | None
    """None where the prompt is a text, whose length only the tokenizer knows."""
    prompt: str | None
    new_tokens: int
    batch_size: int
    depth: int = 0


class Grid(Plain):
    """Which shapes are measured: every prompt with every generation length, batch size and depth."""

    prompt_tokens: tuple[Positive, ...] = (3, 26)
    """Prompt lengths, cut from a text that ships with benchmarker."""
    prompts: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Prompt texts; where given, they take the place of prompt_tokens."""
    new_tokens: Annotated[tuple[Positive, ...], Field(min_length=1)] = (50, 100)
    """Tokens to generate: exactly that many, an end-of-text token does not stop it."""
    batch_size: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1,)
    """Sequences at once, all with the same prompt."""
    depth: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0,)
    """Tokens that are in the KV cache already when the prompt comes: they are put there before the clock starts."""

    @model_validator(mode="after")
    def _something_to_ask(self) -> Self:
        if not self.prompt_tokens and not self.prompts:
            raise ValueError("no prompt: give prompt_tokens or prompts")
        return self

    def points(self) -> list[Point]:
        """Every cell, smallest first, so that running out of memory costs only the larger ones."""
        sources: list[tuple[int | None, str | None]] = [(None, text) for text in self.prompts] or [
            (length, None) for length in self.prompt_tokens
        ]
        cells = [
            Point(length, text, new, batch, depth)
            for batch, depth, (length, text), new in product(self.batch_size, self.depth, sources, self.new_tokens)
        ]
        return sorted(
            dict.fromkeys(cells),
            key=lambda point: (
                point.batch_size,
                point.depth,
                point.prompt_tokens or len(point.prompt or ""),
                point.new_tokens,
            ),
        )

    def text_of(self, point: Point) -> int | None:
        """Which of the texts a cell's prompt is, from 0; None for a prompt of a length."""
        return None if point.prompt is None else self.prompts.index(point.prompt)


class Procedure(Plain):
    """How each cell is measured."""

    warmup: Annotated[int, Field(gt=0, le=100)] = 3
    """Untimed generations at the cell's exact shape. More follow until the last three agree within 2 %."""
    warmup_limit: Annotated[int, Field(gt=0, le=100)] = 10
    """How many untimed generations there are at most, unless `warmup` asks for more."""
    runs: Positive = 5
    """Timed generations."""
    rounds: Positive = 5
    """Times that a sweep runs every variant, each time in a fresh process: what the intervals rest on."""
    profile: bool = True
    """Record one more generation under torch.profiler, after the timing."""
    profile_tokens: Positive = 32
    """Length of that generation at most: a trace grows by megabytes a token."""
    energy: bool = False
    """Count the energy of the largest cell, after the timing: a good minute on a GPU whose driver has a counter."""
    limits: bool = True
    """Measure the device's bandwidth and matmul rate first, which takes a second or two."""


class QualitySpec(Plain):
    """Whether and how perplexity and divergence from the unquantized model are measured."""

    size: Literal["off", "quick", "full"] = "off"
    """`quick` scores 8,160 tokens spread over the text, `full` all of it."""
    text: str | None = None
    """A file, or a data set as NAME, NAME:CONFIG or NAME:CONFIG:SPLIT; the text that ships with benchmarker if not
    said."""
    top_k: Annotated[int, Field(gt=0)] | None = None
    """Keep only so many of the likeliest tokens: a small file, and divergences that are lower bounds."""
    baseline: Annotated[str, Field(min_length=1)] | None = None
    """Hub id or folder of the unquantized model, where the checkpoint itself is quantized."""

    tasks: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Tasks of lm-evaluation-harness whose questions are asked, by name."""
    task_limit: Positive | None = None
    """Questions of each task; all of them if not said."""

    @property
    def is_asked(self) -> bool:
        """Whether anything is to be judged."""
        return self.size != "off" or bool(self.tasks)

    @field_validator("size", mode="before")
    @classmethod
    def _off_is_a_word(cls, size: Any) -> Any:
        # YAML 1.1 reads a bare `off` as false.
        return "off" if size is False else size


class Experiment(Plain):
    """A whole comparison, as a config file holds it."""

    model: ModelSpec = ModelSpec()
    grid: Grid = Grid()
    procedure: Procedure = Procedure()
    quality: QualitySpec = QualitySpec()
    variants: Annotated[tuple[VariantSpec, ...], Field(min_length=1)]
    baseline: str | None = None
    """Name of the variant that speed-ups are against; the first one if not said."""

    @model_validator(mode="after")
    def _names_make_sense(self) -> Self:
        names = [variant.name for variant in self.variants]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"variants: two are named '{name}'")
        if self.baseline is not None and self.baseline not in names:
            raise ValueError(f"baseline: no variant '{self.baseline}'{did_you_mean(self.baseline, names)}")
        return self
