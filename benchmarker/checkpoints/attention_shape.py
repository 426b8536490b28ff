"""How a model's attention is cut into heads, by its config."""

from __future__ import annotations

from typing import Any


def key_heads(config: Any) -> int:
    """Heads of the keys and of the values. Configs of models in which they are the queries' have no word for them."""
    return getattr(config, "num_key_value_heads", None) or int(config.num_attention_heads)


def head_dim(config: Any) -> int:
    """Numbers of one head."""
    # Qwen3-4B has 128, and not hidden_size / heads = 80.
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
