"""Generation of text with a model in any quantization, by the same decode step that is measured.

Generation is greedy, one text at a time, until an end-of-text token or `max_new_tokens`. The first text sets up the
engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from pydantic import ValidationError

from benchmarker.checkpoints.files import has_tokenizer
from benchmarker.core.errors import DeviceError, ModelError, SpecError, first_line
from benchmarker.engines.base import refuse_device
from benchmarker.engines.registry import torch_engine
from benchmarker.hardware.device import Device, find_device
from benchmarker.schema.base import Scalar, first_problem

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""Text that a tokenizer returns for a character whose remaining bytes are in the next token."""


class Generator:
    """`Generator(load_model("Qwen/Qwen3-4B", "int8"), engine="native").generate("Why is the sky blue?")`."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        engine: str = "eager",
        engine_options: Mapping[str, Scalar] | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        chat_template: bool = False,
    ) -> None:
        """Wrap a model that `load_model` returned. Raises BenchmarkerError.

        Args:
            engine_options: Options of the engine, such as {"prefill": "captured"} for native.
            tokenizer: Default: the tokenizer in the folder from which the model was loaded.
        """
        from transformers import AutoTokenizer

        self.model = model
        self.device: Device = find_device(str(model.device))
        refuse_device(engine, self.device)
        kind = torch_engine(engine)
        try:
            options = kind.options.model_validate(dict(engine_options or {})).model_dump()
        except ValidationError as error:
            raise SpecError(f"engine_options: {first_problem(error, kind.options)}") from None
        self._decoder = kind.decoder(model, self.device, **options)
        folder = Path(model.name_or_path or "")
        if tokenizer is None and not has_tokenizer(folder):
            raise ModelError(f"{folder}: no tokenizer there; add its files, or give Generator one")
        self._tokenizer: Any = tokenizer or AutoTokenizer.from_pretrained(folder)
        if chat_template and not getattr(self._tokenizer, "chat_template", None):
            raise ModelError("this model's tokenizer has no chat template")
        self._chat_template = chat_template

    @overload
    def generate(self, text: str, *, max_new_tokens: int = ..., stream: Literal[False] = ...) -> str: ...
    @overload
    def generate(self, text: str, *, max_new_tokens: int = ..., stream: Literal[True]) -> Iterator[str]: ...

    def generate(self, text: str, *, max_new_tokens: int = 200, stream: bool = False) -> str | Iterator[str]:
        """Return the continuation of a text; if `stream`, an iterator over its pieces. Raises BenchmarkerError."""
        if not isinstance(text, str):
            raise SpecError(f"text: must be a str, not {type(text).__name__}; call generate once for each text")
        if self._chat_template:
            messages = [{"role": "user", "content": text}]
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=not self._chat_template)
        if not ids:
            raise SpecError("the text comes out as no token at all; give a longer one")
        if max_new_tokens < 1:
            raise SpecError(f"max_new_tokens: {max_new_tokens} is less than one token")
        positions = getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        if positions is not None and len(ids) + max_new_tokens > positions:
            room = positions - len(ids)
            remedy = f"generate at most {room}" if room > 0 else f"use a text under {positions} tokens"
            raise SpecError(
                f"text of {len(ids)} tokens + {max_new_tokens} new tokens is past the model's {positions} positions; "
                f"{remedy}"
            )
        pieces = self._pieces(ids, max_new_tokens)
        return pieces if stream else "".join(pieces)

    @property
    def stop_tokens(self) -> frozenset[int]:
        configured = getattr(self.model.generation_config, "eos_token_id", None)
        listed = configured if isinstance(configured, list) else [configured]
        return frozenset(token for token in (*listed, self._tokenizer.eos_token_id) if token is not None)

    def _pieces(self, ids: list[int], new_tokens: int) -> Iterator[str]:
        prompt = self._decoder.tensor([ids])
        decode = self._tokenizer.decode
        tokens: list[int] = []
        # New tokens are decoded together with the previous few, because the text of a token depends on the one before.
        settled = printed = 0
        try:
            for more in self._decoder.stream(prompt, new_tokens, self.stop_tokens):
                tokens += more
                before = decode(tokens[settled:printed], skip_special_tokens=True)
                text = decode(tokens[settled:], skip_special_tokens=True)
                if len(text) > len(before) and not text.endswith(UNFINISHED):
                    yield text[len(before) :]
                    settled, printed = printed, len(tokens)
        except Exception as error:
            if not self.device.is_out_of_memory(error):
                raise
            raise DeviceError(
                f"out of memory after {len(ids)} + {len(tokens)} tokens ({first_line(error)}); use a shorter text, "
                "fewer new tokens or a smaller form"
            ) from error
        rest = decode(tokens[settled:], skip_special_tokens=True)
        rest = rest[len(decode(tokens[settled:printed], skip_special_tokens=True)) :]
        if rest:
            yield rest
