"""Look-up of a variant's names in the registries of quantizations and engines."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from benchmarker.core.errors import FieldError, did_you_mean
from benchmarker.engines.base import Form
from benchmarker.engines.decoders.eager import static_cache_refusal
from benchmarker.engines.registry import ENGINES, MODEL_ENGINES
from benchmarker.quantization.base import Options
from benchmarker.quantization.registry import LOADERS, loader_options, resolved_quant
from benchmarker.schema.base import DType, Scalar, first_problem
from benchmarker.workloads.generation.record import GenerationVariant
from benchmarker.workloads.generation.spec import VariantSpec, name_of


def resolve(variant: VariantSpec) -> VariantSpec:
    """Return the variant with the registries' names.

    Raises:
        FieldError: There is no such quantization, engine or option.
    """
    is_named = variant.name != name_of(variant.model_dump())
    variant = resolved_quant(variant)
    if variant.engine not in ENGINES:
        raise FieldError(f"no engine '{variant.engine}'{did_you_mean(variant.engine, ENGINES)}", field="engine")
    try:
        engine_options(variant)
    except ValidationError as error:
        reason = (
            static_cache_refusal(variant.engine, variant.engine_options) if variant.engine in MODEL_ENGINES else None
        )
        if reason:
            raise FieldError(reason) from None
        raise FieldError(first_problem(error, ENGINES[variant.engine].options), field="engine_options") from None
    return variant if is_named else variant.model_copy(update={"name": name_of(variant.model_dump())})


def engine_options(variant: VariantSpec) -> Options:
    return ENGINES[variant.engine].options.model_validate(variant.engine_options)


def chosen_options(variant: GenerationVariant) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """Return the recorded options of quantization and engine that differ from the defaults; all for an unknown name."""
    of_quant = LOADERS[variant.quant].options().model_dump() if variant.quant in LOADERS else {}
    of_engine = ENGINES[variant.engine].options().model_dump() if variant.engine in ENGINES else {}
    return _without(of_quant, variant.options), _without(of_engine, variant.engine_options)


def _without(defaults: Mapping[str, Scalar], options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}


def form_of(variant: VariantSpec, dtype: DType) -> Form:
    return Form(
        variant.quant, loader_options(variant), dtype, engine_options(variant), gpus=variant.gpus, split=variant.split
    )
