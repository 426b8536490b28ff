"""GGUF files quantized by gguf-py from a file in F16."""

from __future__ import annotations

from pathlib import Path

import gguf
from gguf import quants


def quantized_file(source: Path, target: Path, form: str, *, architecture: str = "qwen3") -> Path:
    """Write a copy of a GGUF file with its matrices in another type and return its path.

    Args:
        source: File with matrices in F16.
        form: `Q8_0`, `Q4_0` or `F16`.
        architecture: Architecture in the new file.
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("qwen3."):
            writer.add_key_value(name.replace("qwen3", architecture, 1), field.contents(), field.types[0])
    ggml_type = gguf.GGMLQuantizationType[form]
    for tensor in reader.tensors:
        if tensor.tensor_type.name == "F16" and form != "F16":
            writer.add_tensor(
                tensor.name, quants.quantize(tensor.data.astype("float32"), ggml_type), raw_dtype=ggml_type
            )
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
