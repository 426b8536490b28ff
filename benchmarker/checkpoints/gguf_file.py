"""GGUF files of llama.cpp: written from 16-bit safetensors, and inspected.

llama.cpp receives token ids only and supports few tokenizers, so files written here have placeholder tokens, without
which llama-server aborts. Norms stay float32, as in llama.cpp's converter; matrices become float16, which rounds the
smallest bfloat16 weights.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarker.checkpoints.files import INDEX, SINGLE, check_weights, read_config
from benchmarker.core.errors import MissingLibraryError, ModelError, first_line, installed_version, read_problem
from benchmarker.schema.model import TensorTypes

FORMAT = "gguf"  # Name of the format and of its library.
BLOCK_K = 256  # Weights per block of the K formats (Q4_K, Q6_K, ...).
WRITTEN = ("qwen3",)  # `model_type`s that `write_gguf` supports.
PLAIN = ("F32", "F16", "BF16")  # Unquantized tensor types.
PLACEHOLDER = "benchmarker.placeholder_tokens"  # Metadata key of files that `write_gguf` wrote.
BYTE_TOKENS = 256  # Tokens <0x00> to <0xFF>, into which llama.cpp splits unknown text.
OUTPUT, EMBEDDING = "output.weight", "token_embd.weight"
SHAPE_FIELDS = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
}
"""Metadata key of a GGUF file by key of config.json."""
BROKEN = (ValueError, IndexError, KeyError, OSError, OverflowError, struct.error)  # Errors raised by a damaged file.


@dataclass(frozen=True)
class GgufFacts:
    architecture: str
    parameters: int
    types: TensorTypes
    narrow_rows: dict[str, tuple[int, ...]]
    """Row lengths that no K format can hold (no multiple of 256), by type of the tensor: `{"Q8_0": (896,)}`."""
    shapes: dict[str, int]  # Values under the keys of a config.json: `vocab_size`, `max_position_embeddings`, ...
    packed_parameters: int  # Parameters in fewer than 16 bits.
    has_tokenizer: bool

    def fallback(self, form: str) -> str | None:
        """Return `Q4_K_M: rows of 896 are Q8_0, since ...`; None if the format `form` has no such rows in this file."""
        if "_K" not in form or not self.narrow_rows:
            return None
        parts = [
            f"rows of {', '.join(map(str, lengths))} are {name}" for name, lengths in sorted(self.narrow_rows.items())
        ]
        return f"{form}: {'; '.join(parts)}, since the K formats need a multiple of {BLOCK_K}"


def why_no_gguf() -> str | None:
    """Return how to install gguf-py; None if it is installed."""
    if installed_version(FORMAT) is not None:
        return None
    return "GGUF files need the library 'gguf', which is not installed; pip install gguf"


def require_gguf() -> None:
    if reason := why_no_gguf():
        raise MissingLibraryError(reason)


def gguf_facts(path: Path) -> GgufFacts:
    """Return the facts in a GGUF file's header; ModelError for damaged files and unsupported architectures."""
    require_gguf()
    import gguf

    _check_magic(path)
    try:
        reader = gguf.GGUFReader(path)
        field = reader.get_field("general.architecture")
        architecture = "" if field is None else str(field.contents())
    except BROKEN as error:
        raise ModelError(
            f"{path}: a damaged GGUF file, or one that was not copied whole; get or make it again "
            f"({first_line(error)[:100]})"
        ) from error
    if architecture not in gguf.MODEL_ARCH_NAMES.values():
        raise ModelError(f"{path}: a GGUF file of the architecture '{architecture}', which llama.cpp does not support")
    sizes: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    narrow: dict[str, set[int]] = {}
    types: dict[str, str] = {}
    packed = 0
    for tensor in reader.tensors:
        name = tensor.tensor_type.name
        types[str(tensor.name)] = name
        packed += 0 if name in PLAIN else int(tensor.n_elements)
        sizes[name] += int(tensor.n_bytes)
        tensors[name] += 1
        row = int(tensor.shape[0])
        if row % BLOCK_K and name not in PLAIN:
            narrow.setdefault(name, set()).add(row)
    return GgufFacts(
        architecture=architecture,
        parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
        shapes=_shapes_in(reader, architecture),
        packed_parameters=packed,
        has_tokenizer=bool(reader.get_field(gguf.Keys.Tokenizer.LIST)) and reader.get_field(PLACEHOLDER) is None,
        types=TensorTypes(
            tensors_by_type=tensors,
            weight_bytes_by_type=sizes,
            output_type=types.get(OUTPUT) or types.get(EMBEDDING, "none"),
            is_tied=OUTPUT not in types,
        ),
        narrow_rows={name: tuple(sorted(rows)) for name, rows in narrow.items()},
    )


def _shapes_in(reader: Any, architecture: str) -> dict[str, int]:
    fields = {name: reader.get_field(f"{architecture}.{key}") for name, key in SHAPE_FIELDS.items()}
    shapes = {name: int(field.contents()) for name, field in fields.items() if field is not None}
    rows = next((int(tensor.shape[1]) for tensor in reader.tensors if str(tensor.name) == EMBEDDING), None)
    return shapes if rows is None else {**shapes, "vocab_size": rows}


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(read_problem(path, error)) from error
    if magic != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file")


def write_gguf(folder: Path, target: Path) -> None:
    """Write the checkpoint in a folder as a GGUF file with float16 matrices, one tensor in memory at a time."""
    require_gguf()
    import gguf
    import numpy

    config = read_config(folder)
    check_writable(folder, config)
    check_weights(folder)
    writer = gguf.GGUFWriter(target, "qwen3")
    rope = config.get("rope_parameters") or {}
    for name, key in SHAPE_FIELDS.items():
        writer.add_uint32(f"{writer.arch}.{key}", config[name])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(1)  # LLAMA_FTYPE_MOSTLY_F16
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("llama")
    # No token types, so that byte tokens are normal text: the server would hold incomplete characters back.
    writer.add_token_list([f"<0x{i:02X}>" if i < BYTE_TOKENS else f"t{i}" for i in range(config["vocab_size"])])
    writer.add_bool(PLACEHOLDER, True)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, shape in tensor_shapes(folder, config):
        kind, itemsize = ("float16", 2) if len(shape) > 1 else ("float32", 4)
        translated = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if translated is None:
            raise ModelError(f"{folder}: the tensor {name} has no counterpart in a GGUF file of Qwen3")
        writer.add_tensor_info(translated, shape, numpy.dtype(kind), math.prod(shape) * itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for file, name in _tensor_names(folder, config):
        tensor = file.get_tensor(name)
        values = (tensor.half() if tensor.dim() > 1 else tensor.float()).numpy()
        if not numpy.isfinite(values).all():
            raise ModelError(f"{folder}: {name} has values that float16 cannot hold, so it cannot be written as F16")
        writer.write_tensor_data(values)
    writer.close()


def check_writable(folder: Path, config: dict[str, Any]) -> None:
    """Raise ModelError if a checkpoint with this config cannot be written as GGUF."""
    kind = config.get("model_type")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if kind not in WRITTEN:
        reason = f"model_type '{kind}'"
    elif config.get("quantization_config"):
        reason = "a checkpoint that is quantized already"
    elif rope.get("rope_type", "default") != "default":
        reason = f"rope_type '{rope['rope_type']}'"
    elif config.get("use_sliding_window") or config.get("attention_bias"):
        reason = "a sliding window or attention biases"
    else:
        return
    raise ModelError(
        f"{folder}: {reason} is not written as GGUF here; make the file with llama.cpp's convert_hf_to_gguf.py "
        "and give it with --model"
    )


def _tensor_names(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    from safetensors import safe_open

    tied = config.get("tie_word_embeddings", False)
    for path in sorted(folder.glob("*.safetensors")) if (folder / INDEX).exists() else [folder / SINGLE]:
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                if not (tied and name == "lm_head.weight"):
                    yield file, name


def tensor_shapes(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of a text model's tensors, shared ones once, from the file headers."""
    for file, name in _tensor_names(folder, config):
        yield name, tuple(file.get_slice(name).get_shape())
