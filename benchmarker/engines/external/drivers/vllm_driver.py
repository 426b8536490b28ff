"""Driver of vLLM, offline and in one process, with our token ids, our clock, and vLLM's own request metrics.

The driver makes the calls of `LLM.generate` (`add_request`, then `step` until all requests are finished) and reads the
clock after each step that returns tokens. vLLM returns the first token of a sequence and then all others at once: an
output per step would cost time for large batches. CUDA graphs, compilation, asynchronous scheduling and
FlashAttention 3 on Hopper are vLLM's defaults (0.24.0).
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from typing import Any

TOP = 100  # Number of likeliest tokens per position.
TWO_OUTPUTS = 1 << 20  # Stream interval: vLLM returns the first token, then one output per interval, and the last.
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
SECTION = "benchmarker: section "
"""Beginning of an annotation in a trace around the launches of prefill or decode, as in profiling/chrome_trace.py."""
SETTINGS = {
    # vLLM runs in this process, so that its memory, kernels and model can be inspected.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def room_words(text: str) -> str | None:
    """Return a message with a remedy if `text` is vLLM's error that one sequence does not fit into the KV cache
    (vllm/v1/core/kv_cache_utils.py, 0.32); else None."""
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
        self._speculates = False

    def import_engine(
        self, *, cpu_kv_cache_gib: int | None, disabled_kernels: str | None = None, **others: Any
    ) -> None:
        if cpu_kv_cache_gib is not None:
            os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(cpu_kv_cache_gib)
            if (processes := others["tensor_parallel_size"]) > 1:
                # By default vLLM gives each process the cores of a NUMA node, and refuses more processes than nodes.
                cores, threads = sorted(os.sched_getaffinity(0)), int(os.environ["OMP_NUM_THREADS"])
                each = max(1, min(threads, len(cores)) // processes)
                shares = [",".join(map(str, cores[rank * each :][:each])) for rank in range(processes)]
                os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "|".join(shares))
        if disabled_kernels is not None:
            os.environ["VLLM_DISABLED_KERNELS"] = disabled_kernels
        import vllm  # noqa: F401

    def open(
        self, *, cpu_kv_cache_gib: int | None, disabled_kernels: str | None = None, **arguments: Any
    ) -> dict[str, Any]:
        del cpu_kv_cache_gib, disabled_kernels  # vLLM has read them from the environment
        from vllm import LLM

        self._speculates = "speculative_config" in arguments
        started_ns = time.perf_counter_ns()
        try:
            self._llm = LLM(
                **arguments,
                seed=0,
                max_logprobs=TOP,
                # Token ids in and out. No prefix cache: the same prompt is repeated, and must be computed each time.
                skip_tokenizer_init=True,
                enable_prefix_caching=False,
                stream_interval=TWO_OUTPUTS,
                # Requests have metrics only if statistics are logged.
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
            output_kind=RequestOutputKind.DELTA,
        )
        engine = self._llm.llm_engine
        names = [f"{self._requests}-{row}" for row in range(len(prompt_ids))]
        self._requests += 1
        tokens: dict[str, list[int]] = {name: [] for name in names}
        metrics: dict[str, Any] = {}
        waiting = set(names)  # Sequences without a token.
        accepted = self._accepted_tokens()
        first_ns = last_ns = 0
        start_ns = time.perf_counter_ns()
        for name, ids in zip(names, prompt_ids, strict=True):
            engine.add_request(name, TokensPrompt(prompt_token_ids=ids), parameters)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.outputs[0].token_ids:
                    last_ns = time.perf_counter_ns()
                    tokens[output.request_id] += output.outputs[0].token_ids
                    metrics[output.request_id] = output.metrics
                    waiting.discard(output.request_id)
                    first_ns = first_ns or (0 if waiting else last_ns)
        end_ns = time.perf_counter_ns()
        return {
            "tokens": [tokens[name] for name in names],
            "start_ns": start_ns,
            "first_ns": first_ns,
            "last_ns": last_ns,
            "end_ns": end_ns,
            "engine_times": [_engine_times(metrics[name]) for name in names],
            "accepted_tokens": self._accepted_tokens() - accepted if self._speculates else None,
        }

    def _accepted_tokens(self) -> int:
        if not self._speculates:
            return 0
        return sum(metric.value for metric in self._llm.get_metrics() if metric.name == ACCEPTED)

    def score(self, *, ids: list[int], **_: Any) -> dict[str, Any]:
        """Return the likeliest tokens by *prefill*: vLLM cannot run decode steps over given tokens."""
        from vllm import SamplingParams, TokensPrompt

        parameters = SamplingParams(temperature=0, max_tokens=1, logprobs=TOP, prompt_logprobs=TOP, detokenize=False)
        (answer,) = self._llm.generate([TokensPrompt(prompt_token_ids=ids)], parameters, use_tqdm=False)
        # The first position has no prediction; the new token's row is the prediction after the last position.
        rows = [*answer.prompt_logprobs[1:], answer.outputs[0].logprobs[0]]
        return {"rows": [[(token, entry.logprob) for token, entry in row.items()] for row in rows]}

    def facts(self) -> dict[str, Any]:
        import vllm

        config = self._llm.llm_engine.vllm_config
        of_scheduler = ("max_num_seqs", "max_num_batched_tokens", "async_scheduling")
        # `apply_model` cannot send this file's functions to other processes; `collective_rpc` sends them by value.
        models = self._llm.collective_rpc(_weight_facts)
        sizes: Counter[str] = sum((Counter(model["weight_bytes_by_type"]) for model in models), Counter())
        return {
            "version": vllm.__version__,
            "kv_cache": "paged",
            **models[0],
            "weight_bytes": sizes.total() or None,
            "weight_bytes_by_type": dict(sizes),
            "kv_cache_bytes": max(self._llm.collective_rpc(_cache_bytes)),
            "settings": {
                **SETTINGS,
                "quantization": config.model_config.quantization,
                "dtype": str(config.model_config.dtype).removeprefix("torch."),
                "compilation_mode": getattr(config.compilation_config.mode, "name", None),
                "cudagraph_mode": getattr(config.compilation_config.cudagraph_mode, "name", None),
                "max_model_len": config.model_config.max_model_len,
                **{name: getattr(config.scheduler_config, name) for name in of_scheduler},
                "speculative": getattr(config.speculative_config, "method", None),
            },
        }

    def start_trace(self) -> None:
        self._llm.collective_rpc(_start_trace)

    def stop_trace(self, *, path: str) -> None:
        self._llm.collective_rpc(_stop_trace, args=(path,))

    def close(self) -> None: ...


def _start_trace(wrapper: Any) -> None:
    """Start the profiler in a worker, and annotate the launches of its steps."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    worker = wrapper.worker
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()]
    with profile(activities=activities):  # Set up the tracer, or the first step would include its set-up.
        torch.ones(1, device=worker.device).add_(1)
    execute_model, sample_tokens = worker.execute_model, worker.sample_tokens
    section = ""

    def annotated_execution(scheduled: Any) -> Any:
        nonlocal section
        # By launch, because vLLM launches a step before the tokens of the step before are read.
        drafts = scheduled.scheduled_spec_decode_tokens  # A decode step checks them together with the newest token.
        new, counts = scheduled.scheduled_new_reqs, scheduled.num_scheduled_tokens.items()
        is_prefill = bool(new) or any(count > 1 + len(drafts.get(request, ())) for request, count in counts)
        section = SECTION + ("prefill" if is_prefill else "decode")
        with record_function(section):
            return execute_model(scheduled)

    def annotated_sampling(*arguments: Any) -> Any:
        with record_function(section):
            return sample_tokens(*arguments)

    worker.execute_model, worker.sample_tokens = annotated_execution, annotated_sampling
    worker.benchmarker_profiler = profile(activities=activities)
    worker.benchmarker_profiler.start()


def _stop_trace(wrapper: Any, path: str) -> None:
    worker = wrapper.worker
    del worker.execute_model, worker.sample_tokens  # The methods of the class are called again.
    worker.benchmarker_profiler.stop()
    if worker.rank == 0:
        worker.benchmarker_profiler.export_chrome_trace(path)
    del worker.benchmarker_profiler


def _engine_times(metrics: Any) -> dict[str, float | None] | None:
    if metrics is None:
        return None
    steps = metrics.num_generation_tokens - 1
    return {
        "ttft_s": metrics.first_token_latency,
        "tpot_s": (metrics.last_token_ts - metrics.first_token_ts) / steps if steps else None,
    }


def _weight_facts(worker: Any) -> dict[str, Any]:
    model = worker.get_model()
    quantized = [module for module in model.modules() if getattr(module, "quant_method", None)]
    methods = Counter(type(module.quant_method).__name__ for module in quantized)
    kernels = Counter(name for module in quantized if (name := _kernel_name(module.quant_method, module)))
    backends = {_attention_name(module.impl) for module in model.modules() if hasattr(module, "impl")}
    # On the CPU, vLLM moves the linears' weights out of the model's parameters: their sum would be too small.
    tensors = [tensor for tensor in [*model.parameters(), *model.buffers()] if tensor.device.type != "cpu"]
    sizes: Counter[str] = Counter()
    for tensor in {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}.values():
        sizes[str(tensor.dtype).removeprefix("torch.")] += tensor.untyped_storage().nbytes()
    layers = {"linear_methods": dict(methods), "linear_kernels": dict(kernels), "attention": sorted(backends)}
    return {**layers, "weight_bytes_by_type": dict(sizes)}


def _kernel_name(method: Any, layer: Any) -> str | None:
    """Return the class of a linear's kernel, which is an attribute of its quantization method or of the scheme."""
    owners = (method, getattr(layer, "scheme", None))
    kernels = (getattr(owner, name, None) for owner in owners for name in ("kernel", "fp8_linear"))
    return next((type(kernel).__name__ for kernel in kernels if kernel is not None), None)


def _attention_name(backend: Any) -> str:
    version = getattr(backend, "vllm_flash_attn_version", None)
    return type(backend).__name__ + (f" (FA{version})" if version else "")


def _cache_bytes(worker: Any) -> int:
    tensors = [
        part for cache in worker.model_runner.kv_caches for part in (cache if isinstance(cache, list) else [cache])
    ]
    return sum({part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in tensors}.values())
