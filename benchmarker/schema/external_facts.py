"""What a record says of an engine that runs in a process of its own: values, as the driver gave them."""

from __future__ import annotations

from pydantic import Field

from benchmarker.schema.base import Plain

DISAGREEMENT = 0.02
"""Share by which an engine's own times may differ from our clock's before the row is flagged."""


class ExternalFacts(Plain):
    """Build, settings and proof of what ran. None where the engine does not tell."""

    environment: str
    """Name of the environment; its pins are known by it and by `version`."""
    version: str
    python: str
    commit: str | None = None
    library_sha256: str | None = None
    """Of llama.cpp's library: which build it was, where no commit is known."""
    build: str | None = None
    """What the engine says of its build: backends and instruction sets."""
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """What it was opened with."""
    weight_bytes: int | None = None
    weight_bytes_by_type: dict[str, int] = Field(default_factory=dict)
    tensors_by_type: dict[str, int] = Field(default_factory=dict)
    parameters: int | None = None
    """Of a GGUF file's tensors, as the next three."""
    packed_parameters: int | None = None
    """In fewer than 16 bits."""
    output_type: str | None = None
    """Of the output layer, which may differ from the form's name: llama.cpp's Q4_0 has it in Q6_K."""
    is_tied: bool | None = None
    """Whether the embedding is the output layer too."""
    linear_methods: dict[str, int] = Field(default_factory=dict)
    """vLLM's class of each layer's way of multiplying, with how many layers have it."""
    attention: tuple[str, ...] = ()
    kv_cache_bytes: int | None = None
    """Reserved at the start for all requests that may come: not what one generation needs."""
    peak_bytes: int | None = None
    """Most host memory that the engine's process held."""
    fallback: str | None = None
    """Tensors that the form's name does not cover."""
    choosing_share: float | None = None
    """Share of the decode time that went into choosing tokens on the host, in the last generation."""
    step_s: float | None = None
    """Median seconds of a step of the last generation without choosing the token: what llama-bench times."""
    disagreement: float | None = None
    """Share by which the engine's own TTFT or seconds a token, whichever is worse, differ from our clock's: the median
    over all generations. None where it gives no times of its own."""
    ttft_disagreement: float | None = None
    """Relative difference between the engine's own TTFT and our clock's, median over all generations. None in records
    that have only `disagreement`."""
    tpot_disagreement: float | None = None
    """Relative difference between the engine's own seconds per token and our clock's, median over all generations."""

    @property
    def times_disagree(self) -> bool:
        """Whether the row needs a flag."""
        return self.disagreement is not None and self.disagreement > DISAGREEMENT
