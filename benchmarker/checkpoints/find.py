"""From a model's name to a checked checkpoint: a folder, a GGUF file, a hub id, or random weights.

All errors that can be detected are raised before any weight is loaded. The hub library reads HF_TOKEN, HF_HOME,
HF_ENDPOINT and HF_HUB_OFFLINE itself; this module never handles a token.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from benchmarker.checkpoints.base import GGUF_SUFFIX, Checkpoint, Progress, QuantizationNeeds, Silent
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


def find_for_quantization(
    model: ModelSpec,
    needs: QuantizationNeeds,
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
            needs.check_stored(model.id, config)

    folder, revision = _find_folder(model, weights=not dummy, check=check_folder, progress=progress)
    if not dummy:
        check_weights(folder)
    import_libraries(*needs.packages)
    config = config_in(folder)
    if dummy:
        return make_dummy(model, needs, config, source=folder, revision=revision, progress=progress, device=device)
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


SHAPE_FILES = ("*.json", "*.model", "*.txt", "*.jinja")
WEIGHT_FILES = ("model*.safetensors",)
CODE_FILES = ("*.py",)
ANSWER_S = 10.0  # Timeout of the hub, for each of its addresses; the library would wait forever.


class Revision(NamedTuple):
    """Branch, tag or commit of a repository."""

    commit: str | None
    files: list[str]


class _NoAnswerError(Exception):
    """Neither the hub nor its cache has the model."""


def fetch(
    model_id: str,
    *,
    revision: str | None,
    weights: bool,
    code: bool,
    check_config: Callable[[Path], None],
    progress: Progress,
) -> tuple[Path, str]:
    """Download files that are not in the hub's cache.

    Args:
        weights: True to download weights, False for config and tokenizer alone.
        code: True to download the repository's Python files.
        check_config: Called with a folder that holds config.json, before any weight is downloaded.

    Returns:
        Folder and commit.

    Raises:
        ModelError: Unreachable and not cached, unknown model or revision, gated, or without safetensors.
    """
    shape = [*SHAPE_FILES, *(CODE_FILES if code else ())]
    everything = [*shape, *(WEIGHT_FILES if weights else ())]
    try:
        answer = _query(model_id, revision)
        if answer is None:
            folder = _download(model_id, revision, everything, progress, offline=True)
            check_config(folder)
            return folder, folder.name
        if weights:
            _check_weights(model_id, answer.files)
        # Requested by the user's name, so that the cache finds it by that name offline.
        check_config(_download(model_id, revision, shape, progress))
        folder = _download(model_id, revision, everything, progress)
    except _NoAnswerError as error:
        raise _out_of_reach(model_id, weights=weights) from error
    return folder, folder.name


def look_up(model_id: str, *, revision: str | None, weights: bool) -> str | None:
    """Check that `fetch` would find the model, and return the commit, or None if the hub does not report it.

    Raises:
        ModelError: See `fetch`.
    """
    answer = _query(model_id, revision)
    if answer is not None:
        if weights:
            _check_weights(model_id, answer.files)
        return answer.commit
    try:
        return _download(model_id, revision, [*SHAPE_FILES], Silent(), offline=True).name
    except _NoAnswerError as error:
        raise _out_of_reach(model_id, weights=weights) from error


def _out_of_reach(model_id: str, *, weights: bool) -> ModelError:
    way_on = "give a folder with --model PATH, or measure random weights of its shape with --load-format dummy"
    if not weights:
        shapes = ", ".join(shape_names())
        way_on = f"give a folder with its config.json, or a shape that ships with benchmarker ({shapes})"
    near = near_miss(model_id, shape_names(), alike=0.7)
    meant = f"; benchmarker ships '{near}'" if near else ""
    return ModelError(
        f"{model_id}: the Hugging Face hub cannot be reached (or HF_HUB_OFFLINE is set), "
        f"and it is not in the cache{meant}; {way_on}"
    )


def _check_weights(model_id: str, names: list[str]) -> None:
    if any(name.endswith(".safetensors") for name in names):
        return
    if any(name in PICKLES for name in names):
        raise pickle_only(model_id)
    raise ModelError(f"{model_id}: has no safetensors weights on the hub; only safetensors are read")


def _query(model_id: str, revision: str | None) -> Revision | None:
    """Return the files of a revision, or None if the hub does not answer."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        info = HfApi().model_info(model_id, revision=revision, timeout=ANSWER_S)
    except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        _refuse(model_id, revision, error)
    except (OSError, transport_error()) as error:
        # 401 and 403 are answers; 5xx and connection errors are not.
        if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403):
            _refuse(model_id, revision, error)
        return None
    return Revision(info.sha, [file.rfilename for file in info.siblings or ()])


def _download(
    model_id: str, revision: str | None, patterns: list[str], progress: Progress, *, offline: bool = False
) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            model_id,
            revision=revision,
            allow_patterns=patterns,
            etag_timeout=ANSWER_S,
            local_files_only=offline,
            tqdm_class=_bar(progress),
        )
    except (LocalEntryNotFoundError, transport_error()) as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
            _refuse(model_id, revision, error)
        raise _NoAnswerError from error
    except OSError as error:
        raise ModelError(
            f"{model_id}: not downloaded: {error.strerror or error}; HF_HOME chooses another folder"
        ) from error
    return Path(folder)


def transport_error() -> type[Exception]:
    """Return the hub's connection error: httpx or httpx2, depending on its version."""
    from huggingface_hub import errors

    kind: type[Exception] = vars(errors)["HTTPError"]
    return kind


def _refuse(model_id: str, revision: str | None, error: Exception) -> NoReturn:
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        raise ModelError(
            f"{model_id}: gated; accept its licence on https://huggingface.co/{model_id} and set HF_TOKEN to your token"
        ) from error
    if isinstance(error, RevisionNotFoundError):
        raise ModelError(f"{model_id}: no revision '{revision}' on the hub; check --revision") from error
    raise ModelError(
        f"{model_id}: no such model on the hub (a private one needs HF_TOKEN), and no folder of that name here"
    ) from error


def _bar(progress: Progress) -> type[Any]:
    """Return a tqdm class that draws nothing and reports MiB."""
    import importlib

    base: Any = importlib.import_module("tqdm.auto").tqdm

    class Bar(base):  # type: ignore[misc]
        def display(self, msg: str | None = None, pos: int | None = None) -> None:  # noqa: ARG002
            if self.unit == "B" and self.total:
                progress.step("downloading (MiB)", int(self.n) >> 20, int(self.total) >> 20)

    return Bar
