"""The servers that the workload serving measures: command line, options, and facts that a log contains.

A server reads the checkpoint that its engine reads (external/vllm.py, ...), with the same options. Prefix caching is
off except for requests with a shared prefix: it would skip the prefill of equal prompts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmarker.checkpoints.base import Checkpoint
from benchmarker.checkpoints.gguf_file import why_no_gguf
from benchmarker.core.formatting import GIB, MIB
from benchmarker.core.process import NO_MULTICAST
from benchmarker.engines.external.environments import EngineError, Marker, why_not_installed
from benchmarker.engines.external.llama_cpp import LlamaCppOptions, physical_cores
from benchmarker.engines.external.server_process import HOST, post
from benchmarker.engines.external.sglang import SglangOptions
from benchmarker.engines.external.vllm import VARIABLES, VllmOptions
from benchmarker.quantization.base import Options

MODEL = "model"  # Name of the model in requests.
DEFAULT_SLOTS = 16
FORCED = 10_000.0  # Logit bias that makes a token certain.
VERSION_S = 60.0  # Time limit for llama-server to print its version.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    **NO_MULTICAST,
}


class LlamaServerOptions(LlamaCppOptions):
    threads: int | None = Field(default=None, gt=0)
    """Default: the number of physical cores less one, which HTTP and the load generator need."""
    slots: int | None = Field(default=None, gt=0)
    """Maximum number of requests that are computed at once, each with its part of the KV cache. Default: the largest
    concurrency of the grid, or 16 without one."""


@dataclass(frozen=True)
class Launch:
    marker: Marker
    arguments: Mapping[str, Any]  # Arguments of the driver of the server's engine.
    options: Options
    port: int
    positions: int  # Tokens of the longest request, prompt and new ones.
    concurrency: int  # Largest number of requests in flight; 0 if it is unlimited.
    has_tokenizer: bool
    prefix_caching: bool = False


@dataclass(frozen=True)
class Pattern:
    field: str  # Field of ServerFacts.
    expression: str
    scale: int = 1

    def read(self, log: str) -> int | None:
        """For bytes, return the sum over all workers; for tokens, the last number. None without a match."""
        numbers = [float(number.replace(",", "")) for number in re.findall(self.expression, log)]
        return round(sum(numbers if self.scale > 1 else numbers[-1:]) * self.scale) or None


class Server:
    name: str
    engine: str  # Name in ENGINES of the engine that reads the checkpoint.
    options: type[Options]
    limiting_option: str  # Option with the number of requests that the server computes at once.
    patterns: tuple[Pattern, ...]

    def why_not_installed(self) -> str | None:
        return why_not_installed(self.name)

    def command(self, launch: Launch) -> list[str]:
        raise NotImplementedError

    def variables(self, launch: Launch) -> dict[str, str]:  # noqa: ARG002
        return ENVIRONMENT

    def max_requests(self, launch: Launch) -> int | None:
        """Return the number of requests that the server computes at once; None if it is the server's own choice."""
        limit: int | None = getattr(launch.options, self.limiting_option)
        return limit

    def check(self, marker: Marker) -> None:
        """Start a newly installed program once. Raises EngineError."""

    def log_probabilities(self, url: str, ids: Sequence[int]) -> list[float | None]:
        """Return the log-probability of each token but the first; None if it is not finite.

        Raises ProcessError, LookupError or TypeError if the server gives none.
        """
        body = {"model": MODEL, "prompt": ids, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        answer = post(f"{url}/v1/completions", body)
        return list(answer["choices"][0]["logprobs"]["token_logprobs"][1 : len(ids)])

    def log_facts(self, log: str) -> dict[str, int | None]:
        return {pattern.field: pattern.read(log) for pattern in self.patterns}


class VllmServer(Server):
    name = engine = "vllm"
    options = VllmOptions
    limiting_option = "max_num_seqs"
    patterns = (
        Pattern("weight_bytes", r"Model loading took ([\d.]+) GiB", GIB),
        Pattern("kv_bytes", r"Available KV cache memory: ([\d.]+) GiB", GIB),
        Pattern("kv_capacity_tokens", r"KV cache size: ([\d,]+) tokens"),
    )

    def command(self, launch: Launch) -> list[str]:
        engine = {name: value for name, value in launch.arguments.items() if name not in VARIABLES}
        return [
            # The program of `vllm serve`, which itself does not start from the wheel for CPUs.
            *(launch.marker.python, "-I", "-m", "vllm.entrypoints.openai.api_server"),
            *_flags({**engine, "served_model_name": MODEL, "host": HOST, "port": launch.port, "seed": 0}),
            f"--{'' if launch.prefix_caching else 'no-'}enable-prefix-caching",
            *([] if launch.has_tokenizer else ["--skip-tokenizer-init"]),
        ]

    def variables(self, launch: Launch) -> dict[str, str]:
        values = {variable: launch.arguments.get(name) for name, variable in VARIABLES.items()}
        return {**ENVIRONMENT, **{name: str(value) for name, value in values.items() if value is not None}}


class SglangServer(Server):
    name = engine = "sglang"
    options = SglangOptions
    limiting_option = "max_running_requests"
    patterns = (
        Pattern("weight_bytes", r"Load weight end.*?mem usage=([\d.]+) GB", GIB),
        Pattern("kv_capacity_tokens", r"max_total_num_tokens=(\d+)"),
    )

    def command(self, launch: Launch) -> list[str]:
        settings = {**launch.arguments, "served_model_name": MODEL, "host": HOST, "port": launch.port, "random_seed": 0}
        return [
            *(launch.marker.python, "-I", "-m", "sglang.launch_server", *_flags(settings)),
            *([] if launch.prefix_caching else ["--disable-radix-cache"]),
            "--enable-metrics",
            *([] if launch.has_tokenizer else ["--skip-tokenizer-init"]),
        ]


class LlamaServer(Server):
    name = "llama-server"
    engine = "llama-cpp"
    options = LlamaServerOptions
    limiting_option = "slots"
    patterns = (
        Pattern("kv_bytes", r"KV buffer size = +([\d.]+) MiB", MIB),
        Pattern("kv_capacity_tokens", r"llama_context: n_ctx += (\d+)"),
    )

    def why_not_installed(self) -> str | None:
        return why_no_gguf() or super().why_not_installed()

    def command(self, launch: Launch) -> list[str]:
        slots, arguments, options = self.max_requests(launch), launch.arguments, launch.options
        assert isinstance(options, LlamaServerOptions)
        settings = {
            "model": arguments["model"],
            "threads": options.threads or max(1, physical_cores() - 1),
            "gpu_layers": arguments["gpu_layers"],
            "flash_attn": "on" if arguments["flash_attention"] else "off",
            "ctx_size": slots * (launch.positions + 1),
            "parallel": slots,
            "cache_ram": 0,
            "verbosity": 4,  # Least level that prints the sizes of weights and KV cache.
            "alias": MODEL,
            "host": HOST,
            "port": launch.port,
        }
        cache = f"--{'' if launch.prefix_caching else 'no-'}cache-prompt"
        return [str(_program(launch.marker)), *_flags(settings), cache, "--metrics", "--no-ui", "--offline"]

    def variables(self, launch: Launch) -> dict[str, str]:
        return {**ENVIRONMENT, **_library_path(_program(launch.marker))}

    def check(self, marker: Marker) -> None:
        program = _program(marker)
        variables = {**os.environ, **ENVIRONMENT, **_library_path(program)}
        try:
            process = subprocess.run(
                [program, "--version"], capture_output=True, text=True, timeout=VERSION_S, env=variables, check=False
            )
            problem = process.returncode and (process.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            raise EngineError(f"{self.name}: {program} --version failed: {problem}")

    def log_probabilities(self, url: str, ids: Sequence[int]) -> list[float | None]:
        """Force each token by a logit bias, since llama-server has no `echo`; log-probabilities exclude the bias."""
        logs = []
        for place in range(1, len(ids)):
            body = {"model": MODEL, "prompt": ids[:place], "max_tokens": 1, "temperature": 0, "logprobs": 1}
            body |= {"logit_bias": {str(ids[place]): FORCED}, "cache_prompt": True}
            token = post(f"{url}/v1/completions", body)["choices"][0]["logprobs"]["content"][0]
            if token["id"] != ids[place]:
                raise LookupError(f"it generated the token {token['id']} in place of {ids[place]}")
            logs.append(token["logprob"])
        return logs

    def max_requests(self, launch: Launch) -> int:
        return super().max_requests(launch) or launch.concurrency or DEFAULT_SLOTS


def _flags(settings: Mapping[str, Any]) -> list[str]:
    """Return options of a command line: none for None and False, no value for True."""
    words = []
    for name, value in settings.items():
        if value is not None and value is not False:
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return words


def _program(marker: Marker) -> Path:
    packages = Path(marker.python).parent.parent.glob("lib/python*/site-packages/bin")
    for folder in [Path(marker.library)] if marker.library else packages:
        if (folder / "llama-server").is_file():
            return folder / "llama-server"
    where = marker.library or f"the environment {marker.name}"
    raise EngineError(f"llama-server: there is none in {where}: 'benchmarker engine install llama-server' builds it")


def _library_path(program: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": f"{program.parent.parent / 'lib'}:{program.parent}"}


def has_tokenizer(checkpoint: Checkpoint) -> bool:
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "tekken.json")
    return checkpoint.is_gguf or any((checkpoint.folder / name).is_file() for name in names)


SERVERS: dict[str, Server] = {server.name: server for server in (VllmServer(), SglangServer(), LlamaServer())}
