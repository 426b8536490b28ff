"""Config of a model: its language model, its attention heads and a hash of its shapes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from benchmarker.core.errors import ModelError

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
    # Qwen3-4B has 128, and not hidden_size / heads = 80.
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def shapes_sha256(config: dict[str, Any]) -> str:
    """Return a hash of a model's shapes: equal for a checkpoint, its quantized checkpoints and its dummies."""
    shapes = {key: config[key] for key in SHAPE_KEYS if config.get(key) is not None}
    return hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()


def language_model_config(folder: Path, config: dict[str, Any], model_id: str, *, trusted: bool) -> dict[str, Any]:
    """Return the config of the language model: of a multimodal model, its text part with all defaults filled in.

    Args:
        folder: Folder of the config.json, which also holds the model's own code if there is any.
        config: Content of config.json. It is returned unchanged if it states a vocabulary and attention heads.

    Raises:
        ModelError: transformers cannot read the config, or it describes no causal language model with attention.
    """
    if "vocab_size" in config and "num_attention_heads" in config:
        return config
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    whole = transformers_config(folder, model_id, trusted=trusted)
    text = whole.get_text_config(decoder=True)
    kind = str(text.model_type)
    if not hasattr(text, "vocab_size"):
        raise ModelError(f"{model_id}: model_type '{kind}' has no vocabulary (vocab_size); give a language model")
    if not hasattr(text, "num_attention_heads"):
        raise ModelError(
            f"{model_id}: model_type '{kind}' has no attention heads (num_attention_heads), which the KV cache and "
            "the roofline are counted from; give a model with attention layers"
        )
    if text is whole:
        return {"vocab_size": text.vocab_size} | config
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(
            f"{model_id}: transformers has no causal language model for the text part (model_type '{kind}') of "
            f"model_type '{whole.model_type}'; give a checkpoint of a text model"
        )
    inherited = {key: config[key] for key in ("tie_word_embeddings", "quantization_config") if key in config}
    dtype = config.get("dtype") or config.get("torch_dtype") or text.dtype
    fields: dict[str, Any] = text.to_dict()
    return (
        fields
        | inherited
        | {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]}
        | ({"dtype": str(dtype).removeprefix("torch.")} if dtype else {})
    )


def transformers_config(folder: Path, model_id: str, *, trusted: bool) -> Any:
    """Return transformers' config object for a folder, or raise ModelError."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
    except (ValueError, KeyError, ImportError, OSError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{model_id}: transformers cannot build this model: {' '.join(str(error).split())[:200]}"
        ) from error
