"""Driver of llama.cpp through llama-cpp-python's low-level calls, with our token ids and our clock around every call.

A step is `llama_decode` and `llama_synchronize`, as in llama-bench, followed by the argmax over the logits on the host,
which llama-bench omits. The time of the argmax is reported separately, and so is the median time of `llama_decode` and
`llama_synchronize`: the first two steps after a prompt take longer, because llama.cpp builds and records its graph.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

DEFAULT_BATCH = 2048  # llama.cpp's default `n_batch`, the maximum number of tokens of one `llama_decode`.
CONTEXT_STEP = 256  # llama.cpp rounds the KV cache's length up to a multiple of it.
ERROR_LEVEL = 4
QUANTIZED = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "Q6_K": 18}  # LLAMA_FTYPE_MOSTLY_*, as llama.h numbers them.


class Driver:
    def __init__(self) -> None:
        self._errors: list[str] = []
        self._model: Any = None
        self._context: Any = None
        self._shape = (0, 0, 0)
        self._filled: list[list[int]] = []
        self._settings: dict[str, Any] = {}

    def import_engine(self, *, library: str | None, **_: Any) -> None:
        if library:
            os.environ["LLAMA_CPP_LIB_PATH"] = library
        import llama_cpp
        import numpy

        self._api, self._numpy = llama_cpp, numpy
        # This reference keeps the callback alive: llama.cpp calls it later.
        self._log = llama_cpp.llama_log_callback(self._keep_error)
        llama_cpp.llama_log_set(self._log, None)
        llama_cpp.llama_backend_init()

    def _keep_error(self, level: int, text: bytes, _: Any) -> None:
        if level == ERROR_LEVEL:
            self._errors.append(text.decode(errors="replace").strip())

    def _failure(self, what: str) -> RuntimeError:
        return RuntimeError(": ".join([what, *self._errors[-2:]]))

    def open(self, *, model: str, threads: int, gpu_layers: int, flash_attention: bool, **_: Any) -> dict[str, Any]:
        if gpu_layers and not self._api.llama_supports_gpu_offload():
            raise RuntimeError("this build of llama.cpp has no GPU backend")
        started_ns = time.perf_counter_ns()
        parameters = self._api.llama_model_default_params()
        parameters.n_gpu_layers = gpu_layers
        self._model = self._api.llama_model_load_from_file(model.encode(), parameters)
        if not self._model:
            raise self._failure(f"{model}: llama.cpp cannot load it")
        self._settings = {"threads": threads, "gpu_layers": gpu_layers, "flash_attention": flash_attention}
        self._vocabulary = self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(self._model))
        return {"load_s": (time.perf_counter_ns() - started_ns) / 1e9}

    def generate(
        self, *, prompt_ids: list[list[int]], new_tokens: int, context: list[list[int]] | None
    ) -> dict[str, Any]:
        depth = len(context[0]) if context else 0
        self._make_room(len(prompt_ids), depth + len(prompt_ids[0]) + new_tokens, len(prompt_ids[0]))
        self._fill(context or [])
        prompt = self._batch([(token, depth + i, row, i + 1 == len(ids)) for row, ids in enumerate(prompt_ids)
                              for i, token in enumerate(ids)])  # fmt: skip
        step = self._batch([(0, 0, row, True) for row in range(len(prompt_ids))])
        last_of_prompt = [(row + 1) * len(prompt_ids[0]) - 1 for row in range(len(prompt_ids))]
        choosing_ns, depth = 0, depth + len(prompt_ids[0])
        steps_ns: list[int] = []

        start_ns = time.perf_counter_ns()
        self._decode(prompt)
        tokens = [[self._likeliest(index)] for index in last_of_prompt]
        first_ns = time.perf_counter_ns()
        for position in range(depth, depth + new_tokens - 1):
            for row, chosen in enumerate(tokens):
                step.token[row], step.pos[row] = chosen[-1], position
            began_ns = time.perf_counter_ns()
            self._decode(step)
            decoded_ns = time.perf_counter_ns()
            steps_ns.append(decoded_ns - began_ns)
            for row, chosen in enumerate(tokens):
                chosen.append(self._likeliest(row))
            choosing_ns += time.perf_counter_ns() - decoded_ns
        last_ns = time.perf_counter_ns()

        self._api.llama_batch_free(prompt)
        self._api.llama_batch_free(step)
        return {
            "tokens": tokens,
            "start_ns": start_ns,
            "first_ns": first_ns,
            "last_ns": last_ns,
            "end_ns": last_ns,
            "choosing_ns": choosing_ns,
            "step_ns": median(steps_ns) if steps_ns else None,
        }

    def score(self, *, ids: list[int], output: str, together: int, rows_from: int) -> dict[str, Any]:
        """Run a text through the model, and write log-probabilities, [positions, vocabulary], float32, to a file.

        Args:
            together: Number of ids in the prefill; each further id is one decode step.
            rows_from: First position whose log-probabilities are written.
        """
        self._make_room(1, len(ids), together)
        self._fill([])
        prompt = self._batch([(token, i, 0, i >= rows_from) for i, token in enumerate(ids[:together])])
        step = self._batch([(0, 0, 0, True)])
        with Path(output).open("wb") as file:
            self._decode(prompt)
            for position in range(rows_from, together):
                file.write(self._log_probabilities(position).tobytes())
            for position, token in enumerate(ids[together:], start=together):
                step.token[0], step.pos[0] = token, position
                self._decode(step)
                file.write(self._log_probabilities(0).tobytes())
        self._api.llama_batch_free(prompt)
        self._api.llama_batch_free(step)
        return {"vocabulary": self._vocabulary}

    def quantize(self, *, source: str, target: str, form: str, threads: int, library: str | None) -> dict[str, Any]:
        self.import_engine(library=library)
        parameters = self._api.llama_model_quantize_default_params()
        parameters.ftype, parameters.nthread = QUANTIZED[form], threads
        if self._api.llama_model_quantize(source.encode(), target.encode(), parameters):
            raise self._failure(f"llama.cpp cannot quantize to {form}")
        return {}

    def facts(self) -> dict[str, Any]:
        api = self._api
        facts: dict[str, Any] = {
            "version": api.__version__,
            "kv_cache": "static",
            "build": api.llama_print_system_info().decode().strip(),
            "library_sha256": hashlib.sha256(Path(api.llama_cpp._lib._name).read_bytes()).hexdigest(),
            "commit": _commit(api),
            "settings": {**self._settings, "gpu_offload": bool(api.llama_supports_gpu_offload())},
        }
        if self._model:
            facts["weight_bytes"] = api.llama_model_size(self._model)
        if self._context:
            facts["settings"]["context_tokens"] = api.llama_n_ctx(self._context)
            facts["settings"]["sequences"] = api.llama_n_seq_max(self._context)
            facts["settings"]["ubatch_tokens"] = api.llama_n_ubatch(self._context)
        return facts

    def close(self) -> None:
        if self._context:
            self._api.llama_free(self._context)
        if self._model:
            self._api.llama_model_free(self._model)
        self._context = self._model = None

    def _make_room(self, sequences: int, tokens: int, prompt_tokens: int) -> None:
        tokens = -(-tokens // CONTEXT_STEP) * CONTEXT_STEP
        batch = max(DEFAULT_BATCH, sequences * prompt_tokens)
        if self._context and sequences == self._shape[0] and tokens <= self._shape[1] and batch <= self._shape[2]:
            return
        if self._context:
            self._api.llama_free(self._context)
            self._context, self._filled = None, []
        parameters = self._api.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max, parameters.n_batch = sequences * tokens, sequences, batch
        if self._settings["gpu_layers"]:
            parameters.n_ubatch = DEFAULT_BATCH  # The default of 512 leaves a GPU idle in long prompts.
        parameters.n_threads = parameters.n_threads_batch = self._settings["threads"]
        parameters.flash_attn_type = int(self._settings["flash_attention"])
        self._context = self._api.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise self._failure(f"failed to allocate a context of {sequences} x {tokens} tokens")
        self._shape = (sequences, tokens, batch)

    def _fill(self, context: list[list[int]]) -> None:
        memory = self._api.llama_get_memory(self._context)
        if context and context == self._filled:
            for row, ids in enumerate(context):
                self._api.llama_memory_seq_rm(memory, row, len(ids), -1)
            return
        self._api.llama_memory_clear(memory, True)
        for row, ids in enumerate(context):
            for begin in range(0, len(ids), DEFAULT_BATCH):
                piece = ids[begin : begin + DEFAULT_BATCH]
                batch = self._batch([(token, begin + i, row, False) for i, token in enumerate(piece)])
                self._decode(batch)
                self._api.llama_batch_free(batch)
        self._filled = context

    def _batch(self, entries: list[tuple[int, int, int, bool]]) -> Any:
        batch = self._api.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for index, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = wanted
        return batch

    def _decode(self, batch: Any) -> None:
        if code := self._api.llama_decode(self._context, batch):
            raise self._failure(f"llama_decode answers {code}")
        self._api.llama_synchronize(self._context)

    def _logits(self, index: int) -> Any:
        pointer = self._api.llama_get_logits_ith(self._context, index)
        return self._numpy.ctypeslib.as_array(pointer, shape=(self._vocabulary,))

    def _likeliest(self, index: int) -> int:
        return int(self._logits(index).argmax())

    def _log_probabilities(self, index: int) -> Any:
        logits = self._logits(index).astype(self._numpy.float64)
        logits -= logits.max()
        return (logits - self._numpy.log(self._numpy.exp(logits).sum())).astype(self._numpy.float32)


def _commit(api: Any) -> str | None:
    read = getattr(api.llama_cpp._lib, "ggml_commit", None)
    if read is None:
        return None
    read.restype = ctypes.c_char_p
    commit = str(read().decode())
    return commit if commit != "unknown" else None
