"""From a model's name to a checked checkpoint: a folder, a GGUF file, a hub id, or random weights.

All errors that can be detected are raised before any weight is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarker.checkpoints.base import GGUF_SUFFIX, Checkpoint, Form, Progress, Silent
from benchmarker.checkpoints.dummy import make_dummy
from benchmarker.checkpoints.files import check_weights, models_with_weights, only_shipped, read_config, shipped_shape
from benchmarker.checkpoints.gguf_file import FORMAT, gguf_facts
from benchmarker.checkpoints.hub import fetch, look_up
from benchmarker.checkpoints.model_config import language_model_config
from benchmarker.checkpoints.read_model import import_libraries
from benchmarker.core.errors import ModelError
from benchmarker.schema.model import ModelSpec


def find_in_form(
    model: ModelSpec,
    form: Form,
    *,
    progress: Progress | None = None,
    device: str = "cpu",
    check_config: Callable[[dict[str, Any]], None] = lambda config: None,
) -> Checkpoint:
    """Return a model's checkpoint for a quantization, downloaded or made if necessary.

    Args:
        device: torch's name of the model's device, on which a dummy's random numbers are made.
        check_config: Raises if the config is not suitable, before any weight is downloaded or made.

    Raises:
        BenchmarkerError: It cannot be found, reached, read or used with this quantization.
    """
    progress = progress or Silent()
    dummy = model.load_format == "dummy"
    if gguf := gguf_file(model):
        checkpoint = _gguf_checkpoint(model, gguf)
        check_config(checkpoint.config)
        return checkpoint

    def config_in(folder: Path) -> dict[str, Any]:
        return language_model_config(folder, read_config(folder), model.id, trusted=model.trust_remote_code)

    def check_folder(folder: Path) -> None:
        config = config_in(folder)
        check_config(config)
        if not dummy:
            form.check_stored(model.id, config)

    folder, revision = _find_folder(model, weights=not dummy, check=check_folder, progress=progress)
    if not dummy:
        check_weights(folder)
    import_libraries(*form.packages)
    config = config_in(folder)
    if dummy:
        return make_dummy(model, form, config, source=folder, revision=revision, progress=progress, device=device)
    return Checkpoint(
        folder=folder,
        model_id=model.id,
        revision=revision,
        dummy=False,
        config=config,
        is_text_part=config.get("model_type") != read_config(folder).get("model_type"),
        trust_remote_code=model.trust_remote_code,
    )


def look_for(model: ModelSpec) -> str | None:
    """Check that a model exists, before anything is downloaded or loaded.

    Returns:
        Hub commit of its files, or None for a folder or if the hub does not report it.

    Raises:
        ModelError: It cannot be found, reached or read.
    """
    weights = model.load_format != "dummy"
    if gguf := gguf_file(model):
        _gguf_checkpoint(model, gguf)
        return None
    folder = _local_folder(model, weights=weights)
    if folder is None:
        return look_up(model.id, revision=model.revision, weights=weights)
    read_config(folder)
    if weights:
        check_weights(folder)
    return None


def gguf_file(model: ModelSpec) -> Path | None:
    """Return the file if the model is given as a GGUF file, or None."""
    path = Path(model.id).expanduser()
    return path if path.suffix == GGUF_SUFFIX and path.is_file() else None


def _gguf_checkpoint(model: ModelSpec, path: Path) -> Checkpoint:
    """Return the checkpoint of a GGUF file, with the shapes that it states."""
    if model.load_format == "dummy":
        raise ModelError(f"{model.id}: a GGUF file has its weights; leave --load-format dummy out")
    _refuse_revision(model, "a file")
    facts = gguf_facts(path)
    config = {"model_type": facts.architecture, "quantization_config": {"quant_method": FORMAT}, **facts.shapes}
    return Checkpoint(folder=path, model_id=model.id, revision=None, dummy=False, config=config)


def _find_folder(
    model: ModelSpec, *, weights: bool, check: Callable[[Path], None], progress: Progress
) -> tuple[Path, str | None]:
    """Return the model's folder and its hub commit."""
    folder = _local_folder(model, weights=weights)
    if folder is not None:
        check(folder)
        return folder, None
    return fetch(
        model.id,
        revision=model.revision,
        weights=weights,
        code=model.trust_remote_code,
        check_config=check,
        progress=progress,
    )


def _local_folder(model: ModelSpec, *, weights: bool) -> Path | None:
    """Return a folder that needs no hub, or None for a hub id."""
    local = Path(model.id).expanduser()
    if local.is_dir():
        _refuse_revision(model, "a folder")
        return local
    if local.is_file():
        raise ModelError(
            f"{model.id}: a file; give the folder that holds the model's config and weights (or a .gguf file, for "
            "--quant gguf or --engine llama-cpp)"
        )
    shape = shipped_shape(model.id)
    if shape is not None and only_shipped(model.id):
        _refuse_revision(model, "a model that ships with benchmarker")
        if weights and model.id not in models_with_weights():
            has = ", ".join(models_with_weights())
            raise ModelError(
                f"{model.id}: ships with benchmarker as a shape without weights; use --load-format dummy "
                f"(models with weights: {has})"
            )
        return shape
    if shape is not None and not weights and model.revision is None:
        return shape
    _check_hub_id(model.id)
    return None


def _refuse_revision(model: ModelSpec, what: str) -> None:
    # For a folder, a revision can only pin remote code.
    if model.revision is not None and not model.trust_remote_code:
        raise ModelError(f"{model.id}: {what}, which has no revisions; leave --revision out")


def _check_hub_id(model_id: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(model_id)
    except HFValidationError as error:
        raise ModelError(f"{model_id}: no such folder (and not a hub id such as Qwen/Qwen3-4B)") from error
