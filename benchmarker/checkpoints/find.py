"""Find and check the checkpoint of a model: a folder, a GGUF file, a hub id, or random weights.

All errors that can be detected are raised before any weight is loaded. The hub library reads HF_TOKEN, HF_HOME,
HF_ENDPOINT and HF_HUB_OFFLINE itself; this module never handles a token.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from benchmarker.checkpoints.base import GGUF_SUFFIX, Checkpoint, Progress, QuantizationNeeds, Silent
from benchmarker.checkpoints.cache import has_random_weights
from benchmarker.checkpoints.dummy import make_dummy
from benchmarker.checkpoints.files import (
    PICKLES,
    check_weights,
    models_with_weights,
    only_shipped,
    pickle_only,
    read_config,
    shape_names,
    shipped_shape,
)
from benchmarker.checkpoints.gguf_file import FORMAT, gguf_facts
from benchmarker.checkpoints.read_model import import_libraries, language_model_config
from benchmarker.core.errors import ModelError, near_miss
from benchmarker.schema.model import ModelSpec

SHAPE_FILES = ("*.json", "*.model", "*.txt", "*.jinja")
ANSWER_S = 10.0  # Timeout of a request, per IP address of the hub. The library has none.


def find_for_quantization(
    model: ModelSpec,
    needs: QuantizationNeeds,
    *,
    progress: Progress | None = None,
    device: str = "cpu",
    check_config: Callable[[dict[str, Any]], None] = lambda config: None,
) -> Checkpoint:
    """Return a model's checkpoint for a quantization, downloaded or made if necessary.

    Random weights are generated on `device`. `check_config` raises an error if the config is not suitable.
    """
    progress = progress or Silent()
    is_dummy = model.load_format == "dummy"
    if gguf := gguf_file(model):
        checkpoint = _gguf_checkpoint(model, gguf)
        check_config(checkpoint.config)
        return checkpoint

    def config_in(folder: Path) -> dict[str, Any]:
        return language_model_config(folder, read_config(folder), model.id, trusted=model.trust_remote_code)

    local = local_folder(model)
    if local:
        check_config(config_in(local))
    folder = local or _download(model, lambda folder: check_config(config_in(folder)), progress)
    revision = None if local else folder.name
    if not is_dummy:
        check_weights(folder)
    import_libraries(*needs.packages)
    config = config_in(folder)
    if is_dummy:
        return make_dummy(model, needs, config, source=folder, revision=revision, progress=progress, device=device)
    return Checkpoint(
        folder=folder,
        model_id=model.id,
        revision=revision,
        dummy=has_random_weights(model),
        config=config,
        is_text_part=config.get("model_type") != read_config(folder).get("model_type"),
        trust_remote_code=model.trust_remote_code,
    )


def look_for(model: ModelSpec) -> str | None:
    """Return a model's hub commit, None for a local model; ModelError if it does not exist. Nothing is downloaded."""
    if gguf := gguf_file(model):
        _gguf_checkpoint(model, gguf)
        return None
    folder = local_folder(model)
    if folder is None:
        commit, is_reachable = _look_up(model)
        return commit if is_reachable else _snapshot(model, SHAPE_FILES, Silent(), offline=True).name
    read_config(folder)
    if model.load_format != "dummy":
        check_weights(folder)
    return None


def stored_quantization(model: ModelSpec) -> dict[str, Any] | None:
    """Return `quantization_config` of a model's config.json, the only file that is downloaded for a hub id.

    None for an unquantized model, and if config.json cannot be read (loading raises that error).
    """
    if only_shipped(model.id):
        return None
    if gguf_file(model):
        return {"quant_method": FORMAT}
    with contextlib.suppress(ModelError):
        folder = local_folder(model)
        stored = (read_config(folder) if folder else _hub_config(model.id, model.revision)).get("quantization_config")
        return stored if isinstance(stored, dict) else None
    return None


@cache
def _hub_config(model_id: str, revision: str | None) -> dict[str, Any]:
    """Return the config.json of a hub id, from the hub's cache if possible; {} if it cannot be read."""
    model = ModelSpec(id=model_id, revision=revision)
    for offline in (True, False):
        with contextlib.suppress(ModelError):
            return read_config(_snapshot(model, ("config.json",), Silent(), offline=offline))
    return {}


def gguf_file(model: ModelSpec) -> Path | None:
    path = Path(model.id).expanduser()
    return path if path.suffix == GGUF_SUFFIX and path.is_file() else None


def _gguf_checkpoint(model: ModelSpec, path: Path) -> Checkpoint:
    if model.load_format == "dummy":
        raise ModelError(f"{model.id}: a GGUF file has its weights; leave --load-format dummy out")
    _refuse_revision(model, "a file")
    facts = gguf_facts(path)
    config = {"model_type": facts.architecture, "quantization_config": {"quant_method": FORMAT}, **facts.shapes}
    return Checkpoint(path, model.id, None, dummy=False, config=config, has_gguf_tokenizer=facts.has_tokenizer)


def local_folder(model: ModelSpec) -> Path | None:
    """Return the folder of a local or shipped model, None for a hub id; ModelError if the folder does not exist."""
    local = Path(model.id).expanduser()
    # Unlike Path.is_dir, os.path.isdir is False for a name that is too long.
    if os.path.isdir(local):
        _refuse_revision(model, "a folder")
        return local
    if os.path.isfile(local):
        raise ModelError(
            f"{model.id}: a file; give the folder that holds the model's config and weights (or a .gguf file, for "
            "--quant gguf or --engine llama-cpp)"
        )
    shape, has_weights = shipped_shape(model.id), model.load_format != "dummy"
    if shape is not None and only_shipped(model.id):
        _refuse_revision(model, "a model that ships with benchmarker")
        if has_weights and model.id not in models_with_weights():
            raise ModelError(
                f"{model.id}: ships with benchmarker as a shape without weights; use --load-format dummy "
                f"(models with weights: {', '.join(models_with_weights())})"
            )
        return shape
    if shape is not None and not has_weights and model.revision is None:
        return shape
    if local.suffix == GGUF_SUFFIX:
        raise ModelError(f"{model.id}: no such file")
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(model.id)
    except HFValidationError as error:
        raise ModelError(f"{model.id}: no such folder (and not a hub id such as Qwen/Qwen3-4B)") from error
    return None


def _refuse_revision(model: ModelSpec, what: str) -> None:
    # For a folder, a revision can only pin remote code.
    if model.revision is not None and not model.trust_remote_code:
        raise ModelError(f"{model.id}: {what}, which has no revisions; leave --revision out")


def _download(model: ModelSpec, check_folder: Callable[[Path], None], progress: Progress) -> Path:
    """Return the folder of a hub model. Missing files are downloaded, weights only after `check_folder` succeeded."""
    shape = (*SHAPE_FILES, *(("*.py",) if model.trust_remote_code else ()))
    everything = (*shape, *(() if model.load_format == "dummy" else ("model*.safetensors",)))
    _, is_reachable = _look_up(model)
    if not is_reachable:
        folder = _snapshot(model, everything, progress, offline=True)
        check_folder(folder)
        return folder
    # Requested by the user's revision (`main`) and not by its commit, so that the cache finds `main` offline.
    check_folder(_snapshot(model, shape, progress))
    return _snapshot(model, everything, progress)


def _look_up(model: ModelSpec) -> tuple[str | None, bool]:
    """Return the commit of the model's revision (None if the hub reports none), and whether the hub answers."""
    from huggingface_hub import HfApi, errors

    try:
        info = HfApi().model_info(model.id, revision=model.revision, timeout=ANSWER_S)
    except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        _refuse(model, error)
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        # 401 and 403 are answers; 5xx and connection errors are not.
        if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
            _refuse(model, error)
        return None, False
    names = [file.rfilename for file in info.siblings or ()]
    if model.load_format != "dummy" and not any(name.endswith(".safetensors") for name in names):
        if any(name in PICKLES for name in names):
            raise pickle_only(model.id)
        raise ModelError(f"{model.id}: has no safetensors weights on the hub; only safetensors are read")
    return info.sha, True


def _snapshot(model: ModelSpec, patterns: tuple[str, ...], progress: Progress, *, offline: bool = False) -> Path:
    from huggingface_hub import errors, snapshot_download

    try:
        folder = snapshot_download(
            model.id,
            revision=model.revision,
            allow_patterns=list(patterns),
            etag_timeout=ANSWER_S,
            local_files_only=offline,
            tqdm_class=_bar(progress),
        )
    except (errors.LocalEntryNotFoundError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        if isinstance(error, errors.HfHubHTTPError) and error.response.status_code < 500:
            _refuse(model, error)
        raise _out_of_reach(model) from error
    except OSError as error:
        reason = f"not downloaded: {error.strerror or error}; HF_HOME chooses another folder"
        raise ModelError(f"{model.id}: {reason}") from error
    return Path(folder)


def _out_of_reach(model: ModelSpec) -> ModelError:
    near = near_miss(model.id, shape_names(), alike=0.7)
    way_on = (
        "take --model qwen3-small, which ships with benchmarker, give a folder with --model PATH, or measure random "
        "weights of its shape with --load-format dummy"
    )
    if model.load_format == "dummy":
        shapes = ", ".join(name for name in shape_names() if name != near)
        way_on = f"give a folder with its config.json, or a shape that ships with benchmarker ({shapes})"
    meant = f"; benchmarker ships '{near}'" if near and near not in way_on else ""
    return ModelError(
        f"{model.id}: the Hugging Face hub cannot be reached (or HF_HUB_OFFLINE is set), "
        f"and it is not in the cache{meant}; {way_on}"
    )


def _refuse(model: ModelSpec, error: Exception) -> NoReturn:
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        page = f"https://huggingface.co/{model.id}"
        raise ModelError(f"{model.id}: gated; accept its licence on {page} and set HF_TOKEN to your token") from error
    if isinstance(error, RevisionNotFoundError):
        raise ModelError(f"{model.id}: no revision '{model.revision}' on the hub; check --revision") from error
    raise ModelError(
        f"{model.id}: no such model on the hub (a private one needs HF_TOKEN), and no folder of that name here"
    ) from error


def _bar(progress: Progress) -> type[Any]:
    """Return a tqdm class that reports downloaded MiB to `progress` and draws no bar."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def display(self, msg: str | None = None, pos: int | None = None) -> None:  # noqa: ARG002
            if self.unit == "B" and self.total:
                progress.step("downloading (MiB)", int(self.n) >> 20, int(self.total) >> 20)

    return Bar
