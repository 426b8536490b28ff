"""Config values of serving: model, servers, load and procedure."""

from __future__ import annotations

import math
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from benchmarker.schema.job import ExperimentBase, GridBase, NotNegative, Positive, Procedure
from benchmarker.schema.model import AUTO, ModelSpec
from benchmarker.workloads.generation.spec import ModelJob, VariantSpec, guess_parameters
from benchmarker.workloads.serving.slo import DEFAULT_SLO, parse_slo

REQUESTS_PER_USER = 4
"""Minimum number of requests per concurrent request in a closed loop: fewer would measure only start and end."""
OPEN_LOOP_S = 20.0
"""Minimum time in which the requests of an open-loop cell arrive: a short burst of requests has no rate."""
PROMPT_TOKENS = 512  # Default length of a prompt.
CONCURRENCIES = (1, 4, 16, 64)
ServerName = Literal["vllm", "sglang", "llama-server"]
DEFAULT_SERVER: ServerName = "vllm"
RequestRate = Annotated[float, Field(gt=0, le=1e6)]


class ServingVariant(VariantSpec):
    engine: ServerName = DEFAULT_SERVER
    """Server: vllm, sglang or llama-server."""
    url: str | None = None
    """Address of a server that is already running, such as http://127.0.0.1:8000. The variant's name is a label."""

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if not isinstance(data.get("url"), str):
            # The default engine is part of the variant's name too.
            return {"engine": DEFAULT_SERVER, **data}
        return {"quant": AUTO, "name": f"server at {urlsplit(data['url']).netloc or data['url']}"[:80], **data}

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc):
            raise ValueError(f"'{url}' is no address of a server; write http://HOST:PORT")
        return url


class ServingPoint(NamedTuple):
    prompt_tokens: int
    """Mean length of the prompts, without the shared prefix. 0 for a dataset."""
    new_tokens: int
    length_spread: float
    shared_prefix: int
    dataset: str
    """Path of a JSONL file; empty for random token ids."""
    concurrency: int
    """Requests in flight, each replaced when it ends (closed loop). 0 for an open loop."""
    rate: float
    """Mean arrivals per second of a Poisson process (open loop). 0 for a closed loop."""


class ServingGrid(GridBase):
    prompt_tokens: tuple[Positive, ...] = ()
    """Tokens of each prompt; 512 if there is no dataset. Every request has a different prompt."""
    new_tokens: Annotated[tuple[Annotated[int, Field(gt=1)], ...], Field(min_length=1)] = (128,)
    """Exact number of tokens that each request generates, at least 2."""
    length_spread: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Spread of prompt and output lengths: 0.3 draws 70 % to 130 % of them, uniformly, equal for every variant."""
    shared_prefix: NotNegative = 0
    """Tokens before each prompt that all requests share; with any, the server's prefix caching is on."""
    dataset: str | None = None
    """JSONL file of prompts in place of random ids: {"messages": [...]} or {"prompt": "..."} per line."""
    concurrency: tuple[Positive, ...] = ()
    """Requests in flight at once (closed loop); 1, 4, 16 and 64 if no rate is given."""
    rate: tuple[RequestRate, ...] = ()
    """Requests per second that arrive at random (Poisson), in place of a concurrency."""

    def combinations(self) -> list[ServingPoint]:
        """Return every cell: closed loops with rising concurrency, then open loops with rising rate."""
        concurrencies = self.concurrency if self.concurrency or self.rate else CONCURRENCIES
        loads = [(users, 0.0) for users in sorted(concurrencies)] + [(0, float(rate)) for rate in sorted(self.rate)]
        prompts = (0,) if self.dataset else self.prompt_tokens or (PROMPT_TOKENS,)
        spread, prefix, path = self.length_spread, self.shared_prefix, self.dataset or ""
        lengths = sorted(product(prompts, self.new_tokens))
        return list(
            dict.fromkeys(ServingPoint(*length, spread, prefix, path, *load) for length in lengths for load in loads)
        )

    @model_validator(mode="after")
    def _has_own_prompts(self) -> Self:
        others = {"prompt_tokens": self.prompt_tokens, "shared_prefix": self.shared_prefix}
        for name in (name for name, value in others.items() if self.dataset and value):
            raise ValueError(f"the prompts of a dataset have their own lengths and prefixes; leave {name} out")
        return self


class ServingProcedure(Procedure):
    warmup: Annotated[int, Field(gt=0, le=100)] = 1
    """Untimed loads at the cell's exact shape, each of a few requests."""
    warmup_limit: Annotated[int, Field(gt=0, le=100)] = 1
    """Maximum number of untimed loads, unless `warmup` is larger."""
    runs: Positive = 1
    """Timed loads of each cell."""
    rounds: Positive = 3
    """Number of times that a sweep starts every server anew. Intervals are over rounds."""
    profile: bool = False
    """Not available: the server is another process."""
    limits: bool = False
    """Measure the device's bandwidth and matmul rate before the server starts."""
    requests: Positive = 200
    """Minimum requests of a cell; at least four per concurrent request, or 20 s of arrivals. A p99 needs 200."""
    seed: NotNegative = 0
    """Seed of the prompts and arrivals, equal for every variant."""
    slo: str = DEFAULT_SLO
    """Limits that a request must meet, such as ttft<500ms, tpot<30ms."""

    @field_validator("slo")
    @classmethod
    def _is_slo(cls, text: str) -> str:
        return str(parse_slo(text))


def requests_of(point: Any, least: int) -> int:
    """Return the requests of a point or cell: `least`, and more for a high concurrency or rate."""
    return max(least, REQUESTS_PER_USER * int(point.concurrency), math.ceil(OPEN_LOOP_S * float(point.rate)))


class ServingJob(ModelJob):
    variant: ServingVariant
    grid: ServingGrid
    procedure: ServingProcedure

    @property
    def title(self) -> str:
        return f"serving {self.subject.model.id}"

    @property
    def processes(self) -> int:
        return 2

    def repeat_s(self, point: ServingPoint) -> float:
        # Concurrent requests hardly slow each other down until the server is full.
        requests, token_s = requests_of(point, self.procedure.requests), 0.005 + 1e-12 * guess_parameters(self.model.id)
        return requests / point.rate if point.rate else requests * point.new_tokens * token_s / point.concurrency


class ServingExperiment(ExperimentBase):
    workload: Literal["serving"] = "serving"
    model: ModelSpec = ModelSpec()
    grid: ServingGrid = ServingGrid()
    procedure: ServingProcedure = ServingProcedure()
    variants: Annotated[tuple[ServingVariant, ...], Field(min_length=1)]

    def subject_values(self) -> dict[str, Any]:
        return {"model": self.model.model_dump(mode="json")}
