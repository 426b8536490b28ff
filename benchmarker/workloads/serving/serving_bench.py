"""Bench of serving: one server with one quantization of the model, and loads of requests that it serves.

A server is started for each variant and round, serves all cells, and is ended. Before a cell is timed, a smaller load
of its shape warms the server up.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from benchmarker.checkpoints.cache import has_random_weights
from benchmarker.checkpoints.read_model import found_model, load_tokenizer
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ProcessError, SpecError, UnsupportedError, WrongResultError
from benchmarker.core.formatting import gib, seconds
from benchmarker.engines.base import Form
from benchmarker.engines.external.checkpoint_engine import why_plain
from benchmarker.engines.external.environments import EngineError, ready_environment
from benchmarker.engines.external.external_engine import ExternalEngine
from benchmarker.engines.external.server_process import ServerProcess, free_port, read
from benchmarker.engines.external.servers import MODEL, SERVERS, Launch, Server, has_tokenizer
from benchmarker.engines.registry import ENGINES
from benchmarker.hardware.device import Device
from benchmarker.hardware.gpu import DeviceMemory, Gpu, find_gpu
from benchmarker.measure.energy import count_energy_j
from benchmarker.quality.evaluation_text import cut, read_text
from benchmarker.quantization.load import find_checkpoint
from benchmarker.quantization.registry import loader_options
from benchmarker.schema.record import Memory, Missing, SampleBase
from benchmarker.workloads.serving.load_generator import LoadGenerator
from benchmarker.workloads.serving.record import Load, OutputCheck, ServerFacts, ServingCell, outcome
from benchmarker.workloads.serving.server_metrics import cache_tokens, counters_of, watched
from benchmarker.workloads.serving.serving_requests import Request, longest_request, make_requests, read_dataset
from benchmarker.workloads.serving.spec import ServingJob, ServingPoint, requests_of
from benchmarker.workloads.session import Bench, Session, refuse_other_commit, tried

SMALLEST_VOCABULARY = 1000
"""Number of token ids that prompts use if a server was already running, because its vocabulary is unknown."""
WARMUP_REQUESTS = 4
DEATH_S = 3.0  # Longest time from a server's first failed request until its process has ended.
SCORED, LEAST_SCORED = 64, 16  # Most and fewest tokens of the text by which a server's output is checked.
NOT_FINITE = "Out of range float values"  # Part of vLLM's answer if a log-probability is NaN.


@contextmanager
def open_bench(job: ServingJob, device: Device, session: Session) -> Iterator[ServingBench]:
    """Start the server and the load generator, or find the server that is running. Raises BenchmarkerError."""
    with closing(LoadGenerator()) as generator:
        opening = _found(job, session, generator) if job.variant.url else _started(job, device, session, generator)
        with opening as bench:
            session.keep(server=bench.server)
            yield bench


@contextmanager
def _found(job: ServingJob, session: Session, generator: LoadGenerator) -> Iterator[ServingBench]:
    url = str(job.variant.url).rstrip("/").removesuffix("/v1")
    try:
        model = str(json.loads(read(f"{url}/v1/models") or "")["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        reason = "no server answers /v1/models with a model there; start it, or give another --url"
        raise EngineError(f"{url}: {reason}") from None
    session.terminal.note(f"{url}: reports the model {model}")
    generator.open()
    facts = ServerFacts(url=url, model=model, kv_capacity_tokens=cache_tokens(url), client=generator.version)
    no_energy = Missing(error_kind="unsupported", reason="a server that was already running may use another device")
    yield ServingBench(
        job, generator, job.variant.name, url, model, facts, vocabulary=SMALLEST_VOCABULARY, no_energy=no_energy
    )


@contextmanager
def _started(job: ServingJob, device: Device, session: Session, generator: LoadGenerator) -> Iterator[ServingBench]:
    server = SERVERS[job.variant.engine]
    marker = ready_environment(server.name, device.kind)
    if reason := server.why_not_installed():
        raise UnsupportedError(f"{server.name}: {reason}")
    checkpoint = find_checkpoint(
        job.model, job.variant, progress=session.terminal, device=device.torch_name, is_external=True
    )
    refuse_other_commit(job, job.model.id, checkpoint.revision)
    session.keep(model=found_model(session.record.model, checkpoint))
    dataset = read_dataset(job.grid.dataset)
    label, prompts = (dataset.label, tuple(dataset.prompts(load_tokenizer(checkpoint)))) if dataset else ("", ())
    longest = longest_request(job.grid.points(), prompts)
    refuse_too_long(job, checkpoint.config, longest)
    engine, form = ENGINES[server.engine], form_of(job)
    assert isinstance(engine, ExternalEngine)
    if reason := engine.why_not_taken(form, checkpoint):
        raise UnsupportedError(f"{server.name}: {reason}")
    arguments, gguf = engine.arguments(checkpoint, form, device, marker, session.terminal)
    launch = Launch(
        marker=marker,
        arguments=arguments,
        options=form.engine_options,
        port=free_port(),
        positions=sum(longest),
        concurrency=max(point.concurrency for point in job.grid.points()),
        has_tokenizer=has_tokenizer(checkpoint),
        prefix_caching=job.grid.shared_prefix > 0,
    )
    command = server.command(launch)
    session.ready()
    memory = DeviceMemory(device) if device.kind != "cpu" else None
    # Before the server starts: this import takes seconds of a core and would slow the server's timed start.
    generator.open()
    session.terminal.note(f"{server.name}: starting with {job.model.id}")
    process = ServerProcess(
        server.name, command, port=launch.port, variables=server.variables(launch), on_gpu=memory is not None
    )
    is_good = False
    try:
        start_s = process.wait_ready()
        log_facts = server.log_facts(process.log())
        facts = ServerFacts(
            version=launch.marker.version,
            command=shlex.join(command),
            start_s=start_s,
            weight_bytes=sum(gguf.get("weight_bytes_by_type", {}).values()) or log_facts.get("weight_bytes"),
            kv_bytes=log_facts.get("kv_bytes"),
            kv_capacity_tokens=log_facts.get("kv_capacity_tokens") or cache_tokens(process.url),
            device_bytes=memory.growth_bytes() if memory else None,
            max_requests=server.max_requests(launch),
            prefix_caching=launch.prefix_caching,
            client=generator.version,
        )
        session.terminal.line(_started_words(server, facts))
        requested = getattr(launch.options, "quantization", None)
        if requested and (reason := why_plain(requested, facts.weight_bytes, checkpoint.weight_file_bytes)):
            raise UnsupportedError(f"{server.name}: {reason}")
        if not has_random_weights(job.model) and (tokenizer := load_tokenizer(checkpoint)):
            output = check_output(server, process, tokenizer, positions=sum(longest), terminal=session.terminal)
            facts = facts.model_copy(update={"output": output})
        gpu, no_energy = _counted(job, device)
        yield ServingBench(
            job,
            generator,
            server.name,
            process.url,
            MODEL,
            facts,
            vocabulary=int(checkpoint.config["vocab_size"]),
            dataset=label,
            prompts=prompts,
            process=process,
            memory=memory,
            gpu=gpu,
            no_energy=no_energy,
        )
        is_good = True
    finally:
        process.end(keep_log=not is_good)


def refuse_too_long(job: ServingJob, config: dict[str, Any], longest: tuple[int, int]) -> None:
    options = job.variant.engine_options
    named = [(name, options[name]) for name in ("max_model_len", "context_length") if options.get(name)]
    limits = [(job.model.id, config.get("max_position_embeddings")), *named]
    for name, positions in limits:
        if isinstance(positions, int) and sum(longest) > positions:
            raise SpecError(
                f"a request of {longest[0]} + {longest[1]} tokens is past the {positions} positions "
                f"of {name}; use shorter prompts or fewer new tokens"
            )


def form_of(job: ServingJob) -> Form:
    """Return the quantization and options with which the server's engine reads the checkpoint."""
    variant = job.variant
    options = SERVERS[variant.engine].options.model_validate(variant.engine_options)
    return Form(variant.quant, loader_options(variant), job.model.dtype, options, variant.gpus, variant.split)


def check_output(
    server: Server, process: ServerProcess, tokenizer: Any, *, positions: int, terminal: Terminal
) -> OutputCheck | None:
    """Score a text by a server's predictions; return None if it gives none, or if `positions` are too few.

    Wrong scales or a wrong order of packed weights do not slow a server, but its predictions are then no better than
    the frequencies of the tokens. These are the limit, because there is no unquantized model to compare with.

    Raises WrongResultError if the output is wrong, and ProcessError if the server ended.
    """
    try:
        ids = cut(read_text(None), tokenizer, size="quick").ids
        # The first windows have few sentences.
        text = ids[len(ids) // 2, : min(SCORED + 1, positions - 1)].tolist()
        if len(text) <= LEAST_SCORED:
            return None
        logs = server.log_probabilities(process.url, text)
    except (ProcessError, SpecError, LookupError, TypeError) as error:
        process.check(wait_s=DEATH_S)
        if NOT_FINITE not in str(error):
            terminal.line(f"{server.name}: its output is not checked: {error}")
            return None
        logs = [None]
    nats = -fmean(math.nan if log is None else log for log in logs)
    shares = np.unique(ids, return_counts=True)[1] / ids.size
    limit_nats = float(-(shares * np.log(shares)).sum())
    words = f"a text at {nats:.2f} nats a token, and at {limit_nats:.2f} by the frequencies of its tokens alone"
    if not nats < limit_nats:  # True for NaN.
        raise WrongResultError(f"{server.name}: its output is wrong: it predicts {words}")
    terminal.line(f"{server.name}: predicts {words}")
    return OutputCheck(tokens=len(logs), perplexity=math.exp(nats), frequency_perplexity=math.exp(limit_nats))


def _started_words(server: Server, facts: ServerFacts) -> str:
    sizes = {"weights": facts.weight_bytes, "KV cache": facts.kv_bytes}
    parts = [f"{name} {gib(size)}" for name, size in sizes.items() if size]
    if facts.kv_capacity_tokens:
        parts.append(f"{facts.kv_capacity_tokens:,} tokens fit into the cache")
    return f"{server.name}: ready after {seconds(facts.start_s or 0.0)}{'; ' if parts else ''}{', '.join(parts)}"


def _counted(job: ServingJob, device: Device) -> tuple[Gpu | None, Missing | None]:
    if job.variant.gpus > 1:
        return None, Missing(error_kind="unsupported", reason="the energy of several GPUs is not counted")
    gpu = find_gpu(device)
    state = tried(lambda: count_energy_j(gpu), device)
    return (None, state) if isinstance(state, Missing) else (gpu, None)


@dataclass(eq=False)
class ServingBench(Bench):
    job: ServingJob
    generator: LoadGenerator
    name: str
    url: str
    model: str
    server: ServerFacts
    _: KW_ONLY
    vocabulary: int
    dataset: str = ""  # Label of the dataset.
    prompts: tuple[list[int], ...] = ()  # Token ids of the dataset's prompts.
    process: ServerProcess | None = None  # None for a server that was already running.
    memory: DeviceMemory | None = None
    gpu: Gpu | None = None  # GPU whose energy is counted.
    no_energy: Missing | None = None
    _is_timed: bool = False
    _shift: int = field(default_factory=lambda: random.randrange(SMALLEST_VOCABULARY))

    def facts(self) -> dict[str, Any]:
        return {"server": self.server, "no_energy": self.no_energy}

    def requests(self, point: ServingPoint, *, is_timed: bool) -> list[Request]:
        count, seed = requests_of(point, self.job.procedure.requests), self.job.procedure.seed
        if not is_timed:
            count = min(count, WARMUP_REQUESTS + point.concurrency)
        return make_requests(
            point, count, vocabulary=self.vocabulary, seed=seed, is_timed=is_timed, prompts=self.prompts
        )

    def cell(self, point: ServingPoint) -> ServingCell:
        point = point._replace(dataset=self.dataset)
        text = json.dumps(self.requests(point, is_timed=True))
        sha256 = hashlib.sha256(f"{self.job.procedure.seed} {point} {text}".encode()).hexdigest()
        return ServingCell(**point._asdict(), status="ok", inputs_sha256=sha256)

    @contextmanager
    def timed(self) -> Iterator[None]:
        self._is_timed = True
        try:
            yield
        finally:
            self._is_timed = False

    def step(self, point: ServingPoint) -> Any:
        return lambda: self._load(point) if self._is_timed else self._warm_up(point)

    def _warm_up(self, point: ServingPoint) -> SampleBase:
        load = self._send(point, is_timed=False)
        if all(load.errors):
            raise UnsupportedError(f"{self.name}: every request fails: {load.errors[0]}")
        return SampleBase(latency_s=load.latency_s)

    def _load(self, point: ServingPoint) -> Load:
        with watched(self.url) as readings:
            before_j = self.gpu.energy_j() if self.gpu else None
            load = self._send(point, is_timed=True)
            after_j = self.gpu.energy_j() if self.gpu else None
        changes: dict[str, Any] = {"counters": counters_of(readings)}
        # The counter moves about ten times a second.
        if before_j is not None and after_j is not None and after_j > before_j:
            changes["energy_j"] = after_j - before_j
        return load.model_copy(update=changes)

    def _send(self, point: ServingPoint, *, is_timed: bool) -> Load:
        requests = self.requests(point, is_timed=is_timed)
        if self.process is None:
            # The server may have cached the prompts of earlier loads, rounds and runs, which are the same.
            shift = self._shift if point.shared_prefix else random.randrange(self.vocabulary)
            requests = [
                request._replace(prompt=[(token + shift) % self.vocabulary for token in request.prompt])
                for request in requests
            ]
        load = self.generator.load(self.url, self.model, point, requests, seed=self.job.procedure.seed)
        if self.process:
            self.process.check(wait_s=DEATH_S if any(load.errors) else 0.0)
        elif all(load.errors):
            raise ProcessError(f"{self.name}: every request fails: {load.errors[0]}", "crash")
        return load

    def measured(self, cell: ServingCell, step: Any) -> dict[str, Any]:
        """Return the server's memory in place of this process's own, and the status if requests failed."""
        del step
        samples = tuple(sample.model_copy(update={"peak_allocated_bytes": None}) for sample in cell.samples)
        memory = Memory()
        if self.memory:
            memory = Memory(device_used_bytes=self.memory.growth_bytes())
        elif self.process:
            memory = Memory(peak_resident_bytes=self.process.resident_bytes())
        # With a single warm-up, there is no earlier warm-up with which it could agree.
        flags = tuple(flag for flag in cell.flags if flag != "unstable_warmup")
        return {"samples": samples, "memory": memory, "flags": flags, **outcome(cell.samples, cell.new_tokens)}
