"""Driver of llm-compressor and AutoRound, which quantize a checkpoint with calibration tokens of benchmarker.

W4A16 and W8A8 round with GPTQ, after SmoothQuant for W8A8; FP8-dynamic rounds to nearest. AWQ scales channels and then
rounds to nearest. llm-compressor writes the format of compressed-tensors, AutoRound its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

AUTOROUND_BATCH = 8  # Sequences per step, the default of AutoRound.


class Driver:
    def quantize(
        self, *, source: str, target: str, method: str, dtype: str, computed: str, device: str, pieces: list[list[int]]
    ) -> None:
        if device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, computed))
        if method == "autoround":
            _autoround(model, source, target, device, pieces)
        else:
            _compress(model, target, method, pieces, has_gpu=device != "cpu")
        _cast(Path(target), dtype)


def _compress(model: Any, target: str, method: str, pieces: list[list[int]], *, has_gpu: bool) -> None:
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.pipelines.cache import IntermediatesCache

    if not has_gpu:
        # AWQ pins the activations' memory for copies to a GPU; without a GPU, torch raises an error.
        IntermediatesCache.pin_memory = lambda *_, **__: None
    rows = [{"input_ids": piece, "attention_mask": [1] * len(piece)} for piece in pieces]
    size = {"num_calibration_samples": len(rows), "max_seq_length": len(pieces[0])} if rows else {}
    oneshot(
        model=model,
        dataset=Dataset.from_list(rows) if rows else None,
        recipe=_recipe(method),
        output_dir=target,
        **size,
    )


def _recipe(method: str) -> list[Any]:
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    layers: dict[str, Any] = {"targets": "Linear", "ignore": ["lm_head"]}
    if method == "w4a16":
        return [GPTQModifier(scheme="W4A16", **layers)]
    if method == "w8a8":
        # Smoothing strength of llm-compressor's own W8A8 example.
        return [SmoothQuantModifier(smoothing_strength=0.8), GPTQModifier(scheme="W8A8", **layers)]
    if method == "awq":
        return [AWQModifier(), QuantizationModifier(scheme="W4A16", **layers)]
    return [QuantizationModifier(scheme="FP8_DYNAMIC", **layers)]


def _autoround(model: Any, source: str, target: str, device: str, pieces: list[list[int]]) -> None:
    import torch
    from auto_round import AutoRound
    from transformers import AutoTokenizer

    rounding = AutoRound(
        model,
        AutoTokenizer.from_pretrained(source),
        scheme="W4A16",
        dataset=[torch.tensor([piece]) for piece in pieces],
        nsamples=len(pieces),
        seqlen=len(pieces[0]),
        batch_size=min(AUTOROUND_BATCH, len(pieces)),
        device_map=device,
        # On a CPU, compiling takes longer than quantizing a small model without it.
        enable_torch_compile=device != "cpu",
    )
    rounding.quantize_and_save(target, format="auto_round")
    # AutoRound writes to a folder of its own name in the target.
    (config,) = Path(target).rglob("config.json")
    for path in list(config.parent.iterdir()):
        path.rename(Path(target) / path.name)
    if config.parent != Path(target):
        config.parent.rmdir()


def _cast(folder: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        cast = {
            name: tensor.to(getattr(torch, dtype)) if tensor.dtype == torch.float32 else tensor
            for name, tensor in tensors.items()
        }
        save_file(cast, path, metadata={"format": "pt"})
        path.chmod(0o644)
    config = folder / "config.json"
    stored = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps(stored | {"dtype": dtype}, indent=2) + "\n", encoding="utf-8")
