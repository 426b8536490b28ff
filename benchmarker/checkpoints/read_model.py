"""Reading a checkpoint into a model through transformers, with its failures said in one line.

transformers fills a weight that the checkpoint lacks with random numbers and goes on; a model that was half read
would be measured without anybody noticing, so that is an error here.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.files import has_tokenizer
from benchmarker.checkpoints.gguf_file import gguf_facts
from benchmarker.checkpoints.model_config import transformers_config
from benchmarker.core.errors import ModelError
from benchmarker.core.packages import report_library_conflicts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Put environment variables, the root logger and warning filters back at the end of the block."""
    variables = dict(os.environ)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        with warnings.catch_warnings():
            yield
    finally:
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        root.setLevel(level)
        root.handlers[:] = handlers


TEXT_TENSORS = {
    r"^language_model\.lm_head\.": "lm_head.",
    r"^language_model\.model\.": "model.",
    r"^model\.language_model\.": "model.",
}
"""Names of the language model's tensors in multimodal checkpoints, and in a checkpoint of the text model alone."""


def import_libraries(*packages: str) -> None:
    """Import what loading needs, so that the time of loading is not that of importing.

    Raises:
        MissingLibraryError: They do not fit together.
    """
    with undisturbed(), report_library_conflicts():
        for name in ("transformers.models.auto.modeling_auto", "transformers.generation", *packages):
            importlib.import_module(name)


def import_architecture(config: Mapping[str, Any]) -> None:
    """Import the code of the model's class, which transformers would do in the middle of loading. Nothing happens where
    transformers has no class for it, as where the code comes with the checkpoint.

    Args:
        config: Content of the checkpoint's config.json.
    """
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    class_name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.get("model_type", ""))
    if class_name:
        getattr(transformers, class_name)


def read_model(
    checkpoint: Checkpoint, target: Target, *, quantization: Any | None = None, not_stored: Sequence[str] = ()
) -> PreTrainedModel:
    """The model on its device, in evaluation mode.

    Args:
        quantization: A transformers quantization config; None to take the checkpoint as it is.
        not_stored: Last names of tensors that the quantization's modules fill for themselves.

    Raises:
        ModelError: No such architecture, or weights that are not this model's.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    # Given as None, it would wipe out the checkpoint's own.
    extra = {} if quantization is None else {"quantization_config": quantization}
    try:
        if checkpoint.is_text_part:
            extra |= {"config": _text_config(checkpoint), "key_mapping": TEXT_TENSORS}
        if checkpoint.is_gguf:
            extra |= {"config": _gguf_config(checkpoint), **_gguf_name(checkpoint)}
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder.parent if checkpoint.is_gguf else checkpoint.folder,
            dtype=getattr(torch, target.dtype),
            use_safetensors=True,
            trust_remote_code=checkpoint.trust_remote_code,
            output_loading_info=True,
            **_placement(target),
            **extra,
        )
    except SafetensorError as error:
        raise ModelError(f"{checkpoint.folder}: its weights cannot be read: {error}") from error
    except (ValueError, KeyError, RuntimeError) as error:
        if not _is_about_the_checkpoint(error):
            raise
        if "ignore_mismatched_sizes" in str(error):
            raise ModelError(
                f"{checkpoint.model_id}: its tensors have other shapes than its config.json says; --verbose lists them"
            ) from error
        reason = " ".join(str(error).split())
        raise ModelError(f"{checkpoint.model_id}: cannot be loaded: {reason[:300]}") from error
    model: PreTrainedModel = loaded[0]
    missing = sorted(key for key in loaded[1]["missing_keys"] if key.rpartition(".")[2] not in not_stored)
    if missing:
        raise ModelError(
            f"{checkpoint.model_id}: the checkpoint lacks {len(missing)} of the model's tensors ({missing[0]} first); "
            "is its config.json that of another model?"
        )
    model.eval()
    return model


def _text_config(checkpoint: Checkpoint) -> Any:
    """Return transformers' config of a multimodal checkpoint's text part, with the checkpoint's quantization."""
    config = transformers_config(checkpoint.folder, trusted=checkpoint.trust_remote_code).get_text_config(decoder=True)
    config.tie_word_embeddings = checkpoint.config["tie_word_embeddings"]
    if checkpoint.quantization is not None:
        config.quantization_config = checkpoint.quantization
    return config


def _gguf_name(checkpoint: Checkpoint) -> dict[str, str]:
    """What tells transformers which file of the folder is meant."""
    return {"gguf_file": checkpoint.folder.name}


def _gguf_config(checkpoint: Checkpoint) -> Any:
    """The config that transformers makes of a GGUF file's header."""
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(checkpoint.folder.parent, **_gguf_name(checkpoint))
    # transformers 5.23 takes the architecture's default for it where the file says another size.
    if "head_dim" in checkpoint.config and hasattr(config, "head_dim"):
        config.head_dim = checkpoint.config["head_dim"]
    return config


def _placement(target: Target) -> dict[str, Any]:
    """Arguments of `from_pretrained` that say which device gets which weights."""
    if target.gpus == 1:
        return {"device_map": target.device}
    if target.split == "tensors":
        from transformers.distributed.configuration_utils import DistributedConfig

        # "auto" is the architecture's own plan. Called by every rank, each of which reads its part of each weight.
        return {"distributed_config": DistributedConfig(tp_size=target.gpus, tp_plan="auto")}
    import torch

    first = torch.device(target.device).index or 0
    # Nothing else: layers that fit none of these GPUs would run from the host's memory, and nobody would notice.
    free_bytes = {index: torch.cuda.mem_get_info(index)[0] for index in range(first, first + target.gpus)}
    return {"device_map": "balanced", "max_memory": free_bytes}


def _is_about_the_checkpoint(error: Exception) -> bool:
    """Whether the message is one of transformers' about the files, not a failure while loading (memory among them)."""
    text = str(error)
    return any(
        sign in text
        for sign in (
            "does not recognize this architecture",
            "Unrecognized configuration class",
            "Unrecognized model",
            "ignore_mismatched_sizes",
            "requires you to execute the",
            "is not supported yet",
        )
    )


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase | None:
    """The checkpoint's own tokenizer; None where it has none.

    Raises:
        ModelError: It has one that cannot be read.
    """
    if checkpoint.is_gguf:
        if not gguf_facts(checkpoint.folder).has_tokenizer:
            return None
        folder, extra = checkpoint.folder.parent, _gguf_name(checkpoint)
    else:
        if not has_tokenizer(checkpoint.folder):
            return None
        folder, extra = checkpoint.folder, {}
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=checkpoint.trust_remote_code, **extra
        )
    except (ValueError, OSError, KeyError, TypeError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{checkpoint.model_id}: its tokenizer cannot be read: {reason}") from error
    return tokenizer
