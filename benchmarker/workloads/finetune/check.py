"""What is known of a job before anything is loaded: what it may not ask, its key, and the record's first fields."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarker.checkpoints.find import look_for
from benchmarker.checkpoints.shipped_models import shipped_shape
from benchmarker.core.errors import MissingLibraryError, SpecError
from benchmarker.core.fingerprint import folder_fingerprint
from benchmarker.core.packages import install_hint, installed_version
from benchmarker.schema.job import Job
from benchmarker.schema.model_facts import ModelFacts
from benchmarker.workloads.finetune.record import FinetuneVariantFacts
from benchmarker.workloads.finetune.spec import FinetuneJob

MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".py")
"""Endings of the files that are read of a model's folder."""
NEEDS = {"adamw8bit": "bitsandbytes", "paged-adamw8bit": "bitsandbytes"}


def check(job: FinetuneJob) -> None:
    """Refuse what cannot be trained, and what has no measurement here.

    Raises:
        SpecError: With what to do.
        MissingLibraryError: peft or bitsandbytes is wanted and not installed.
    """
    recipe = job.recipe
    where = f"variant {job.variant.name}"
    if recipe.train == "full" and recipe.is_quantized:
        raise SpecError(f"{where}: quantized weights ({recipe.base}) are not trained; use base plain, or train lora")
    if recipe.prepare != "keep" and not recipe.is_quantized:
        raise SpecError(
            f"{where}: prepare {recipe.prepare} is for a quantized base; it would make all weights float32; use keep"
        )
    if job.model.dtype == "float16":
        raise SpecError("--dtype float16: needs a scaled loss, which is not measured; use bfloat16 or float32")
    if job.model.chat_template:
        raise SpecError("--chat-template: wraps a prompt, and there is none; leave it out")
    if job.procedure.energy:
        raise SpecError("--energy: is not counted for fine-tuning; leave it out")
    packages = {"peft"} if recipe.train == "lora" else set[str]()
    packages |= {NEEDS[recipe.optimizer]} if recipe.optimizer in NEEDS else set()
    for package in sorted(packages):
        if installed_version(package) is None:
            words = install_hint("finetune")
            raise MissingLibraryError(f"{where}: the library '{package}' is not installed; {words}")


def check_typed(job: FinetuneJob, typed: Mapping[str, Any]) -> None:  # noqa: ARG001
    """Refuse an option that would do nothing.

    Raises:
        SpecError: With what to leave out.
    """
    if typed.get("procedure.profile_tokens") is not None:
        raise SpecError("--profile-tokens: one whole step is profiled; leave it out")


def key_parts(job: FinetuneJob) -> dict[str, Any]:
    """All of model and recipe that determines a result."""
    return {
        "subject": job.subject.model_dump(mode="json", exclude={"profile_rows"}),
        "files": inputs(job, judged=False),
        "recipe": vars(job.recipe),
    }


def record_fields(job: FinetuneJob) -> dict[str, Any]:
    """Model and variant, as the record has them."""
    recipe, is_lora = job.recipe, job.recipe.train == "lora"
    adapters = {} if is_lora else {"rank": None, "targets": None}
    return {
        "model": ModelFacts(**job.model.model_dump()),
        "variant": FinetuneVariantFacts(
            name=job.variant.name,
            variant=job.variant.variant,
            options=job.variant.model_dump(exclude={"name"}),
            **{**vars(recipe), **adapters},
        ),
    }


def inputs(job: FinetuneJob, *, judged: bool) -> dict[str, str]:  # noqa: ARG001
    """The fingerprint of a model's folder, or of a shape that ships with benchmarker; none for one from the hub."""
    # A name as long as no folder's is an error to ask about; it is not a folder here.
    with contextlib.suppress(OSError, ValueError):
        folder: Path | None = Path(job.model.id).expanduser()
        if folder is not None and not folder.is_dir():
            folder = shipped_shape(job.model.id)
        text = folder_fingerprint(folder, MODEL_FILES) if folder else None
        return {f"model {job.model.id}": text} if text else {}
    return {}


def same_model(job: Job, second: Job) -> bool:
    """Whether two jobs are of one model."""
    assert isinstance(job, FinetuneJob)
    assert isinstance(second, FinetuneJob)
    return job.model == second.model


def look_for_model(job: FinetuneJob) -> str | None:
    """See whether there is such a model, and say its hub commit.

    Raises:
        ModelError: There is none.
    """
    return look_for(job.model)
