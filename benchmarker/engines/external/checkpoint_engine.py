"""Base of vLLM and SGLang, which load a checkpoint as it is stored or quantize a 16-bit checkpoint while loading.

Speculative decoding: one step checks several drafted tokens and accepts the tokens that the model would have chosen.

    tokens per step = 1 + accepted drafts

The decode rate depends on this number, and this number on the text. Therefore models with random weights are refused.
"""

from __future__ import annotations

import math
import re

from pydantic import field_validator

from benchmarker.checkpoints.base import Checkpoint
from benchmarker.checkpoints.gguf_file import tensor_shapes
from benchmarker.core.formatting import gib
from benchmarker.engines.base import Form, UnsupportedError
from benchmarker.engines.external.external_engine import ExternalEngine, head_refusal
from benchmarker.quantization.base import Options
from benchmarker.schema.model import ExternalFacts, LoadFacts

AS_STORED = ("fp16", "gptq", "awq")  # Quantizations whose checkpoints vLLM and SGLang load unchanged.
UNQUANTIZED = "Unquantized"  # Prefix of vLLM's class names for 16-bit layers.
NEAR_PLAIN = 0.95  # Loaded bytes / checkpoint's bytes above which weights count as not quantized.
ONE_BYTE = re.compile(r"int8|float8")
METHODS = ("ngram", "draft_model", "eagle3", "mtp")
WITH_DRAFT = ("draft_model", "eagle3")  # Methods that need a second checkpoint; `mtp` usually does not.


def speculation_of(text: str) -> tuple[str, int, str | None]:
    """Parse `ngram:5` or `eagle3:3:FOLDER`: method, draft tokens per step, and draft model. Raises ValueError."""
    method, _, rest = text.partition(":")
    tokens, _, draft = rest.partition(":")
    if method not in METHODS or not tokens.isdecimal() or not int(tokens):
        methods = ", ".join(METHODS)
        raise ValueError(f"'{text}' is not METHOD:TOKENS or METHOD:TOKENS:DRAFT; the methods are {methods}")
    if method != "mtp" and (method in WITH_DRAFT) != bool(draft):
        raise ValueError(f"'{text}': {method} {'has no' if draft else 'needs a'} draft model")
    return method, int(tokens), draft or None


class CheckpointOptions(Options):
    quantization: str | None = None
    """Online quantization of a 16-bit checkpoint: `fp8`; in vLLM also `fp8_per_channel`, `bitsandbytes`, ..."""
    speculative: str | None = None
    """Speculative decoding, `METHOD:TOKENS` or `METHOD:TOKENS:DRAFT`: `ngram:5` drafts from the sequence's own tokens;
    `draft_model`, `eagle3` and `mtp` draft with a model, whose folder or hub id is DRAFT."""

    @field_validator("speculative")
    @classmethod
    def _is_complete(cls, value: str | None) -> str | None:
        if value is not None:
            speculation_of(value)
        return value


class CheckpointEngine(ExternalEngine):
    title: str
    quantizing_option = "quantization"
    mixes_prefill = True

    def why_not_taken(self, form: Form, checkpoint: Checkpoint) -> str | None:
        options = form.engine_options
        assert isinstance(options, CheckpointOptions)
        if checkpoint.is_gguf:
            return f"{self.title} does not read GGUF files here; use --engine llama-cpp"
        if options.quantization is not None and (form.quant != "fp16" or checkpoint.quantization is not None):
            return f"quantization={options.quantization} is for a checkpoint of 16 bit, with --quant fp16"
        if checkpoint.quantization is not None or form.quant == "fp16":
            return head_refusal(form)
        if form.quant not in AS_STORED:
            forms = ", ".join(AS_STORED)
            return f"{self.title} cannot load {form.quant}; it takes {forms}, or --engine-option quantization=fp8"
        return f"{form.quant} is not what the checkpoint holds; make one with 'benchmarker checkpoint make'"

    def prove(self, form: Form, checkpoint: Checkpoint, facts: ExternalFacts) -> None:
        options = form.engine_options
        assert isinstance(options, CheckpointOptions)
        label = options.quantization or (checkpoint.quantization or {}).get("quant_method")
        problem = contradiction(label, facts, checkpoint.weight_file_bytes if options.quantization else None)
        if problem:
            raise UnsupportedError(f"{self.name}: {problem}")

    def loaded(self, checkpoint: Checkpoint, facts: ExternalFacts, *, load_s: float) -> LoadFacts | None:
        """Return the facts of loading; None for a quantized checkpoint, whose number of parameters is unknown."""
        if checkpoint.quantization is not None:
            return None
        parameters = sum(math.prod(shape) for _, shape in tensor_shapes(checkpoint.folder, checkpoint.config))
        packed = sum(count for name, count in facts.weight_bytes_by_type.items() if ONE_BYTE.match(name))
        if not facts.weight_bytes_by_type and facts.settings.get("quantization"):
            # SGLang's layers cannot be inspected: each 8-bit parameter takes one byte less than 16 bits.
            packed = max(0, 2 * parameters - (facts.weight_bytes or 0))
        tied = bool(checkpoint.config.get("tie_word_embeddings"))
        known = {"parameters": parameters, "packed_parameters": packed, "is_tied": tied}
        return super().loaded(checkpoint, facts.model_copy(update=known), load_s=load_s)


def contradiction(label: str | None, facts: ExternalFacts, plain_bytes: int | None) -> str | None:
    """Return how a model contradicts its label, the name of a quantization; None if it does not. With online
    quantization, weights must take clearly less than the files of the 16-bit checkpoint, `plain_bytes`."""
    quantized = [name for name in facts.linear_methods if not name.startswith(UNQUANTIZED)]
    layers = [name for name in quantized if "KVCache" not in name and "Embedding" not in name]
    if label is None:
        return f"its layers run {', '.join(layers)}, though the row is labelled 16 bit" if layers else None
    if facts.linear_methods and not layers:
        return f"no layer runs quantized, though the row is labelled {label}"
    return None if plain_bytes is None else why_plain(label, facts.weight_bytes, plain_bytes)


def why_plain(label: str, weight_bytes: int | None, plain_bytes: int) -> str | None:
    """Return the sizes that show that weights were not quantized while loading; None if they take clearly less."""
    if weight_bytes is None or weight_bytes <= NEAR_PLAIN * plain_bytes:
        return None
    return f"the weights take {gib(weight_bytes)} of {gib(plain_bytes)} in 16 bit, though the row is labelled {label}"
