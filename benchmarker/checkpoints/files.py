"""A model's folder: what must be in it, checked before anything is loaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from benchmarker.checkpoints.tensor_files import check_tensors
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
    """The error for weights that are there, but as pickles."""
    return ModelError(
        f"{where}: its weights are pickle files (pytorch_model.bin), which can run code when opened; only safetensors "
        "are read: load it once with transformers and write it again with model.save_pretrained(FOLDER)"
    )


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model's folder.

    Raises:
        ModelError: There is none, or it is not JSON.
    """
    config = _read_json(folder, "config.json")
    if config is None:
        if gguf := sorted(folder.glob("*.gguf")):
            raise ModelError(f"{folder}: holds GGUF files; give one of them: --model {gguf[0]} --quant gguf")
        raise ModelError(f"{folder}: no config.json in it; give the folder that holds the model's config and weights")
    return config


def check_weights(folder: Path) -> None:
    """Check that every file of weights is there and whole.

    Raises:
        ModelError: Naming the file at fault.
    """
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
    """A JSON object, or None where there is no such file."""
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
    """Hash of everything that a model's folder holds, names included."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name}\n{digest}\n".encode())
    return total.hexdigest()


def has_tokenizer(folder: Path) -> bool:
    """Whether text can be turned into token ids with what is in the folder."""
    return any(
        (folder / name).exists()
        for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
    )
