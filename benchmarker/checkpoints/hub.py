"""Download from the Hugging Face hub, with one-line errors.

The hub library reads HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE itself; this module never handles a token. The
first request (files of a revision) has a timeout, because the library would wait forever.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from benchmarker.checkpoints.base import Progress, Silent
from benchmarker.checkpoints.files import PICKLES, pickle_only, shape_names
from benchmarker.core.errors import ModelError, near_miss

SHAPE_FILES = ("*.json", "*.model", "*.txt", "*.jinja")
WEIGHT_FILES = ("model*.safetensors",)
CODE_FILES = ("*.py",)
ANSWER_S = 10.0  # Timeout of the hub, for each of its addresses.


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
