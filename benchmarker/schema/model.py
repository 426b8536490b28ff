"""A model and its quantization, for every workload that measures a whole model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from benchmarker.schema.base import DType, Number, Plain, Positive, Scalar, Whole


class ModelSpec(Plain):
    id: Annotated[str, Field(min_length=1)] = "Qwen/Qwen3-4B"
    """A hub id, a folder, or a shape that ships with benchmarker (with load_format dummy)."""
    revision: str | None = None
    """Hub branch, tag or commit."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy` measures random weights in the model's exact shapes: right for time and memory, meaningless as text."""
    dtype: DType = "float16"
    """Type of unquantized weights."""
    trust_remote_code: bool = False
    """Run Python from the model's repository. A hub id requires a revision of 40 hex digits, to pin the code."""
    chat_template: bool = False
    """Wrap text prompts in the model's own chat template."""

    @model_validator(mode="after")
    def _pin_remote_code(self) -> Self:
        # The record has a hash of a local folder's code.
        is_pinned = re.fullmatch(r"[0-9a-f]{40}", self.revision or "")
        if self.trust_remote_code and not is_pinned and not Path(self.id).is_dir():
            raise ValueError(
                "trust_remote_code needs a revision of 40 hex digits (--revision), so that the code is pinned"
            )
        return self


AUTO = "auto"
"""Name that selects the checkpoint's own quantization, or fp16 for an unquantized checkpoint."""


class QuantSpec(Plain):
    quant: str
    """Quantization of the weights."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Options of the quantization."""


class ModelFacts(Plain):
    id: str
    checkpoint: str | None = None
    """Checkpoint that was measured; null if it is `id`."""
    revision: str | None = None
    config_sha256: str | None = None
    """SHA-256 of the model's shapes. It distinguishes models of equal names."""
    files_sha256: str | None = None
    tokenizer_sha256: str | None = None
    chat_template_sha256: str | None = None
    load_format: Literal["auto", "dummy"] = "auto"
    dtype: str = "float16"
    parameters: Whole | None = None
    trust_remote_code: bool = False
    chat_template: bool = False


class TensorTypes(Plain):
    tensors_by_type: dict[str, Whole]
    weight_bytes_by_type: dict[str, Whole]
    output_type: str
    is_tied: bool


ModuleKind = Literal[
    "attention", "linear attention", "MLP", "experts", "router", "output layer", "embedding rows", "other"
]


class ModuleWeights(Plain):
    """Weights of one kind of module that a decode step reads. All experts count."""

    parameters: Whole
    quantized_parameters: Whole
    """Parameters in fewer than 16 bits."""
    bytes_by_type: dict[str, Whole]
    """Bytes by the type in which they are stored, scales included."""


class WeightCoverage(Plain):
    """Weights that a decode step reads, by kind of module, as stored after the first forward pass."""

    kinds: dict[ModuleKind, ModuleWeights]

    @property
    def unquantized(self) -> dict[ModuleKind, float]:
        """Share of all weights in 16 bits or more, by kind of module, the largest first."""
        total = sum(weights.parameters for weights in self.kinds.values())
        shares = {
            kind: (weights.parameters - weights.quantized_parameters) / total for kind, weights in self.kinds.items()
        }
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    @property
    def unquantized_share(self) -> float:
        return sum(self.unquantized.values())

    @property
    def words(self) -> str:
        """Shares in a sentence; a kind with less than half a percent is left out."""
        shares = {kind: f"{100 * share:.0f} %" for kind, share in self.unquantized.items() if share >= 0.005}
        kinds = ", ".join(f"{kind} {share}" for kind, share in shares.items())
        return f"{100 * self.unquantized_share:.0f} % of the weights are not quantized ({kinds})"


class LoadFacts(Plain):
    load_s: Number
    quantize_s: Number | None = None
    """Time of quantizing the checkpoint, now or in an earlier run; excluded from `load_s`."""
    peak_bytes: Whole | None = None
    """Peak while loading: live tensors on a GPU, growth of resident memory on CPU."""
    weight_bytes: Positive
    """Bytes of the unique storages of all parameters and buffers, quantization scales included."""
    parameters: Positive
    bits_per_weight: Number
    """8 * weight_bytes / parameters: effective bits, unquantized parts and scales included."""
    quantized_fraction: Number
    linear_classes: dict[str, Whole]
    weight_classes: dict[str, Whole]
    """Number of weight tensors by class. torchao's layers are plain `Linear`; their weights are not."""
    lm_head_dtype: str
    lm_head_tied: bool
    file_types: TensorTypes | None = None
    coverage: WeightCoverage | None = None
    """None for 16-bit weights, external engines, and in older records."""
    per_gpu_bytes: tuple[Whole, ...] = ()
    notes: tuple[str, ...] = ()


DISAGREEMENT = 0.02  # Relative difference of an engine's own times from the measured ones that prints a caveat.


class ExternalFacts(Plain):
    """Build and settings of an external engine, and the kernels that it reports."""

    environment: str
    version: str
    python: str
    commit: str | None = None
    library_sha256: str | None = None
    build: str | None = None
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    weight_bytes: int | None = None
    weight_bytes_by_type: dict[str, int] = Field(default_factory=dict)
    tensors_by_type: dict[str, int] = Field(default_factory=dict)
    parameters: int | None = None
    packed_parameters: int | None = None
    output_type: str | None = None
    """Type of the output layer. llama.cpp's Q4_0 stores it in Q6_K."""
    is_tied: bool | None = None
    linear_methods: dict[str, int] = Field(default_factory=dict)
    linear_kernels: dict[str, int] = Field(default_factory=dict)
    """Number of linear layers by the class of the engine's kernel, such as `MarlinLinearKernel`."""
    attention: tuple[str, ...] = ()
    kv_cache_bytes: int | None = None
    peak_bytes: int | None = None
    fallback: str | None = None
    """Sentence on tensors with another type than the quantization's; null if there are none."""
    choosing_share: float | None = None
    """Share of the last generation's decode time in which the host chose tokens."""
    step_s: float | None = None
    """Median time of a decode step of the last generation without the choice of the token, as in llama-bench."""
    disagreement: float | None = None
    """Larger of `ttft_disagreement` and `tpot_disagreement`."""
    ttft_disagreement: float | None = None
    """Relative difference between the TTFT of the engine's own clock and the measured TTFT, median over generations."""
    tpot_disagreement: float | None = None


Purpose = Literal["linear", "packed_rows", "joined_linears", "swiglu", "attention", "layer"]
Origin = Literal["library", "inductor", "benchmarker"]
OWN_ATTENTION = "one kernel, reads the filled part"
"""Value of `EngineFacts.attention` for benchmarker's kernel. Other values begin with a library's name and a comma."""


class KernelUse(Plain):
    """One kernel, or one kind of layer, that a decode step uses."""

    purpose: Purpose
    origin: Origin
    name: str
    covered: int | None = None
    """Number of linear layers, of `total`, that use the kernel; null if all do, or for a kernel of other layers."""
    total: int | None = None

    def words(self) -> str:
        owner = {
            "library": "the library's",
            "inductor": "torch's compiler's",
            "benchmarker": "benchmarker's own kernel",
        }
        what = {
            "linear": "multiplies",
            "packed_rows": "multiplies packed weights by several rows",
            "joined_linears": "linears of one input are one product",
            "swiglu": "an MLP's activation is part of its product",
            "attention": "attends to the KV cache",
            "layer": "a decoder layer of one sequence is five kernels",
        }[self.purpose]
        count = "" if self.covered is None else f": {self.covered} of {self.total} linears"
        return f"{self.name}, {owner[self.origin]}, {what}{count}"


class ModuleKernel(Plain):
    """The kernel by which a decode step uses the weights of one kind of module, such as the experts."""

    kind: ModuleKind
    kernel: str
    origin: Origin
    modules: Whole
    is_16_bit: bool


OWNERS: dict[Origin, str] = {"library": "library", "inductor": "torch's compiler", "benchmarker": "own kernel"}


def kinds_words(kernels: Sequence[ModuleKernel]) -> str:
    """Return `experts: 2 batched_mm (library, 16 bit); output layer: 1 gemv_dense (own kernel, 16 bit)`."""
    by_kind: dict[str, list[str]] = {}
    for use in kernels:
        width = ", 16 bit" if use.is_16_bit else ""
        by_kind.setdefault(use.kind, []).append(f"{use.modules} {use.kernel} ({OWNERS[use.origin]}{width})")
    if "linear attention" in by_kind:
        by_kind["linear attention"].append("the recurrence of the library")
    return "; ".join(f"{kind}: {', '.join(words)}" for kind, words in by_kind.items())


class ProductChoice(Plain):
    """Matmul kernel of one matrix shape in a batched decode step, with the times of all candidates."""

    form: str
    rows: Whole
    inputs: Whole
    outputs: Whole
    way: str
    """Name of the fastest candidate in `us`."""
    us: dict[str, Number]


def attention_use(attention: str) -> KernelUse:
    """Return the attention kernel that a value of `EngineFacts.attention` describes."""
    if attention == OWN_ATTENTION:
        return _own("attention", "decode_attention")
    return KernelUse(purpose="attention", origin="library", name=attention.split(",")[0])


def one_row(uses: tuple[KernelUse, ...]) -> tuple[KernelUse, ...]:
    rest = tuple(use for use in uses if use.purpose != "attention")
    return (*rest, _own("layer", "one_row_layer"), _own("attention", "one_row_attention"))


def _own(purpose: Purpose, name: str) -> KernelUse:
    return KernelUse(purpose=purpose, origin="benchmarker", name=name)


def multiplies_all_packed(uses: tuple[KernelUse, ...]) -> bool:
    has_own = any(use.name == "gemv_gptq" for use in uses)
    return has_own and not any(use.purpose == "linear" and use.origin == "library" for use in uses)


class StepFacts(Plain):
    """Decode step of an engine with a static KV cache for one cell's shape."""

    graph_kernels: Whole | None = None
    attention: str | None = None
    experts: str | None = None
    products: tuple[ProductChoice, ...] = ()


class EngineFacts(Plain):
    name: str
    tokens_read: Literal["each", "end"]
    """`each`: the host reads every token as it is made; `end`: the host reads all tokens after the last one."""
    kv_cache: Literal["dynamic", "static", "paged", "quantized"]
    kv_cache_stored: str | None = None
    setup_s: Number | None = None
    """Time of the first generation at a new shape, with compilation or capture; the longest of several."""
    setup_cache: Literal["cold", "warm"] | None = None
    compiled: Literal["layer", "step"] | None = None
    """`layer`: one compiled decoder layer runs for all layers; `step`: the whole step is compiled. Null if neither."""
    frames_compiled: Whole | None = None
    graph_breaks: Whole | None = None
    """Number of graph breaks: 0 for a compiled engine, because a break is an error; null for other engines."""
    recompilations: Whole | None = None
    graphs_captured: Whole | None = None
    graph_replays: Whole | None = None
    graph_kernels: Whole | None = None
    """Number of kernels, copies and fills in the last graph. The cell is invalid if a step runs more than these."""
    attention: str | None = None
    experts: str | None = None
    """transformers' matmul of the experts in a decode step: `batched_mm` copies the experts of each token,
    `grouped_mm` reads each expert once. None for a model without fused experts, and in older records."""
    prefill: Literal["captured", "plain"] | None = None
    prefill_reason: str | None = None
    kernels_used: tuple[KernelUse, ...] = ()
    modules: tuple[ModuleKernel, ...] = ()
    """Kernels by kind of module at the last shape; empty except for `native`."""
    engine_version: str | None = None
    external: ExternalFacts | None = None
    kernels_per_token: Number | None = None
    """Number of kernels of one decode step, profiled at the last cell. Null on CPU."""
