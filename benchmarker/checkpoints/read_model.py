"""Loading of a checkpoint through transformers, with one-line errors.

transformers fills missing weights with random numbers and continues; here that is an error. gptqmodel, when imported,
sets PYTORCH_ALLOC_CONF (which changes every memory number), CUDA_DEVICE_ORDER, HF_HOME and others, and sets the root
logger to INFO; `undisturbed` restores these settings, so that they are the same for all variants.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.files import has_tokenizer, json_sha256, model_fingerprint, tokenizer_hashes
from benchmarker.core.errors import ModelError, UnsupportedError, report_library_conflicts

if TYPE_CHECKING:
    from torch import nn
    from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase

    from benchmarker.schema.model import ModelFacts

LAYER = re.compile(r"model\.(?:language_model\.)?layers\.(\d+)\.")
SHAPE_KEYS = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "sliding_window",
)
"""Keys of a config.json that decide time and memory. Libraries write the other keys differently."""


def key_heads(config: Any) -> int:
    """Return the number of key heads. Configs without grouped-query attention have no `num_key_value_heads`."""
    return getattr(config, "num_key_value_heads", None) or int(config.num_attention_heads)


def head_dim(config: Any) -> int:
    # Qwen3-4B's head_dim is 128, not hidden_size / heads = 80.
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def experts_per_token(config: Any) -> int | None:
    names = ("num_experts_per_tok", "top_k_experts", "moe_topk")
    return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    from torch import nn

    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise UnsupportedError(f"no list of {count} decoder layers in {type(model).__name__}")


def run_token(model: PreTrainedModel, cache: Cache | None = None) -> None:
    """Run an eager forward pass of one token; torch.compile is off, so that gptqmodel compiles nothing."""
    import torch

    token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        model(input_ids=token, past_key_values=cache, use_cache=cache is not None)


def shapes_sha256(config: dict[str, Any]) -> str:
    """Return a hash of a model's shapes: equal for a checkpoint, its quantized checkpoints and its dummies."""
    return json_sha256({key: config[key] for key in SHAPE_KEYS if config.get(key) is not None})


def found_model(model: ModelFacts, checkpoint: Checkpoint) -> ModelFacts:
    """Return the model's facts for a record, with revision and hashes of its checkpoint."""
    return model.model_copy(
        update={
            "revision": checkpoint.revision,
            "config_sha256": shapes_sha256(checkpoint.config),
            "files_sha256": None if checkpoint.revision else model_fingerprint(checkpoint.model_id),
            **({} if checkpoint.is_gguf else tokenizer_hashes(checkpoint.folder)),
        }
    )


def language_model_config(folder: Path, config: dict[str, Any], model_id: str, *, trusted: bool) -> dict[str, Any]:
    """Return the config of a language model; for a multimodal model the text part of its config, with all defaults.

    Raises:
        ModelError: transformers cannot read the config, or it describes no causal language model with attention.
    """
    from transformers.models.auto import modeling_auto

    model_type = config.get("model_type")
    is_encoder = model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.get("is_decoder")
    if is_encoder or config.get("is_encoder_decoder"):
        kind = "an encoder-decoder" if config.get("is_encoder_decoder") else "an encoder, which predicts masked tokens"
        raise ModelError(f"{model_id}: model_type '{model_type}' is {kind}; give a decoder, such as qwen3-small")
    heads, shared = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and shared and heads % shared:
        reason = f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({shared})"
        raise ModelError(f"{model_id}: in its config.json, {reason}")
    if "vocab_size" in config and "num_attention_heads" in config:
        return config
    whole = transformers_config(folder, model_id, trusted=trusted)
    text = whole.get_text_config(decoder=True)
    kind = str(text.model_type)
    if not hasattr(text, "vocab_size"):
        raise ModelError(f"{model_id}: model_type '{kind}' has no vocabulary (vocab_size); give a language model")
    if not hasattr(text, "num_attention_heads"):
        raise ModelError(
            f"{model_id}: model_type '{kind}' has no attention heads (num_attention_heads), from which the KV "
            "cache and the roofline are computed; give a model with attention layers"
        )
    if text is whole:
        return {"vocab_size": text.vocab_size} | config
    if kind not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        part = "" if kind == whole.model_type else f"the text part (model_type '{kind}') of "
        raise ModelError(
            f"{model_id}: transformers has no causal language model for {part}model_type '{whole.model_type}'; give a "
            "checkpoint of a text model"
        )
    inherited = {key: config[key] for key in ("tie_word_embeddings", "quantization_config") if key in config}
    dtype = config.get("dtype") or config.get("torch_dtype") or text.dtype
    fields: dict[str, Any] = text.to_dict()
    return (
        fields
        | inherited
        | {"architectures": [modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]}
        | ({"dtype": str(dtype).removeprefix("torch.")} if dtype else {})
    )


def transformers_config(folder: Path, model_id: str, *, trusted: bool) -> Any:
    from transformers import AutoConfig

    with model_errors(f"{model_id}: transformers cannot build this model"):
        return AutoConfig.from_pretrained(folder, trust_remote_code=trusted)


@contextlib.contextmanager
def model_errors(problem: str) -> Iterator[None]:
    """Turn an error of transformers into a ModelError of one line."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        yield
    except StrictDataclassError as error:
        raise ModelError(f"{problem}: its config.json is invalid: {_reason(error.__cause__ or error)}") from error
    except (ValueError, KeyError, ImportError, OSError, TypeError, AttributeError) as error:
        raise ModelError(f"{problem}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    if "trust_remote_code=True" in str(error):
        return "it needs Python code from its repository; read that code, then give run --trust-remote-code"
    return textwrap.shorten(str(error), 300, placeholder=" …")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Restore environment variables, the root logger and warning filters at the end of the block."""
    variables = dict(os.environ)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        with warnings.catch_warnings():
            yield
    finally:
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        root.setLevel(level)
        root.handlers[:] = handlers


TEXT_TENSORS = {
    r"^language_model\.lm_head\.": "lm_head.",
    r"^language_model\.model\.": "model.",
    r"^model\.language_model\.": "model.",
}
"""Prefix of tensor names in a text model, by the pattern of that prefix in multimodal checkpoints."""


ERRORS_OF_FILES = (
    "does not recognize this architecture",
    "Unrecognized configuration class",
    "Unrecognized model",
    "ignore_mismatched_sizes",
    "trust_remote_code=True",
    "is not supported yet",
)
"""Texts in transformers' error messages that identify a faulty or unsupported checkpoint."""


NOISE = {"torchao": "Failed to load ", "torch.utils._pytree": "is an Enum subclass"}
"""Texts that libraries log during the import of torchao, by logger: missing binaries for other machines, and torchao's
own use of torch."""


def _concerns_user(record: logging.LogRecord) -> bool:
    return not any(text in str(record.msg) for text in NOISE.values())


def import_libraries(*packages: str) -> None:
    """Import transformers and `packages`, so that the load time does not include their import."""
    for name in NOISE:
        logging.getLogger(name).addFilter(_concerns_user)
    with undisturbed(), report_library_conflicts():
        for name in ("transformers.models.auto.modeling_auto", "transformers.generation", *packages):
            importlib.import_module(name.replace("-", "_"))


def import_architecture(config: Mapping[str, Any]) -> None:
    """Import the model's class, if transformers has one, so that the load time does not include its import."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    class_name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.get("model_type", ""))
    if class_name:
        getattr(transformers, class_name)


def read_model(
    checkpoint: Checkpoint, target: Target, *, quantization: Any | None = None, not_stored: Sequence[str] = ()
) -> PreTrainedModel:
    """Return the model on its device, in evaluation mode.

    Args:
        quantization: transformers quantization config, or None to load the checkpoint as it is.
        not_stored: Attribute names of tensors that modules create and no checkpoint has: `input_perm`.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM

    # quantization_config=None would override the checkpoint's own.
    extra: dict[str, Any] = {} if quantization is None else {"quantization_config": quantization}
    folder, file = checkpoint.location
    has_code = checkpoint.trust_remote_code and "auto_map" in checkpoint.config
    try:
        if checkpoint.is_text_part:
            extra |= {"config": _text_config(checkpoint), "key_mapping": TEXT_TENSORS}
        if checkpoint.is_gguf:
            config: Any = AutoConfig.from_pretrained(folder, **file)
            # transformers 5.23 uses the architecture's default head_dim even if the file states another.
            if "head_dim" in checkpoint.config and hasattr(config, "head_dim"):
                config.head_dim = checkpoint.config["head_dim"]
            extra |= {"config": config}
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, target.dtype),
            use_safetensors=True,
            trust_remote_code=checkpoint.trust_remote_code,
            output_loading_info=True,
            **_placement(target),
            **file,
            **extra,
        )
    except SafetensorError as error:
        raise ModelError(f"{checkpoint.folder}: its weights cannot be read: {error}") from error
    except (ValueError, KeyError, RuntimeError, AttributeError, TypeError, ImportError, OSError) as error:
        problem = f"cannot be loaded: {_reason(error)}"
        if "ignore_mismatched_sizes" in str(error):
            problem = "its tensors have other shapes than its config.json states; --verbose lists them"
        elif not any(sign in str(error) for sign in ERRORS_OF_FILES):
            # For missing or unknown quantized tensors, each library raises its own error.
            is_quantized = checkpoint.quantization is not None and not isinstance(error, ImportError)
            if not (has_code or is_quantized) or re.search("memory|CUDA", str(error)):
                raise
            cause = f"{type(error).__name__}: {_reason(error)}"
            problem = f"its quantized weights cannot be loaded ({cause}); --verbose shows the libraries' messages"
            if has_code:
                problem = f"its own Python code fails ({cause}); install the packages and transformers that it needs"
        raise ModelError(f"{checkpoint.model_id}: {problem}") from error
    model: PreTrainedModel = loaded[0]
    missing = sorted(key for key in loaded[1]["missing_keys"] if key.rpartition(".")[2] not in not_stored)
    if missing:
        raise ModelError(
            f"{checkpoint.model_id}: the checkpoint lacks {len(missing)} of the model's tensors, such as {missing[0]}; "
            "is its config.json that of another model?"
        )
    # Layers of the decoder, and of multi-token prediction.
    layers = checkpoint.config.get("num_hidden_layers", math.inf)
    layers += checkpoint.config.get("num_nextn_predict_layers") or 0
    unexpected = sorted(loaded[1]["unexpected_keys"])
    if further := [key for key in unexpected if (match := LAYER.match(key)) and int(match[1]) >= layers]:
        raise ModelError(
            f"{checkpoint.model_id}: the checkpoint has tensors of layers that its config.json does not have "
            f"({further[0]} first); is it that of another model?"
        )
    model.eval()
    return model


def _text_config(checkpoint: Checkpoint) -> Any:
    whole = transformers_config(checkpoint.folder, checkpoint.model_id, trusted=checkpoint.trust_remote_code)
    config = whole.get_text_config(decoder=True)
    config.tie_word_embeddings = checkpoint.config["tie_word_embeddings"]
    if checkpoint.quantization is not None:
        config.quantization_config = checkpoint.quantization
    return config


def _placement(target: Target) -> dict[str, Any]:
    if target.gpus == 1:
        return {"device_map": target.device}
    if target.split == "tensors":
        from transformers.distributed.configuration_utils import DistributedConfig

        # "auto" is the architecture's own plan. Every rank loads the model and reads its shard of each weight.
        return {"distributed_config": DistributedConfig(tp_size=target.gpus, tp_plan="auto")}
    import torch

    first = torch.device(target.device).index or 0
    # Without limits, layers that do not fit on these GPUs would silently run from host memory.
    free_bytes = {index: torch.cuda.mem_get_info(index)[0] for index in range(first, first + target.gpus)}
    return {"device_map": "balanced", "max_memory": free_bytes}


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase | None:
    folder, file = checkpoint.location
    if not (checkpoint.has_gguf_tokenizer if file else has_tokenizer(folder)):
        return None
    from transformers import AutoTokenizer

    trusted = checkpoint.trust_remote_code
    with model_errors(f"{checkpoint.model_id}: its tokenizer cannot be read"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=trusted, **file)
    return tokenizer
