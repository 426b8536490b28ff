"""Files of models: checks of a model's folder before loading, fingerprints, and shipped models."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from benchmarker.core.errors import ModelError, read_problem

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "consolidated.00.pth")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)


def pickle_only(where: str) -> ModelError:
    return ModelError(
        f"{where}: its weights are pickle files (pytorch_model.bin), which can run code when opened; only safetensors "
        "are read: load it once with transformers and write it again with model.save_pretrained(FOLDER)"
    )


def read_config(folder: Path) -> dict[str, Any]:
    config = _read_json(folder, "config.json")
    if config is None:
        if gguf := sorted(folder.glob("*.gguf")):
            raise ModelError(f"{folder}: holds GGUF files; give one of them: --model {gguf[0]} --quant gguf")
        raise ModelError(f"{folder}: no config.json in it; give the folder that holds the model's config and weights")
    stored = config.get("quantization_config") or {}
    if not isinstance(stored, dict) or not isinstance(stored.get("bits") or 0, int | float):
        reason = "quantization_config is not a JSON object, or its bits are not a number"
        raise ModelError(f"{folder / 'config.json'}: {reason}; copy or download it again")
    return config


def check_weights(folder: Path) -> None:
    """Raise ModelError if a file of weights is missing or damaged."""
    index = _read_json(folder, INDEX)
    if index is None and not (folder / SINGLE).exists():
        if any((folder / name).exists() for name in PICKLES):
            raise pickle_only(str(folder))
        raise ModelError(
            f"{folder}: no weights in it ({SINGLE}, or {INDEX} with its shards); "
            "use --load-format dummy to measure random weights of this shape"
        )
    for name in [SINGLE] if index is None else _shards(folder, index):
        path = folder / name
        if not path.is_file():
            raise ModelError(f"{path}: missing, though {INDEX} names it; copy or download it again")
        check_tensors(path)


def _shards(folder: Path, index: dict[str, Any]) -> list[str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{folder / INDEX}: names no shards (no weight_map); copy or download it again")
    return sorted({str(name) for name in weight_map.values()})


def _read_json(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / name
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(read_problem(path, error)) from error
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: not a JSON object")
    return content


def content_sha256(folder: Path) -> str:
    """Return a hash of all files of a model's folder, including their names."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name}\n{digest}\n".encode())
    return total.hexdigest()


WORD_TOKENIZER = "word_per_id"
"""Key of tokenizer_config.json that marks a tokenizer of `write_word_tokenizer`."""


def write_word_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write a tokenizer with one word per id (`w5` for 5), so that a text has as many words as tokens."""
    model = {"type": "WordLevel", "vocab": {f"w{token}": token for token in range(vocabulary)}, "unk_token": "<unk>"}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", WORD_TOKENIZER: True}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has a tokenizer other than that of `write_word_tokenizer`."""
    if (_read_json(folder, "tokenizer_config.json") or {}).get(WORD_TOKENIZER):
        return False
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
    return any((folder / name).exists() for name in names)


def tokenizer_hashes(folder: Path) -> dict[str, str | None]:
    """Return hashes of the tokenizer and of the chat template by field of ModelFacts; None for a missing one.

    Equal tokenizers have equal hashes, although libraries differ in spaces and in writing merges as pairs or text.
    """
    parts: dict[str, Any] = {}
    # A damaged tokenizer is an error of the runs that read it.
    with contextlib.suppress(ModelError):
        parts = _read_json(folder, "tokenizer.json") or {}
    model = parts.get("model") or {}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model.get("merges") or ()]
    text = {name: parts.get(name) for name in ("added_tokens", "normalizer", "pre_tokenizer")}
    template = folder / "chat_template.jinja"
    settings = _read_json(folder, "tokenizer_config.json") or {}
    words = template.read_text(encoding="utf-8") if template.is_file() else settings.get("chat_template")
    return {
        "tokenizer_sha256": json_sha256({"vocab": model.get("vocab"), "merges": merges, **text}) if parts else None,
        "chat_template_sha256": json_sha256(words) if words else None,
    }


def json_sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


POINTER = b"version https://git-lfs"  # Start of a git-lfs pointer file.


def check_tensors(path: Path) -> None:
    """Raise ModelError if a file is not a complete safetensors file. No weight is read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np"):
            return
    except SafetensorError as error:
        with path.open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                raise ModelError(
                    f"{path}: a git-lfs pointer, not the weights themselves; run 'git lfs pull' in its folder"
                ) from error
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise ModelError(
            f"{path}: {path.stat().st_size:,} bytes that are not a whole safetensors file ({reason}); "
            "copy or download it again"
        ) from error


HUB_IDS = {
    "Qwen/Qwen3-4B": "qwen3-4b",
    "Qwen/Qwen3-8B": "qwen3-8b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "Qwen/Qwen3.5-4B": "qwen3.5-4b",
    "google/gemma-3-4b-it": "gemma-3-4b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
}
"""Name of the shipped shape by hub id."""
SHIPPED = {**{name: name for name in ("qwen3-tiny", "qwen3-small", *HUB_IDS.values())}, **HUB_IDS}
"""Folder under benchmarker/models by user-facing name."""


def shape_names() -> tuple[str, ...]:
    return tuple(sorted(set(SHIPPED.values())))


def shipped_shape(model_id: str) -> Path | None:
    name = SHIPPED.get(model_id)
    return _folder(name) if name else None


def only_shipped(model_id: str) -> bool:
    """Return whether the name is a shipped shape and not a hub id."""
    return model_id in SHIPPED and "/" not in model_id


def models_with_weights() -> tuple[str, ...]:
    return tuple(name for name in shape_names() if (_folder(name) / "model.safetensors").is_file())


def _folder(name: str) -> Path:
    return Path(str(files("benchmarker") / "models" / name))


def shipped_text(name: str) -> str:
    """Return a shipped text: `prompts.txt`, `calibration.txt` or `evaluation.txt`."""
    return (files("benchmarker") / "text" / name).read_text(encoding="utf-8")


WHOLE_BYTES = 64 << 20
END_BYTES = 1 << 20
NOT_THERE = "not there"


def changed_inputs(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names in `now` whose fingerprint differs from `before` or is missing there."""
    return [name for name, fingerprint in now.items() if before.get(name, NOT_THERE) != fingerprint]


MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".jinja", ".py")
"""Suffixes of the files that enter the fingerprint of a model's folder."""


def model_fingerprint(model_id: str, endings: Sequence[str] = MODEL_FILES) -> str | None:
    """Return the fingerprint of a model's folder or shipped shape; None for a model from the hub."""
    # A hub id that is too long for a path raises OSError.
    with contextlib.suppress(OSError, ValueError):
        folder = Path(model_id).expanduser()
        if folder.is_file():
            return fingerprint(folder)
        if shipped := folder if folder.is_dir() else shipped_shape(model_id):
            total = hashlib.sha256()
            for path in sorted(shipped.iterdir()):
                if path.suffix in endings and path.is_file():
                    total.update(f"{path.name} {fingerprint(path)}\n".encode())
            return total.hexdigest()
    return None


def fingerprint(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = path.stat()
            if status.st_size <= WHOLE_BYTES:
                return hashlib.file_digest(file, "sha256").hexdigest()
            total = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns} ".encode())
            total.update(file.read(END_BYTES))
            file.seek(-END_BYTES, 2)
            total.update(file.read())
            return total.hexdigest()
    except OSError:
        return NOT_THERE
