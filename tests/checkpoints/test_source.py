"""Test finding a checkpoint's folder by the model's name, and the error messages."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from benchmarker.checkpoints.base import Target
from benchmarker.checkpoints.files import tokenizer_hashes
from benchmarker.checkpoints.read_model import import_libraries, load_tokenizer, read_model, shapes_sha256
from benchmarker.core.errors import BenchmarkerError, ModelError
from benchmarker.quantization.load import find_checkpoint
from benchmarker.schema.model import ModelSpec
from benchmarker.workloads.generation.spec import VariantSpec


def find(model: Path | str, quant: str = "fp16", *, dummy: bool = False, revision: str | None = None):
    spec = ModelSpec(id=str(model), load_format="dummy" if dummy else "auto", revision=revision)
    return find_checkpoint(spec, VariantSpec(name=quant, quant=quant))


def error_message(model: Path | str, quant: str = "fp16", *, dummy: bool = False, revision: str | None = None) -> str:
    with pytest.raises(BenchmarkerError) as caught:
        find(model, quant, dummy=dummy, revision=revision)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_local_folder_is_used_in_place(model_folder):
    checkpoint = find(model_folder)
    assert checkpoint.folder == model_folder
    assert checkpoint.model_id == str(model_folder)
    assert checkpoint.revision is None
    assert not checkpoint.dummy
    assert checkpoint.config["num_hidden_layers"] == 2


def test_tilde_is_expanded_to_the_home_folder(model_folder, monkeypatch):
    monkeypatch.setenv("HOME", str(model_folder.parent))
    assert find("~/model").folder == model_folder


def test_missing_folder_is_refused(tmp_path):
    missing = tmp_path / "nowhere"
    assert error_message(missing) == f"{missing}: no such folder (and not a hub id such as Qwen/Qwen3-4B)"


def test_file_instead_of_a_folder_is_refused(model_folder):
    file = model_folder / "config.json"
    assert error_message(file) == (
        f"{file}: a file; give the folder that holds the model's config and weights (or a .gguf file, for "
        "--quant gguf or --engine llama-cpp)"
    )


def test_missing_gguf_file_is_not_looked_up_on_the_hub(tmp_path):
    assert error_message(tmp_path / "m.gguf") == f"{tmp_path / 'm.gguf'}: no such file"
    assert error_message("m.gguf") == "m.gguf: no such file"


def test_revision_of_a_folder_is_refused(model_folder):
    assert error_message(model_folder, revision="main") == (
        f"{model_folder}: a folder, which has no revisions; leave --revision out"
    )


def test_folder_without_a_config_is_refused(model_folder):
    (model_folder / "config.json").unlink()
    assert error_message(model_folder) == (
        f"{model_folder}: no config.json in it; give the folder that holds the model's config and weights"
    )


def test_invalid_json_in_the_config_is_refused(model_folder):
    path = model_folder / "config.json"
    path.write_text('{"model_type": ')
    assert error_message(model_folder) == f"{path}: not valid JSON (Expecting value: line 1 column 16 (char 15))"


@pytest.mark.parametrize("quantization", ["awq", {"quant_method": "awq", "bits": "four"}])
def test_invalid_quantization_config_is_refused(model_folder, quantization):
    path = model_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))
    assert error_message(model_folder) == (
        f"{path}: quantization_config is not a JSON object, or its bits are not a number; copy or download it again"
    )


def test_folder_without_weights_is_refused(model_folder):
    (model_folder / "model.safetensors").unlink()
    assert error_message(model_folder) == (
        f"{model_folder}: no weights in it (model.safetensors, or model.safetensors.index.json with its shards); "
        "use --load-format dummy to measure random weights of this shape"
    )


def test_pickled_weights_are_refused_with_a_remedy(model_folder):
    (model_folder / "model.safetensors").rename(model_folder / "pytorch_model.bin")
    assert error_message(model_folder) == (
        f"{model_folder}: its weights are pickle files (pytorch_model.bin), which can run code when opened; "
        "only safetensors are read: load it once with transformers and write it again with "
        "model.save_pretrained(FOLDER)"
    )


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: content[:-1000], id="cut off inside its tensors"),
        pytest.param(lambda content: content[:100], id="cut off inside its header"),
        pytest.param(lambda content: b"", id="empty"),
        pytest.param(lambda content: content + b"more", id="longer than its header states"),
        pytest.param(lambda content: content[:8] + b"?" + content[9:], id="a damaged header"),
        pytest.param(lambda content: b"PK\x03\x04 something else entirely", id="another format"),
    ],
)
def test_damaged_weights_file_is_refused(model_folder, damage):
    path = model_folder / "model.safetensors"
    content = damage(path.read_bytes())
    path.write_bytes(content)
    message = error_message(model_folder)
    assert message.startswith(f"{path}: {len(content):,} bytes that are not a whole safetensors file (")
    assert message.endswith("); copy or download it again")


def test_git_lfs_pointer_is_refused_with_a_remedy(model_folder):
    path = model_folder / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert error_message(model_folder) == (
        f"{path}: a git-lfs pointer, not the weights themselves; run 'git lfs pull' in its folder"
    )


def test_missing_shard_is_refused(model_folder):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (model_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert error_message(model_folder) == (
        f"{model_folder / 'model-00002-of-00002.safetensors'}: missing, though model.safetensors.index.json names it; "
        "copy or download it again"
    )


def test_index_without_shards_is_refused(model_folder):
    path = model_folder / "model.safetensors.index.json"
    path.write_text("{}")
    assert error_message(model_folder) == f"{path}: names no shards (no weight_map); copy or download it again"


def quantize_config(folder: Path, **quantization: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))


def test_gptq_checkpoint_is_refused_as_fp16(model_folder):
    quantize_config(model_folder, quant_method="gptq", bits=4)
    assert error_message(model_folder) == (
        f"{model_folder}: quantized already (gptq), which --quant fp16 cannot take; "
        "use --quant gptq, or an unquantized checkpoint"
    )


def test_checkpoint_of_an_unsupported_quantization_is_refused(model_folder):
    quantize_config(model_folder, quant_method="eetq")
    assert error_message(model_folder, "fp16") == (
        f"{model_folder}: quantized with eetq, which no --quant loads; use an unquantized checkpoint"
    )


def test_shipped_shape_without_dummy_weights_is_refused():
    assert error_message("qwen3-tiny") == (
        "qwen3-tiny: ships with benchmarker as a shape without weights; use --load-format dummy "
        "(models with weights: qwen3-small)"
    )


def test_shipped_small_model_has_weights():
    checkpoint = find("qwen3-small")
    assert (checkpoint.dummy, checkpoint.revision) == (False, None)
    assert checkpoint.config["vocab_size"] == 2048


def test_revision_of_a_shipped_shape_is_refused():
    assert error_message("qwen3-tiny", dummy=True, revision="main") == (
        "qwen3-tiny: a model that ships with benchmarker, which has no revisions; leave --revision out"
    )


def test_architecture_unknown_to_transformers_is_refused(model_folder):
    (model_folder / "config.json").write_text('{"model_type": "qwen99"}')
    assert error_message(model_folder, dummy=True).startswith(
        f"{model_folder}: transformers cannot build this model: The checkpoint you are trying to load has model type "
        "`qwen99` but Transformers does not recognize this architecture."
    )


def test_code_in_a_folder_requires_trust_remote_code(model_folder):
    config = json.loads((model_folder / "config.json").read_text())
    code = {"AutoConfig": "of_its_own.OwnConfig", "AutoModelForCausalLM": "of_its_own.OwnModel"}
    (model_folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": code}))
    with pytest.raises(ModelError) as caught:
        read_model(find(model_folder), Target("cpu", "float16"))
    assert str(caught.value) == (
        f"{model_folder}: cannot be loaded: it needs Python code from its repository; read that code, then give run "
        "--trust-remote-code"
    )
    assert ModelSpec(id=str(model_folder), trust_remote_code=True).revision is None


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("import of_no_package", "ImportError: This modeling file requires the following packages"),
        ("from transformers.utils import of_another_version", "ImportError: cannot import name 'of_another_version'"),
        ("from .other_module import Other", "FileNotFoundError: .*other_module.py"),
    ],
)
def test_failing_code_of_a_model_is_reported_in_one_line(model_folder, first, reason):
    code = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    config = json.loads((model_folder / "config.json").read_text()) | {"model_type": "own", "auto_map": code}
    (model_folder / "config.json").write_text(json.dumps(config))
    library = "from transformers import Qwen3Config, Qwen3ForCausalLM\n"
    (model_folder / "configuration_own.py").write_text(f"{library}class OwnConfig(Qwen3Config): ...\n")
    (model_folder / "modeling_own.py").write_text(f"{first}\n{library}class OwnModel(Qwen3ForCausalLM): ...\n")
    spec = ModelSpec(id=str(model_folder), trust_remote_code=True)
    checkpoint = find_checkpoint(spec, VariantSpec(name="fp16", quant="fp16"))
    with pytest.raises(ModelError, match=rf"its own Python code fails \({reason}.*\); install the packages"):
        read_model(checkpoint, Target("cpu", "float16"))


def test_tokenizer_is_loaded_from_the_checkpoint(model_folder):
    tokenizer = load_tokenizer(find(model_folder))
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer("what the reader needs")["input_ids"]) == "what the reader needs"


def test_tokenizer_of_a_folder_without_one_is_none(model_folder):
    (model_folder / "tokenizer.json").unlink()
    (model_folder / "tokenizer_config.json").unlink()
    assert load_tokenizer(find(model_folder)) is None


def test_invalid_tokenizer_file_is_refused(model_folder):
    (model_folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="its tokenizer cannot be read: ") as caught:
        load_tokenizer(find(model_folder))
    assert "\n" not in str(caught.value)


def test_shape_hash_ignores_fields_that_do_not_change_shapes(model_folder):
    config = find(model_folder).config
    rewritten = config | {"dtype": "float16", "transformers_version": "5.0", "quantization_config": {"bits": 4}}
    assert shapes_sha256(config) == shapes_sha256(rewritten)
    assert shapes_sha256(config) != shapes_sha256(config | {"hidden_size": 64})


def test_local_folder_precedes_a_shipped_shape_of_the_same_name(model_folder, monkeypatch):
    shutil.copytree(model_folder, model_folder.parent / "qwen3-tiny")
    monkeypatch.chdir(model_folder.parent)
    assert find("qwen3-tiny").config["num_hidden_layers"] == 2


def test_imports_filter_known_warnings_only(caplog):
    import_libraries()
    for logger, text in (
        ("torchao", "Failed to load _C_cutlass_90a.abi3.so: no such binary"),
        ("torch.utils._pytree", "%s is an Enum subclass and is now natively supported"),
        ("torchao", "a warning that matters"),
        ("users.own", "Failed to load my model"),
    ):
        logging.getLogger(logger).warning(text, *["Kind"] * text.count("%s"))
    assert [record.getMessage() for record in caplog.records] == ["a warning that matters", "Failed to load my model"]


def test_tokenizer_hash_ignores_formatting(tmp_path):
    def hashes(tokenizer: str, template: str | None = None) -> dict[str, str | None]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "tokenizer.json").write_text(tokenizer)
        if template:
            (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        return tokenizer_hashes(folder)

    first = hashes('{"model": {"vocab": {"a": 0, "b": 1}, "merges": ["a b"]}}')
    assert first["chat_template_sha256"] is None
    assert hashes('{"model": {"merges": [["a", "b"]],\n "vocab": {"a": 0, "b": 1}}}') == first
    assert hashes('{"model": {"vocab": {"a": 0, "b": 2}, "merges": ["a b"]}}') != first
    assert hashes('{"model": {}}', "{{ first }}") != hashes('{"model": {}}', "{{ second }}")
