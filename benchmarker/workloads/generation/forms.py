"""Which forms of a model there are: names of a variant, looked up in the registries of quantizations and runtimes."""

from __future__ import annotations

from benchmarker.core.errors import FieldError, did_you_mean
from benchmarker.quantization.registry import resolved_quant
from benchmarker.schema.model import RUNTIMES
from benchmarker.workloads.generation.spec import VariantSpec


def resolve(variant: VariantSpec) -> VariantSpec:
    """The variant as the registries have it.

    Raises:
        FieldError: There is no such quantization or runtime, or an option that it does not have.
    """
    variant = resolved_quant(variant)
    if variant.runtime not in RUNTIMES:
        raise FieldError(f"no runtime '{variant.runtime}'{did_you_mean(variant.runtime, RUNTIMES)}", field="runtime")
    return variant
