"""Which libraries are there, as pip knows it; none is imported."""

from __future__ import annotations

from importlib import metadata

COMPUTING = (
    "torch",
    "transformers",
    "accelerate",
    "torchao",
    "bitsandbytes",
    "optimum",
    "gptqmodel",
    "triton",
    "pytorch-triton-rocm",
    "triton-rocm",
)
"""Those whose code runs while a model is loaded or generates."""


def install_words(extra: str) -> str:
    """How its libraries are installed. The name alone would fetch somebody else's package from an index."""
    return f"pip install -e '.[{extra}]' in benchmarker's folder"


def installed_version(package: str) -> str | None:
    """Of a pip package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
