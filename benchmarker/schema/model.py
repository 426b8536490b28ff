"""A model and its quantization, for every workload that measures a whole model."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from benchmarker.schema.base import DType, Number, Plain, Positive, Scalar, Whole


class ModelSpec(Plain):
    """Source of the weights."""

    id: Annotated[str, Field(min_length=1)] = "Qwen/Qwen3-4B"
    """A hub id, a folder, or a shape that ships with benchmarker (with load_format dummy)."""
    revision: str | None = None
    """Hub branch, tag or commit."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy` measures random weights in the model's exact shapes: right for time and memory, meaningless as text."""
    dtype: DType = "float16"
    """Type of unquantized weights."""
    trust_remote_code: bool = False
    """Run Python from the model's repository. Requires a revision of 40 hex digits, so that the code cannot change."""
    chat_template: bool = False
    """Wrap text prompts in the model's own chat template."""

    @model_validator(mode="after")
    def _pin_remote_code(self) -> Self:
        if self.trust_remote_code and not re.fullmatch(r"[0-9a-f]{40}", self.revision or ""):
            raise ValueError(
                "trust_remote_code needs a revision of 40 hex digits (--revision), so that the code is pinned"
            )
        return self


class QuantSpec(Plain):
    """Name and options of a quantization."""

    quant: str
    """Quantization of the weights."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Options of the quantization."""


class ModelFacts(Plain):
    """Model that was measured."""

    id: str
    """Name as the user gave it."""
    revision: str | None = None
    """Hub commit of the files; None for a folder or random weights."""
    config_sha256: str | None = None
    """SHA-256 of the model's shapes. It distinguishes models of equal names."""
    files_sha256: str | None = None
    """Fingerprint of a folder's files, equal for any path. None for a model from the hub and in older records."""
    load_format: Literal["auto", "dummy"] = "auto"
    dtype: str = "float16"
    """16- or 32-bit type of unquantized weights."""
    parameters: Whole | None = None
    """Number of parameters; shared tensors count once."""
    trust_remote_code: bool = False
    chat_template: bool = False


class TensorTypes(Plain):
    """Storage types of the tensors of a GGUF file."""

    tensors_by_type: dict[str, Whole]
    """Number of tensors by type: `{"Q8_0": 29, "F32": 17}`."""
    weight_bytes_by_type: dict[str, Whole]
    output_type: str
    """Type of the output layer."""
    is_tied: bool
    """Whether the embedding is also the output layer."""


class LoadFacts(Plain):
    """Cost and result of loading."""

    load_s: Number
    """Time until the model is ready on the device, s, including reading from disk."""
    quantize_s: Number | None = None
    """Time of quantizing the checkpoint, now or in an earlier run, s; excluded from `load_s`. None if the checkpoint
    was quantized already, or is quantized while loading."""
    peak_bytes: Whole | None = None
    """Peak memory while loading, bytes: live tensors on a GPU, growth of resident memory on CPU."""
    weight_bytes: Positive
    """Bytes of the unique storages of all parameters and buffers, quantization scales included."""
    parameters: Positive
    """Number of parameters of the architecture; shared ones count once."""
    bits_per_weight: Number
    """8 * weight_bytes / parameters: effective bits, unquantized parts and scales included."""
    quantized_fraction: Number
    """Share of the parameters that is stored in fewer than 16 bits."""
    linear_classes: dict[str, Whole]
    """Number of linear layers by class."""
    weight_classes: dict[str, Whole]
    """Number of weight tensors by class. torchao's layers are plain `Linear`; their weights are not."""
    lm_head_dtype: str
    lm_head_tied: bool
    """Whether the output layer shares its storage with the input embedding."""
    file_types: TensorTypes | None = None
    """Tensor types of the GGUF file from which the model was read. None for a folder."""
    per_gpu_bytes: tuple[Whole, ...] = ()
    """`weight_bytes` of each GPU that shares the model. Empty for one GPU."""
    notes: tuple[str, ...] = ()
    """Notes of the loader for the reader, such as a config of the checkpoint that replaced an option."""


DISAGREEMENT = 0.02
"""Largest relative difference between an engine's own times and our clock's without a flag."""


class ExternalFacts(Plain):
    """Build, settings and proof of an external engine. None if the engine does not report a value."""

    environment: str
    """Name of the environment; it and `version` identify the pinned packages."""
    version: str
    python: str
    commit: str | None = None
    library_sha256: str | None = None
    """SHA-256 of llama.cpp's library if its commit is unknown."""
    build: str | None = None
    """Backends and instruction sets of the build."""
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """Settings with which it was opened."""
    weight_bytes: int | None = None
    weight_bytes_by_type: dict[str, int] = Field(default_factory=dict)
    tensors_by_type: dict[str, int] = Field(default_factory=dict)
    parameters: int | None = None
    """Number of parameters in the tensors of a GGUF file."""
    packed_parameters: int | None = None
    """Number of parameters in fewer than 16 bits."""
    output_type: str | None = None
    """Type of the output layer. llama.cpp's Q4_0 stores it in Q6_K."""
    is_tied: bool | None = None
    """Whether the embedding is also the output layer."""
    linear_methods: dict[str, int] = Field(default_factory=dict)
    """Number of layers by vLLM's class of linear method."""
    attention: tuple[str, ...] = ()
    kv_cache_bytes: int | None = None
    """KV cache reserved at the start, bytes; more than one generation needs."""
    peak_bytes: int | None = None
    """Peak host memory of the engine's process, bytes."""
    fallback: str | None = None
    """Tensors that the quantization's name does not cover."""
    choosing_share: float | None = None
    """Share of the decode time of the last generation for choosing tokens on the host."""
    step_s: float | None = None
    """Median time of a step of the last generation without choosing the token, s, as llama-bench times it."""
    disagreement: float | None = None
    """Larger relative difference between the engine's own TTFT or seconds per token and our clock's, median over
    generations. None without own times."""
    ttft_disagreement: float | None = None
    """Relative difference between the engine's own TTFT and our clock's, median over generations. None in older
    records."""
    tpot_disagreement: float | None = None
    """Relative difference between the engine's own seconds per token and our clock's, median over generations."""

    @property
    def times_disagree(self) -> bool:
        """Whether the row needs a flag."""
        return self.disagreement is not None and self.disagreement > DISAGREEMENT


Purpose = Literal["linear", "packed_rows", "joined_linears", "swiglu", "attention", "layer"]
Origin = Literal["library", "inductor", "benchmarker"]
OWN_ATTENTION = "one kernel, reads the filled part"
"""`EngineFacts.attention` of this program's decode attention. Other values begin with the owner and a comma."""


class KernelUse(Plain):
    """One kernel, or one kind of layer, that a decode step uses."""

    purpose: Purpose
    """`linear`: W4A16 or dense product with one row; `packed_rows`: with several rows; `joined_linears`: several
    linears of one input in one product; `swiglu`: an MLP's activation inside its product; `layer`: fused decode layer.
    """
    origin: Origin
    """Owner of the kernel: the layer's library, torch's compiler, or this program."""
    name: str
    """Name of the kernel, or the library's class of layer."""
    covered: int | None = None
    """Number of linears that it multiplies. None if it concerns no linears, or all of them."""
    total: int | None = None
    """Number of linears of the model."""

    def words(self) -> str:
        """Return a sentence: `gemv_gptq, benchmarker's own kernel: 252 of 253 linears`."""
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


class ProductChoice(Plain):
    """Kernel of one matrix shape in a step of several sequences, with the measurement that chose it."""

    form: str
    """Storage of the weights, as in the GEMM kernels."""
    rows: Whole
    """Number of sequences of the step."""
    inputs: Whole
    outputs: Whole
    way: str
    """Name of the fastest candidate in `us`."""
    us: dict[str, Number]
    """Time of each candidate alone, microseconds, with cold weights."""

    def words(self) -> str:
        """Return a sentence: `nf4, 2560 inputs to 6144 outputs, 8 rows: 9.1 us by 64 outputs, ... (of 5 ...)`."""
        slowest = max(self.us.values(), default=0.0)
        return (
            f"{self.form}, {self.inputs} inputs to {self.outputs} outputs, {self.rows} rows: "
            f"{self.us.get(self.way, 0.0):.1f} us by {self.way} (of {len(self.us)} candidates; "
            f"the slowest {slowest:.1f} us)"
        )


def attention_use(attention: str) -> KernelUse:
    """Return the kernel of a decode step's attention.

    Args:
        attention: As in `EngineFacts.attention`.
    """
    if attention == OWN_ATTENTION:
        return _own("attention", "decode_attention")
    return KernelUse(purpose="attention", origin="library", name=attention.split(",")[0])


def one_row(uses: tuple[KernelUse, ...]) -> tuple[KernelUse, ...]:
    """Return the kernels of a step with fused decode layers, which have their own attention kernel."""
    rest = tuple(use for use in uses if use.purpose != "attention")
    return (*rest, _own("layer", "one_row_layer"), _own("attention", "one_row_attention"))


def _own(purpose: Purpose, name: str) -> KernelUse:
    return KernelUse(purpose=purpose, origin="benchmarker", name=name)


def multiplies_all_packed(uses: tuple[KernelUse, ...]) -> bool:
    """Return whether this program's kernel multiplies all of GPTQ's linears."""
    has_own = any(use.name == "gemv_gptq" for use in uses)
    return has_own and not any(use.purpose == "linear" and use.origin == "library" for use in uses)


class StepFacts(Plain):
    """Decode step of an engine with a static KV cache for one cell's shape."""

    graph_kernels: Whole | None = None
    """Number of kernels, copies and fills in its graph by the driver's count. None without a graph."""
    attention: str | None = None
    """Attention kernel, and whether it reads the whole cache."""
    products: tuple[ProductChoice, ...] = ()
    """Measured choices of native's products with several rows, by matrix shape."""


class EngineFacts(Plain):
    """Proof of how the tokens were produced."""

    name: str
    tokens_read: Literal["each", "end"]
    """`each`: the host reads every token as it is made; `end`: all tokens at the end."""
    kv_cache: Literal["dynamic", "static", "paged", "quantized"]
    kv_cache_stored: str | None = None
    """Storage of keys and values in a quantized cache; None for other caches."""
    setup_s: Number | None = None
    """Time of the first generation at a new shape, s, with compilation or capture; the longest of several. None without
    set-up."""
    setup_cache: Literal["cold", "warm"] | None = None
    """`warm` if every graph came from the compiler's cache on disk. None without compilation."""
    compiled: Literal["layer", "step"] | None = None
    """Unit of one compilation: a decoder layer, which all layers run, or the whole step."""
    frames_compiled: Whole | None = None
    """Number of frames that torch.compile compiled, over all shapes."""
    graph_breaks: Whole | None = None
    """None without compilation; else 0, because a break is an error before timing."""
    recompilations: Whole | None = None
    """Number of recompilations while timing. One makes the cell `unsupported`."""
    graphs_captured: Whole | None = None
    """Number of CUDA or HIP graphs of a decode step, over all shapes. None without graphs."""
    graph_replays: Whole | None = None
    """Number of decode steps in timed runs that were a replay of a graph."""
    graph_kernels: Whole | None = None
    """Number of kernels, copies and fills in the last graph by the driver's count. A step that runs more of them
    without replay was not captured completely, and its cells are invalid."""
    attention: str | None = None
    """Attention of the last decode step to its static cache. None for `generate`."""
    prefill: Literal["captured", "plain"] | None = None
    """Whether a requested captured prefill was captured, or launched kernel by kernel. None if not requested."""
    prefill_reason: str | None = None
    """Reason why a requested captured prefill is plain."""
    kernels_used: tuple[KernelUse, ...] = ()
    """Kernels of a decode step."""
    engine_version: str | None = None
    """Version of an external engine. None if the environment's packages contain it."""
    external: ExternalFacts | None = None
    """Build, settings and proof of an external engine."""
    kernels_per_token: Number | None = None
    """Number of kernels of one decode step by the profiler, at the last cell. None on CPU and without a profile."""
