"""Test writing GGUF files from safetensors, reading their facts, and loading them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch

from benchmarker.checkpoints.base import Silent
from benchmarker.checkpoints.files import shipped_shape
from benchmarker.checkpoints.find import look_for
from benchmarker.checkpoints.gguf_file import GgufFacts, gguf_facts, write_gguf
from benchmarker.checkpoints.read_model import load_tokenizer
from benchmarker.core.errors import ModelError, UnsupportedError
from benchmarker.engines.base import Form
from benchmarker.engines.registry import ENGINES
from benchmarker.quality.judge import make_plan
from benchmarker.quantization.base import Options
from benchmarker.quantization.load import find_checkpoint
from benchmarker.schema.model import ModelSpec, TensorTypes
from benchmarker.schema.quality import QualitySpec
from benchmarker.workloads.generation.reading.generation_caveats import types_note
from benchmarker.workloads.generation.spec import VariantSpec
from tests.gguf_files import quantized_file
from tests.loading import PARAMETERS, ROPE_BYTES, distance, facts_of, load

gguf = pytest.importorskip("gguf")


@pytest.fixture
def path(model_folder: Path, tmp_path: Path) -> Path:
    write_gguf(model_folder, tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def test_written_matrices_are_float16_and_norms_float32(path, model_folder):
    from safetensors.torch import load_file

    tensors = load_file(model_folder / "model.safetensors")
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert len(written) == len([name for name in tensors if name != "lm_head.weight"])
    up = tensors["model.layers.1.mlp.up_proj.weight"].half().numpy()
    assert numpy.array_equal(written["blk.1.ffn_up.weight"].data, up)
    assert written["output_norm.weight"].tensor_type.name == "F32"


def test_written_file_has_placeholder_tokens_and_no_tokenizer(path, model_folder):
    tokens = gguf.GGUFReader(path).get_field("tokenizer.ggml.tokens").contents()
    vocab_size = json.loads((model_folder / "config.json").read_text())["vocab_size"]
    assert (len(set(tokens)), tokens[10], tokens[-1]) == (vocab_size, "<0x0A>", f"t{vocab_size - 1}")
    assert not gguf_facts(path).has_tokenizer


def test_facts_give_architecture_and_bytes_by_type(path, model_folder):
    facts = gguf_facts(path)
    config = json.loads((model_folder / "config.json").read_text())
    assert facts.architecture == "qwen3"
    sizes = facts.types.weight_bytes_by_type
    assert set(sizes) == {"F16", "F32"}
    assert facts.types.tensors_by_type["F16"] == 1 + 7 * config["num_hidden_layers"]
    assert sizes["F16"] == 2 * facts.parameters - sizes["F32"] // 2


def test_fallback_reports_rows_without_a_k_quant():
    counts = {"Q4_K": 2, "Q5_0": 1}
    types = TensorTypes(tensors_by_type=counts, weight_bytes_by_type=counts, output_type="Q4_K", is_tied=True)
    facts = GgufFacts("qwen3", 9, types, {"Q5_0": (384,)}, shapes={}, packed_parameters=9, has_tokenizer=False)
    assert facts.fallback("Q4_K_M") == "Q4_K_M: rows of 384 are Q5_0, since the K formats need a multiple of 256"
    assert facts.fallback("Q8_0") is None


def test_damaged_file_is_refused(path):
    content = path.read_bytes()
    path.write_bytes(content[:200])
    with pytest.raises(ModelError, match="a damaged GGUF file"):
        gguf_facts(path)
    path.write_bytes(content[:-5000])
    with pytest.raises(ModelError, match="a damaged GGUF file"):
        gguf_facts(path)
    path.write_bytes(b"no")
    with pytest.raises(ModelError, match="not a GGUF file"):
        gguf_facts(path)
    with pytest.raises(ModelError, match="cannot be read"):
        gguf_facts(path.with_name("none.gguf"))


def test_file_of_an_unsupported_architecture_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "abacus")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"architecture 'abacus', which llama.cpp does not support"):
        gguf_facts(tmp_path / "other.gguf")


def test_values_beyond_float16_are_refused(model_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.bfloat16() for name, tensor in load_file(model_folder / "model.safetensors").items()}
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e6
    save_file(tensors, model_folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"up_proj.weight has values that float16 cannot hold"):
        write_gguf(model_folder, tmp_path / "model.gguf")


def test_only_engines_and_quantizations_for_gguf_accept_a_file(path, model_folder):
    checkpoint = find_checkpoint(ModelSpec(id=str(path)), VariantSpec(name="fp16", quant="fp16"))
    config = json.loads((model_folder / "config.json").read_text())
    shapes = ("vocab_size", "max_position_embeddings", "num_hidden_layers", "hidden_size")
    assert {name: checkpoint.config[name] for name in shapes} == {name: config[name] for name in shapes}
    assert checkpoint.folder == path
    refusal = ENGINES["eager"].why_not_taken(Form("fp16", Options(), "float16"), checkpoint)
    assert refusal == (
        f"{path} is a GGUF file: --quant gguf reads it through transformers, --engine llama-cpp through llama.cpp"
    )
    assert ENGINES["eager"].why_not_taken(Form("gguf", Options(), "float16"), checkpoint) is None
    assert ENGINES["llama-cpp"].why_not_taken(Form("fp16", Options(), "float16"), checkpoint) is None
    assert ENGINES["llama-cpp"].why_not_taken(Form("gguf", Options(), "float16"), checkpoint) is None
    with pytest.raises(UnsupportedError, match="is a GGUF file: --quant gguf reads it"):
        load(path, "int8")


@pytest.mark.parametrize(("form", "least", "most"), [("F16", 0.0, 0.0), ("Q8_0", 0.01, 0.05), ("Q4_0", 0.2, 0.6)])
def test_transformers_unpacks_a_file_to_its_dequantized_weights(path, session_model, tmp_path, form, least, most):
    from gguf import quants

    file = quantized_file(path, tmp_path / "form.gguf", form)
    loaded = load(file, "gguf")
    facts = facts_of(loaded)
    assert least <= distance(loaded, load(session_model, "fp16")) <= most
    stored = next(tensor for tensor in gguf.GGUFReader(file).tensors if tensor.name == "blk.1.ffn_up.weight")
    values = torch.from_numpy(quants.dequantize(stored.data, stored.tensor_type)).half()
    assert torch.equal(loaded.model.model.layers[1].mlp.up_proj.weight, values)
    assert facts.file_types.tensors_by_type == {form: 15, "F32": 9}
    assert (facts.file_types.output_type, facts.file_types.is_tied) == (form, True)
    assert facts.weight_bytes == 2 * PARAMETERS + ROPE_BYTES
    unpacked = "transformers unpacked the file to float16: bytes and time are those of plain weights"
    assert facts.notes == (() if form == "F16" else (unpacked,))


def test_note_lists_tensors_and_bytes_by_type():
    types = TensorTypes(
        tensors_by_type={"Q4_0": 28, "Q6_K": 1},
        weight_bytes_by_type={"Q4_0": 2**30, "Q6_K": 2**29},
        output_type="Q6_K",
        is_tied=False,
    )
    assert types_note(types) == "tensors by type: Q4_0 28 (1.00 GiB), Q6_K 1 (0.50 GiB); the output layer is Q6_K"


def test_models_that_gguf_cannot_load_are_refused(path, session_model, tmp_path):
    with pytest.raises(ModelError) as caught:
        find_checkpoint(ModelSpec(id=str(session_model)), VariantSpec(name="gguf", quant="gguf"))
    assert str(caught.value) == (
        f"{session_model}: not a GGUF file, which --quant gguf reads: give one with --model FILE.gguf; "
        "--engine llama-cpp --engine-option gguf=Q8_0 makes one of a checkpoint"
    )
    unsupported = quantized_file(path, tmp_path / "rwkv.gguf", "F16", architecture="rwkv7")
    with pytest.raises(ModelError, match="cannot be loaded: GGUF model with architecture rwkv7 is not supported yet"):
        load(unsupported, "gguf")


def test_quality_of_a_file_without_a_tokenizer_requires_the_original(path):
    write_gguf(shipped_shape("qwen3-small"), path)
    model, form = ModelSpec(id=str(path)), VariantSpec(name="gguf", quant="gguf")
    checkpoint = find_checkpoint(model, form)
    fields = {
        "name": "gguf",
        "checkpoint": checkpoint,
        "tokenizer": load_tokenizer(checkpoint),
        "progress": Silent(),
    }
    with pytest.raises(ModelError, match=r"no tokenizer in the file.* name the original with --quality-baseline"):
        make_plan(QualitySpec(size="quick"), model, form, **fields)
    plan = make_plan(QualitySpec(size="quick", baseline="qwen3-small"), model, form, **fields)
    assert plan.baseline.model_id == "qwen3-small"
    assert not plan.is_baseline


def test_file_that_is_not_gguf_is_refused_before_a_run(tmp_path):
    broken = tmp_path / "model.gguf"
    broken.write_bytes(b"not one")
    with pytest.raises(ModelError, match="not a GGUF file"):
        look_for(ModelSpec(id=str(broken)))
