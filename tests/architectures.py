"""Small random models of each described architecture."""

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

SHAPE = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "pad_token_id": 0,
}
WIDE = SHAPE | {"head_dim": 64}
WINDOW = {"sliding_window": 16}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
QWEN_EXPERTS = EXPERTS | {"num_experts": 8, "shared_expert_intermediate_size": 64}
LOCAL_EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 8}
DELTA_RULE = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 16}
LATENT = SHAPE | EXPERTS | {
    "num_hidden_layers": 3, "num_key_value_heads": 4, "kv_lora_rank": 64, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32, "v_head_dim": 32, "n_routed_experts": 8, "n_shared_experts": 1,
}  # fmt: skip
FIRST_DENSE = {"first_k_dense_replace": 1}
GEMMA_4 = WIDE | WINDOW | {"num_hidden_layers": 10, "vocab_size_per_layer_input": 2048, "global_head_dim": 128}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "bamba": ("Bamba", SHAPE | MAMBA | {"attn_layer_indices": [1]}),
    "cohere": ("Cohere", SHAPE),
    "cohere2": ("Cohere2", SHAPE | WINDOW),
    "deepseek_v2": ("DeepseekV2", LATENT | FIRST_DENSE | {"q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek_v3": ("DeepseekV3", LATENT | FIRST_DENSE | {"q_lora_rank": 32, "n_group": 1, "topk_group": 1}),
    "ernie4_5": ("Ernie4_5", WIDE),
    "exaone4": ("Exaone4", SHAPE | WINDOW),
    "falcon_h1": ("FalconH1", WIDE | MAMBA | {"mamba_d_ssm": 512}),
    "gemma": ("Gemma", WIDE),
    "gemma2": ("Gemma2", WIDE | WINDOW),
    "gemma3_text": ("Gemma3Text", WIDE | WINDOW | {"num_hidden_layers": 6}),
    "gemma4_text": ("Gemma4Text", GEMMA_4 | {"hidden_size_per_layer_input": 32, "num_kv_shared_layers": 4}),
    "gemma4_text MoE": (
        "Gemma4Text",
        GEMMA_4
        | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True}
        | {"num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2}
        | {"moe_intermediate_size": 64},
    ),
    "glm4": ("Glm4", WIDE),
    "glm4_moe": ("Glm4Moe", WIDE | EXPERTS | FIRST_DENSE | {"n_routed_experts": 8}),
    "glm4_moe_lite": ("Glm4MoeLite", LATENT | {"q_lora_rank": 32}),
    "gpt2": ("GPT2", {"n_embd": 256, "n_head": 4, "n_layer": 2, "vocab_size": 2048}),
    "gpt_neox": ("GPTNeoX", {key: value for key, value in SHAPE.items() if key != "num_key_value_heads"}),
    "gpt_oss": ("GptOss", WIDE | WINDOW | LOCAL_EXPERTS),
    "granite": ("Granite", SHAPE),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        SHAPE | MAMBA | LOCAL_EXPERTS | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 64},
    ),
    "hunyuan_v1_dense": ("HunYuanDenseV1", WIDE),
    "lfm2": ("Lfm2", SHAPE | {"full_attn_idxs": [1], "block_multiple_of": 64}),
    "llama": ("Llama", SHAPE),
    "minimax_m2": ("MiniMaxM2", WIDE | LOCAL_EXPERTS),
    "ministral": ("Ministral", WIDE | WINDOW),
    "ministral3": ("Ministral3", WIDE),
    "mistral": ("Mistral", SHAPE | WINDOW),
    "mixtral": ("Mixtral", SHAPE | LOCAL_EXPERTS),
    "nemotron_h": (
        "NemotronH",
        WIDE
        | EXPERTS
        | {"num_hidden_layers": 4, "layers_block_type": ["mamba", "moe", "attention", "mlp"], "mamba_num_heads": 8}
        | {"mamba_head_dim": 64, "ssm_state_size": 16, "n_groups": 1, "n_routed_experts": 8, "n_group": 1}
        | {"moe_shared_expert_intermediate_size": 64, "topk_group": 1},
    ),
    "olmo2": ("Olmo2", SHAPE),
    "olmo3": ("Olmo3", SHAPE | WINDOW),
    "opt": (
        "OPT",
        {"vocab_size": 2048, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 512}
        | {"word_embed_proj_dim": 256},
    ),
    "phi": ("Phi", SHAPE),
    "phi3": ("Phi3", SHAPE | WINDOW),
    "phimoe": ("Phimoe", SHAPE | LOCAL_EXPERTS),
    "qwen2": ("Qwen2", SHAPE),
    "qwen2_moe": ("Qwen2Moe", SHAPE | QWEN_EXPERTS),
    "qwen3": ("Qwen3", WIDE),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeText",
        {key: value for key, value in WIDE.items() if key != "intermediate_size"} | DELTA_RULE | QWEN_EXPERTS,
    ),
    "qwen3_5_text": ("Qwen3_5Text", WIDE | DELTA_RULE),
    "qwen3_moe": ("Qwen3Moe", WIDE | QWEN_EXPERTS | {"num_attention_heads": 8, "moe_intermediate_size": 128}),
    "qwen3_next": ("Qwen3Next", WIDE | DELTA_RULE | QWEN_EXPERTS),
    "seed_oss": ("SeedOss", WIDE),
    "smollm3": ("SmolLM3", SHAPE),
    "starcoder2": ("Starcoder2", SHAPE),
}  # fmt: skip
"""Prefix of the config class, and fields of the config, by a name that begins with the model_type."""


def small_model(name: str, **fields: Any) -> PreTrainedModel:
    """Return a random model in bfloat16 with the eager attention and eager experts of transformers."""
    prefix, values = ARCHITECTURES[name]
    config = getattr(transformers, f"{prefix}Config")(**values | fields)
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval()
