"""Driver of SGLang, offline, with our token ids and our clock around its stream. Written from SGLang 0.5.23's sources.

SGLang runs its scheduler in processes of its own, so that each clock reading includes a message between two processes,
as for SGLang's users.
"""

from __future__ import annotations

import time
from typing import Any

TOP = 100  # Number of likeliest tokens per position.


class Driver:
    def __init__(self) -> None:
        self._engine: Any = None

    def import_engine(self, **_: Any) -> None:
        import sglang  # noqa: F401

    def open(self, **arguments: Any) -> dict[str, Any]:
        import sglang

        started_ns = time.perf_counter_ns()
        # Token ids in and out. The same prompt is repeated, and must be computed each time.
        self._engine = sglang.Engine(
            **arguments, skip_tokenizer_init=True, disable_radix_cache=True, random_seed=0, stream_interval=1
        )
        return {"load_s": (time.perf_counter_ns() - started_ns) / 1e9}

    def generate(
        self, *, prompt_ids: list[list[int]], new_tokens: int, context: list[list[int]] | None
    ) -> dict[str, Any]:
        if context:
            raise NotImplementedError("SGLang has no call that leaves a context in its cache before the clock starts")
        if len(prompt_ids) > 1:
            raise NotImplementedError("SGLang's stream of several sequences at once is not written here yet")
        parameters = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "ignore_eos": True, "temperature": 0}
        tokens: list[int] = []
        times: list[int] = []
        answer: dict[str, Any] = {}
        start_ns = time.perf_counter_ns()
        for answer in self._engine.generate(input_ids=prompt_ids[0], sampling_params=parameters, stream=True):
            times.append(time.perf_counter_ns())
            ids = answer["output_ids"]
            tokens = list(ids) if len(ids) == answer["meta_info"]["completion_tokens"] else [*tokens, *ids]
        end_ns = time.perf_counter_ns()
        return {
            "tokens": [tokens],
            "start_ns": start_ns,
            "first_ns": times[0],
            "last_ns": times[-1],
            "end_ns": end_ns,
        }

    def score(self, *, ids: list[int], **_: Any) -> dict[str, Any]:
        """Return the likeliest tokens by *prefill*: SGLang has no call that feeds given tokens to decode steps."""
        answer = self._engine.generate(
            input_ids=ids,
            sampling_params={"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=TOP,
        )
        meta = answer["meta_info"]
        # The first position has no prediction; the prediction after the last one belongs to the new token.
        rows = [*meta["input_top_logprobs"][1:], meta["output_top_logprobs"][0]]
        return {
            "path": "prefill",
            "rows": [
                {"ids": [entry[1] for entry in row], "log_probabilities": [entry[0] for entry in row]} for row in rows
            ],
        }

    def facts(self) -> dict[str, Any]:
        import sglang

        facts: dict[str, Any] = {"version": sglang.__version__, "kv_cache": "paged"}
        if self._engine is not None:
            info = self._engine.get_server_info()
            names = ("attention_backend", "quantization", "dtype", "mem_fraction_static", "max_total_num_tokens")
            facts["settings"] = {name: info.get(name) for name in names}
        return facts

    def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
