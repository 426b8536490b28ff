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


def engine_place(name: str) -> int:
    """Return an engine's position in the registry; the last position for an unknown name."""
    names = list(ENGINES)
    return names.index(name) if name in names else len(names)


def runs_here(name: str) -> bool:
    """Return whether an engine runs a model in this program, so that `benchmarker generate` accepts it."""
    return name in MODEL_ENGINES


def libraries_of(quant: str) -> tuple[str, ...] | None:
    """Return the pip names of a quantization's libraries; None for an unknown quantization."""
    return LOADERS[quant].packages if quant in LOADERS else None


def engine_options(variant: VariantSpec) -> Options:
    """Return the engine's options as its own type, with defaults."""
    return ENGINES[variant.engine].options.model_validate(variant.engine_options)


def chosen_options(quant: str, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a recorded quantization's options that differ from the defaults; all for an unknown one."""
    if quant not in LOADERS:
        return dict(options)
    defaults = LOADERS[quant].options().model_dump()
    return {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}


def chosen_engine_options(engine: str, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a recorded engine's options that differ from the defaults."""
    defaults = ENGINES[engine].options().model_dump() if engine in ENGINES else {}
    return {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}


def form_of(variant: VariantSpec, dtype: DType) -> Form:
    """Return the variant as an engine opens it.

    Args:
        dtype: Type of unquantized weights.
    """
    return Form(
        variant.quant, loader_options(variant), dtype, engine_options(variant), gpus=variant.gpus, split=variant.split
    )
