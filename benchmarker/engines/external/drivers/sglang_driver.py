"""Driver of SGLang, offline, with our token ids and our clock. Run with SGLang 0.5.14.

SGLang runs its scheduler in a process of its own, so that each measured time includes a message between two processes,
as for SGLang's users. Each sequence is streamed in two chunks, its first token and all others: a chunk per token would
take longer than a decode step of a large batch.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

TOP = 100  # Number of likeliest tokens per position.
TWO_CHUNKS = 1 << 20  # Stream interval: SGLang sends tokens 1, 1 + interval, ... and the last.
SETTINGS = (
    "attention_backend",
    "quantization",
    "dtype",
    "chunked_prefill_size",
    "disable_overlap_schedule",
    "enable_torch_compile",
    "speculative_algorithm",
    "speculative_num_draft_tokens",
)


class Driver:
    def __init__(self) -> None:
        self._engine: Any = None
        self._clears_drafts = False

    def import_engine(self, **_: Any) -> None:
        import sglang  # noqa: F401

    def open(self, **arguments: Any) -> dict[str, Any]:
        import sglang

        self._clears_drafts = arguments.get("speculative_algorithm") == "NGRAM"
        started_ns = time.perf_counter_ns()
        # Token ids in and out. No prefix cache: the same prompt is repeated, and must be computed each time.
        self._engine = sglang.Engine(
            **arguments,
            skip_tokenizer_init=True,
            disable_radix_cache=True,
            random_seed=0,
            stream_interval=TWO_CHUNKS,
        )
        return {"load_s": (time.perf_counter_ns() - started_ns) / 1e9}

    def generate(
        self, *, prompt_ids: list[list[int]], new_tokens: int, context: list[list[int]] | None
    ) -> dict[str, Any]:
        if context:
            raise NotImplementedError("SGLang has no call that leaves a context in its cache before the clock starts")
        if self._clears_drafts:
            # SGLang drafts from the tokens of all earlier requests, which include repeats of this prompt.
            self._engine.flush_cache()
        # ignore_eos without min_new_tokens, because SGLang's min_new_tokens requires a tokenizer, and none is loaded.
        parameters = {"max_new_tokens": new_tokens, "ignore_eos": True, "temperature": 0}
        first_ns: list[int] = []

        async def stream(ids: list[int]) -> dict[str, Any]:
            chunk: dict[str, Any] = {}
            chunks = await self._engine.async_generate(input_ids=ids, sampling_params=parameters, stream=True)
            async for chunk in chunks:
                if not chunk["meta_info"]["finish_reason"] or chunk["meta_info"]["completion_tokens"] == 1:
                    first_ns.append(time.perf_counter_ns())
            return chunk

        async def all_streams() -> list[dict[str, Any]]:
            return await asyncio.gather(*(stream(ids) for ids in prompt_ids))

        start_ns = time.perf_counter_ns()
        answers = self._engine.loop.run_until_complete(all_streams())
        end_ns = time.perf_counter_ns()
        if len(first_ns) != len(prompt_ids):
            raise RuntimeError(f"SGLang streamed {len(first_ns)} first tokens of {len(prompt_ids)} sequences")
        counts = [answer["meta_info"].get("spec_num_correct_drafts") for answer in answers]
        return {
            "tokens": [list(answer["output_ids"]) for answer in answers],
            "start_ns": start_ns,
            "first_ns": max(first_ns),
            "last_ns": end_ns,
            "end_ns": end_ns,
            "accepted_tokens": None if None in counts else sum(counts),
        }

    def score(self, *, ids: list[int], **_: Any) -> dict[str, Any]:
        """Return the likeliest tokens by *prefill*: SGLang cannot run decode steps over given tokens."""
        answer = self._engine.generate(
            input_ids=ids,
            sampling_params={"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=TOP,
        )
        meta = answer["meta_info"]
        # The first position has no prediction; the new token's row is the prediction after the last position.
        rows = [*meta["input_top_logprobs"][1:], meta["output_top_logprobs"][0]]
        return {"rows": [[(token, log_probability) for log_probability, token, *_ in row] for row in rows]}

    def facts(self) -> dict[str, Any]:
        import sglang

        info = self._engine.get_server_info()
        # SGLang's scheduler reports GiB, rounded to two decimals.
        memory = info["internal_states"][0]["memory_usage"]
        graphs = {f"cuda_graph_{phase}": info["cuda_graph_config"][phase]["backend"] for phase in ("decode", "prefill")}
        return {
            "version": sglang.__version__,
            "kv_cache": "paged",
            "attention": [str(info["attention_backend"])],
            "weight_bytes": round(memory["weight"] * 2**30) or None,
            "kv_cache_bytes": round(memory["kvcache"] * 2**30) or None,
            "settings": {**{name: info[name] for name in SETTINGS}, **graphs},
        }

    def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
