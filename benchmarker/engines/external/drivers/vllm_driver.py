"""Driver of vLLM, offline and in one process, with our token ids, our clock, and vLLM's own request metrics.

The calls are those of `LLM.generate` (`add_request`, then `step` until all requests are finished), with a reading of
the clock after each step. CUDA graphs and compilation are vLLM's defaults.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from typing import Any

TOP = 100  # Number of likeliest tokens per position.
SETTINGS = {
    # One process, whose memory, kernels and model can be inspected.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def room_words(text: str) -> str | None:
    """Return the remedy if one sequence does not fit into the KV cache (vllm/v1/core/kv_cache_utils.py, 0.32)."""
    if "KV cache is needed" not in text:
        return None
    longest = re.search(r"estimated maximum model length is (\d+)", text)
    remedy = f"--engine-option max_model_len={longest[1]} or less" if longest else "a smaller max_model_len"
    return (
        f"the KV cache of one sequence is larger than the available memory: give {remedy}, or more room "
        "(gpu_memory_utilization; cpu_kv_cache_gib on a CPU)"
    )


class Driver:
    def __init__(self) -> None:
        os.environ.update(SETTINGS)
        self._llm: Any = None
        self._requests = 0

    def import_engine(self, *, cpu_kv_cache_gib: int | None, **_: Any) -> None:
        if cpu_kv_cache_gib is not None:
            os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(cpu_kv_cache_gib)
        import vllm  # noqa: F401

    def open(self, *, cpu_kv_cache_gib: int | None, **arguments: Any) -> dict[str, Any]:
        del cpu_kv_cache_gib  # vLLM has read it from the environment
        from vllm import LLM

        started_ns = time.perf_counter_ns()
        try:
            self._llm = LLM(
                **arguments,
                seed=0,
                max_logprobs=TOP,
                # Token ids in and out. The same prompt is repeated, and must be computed each time.
                skip_tokenizer_init=True,
                enable_prefix_caching=False,
                # Without this a request has no metrics.
                disable_log_stats=False,
            )
        except ValueError as error:
            words = room_words(str(error))
            if words is None:
                raise
            raise RuntimeError(words) from error
        return {"load_s": (time.perf_counter_ns() - started_ns) / 1e9}

    def generate(
        self, *, prompt_ids: list[list[int]], new_tokens: int, context: list[list[int]] | None
    ) -> dict[str, Any]:
        if context:
            raise NotImplementedError("vLLM has no call that leaves a context in the KV cache before the clock starts")
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            temperature=0,
            max_tokens=new_tokens,
            min_tokens=new_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE,
        )
        engine = self._llm.llm_engine
        names = [f"{self._requests}-{row}" for row in range(len(prompt_ids))]
        self._requests += 1
        latest: dict[str, Any] = {}
        first_ns = last_ns = 0
        start_ns = time.perf_counter_ns()
        for name, ids in zip(names, prompt_ids, strict=True):
            engine.add_request(name, TokensPrompt(prompt_token_ids=ids), parameters)
        while engine.has_unfinished_requests():
            outputs = [output for output in engine.step() if output.outputs[0].token_ids]
            latest |= {output.request_id: output for output in outputs}
            if outputs:
                last_ns = time.perf_counter_ns()
                if not first_ns and len(latest) == len(names):
                    first_ns = last_ns
        end_ns = time.perf_counter_ns()
        return {
            "tokens": [list(latest[name].outputs[0].token_ids) for name in names],
            "start_ns": start_ns,
            "first_ns": first_ns,
            "last_ns": last_ns,
            "end_ns": end_ns,
            "engine_times": [_engine_times(latest[name].metrics) for name in names],
        }

    def score(self, *, ids: list[int], **_: Any) -> dict[str, Any]:
        """Return the likeliest tokens by *prefill*: vLLM has no call that feeds given tokens to decode steps."""
        from vllm import SamplingParams, TokensPrompt

        parameters = SamplingParams(temperature=0, max_tokens=1, logprobs=TOP, prompt_logprobs=TOP, detokenize=False)
        (answer,) = self._llm.generate([TokensPrompt(prompt_token_ids=ids)], parameters, use_tqdm=False)
        # The first position has no prediction; the prediction after the last one belongs to the new token.
        rows = [*answer.prompt_logprobs[1:], answer.outputs[0].logprobs[0]]
        return {
            "path": "prefill",
            "rows": [
                {"ids": list(row), "log_probabilities": [entry.logprob for entry in row.values()]} for row in rows
            ],
        }

    def facts(self) -> dict[str, Any]:
        import vllm

        facts: dict[str, Any] = {"version": vllm.__version__, "kv_cache": "paged"}
        if self._llm is None:
            return facts
        config = self._llm.llm_engine.vllm_config
        (weights,) = self._llm.apply_model(_weight_facts)
        (cache_bytes,) = self._llm.collective_rpc(_cache_bytes)
        return {
            **facts,
            **weights,
            "kv_cache_bytes": cache_bytes,
            "settings": {
                **SETTINGS,
                "quantization": config.model_config.quantization,
                "dtype": str(config.model_config.dtype).removeprefix("torch."),
                "compilation_mode": str(config.compilation_config.mode),
                "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
                "max_model_len": config.model_config.max_model_len,
            },
        }

    def close(self) -> None: ...


def _engine_times(metrics: Any) -> dict[str, float | None] | None:
    if metrics is None:
        return None
    steps = metrics.num_generation_tokens - 1
    return {
        "ttft_s": metrics.first_token_latency,
        "tpot_s": (metrics.last_token_ts - metrics.first_token_ts) / steps if steps else None,
    }


def _weight_facts(model: Any) -> dict[str, Any]:
    quantized = [module for module in model.modules() if getattr(module, "quant_method", None)]
    methods = Counter(type(module.quant_method).__name__ for module in quantized)
    backends = {type(module.impl).__name__ for module in model.modules() if hasattr(module, "impl")}
    layers = {"linear_methods": dict(methods), "attention": sorted(backends)}
    # On the CPU vLLM moves the linears' weights out of the model's parameters; the rest would be mistaken for all.
    if next(iter(model.parameters())).device.type == "cpu":
        return layers
    storages = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = (str(tensor.dtype).removeprefix("torch."), storage.nbytes())
    sizes: Counter[str] = Counter()
    for dtype, size_bytes in storages.values():
        sizes[dtype] += size_bytes
    return {**layers, "weight_bytes": sum(sizes.values()), "weight_bytes_by_type": dict(sizes)}


def _cache_bytes(worker: Any) -> int:
    tensors = [
        part for cache in worker.model_runner.kv_caches for part in (cache if isinstance(cache, list) else [cache])
    ]
    return sum({part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in tensors}.values())
