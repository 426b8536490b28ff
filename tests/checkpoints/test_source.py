"""From a model's name to a folder on disk, and every way in which that fails."""

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


def complaint(model: Path | str, quant: str = "fp16", *, dummy: bool = False, revision: str | None = None) -> str:
    with pytest.raises(BenchmarkerError) as caught:
        find(model, quant, dummy=dummy, revision=revision)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_used_where_it_is(model_folder):
    checkpoint = find(model_folder)
    assert checkpoint.folder == model_folder
    assert checkpoint.model_id == str(model_folder)
    assert checkpoint.revision is None
    assert not checkpoint.dummy
    assert checkpoint.config["num_hidden_layers"] == 2


def test_a_folder_in_the_home_folder_may_be_written_with_a_tilde(model_folder, monkeypatch):
    monkeypatch.setenv("HOME", str(model_folder.parent))
    assert find("~/model").folder == model_folder


def test_a_path_that_does_not_exist(tmp_path):
    missing = tmp_path / "nowhere"
    assert complaint(missing) == f"{missing}: no such folder (and not a hub id such as Qwen/Qwen3-4B)"


def test_a_file_in_place_of_a_folder(model_folder):
    file = model_folder / "config.json"
    assert complaint(file) == (
        f"{file}: a file; give the folder that holds the model's config and weights (or a .gguf file, for "
        "--quant gguf or --engine llama-cpp)"
    )


def test_a_folder_has_no_revisions(model_folder):
    assert complaint(model_folder, revision="main") == (
        f"{model_folder}: a folder, which has no revisions; leave --revision out"
    )


def test_a_folder_without_a_config(model_folder):
    (model_folder / "config.json").unlink()
    assert complaint(model_folder) == (
        f"{model_folder}: no config.json in it; give the folder that holds the model's config and weights"
    )


def test_a_config_that_is_not_json(model_folder):
    path = model_folder / "config.json"
    path.write_text('{"model_type": ')
    assert complaint(model_folder) == f"{path}: not valid JSON (Expecting value: line 1 column 16 (char 15))"


def test_a_folder_without_weights(model_folder):
    (model_folder / "model.safetensors").unlink()
    assert complaint(model_folder) == (
        f"{model_folder}: no weights in it (model.safetensors, or model.safetensors.index.json with its shards); "
        "use --load-format dummy to measure random weights of this shape"
    )


def test_pickled_weights_are_refused_with_the_way_to_convert_them(model_folder):
    (model_folder / "model.safetensors").rename(model_folder / "pytorch_model.bin")
    assert complaint(model_folder) == (
        f"{model_folder}: its weights are pickle files (pytorch_model.bin), which can run code when opened; "
        "only safetensors are read: load it once with transformers and write it again with "
        "model.save_pretrained(FOLDER)"
    )


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda whole: whole[:-1000], id="cut off inside its tensors"),
        pytest.param(lambda whole: whole[:100], id="cut off inside its header"),
        pytest.param(lambda whole: b"", id="empty"),
        pytest.param(lambda whole: whole + b"more", id="longer than its header says"),
        pytest.param(lambda whole: whole[:8] + b"?" + whole[9:], id="a damaged header"),
        pytest.param(lambda whole: b"PK\x03\x04 something else entirely", id="another format"),
    ],
)
def test_a_file_of_weights_that_is_not_whole(model_folder, spoil):
    path = model_folder / "model.safetensors"
    content = spoil(path.read_bytes())
    path.write_bytes(content)
    line = complaint(model_folder)
    assert line.startswith(f"{path}: {len(content):,} bytes that are not a whole safetensors file (")
    assert line.endswith("); copy or download it again")


def test_a_git_lfs_pointer_in_place_of_the_weights(model_folder):
    path = model_folder / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert complaint(model_folder) == (
        f"{path}: a git-lfs pointer, not the weights themselves; run 'git lfs pull' in its folder"
    )


def test_a_shard_that_the_index_names_but_is_not_there(model_folder):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (model_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert complaint(model_folder) == (
        f"{model_folder / 'model-00002-of-00002.safetensors'}: missing, though model.safetensors.index.json names it; "
        "copy or download it again"
    )


def test_an_index_that_names_no_shards(model_folder):
    path = model_folder / "model.safetensors.index.json"
    path.write_text("{}")
    assert complaint(model_folder) == f"{path}: names no shards (no weight_map); copy or download it again"


def quantize_config(folder: Path, **quantization: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))


def test_a_gptq_checkpoint_is_not_loaded_as_fp16(model_folder):
    quantize_config(model_folder, quant_method="gptq", bits=4)
    assert complaint(model_folder) == (
        f"{model_folder}: quantized already (gptq), which --quant fp16 cannot take; "
        "use --quant gptq, or an unquantized checkpoint"
    )


def test_a_quantization_that_no_loader_reads(model_folder):
    quantize_config(model_folder, quant_method="eetq")
    assert complaint(model_folder, "fp16") == (
        f"{model_folder}: quantized already (eetq), which --quant fp16 cannot take; use an unquantized checkpoint"
    )


def test_a_shipped_shape_has_no_weights():
    assert complaint("qwen3-tiny") == (
        "qwen3-tiny: ships with benchmarker as a shape without weights; use --load-format dummy "
        "(models with weights: qwen3-small)"
    )


def test_the_small_model_ships_with_its_weights():
    found = find("qwen3-small")
    assert (found.dummy, found.revision) == (False, None)
    assert found.config["vocab_size"] == 2048


def test_a_shipped_shape_has_no_revisions():
    assert complaint("qwen3-tiny", dummy=True, revision="main") == (
        "qwen3-tiny: a model that ships with benchmarker, which has no revisions; leave --revision out"
    )


def test_an_architecture_that_transformers_does_not_know(model_folder):
    (model_folder / "config.json").write_text('{"model_type": "qwen99"}')
    assert complaint(model_folder, dummy=True).startswith(
        f"{model_folder}: transformers cannot build this model: The checkpoint you are trying to load has model type "
        "`qwen99` but Transformers does not recognize this architecture."
    )


def test_code_in_a_folder_needs_the_users_trust_and_no_revision(model_folder):
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


def test_the_tokenizer_is_the_checkpoints_own(model_folder):
    tokenizer = load_tokenizer(find(model_folder))
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer("what the reader needs")["input_ids"]) == "what the reader needs"


def test_a_folder_without_a_tokenizer_has_none(model_folder):
    (model_folder / "tokenizer.json").unlink()
    (model_folder / "tokenizer_config.json").unlink()
    assert load_tokenizer(find(model_folder)) is None


def test_a_tokenizer_that_cannot_be_read(model_folder):
    (model_folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="its tokenizer cannot be read: ") as caught:
        load_tokenizer(find(model_folder))
    assert "\n" not in str(caught.value)


def test_equal_shapes_have_equal_hashes_however_the_config_was_written(model_folder):
    config = find(model_folder).config
    rewritten = config | {"dtype": "float16", "transformers_version": "5.0", "quantization_config": {"bits": 4}}
    assert shapes_sha256(config) == shapes_sha256(rewritten)
    assert shapes_sha256(config) != shapes_sha256(config | {"hidden_size": 64})


def test_a_local_folder_wins_over_a_shipped_shape_of_the_same_name(model_folder, monkeypatch):
    shutil.copytree(model_folder, model_folder.parent / "qwen3-tiny")
    monkeypatch.chdir(model_folder.parent)
    assert find("qwen3-tiny").config["num_hidden_layers"] == 2


def test_imports_hide_known_noise_of_two_loggers_and_no_other_warning(caplog):
    import_libraries()
    for logger, text in (
        ("torchao", "Failed to load _C_cutlass_90a.abi3.so: no such binary"),
        ("torch.utils._pytree", "%s is an Enum subclass and is now natively supported"),
        ("torchao", "a warning that matters"),
        ("users.own", "Failed to load my model"),
    ):
        logging.getLogger(logger).warning(text, *["Kind"] * text.count("%s"))
    assert [record.getMessage() for record in caplog.records] == ["a warning that matters", "Failed to load my model"]


def test_a_tokenizer_has_one_hash_however_a_library_writes_it(tmp_path):
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
