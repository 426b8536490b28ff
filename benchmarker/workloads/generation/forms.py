"""Which forms of a model there are: names of a variant, looked up in the registries of quantizations and engines."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from benchmarker.core.errors import FieldError, did_you_mean
from benchmarker.engines.base import Form
from benchmarker.engines.decoders.kv_cache import static_cache_refusal
from benchmarker.engines.registry import ENGINES, MODEL_ENGINES
from benchmarker.quantization.base import Options
from benchmarker.quantization.registry import LOADERS, loader_options, resolved_quant
from benchmarker.schema.base import DType, Scalar, first_problem
from benchmarker.workloads.generation.spec import VariantSpec, name_of


def resolve(variant: VariantSpec) -> VariantSpec:
    """The variant with the names that the registries have: an older or another name becomes today's.

    Raises:
        FieldError: There is no such quantization or engine, or an option that it does not have.
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
    """Where an engine stands in the registry; the last place for a name that is not there."""
    names = list(ENGINES)
    return names.index(name) if name in names else len(names)


def runs_here(name: str) -> bool:
    """Whether an engine runs a model in this program, so that `benchmarker generate` takes it."""
    return name in MODEL_ENGINES


def libraries_of(quant: str) -> tuple[str, ...] | None:
    """pip names of what a quantization brings; None for a quantization that is not in the registry."""
    return LOADERS[quant].packages if quant in LOADERS else None


def engine_options(variant: VariantSpec) -> Options:
    """The engine's options as its own type, defaults filled in."""
    return ENGINES[variant.engine].options.model_validate(variant.engine_options)


def chosen_options(quant: str, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Of a recorded quantization's options those that are not its defaults. All of them where it is not known here."""
    if quant not in LOADERS:
        return dict(options)
    defaults = LOADERS[quant].options().model_dump()
    return {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}


def chosen_engine_options(engine: str, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The same of a recorded engine's."""
    defaults = ENGINES[engine].options().model_dump() if engine in ENGINES else {}
    return {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}


def form_of(variant: VariantSpec, dtype: DType) -> Form:
    """What an engine is told to open.

    Args:
        dtype: Of what is not quantized.
    """
    return Form(
        variant.quant, loader_options(variant), dtype, engine_options(variant), gpus=variant.gpus, split=variant.split
    )
