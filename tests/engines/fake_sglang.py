"""Stand-in for the package `sglang`, with the signatures and the checks of SGLang 0.5.14 that the driver meets.

Engine.__init__, async_generate, generate, flush_cache, get_server_info   srt/entrypoints/engine.py
ServerArgs                                                                srt/server_args.py
SamplingParams                                                            srt/sampling/sampling_params.py
the penalty of min_new_tokens                                             srt/sampling/penaltylib/min_new_tokens.py
the rule of stream_interval    srt/managers/scheduler_components/output_streamer.py
meta_info                                                                 srt/managers/tokenizer_manager.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path

__version__ = "0.5.14"
FIELDS = set(Path(FIELDS_FILE).read_text().partition("\n")[2].split())  # noqa: F821 - set by the test


class SamplingParams:
    def __init__(
        self,
        max_new_tokens=128,
        stop=None,
        stop_token_ids=None,
        stop_regex=None,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        min_p=0.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        repetition_penalty=1.0,
        min_new_tokens=0,
        n=1,
        ignore_eos=False,
        stream_interval=None,
    ):
        self.max_new_tokens, self.ignore_eos, self.stream_interval = max_new_tokens, ignore_eos, stream_interval
        if min_new_tokens:
            None.additional_stop_token_ids  # noqa: B018 - the tokenizer, which skip_tokenizer_init leaves out


class Engine:
    def __init__(self, **kwargs):
        unknown = set(kwargs) - FIELDS
        if unknown:
            raise TypeError(f"ServerArgs.__init__() got an unexpected keyword argument {sorted(unknown)}")
        assert kwargs["disable_radix_cache"]
        assert kwargs["skip_tokenizer_init"]
        self.arguments = kwargs
        self.loop = asyncio.new_event_loop()
        self.flushed = 0

    async def async_generate(
        self, prompt=None, sampling_params=None, input_ids=None, return_logprob=False, logprob_start_len=None,
        top_logprobs_num=None, stream=False, rid=None,
    ):  # fmt: skip
        generator = self._chunks(input_ids, SamplingParams(**sampling_params))
        return generator if stream is True else await generator.__anext__()

    async def _chunks(self, ids, parameters):
        output_ids = []
        for count in range(1, parameters.max_new_tokens + 1):
            output_ids.append(ids[0])
            await asyncio.sleep(0)
            finished = count == parameters.max_new_tokens
            interval = parameters.stream_interval or self.arguments.get("stream_interval", 1)
            if finished or (count % interval == 1 if interval > 1 else True):
                meta = {"id": "0", "completion_tokens": count, "finish_reason": None}
                if finished:
                    meta["finish_reason"] = {"type": "length", "length": count}
                    if "speculative_algorithm" in self.arguments:
                        meta |= {"spec_num_correct_drafts": 2 * self.flushed, "spec_verify_ct": 1}
                yield {"output_ids": output_ids.copy() if finished else output_ids, "meta_info": meta}

    def generate(
        self, prompt=None, sampling_params=None, input_ids=None, return_logprob=False, logprob_start_len=None,
        top_logprobs_num=None, stream=False, rid=None,
    ):  # fmt: skip
        SamplingParams(**sampling_params)
        top = [(-0.5, 4, None), (-1.0, 5, None)]
        meta = {"input_top_logprobs": [None] + [top] * (len(input_ids) - 1), "output_top_logprobs": [top]}
        return {"output_ids": [4], "meta_info": meta}

    def flush_cache(self):
        self.flushed += 1

    def get_server_info(self):
        phases = {"decode": {"backend": "full"}, "prefill": {"backend": "tc_piecewise"}}
        memory = {"weight": 7.5, "kvcache": 50.25, "token_capacity": 1, "graph": 0.5}
        arguments = dict.fromkeys(FIELDS) | {"attention_backend": "fa3", "dtype": "float16"} | self.arguments
        return {**arguments, "cuda_graph_config": phases, "internal_states": [{"memory_usage": memory}]}

    def shutdown(self):
        pass
