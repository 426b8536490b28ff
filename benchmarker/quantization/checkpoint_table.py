"""Table of quantized checkpoints' formats, with the engines and devices that compute with their packed weights.

`doctor` and docs/checkpoints.md print this table. vLLM and SGLang get an unchanged checkpoint (`passed on`); their
version decides whether it runs. Other text in their columns is an exception, such as NVFP4 with 16-bit activations.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.core.errors import installed_version
from benchmarker.core.tables import Column, Sheet
from benchmarker.quantization.dummy_packing import COMPRESSED
from benchmarker.quantization.registry import LOADERS

ANY = "CPUs, GPUs"
FP8_GPU = "NVIDIA GPUs from compute capability 8.9"
UNPACKED = "no: unpacked to 16 bits"
LIBRARY = "the library's kernel"
W4A16 = "own W4A16 kernels"
WITH_TORCH = f"{W4A16} in 4 bits with --option kernel=torch"
PASSED_ON = "passed on"


@dataclass(frozen=True)
class FormatRow:
    name: str
    quant: str  # Name of the loader.
    packed_on: str
    """Devices on which eager, cuda_graph and compile keep the weights packed."""
    native: str
    """Kernel that the engine `native` uses, or "no"."""
    vllm: str = PASSED_ON
    sglang: str = PASSED_ON
    llama_cpp: str = "no"

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages that eager, cuda_graph and compile require."""
        loader = LOADERS[self.quant]
        return (*loader.packages, *loader.gpu_packages)


ROWS = (
    FormatRow("compressed-tensors W4A16", COMPRESSED, f"{ANY} (symmetric)", W4A16),
    FormatRow("compressed-tensors W8A8", COMPRESSED, ANY, "own kernels, torch's int8 GEMM for long prompts"),
    FormatRow("compressed-tensors FP8, per row", COMPRESSED, f"CPUs, {FP8_GPU}", "own GEMV, torch's FP8 GEMM"),
    FormatRow("compressed-tensors W8A16, others", COMPRESSED, UNPACKED, "no"),
    FormatRow(
        "compressed-tensors NVFP4", COMPRESSED, UNPACKED, "no", vllm="on Hopper weights only, activations in 16 bits"
    ),
    FormatRow("FP8 in blocks", "fp8-checkpoint", f"{FP8_GPU}; 9.0 without kernels", "torch's FP8 GEMM on 9.0"),
    FormatRow("AWQ", "awq", ANY, WITH_TORCH),
    FormatRow("GPTQ", "gptq", ANY, f"{WITH_TORCH}, without desc_act"),
    FormatRow("AutoRound", "autoround", ANY, LIBRARY),
    FormatRow("bitsandbytes 4 bit", "bnb4", ANY, W4A16),
    FormatRow("bitsandbytes 8 bit", "bnb8", ANY, LIBRARY),
    FormatRow("torchao int8", "int8", ANY, "own W8A16 kernels"),
    FormatRow("torchao int8-dynamic", "int8-dynamic", ANY, LIBRARY),
    FormatRow("torchao int4", "int4", "NVIDIA GPUs", LIBRARY),
    FormatRow("torchao fp8", "fp8", FP8_GPU, LIBRARY),
    FormatRow("MXFP4 of gpt-oss", "mxfp4", "NVIDIA GPUs from compute capability 7.5", LIBRARY),
    FormatRow(
        "ModelOpt FP8, NVFP4", "modelopt", "no", "no", vllm="passed on; NVFP4 on Hopper weights only", sglang=PASSED_ON
    ),
    FormatRow("GGUF", "gguf", "unpacked for most architectures", "no", vllm="no", sglang="no", llama_cpp=ANY),
)


def local_format_sheet() -> Sheet:
    def lacking(row: FormatRow) -> str:
        return ", ".join(name for name in row.packages if installed_version(name) is None) or "-"

    columns = [
        Column[FormatRow]("checkpoint", lambda row: row.name, "left"),
        Column[FormatRow]("--quant", lambda row: row.quant, "left"),
        Column[FormatRow]("packed on", lambda row: row.packed_on, "left"),
        Column[FormatRow]("not installed", lacking, "left"),
    ]
    return Sheet("Quantized checkpoints in eager, cuda_graph and compile (others: docs/checkpoints.md)", columns, ROWS)
