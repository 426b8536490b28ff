"""Driver of the load generator `vllm bench serve`, which runs in vLLM's environment.

One process generates all loads of a variant, because importing vLLM takes seconds. Prompts are token ids, so that
their lengths are exact and no tokenizer is needed.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from typing import Any

PER_REQUEST = ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors")


class Driver:
    def import_engine(self) -> None:
        import vllm.benchmarks.serve  # noqa: F401

    def open(self) -> None:
        import aiohttp
        from vllm.benchmarks.lib import endpoint_request_func

        aiohttp.ClientSession = _without_proxies(aiohttp.ClientSession)
        # Garbage collections during a load would scan every object of vLLM, a third of the load's processor time.
        gc.freeze()
        endpoint_request_func.StreamedResponseHandler = _reader(endpoint_request_func.StreamedResponseHandler)

    def load(
        self, *, url: str, model: str, prompts: list[list[int]], new_tokens: list[int], options: list[str]
    ) -> dict[str, Any]:
        """Send the prompts to a server; return a list for each field in `PER_REQUEST`, with one value per prompt."""
        from vllm.benchmarks import serve
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = FlexibleArgumentParser()
        serve.add_cli_args(parser)
        arguments = parser.parse_args(
            [
                *("--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url, "--model", model),
                *("--skip-tokenizer-init", "--dataset-name", "custom", "--num-prompts", str(len(prompts))),
                # Send no request to check whether the server is ready.
                *("--ready-check-timeout-sec", "0", "--disable-tqdm", "--save-detailed"),
                # Open a connection per request: a server may close an idle connection while it is being reused.
                *("--header", "Connection=close", "--ignore-eos", "--temperature", "0", *options),
            ]
        )
        requests = [
            serve.SampleRequest(prompt=ids, prompt_len=len(ids), expected_output_len=tokens, request_id=f"{number}-")
            for number, (ids, tokens) in enumerate(zip(prompts, new_tokens, strict=True))
        ]
        serve.get_samples = lambda *_: requests
        result = asyncio.run(serve.main_async(arguments))
        return {name: result[name] for name in PER_REQUEST}

    def close(self) -> None: ...


def _without_proxies(session: Callable[..., Any]) -> Callable[..., Any]:
    """Return `session` with `trust_env` off: if on, a thread per request looks for a proxy, 3 ms of each TTFT."""
    return lambda **options: session(**{**options, "trust_env": False})


def _reader(base: type) -> type:
    class Reader(base):  # type: ignore[misc]
        def add_chunk(self, chunk_bytes: bytes) -> list[str]:
            return [_usage_alone(message) for message in super().add_chunk(chunk_bytes)]

    return Reader


def _usage_alone(message: str) -> str:
    """Remove the empty choice from llama-server's last message: vLLM would count it as a token and skip the usage."""
    if '"usage"' not in message:
        return message
    data = json.loads(message.removeprefix("data: "))
    if data.get("usage") and any(choice.get("text") for choice in data.get("choices") or ()):
        return message
    return f"data: {json.dumps({**data, 'choices': []})}" if data.get("usage") else message
