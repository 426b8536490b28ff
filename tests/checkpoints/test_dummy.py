"""Test checkpoints of random weights and their cache."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarker.checkpoints import cache, dummy
from benchmarker.checkpoints.base import Checkpoint, QuantizationNeeds
from benchmarker.checkpoints.dummy import empty_model, plan_tensors
from benchmarker.checkpoints.files import has_tokenizer, shipped_shape
from benchmarker.checkpoints.read_model import load_tokenizer
from benchmarker.core.errors import ModelError, SpecError
from benchmarker.quantization.gptq import GPTQOptions
from benchmarker.quantization.gptqmodel_kernels import balanced, deviation
from benchmarker.quantization.load import find_checkpoint
from benchmarker.schema.base import Scalar
from benchmarker.schema.model import ModelSpec
from benchmarker.workloads.generation.spec import VariantSpec


class Steps:
    """Progress that records every reported step."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, int]] = []

    def step(self, what: str, done: int, total: int) -> None:
        self.steps.append((what, done, total))

    def note(self, text: str) -> None: ...


def make_dummy(model: Path | str, quant: str = "fp16", progress: Steps | None = None, **options: Scalar) -> Checkpoint:
    spec = ModelSpec(id=str(model), load_format="dummy")
    return find_checkpoint(spec, VariantSpec(name=quant, quant=quant, options=options), progress=progress)


def weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.folder / "model.safetensors")


def test_dummy_has_the_models_tensors_without_the_tied_output_layer(shape_folder):
    tensors = weights(make_dummy(shape_folder))
    model = empty_model(shape_folder)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == expected


def test_dummy_weights_are_normal_and_norms_are_one(shape_folder):
    tensors = weights(make_dummy(shape_folder))
    weight = tensors["model.layers.0.mlp.up_proj.weight"]
    assert weight.dtype == torch.float16
    assert weight.float().std().item() == pytest.approx(0.2, rel=0.05)
    assert weight.float().mean().item() == pytest.approx(0, abs=0.005)
    assert torch.equal(tensors["model.norm.weight"], torch.ones(128, dtype=torch.float16))


def test_dummy_is_written_once_and_cached(shape_folder):
    progress = Steps()
    first = make_dummy(shape_folder, progress=progress)
    assert progress.steps[0] == ("writing random weights", 1, 24)
    assert progress.steps[-1] == ("writing random weights", 24, 24)
    second_progress = Steps()
    assert make_dummy(shape_folder, progress=second_progress) == first
    assert second_progress.steps == []


def test_dummy_is_deterministic(shape_folder, tmp_path, monkeypatch):
    first = weights(make_dummy(shape_folder))
    monkeypatch.setenv("BENCHMARKER_CACHE", str(tmp_path / "elsewhere"))
    second = weights(make_dummy(shape_folder))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_int8_and_bnb4_share_the_16_bit_dummy(shape_folder):
    assert (
        make_dummy(shape_folder, "int8").folder
        == make_dummy(shape_folder, "bnb4").folder
        == make_dummy(shape_folder).folder
    )


def test_dummy_includes_the_tokenizer(shape_folder):
    tokenizer = load_tokenizer(make_dummy(shape_folder))
    assert tokenizer is not None
    assert len(tokenizer) == 2048


def test_dummy_of_a_shape_without_a_tokenizer_has_none(tmp_path, shape_folder):
    (tmp_path / "bare").mkdir()
    shutil.copyfile(shape_folder / "config.json", tmp_path / "bare" / "config.json")
    assert load_tokenizer(make_dummy(tmp_path / "bare")) is None


def test_dummy_of_a_quantized_checkpoint_has_the_requested_quantization(shape_folder, tmp_path):
    folder = Path(shutil.copytree(shape_folder, tmp_path / "awq"))
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"quant_method": "awq"}}
    (folder / "config.json").write_text(json.dumps(config))
    assert make_dummy(folder).quantization is None


def test_large_dummies_are_written_as_shards_with_an_index(shape_folder, monkeypatch):
    monkeypatch.setattr(dummy, "SHARD_BYTES", 600_000)
    folder = make_dummy(shape_folder).folder
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert shards == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    stored = {name: shard for shard in shards for name in load_file(folder / shard)}
    assert index["weight_map"] == stored


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_random_codes_are_balanced_without_the_lowest_code(bits):
    random = torch.Generator().manual_seed(0)
    words = balanced(torch.empty(20_000, dtype=torch.int32).random_(-(2**31), 2**31, generator=random), bits)
    codes = torch.stack([words >> (bits * position) & (2**bits - 1) for position in range(32 // bits)])
    assert codes.unique().tolist() == list(range(1, 2**bits))
    centred = (codes - 2 ** (bits - 1)).double()
    assert centred.std().item() == pytest.approx(deviation(bits), rel=0.01)
    assert abs(centred.mean().item()) < 0.02 * deviation(bits)


def test_gptq_dummy_is_packed(shape_folder):
    checkpoint = make_dummy(shape_folder, "gptq")
    tensors = weights(checkpoint)
    layer = "model.layers.1.mlp.down_proj"
    shapes = {name.removeprefix(f"{layer}."): (tuple(t.shape), t.dtype) for name, t in tensors.items() if layer in name}
    assert shapes == {
        "qweight": ((256 * 4 // 32, 128), torch.int32),
        "qzeros": ((2, 128 * 4 // 32), torch.int32),
        "scales": ((2, 128), torch.float16),
        "g_idx": ((256,), torch.int32),
    }
    assert tensors[f"{layer}.qzeros"].unique().tolist() == [0x77777777]
    assert tensors[f"{layer}.g_idx"].tolist() == [0] * 128 + [1] * 128
    codes = torch.stack([tensors[f"{layer}.qweight"] >> (4 * position) & 15 for position in range(8)])
    dequantized = ((codes - 8) * tensors[f"{layer}.scales"][0, 0]).float()
    assert dequantized.std().item() == pytest.approx(0.2, rel=0.02)
    # A nonzero mean would add a multiple of the sum of the inputs to every output.
    assert dequantized.mean().item() == pytest.approx(0, abs=0.004)
    assert checkpoint.quantization is not None
    assert checkpoint.quantization["quant_method"] == "gptq"


def test_three_bit_zero_points_span_words(shape_folder):
    tensors = weights(make_dummy(shape_folder, "gptq", bits=3))
    words = tensors["model.layers.0.mlp.down_proj.qzeros"][0, :3].tolist()
    stream = sum((word & 0xFFFFFFFF) << (32 * position) for position, word in enumerate(words))
    assert [(stream >> (3 * position)) & 7 for position in range(32)] == [3] * 32


def test_activation_order_shuffles_the_groups(shape_folder):
    tensors = weights(make_dummy(shape_folder, "gptq", desc_act=True))
    groups = tensors["model.layers.0.mlp.down_proj.g_idx"].tolist()
    assert groups != sorted(groups)
    assert sorted(groups) == [0] * 128 + [1] * 128


def test_group_size_that_does_not_divide_the_inputs_is_refused(shape_folder):
    with pytest.raises(SpecError) as caught:
        make_dummy(shape_folder, "gptq", group_size=512)
    assert str(caught.value) == (
        "gptq: options.group_size=512 does not divide the 128 inputs of model.layers.0.self_attn.q_proj; "
        "choose one that does, or -1 for one group per row"
    )


def test_shipped_qwen3_4b_has_the_published_number_of_parameters():
    shape = shipped_shape("Qwen/Qwen3-4B")
    assert shape is not None
    config = json.loads((shape / "config.json").read_text())
    tensors = plan_tensors(shape, config, QuantizationNeeds(), trusted=False)
    assert sum(tensor.meta.numel() for tensor in tensors) == 4_022_468_096
    assert sum(tensor.meta.nbytes for tensor in tensors) == 2 * 4_022_468_096


def test_shipped_tiny_model_is_divisible_into_groups_of_128():
    shape = shipped_shape("qwen3-tiny")
    assert shape is not None
    config = json.loads((shape / "config.json").read_text())
    from benchmarker.quantization.gptq import LOADER

    planned = plan_tensors(
        shape, config, QuantizationNeeds(packing=LOADER.packing, options=GPTQOptions()), trusted=False
    )
    assert sum(tensor.name.endswith("qweight") for tensor in planned) == 28


def test_too_little_disk_space_raises_before_writing(shape_folder, cache_folder, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1024))
    with pytest.raises(ModelError) as caught:
        make_dummy(shape_folder)
    assert str(caught.value) == (
        f"not enough room for the checkpoint: it needs 1.1 MiB, {cache_folder} has 0.0 MiB free; "
        "make room, or set BENCHMARKER_CACHE to a folder on another disk"
    )
    assert list(cache_folder.iterdir()) == []


class Interrupting(Steps):
    """Progress that raises KeyboardInterrupt at the third step."""

    def step(self, what: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt


def test_interrupted_dummy_leaves_no_files(shape_folder, cache_folder):
    with pytest.raises(KeyboardInterrupt):
        make_dummy(shape_folder, progress=Interrupting())
    assert list(cache_folder.iterdir()) == []


class FullDisk(Steps):
    """Progress that raises the error of a full disk."""

    def step(self, what: str, done: int, total: int) -> None:
        raise OSError(28, os.strerror(28))


def test_full_disk_while_writing_raises_and_leaves_no_files(shape_folder, cache_folder):
    with pytest.raises(ModelError) as caught:
        make_dummy(shape_folder, progress=FullDisk())
    assert str(caught.value) == (
        f"{cache_folder}: the checkpoint (1.1 MiB) was not made: the disk is full; "
        "make room or set BENCHMARKER_CACHE to a folder with room for it"
    )
    assert list(cache_folder.iterdir()) == []


def test_draft_of_a_killed_process_is_removed(shape_folder, cache_folder):
    draft = cache_folder / f".0123456789abcdef.{os.uname().nodename}.99999999.ab12.tmp"
    draft.mkdir(parents=True)
    make_dummy(shape_folder)
    assert not draft.exists()


def test_cache_folder_that_is_a_file_is_refused(shape_folder, cache_folder):
    cache_folder.write_text("")
    with pytest.raises(ModelError) as caught:
        make_dummy(shape_folder)
    assert str(caught.value) == (
        f"{cache_folder}: the checkpoint (1.1 MiB) was not made: part of the path is a file, not a folder; "
        "set BENCHMARKER_CACHE to a folder with room for it"
    )


def test_damaged_cached_checkpoint_is_reported_with_the_remove_command(shape_folder):
    folder = make_dummy(shape_folder).folder
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError) as caught:
        make_dummy(shape_folder)
    assert str(caught.value).endswith(
        f"copy or download it again: 'benchmarker checkpoint remove {folder.name}' makes room for a new one"
    )


def test_cached_checkpoints_are_listed_and_removed(shape_folder, cache_folder):
    unquantized, packed = make_dummy(shape_folder), make_dummy(shape_folder, "gptq", group_size=64)
    entries = {entry.key: entry for entry in cache.entries()}
    assert entries.keys() == {unquantized.folder.name, packed.folder.name}
    entry = entries[packed.folder.name]
    assert (entry.description.kind, entry.description.model) == ("dummy", str(shape_folder))
    assert entry.description.options["group_size"] == 64
    assert entry.size_bytes == sum(path.stat().st_size for path in packed.folder.iterdir())
    assert cache.remove(entry.key[:8]).key == entry.key
    assert [entry.key for entry in cache.entries()] == [unquantized.folder.name]


def test_removing_a_missing_checkpoint_raises(cache_folder):
    with pytest.raises(ModelError) as caught:
        cache.remove("3f9c")
    assert str(caught.value) == (
        f"no cached checkpoint '3f9c' in {cache_folder}; 'benchmarker checkpoint list' shows them"
    )


def test_foreign_folder_is_neither_listed_nor_removed(cache_folder):
    (cache_folder / "mine").mkdir(parents=True)
    (cache_folder / "mine" / "benchmarker.json").write_text("{}")
    assert cache.entries() == ()
    with pytest.raises(ModelError):
        cache.remove("mine")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"BENCHMARKER_CACHE": "/a"}, "/a"),
        ({"BENCHMARKER_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/benchmarker"),
        ({"BENCHMARKER_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/benchmarker"),
    ],
)
def test_cache_folder_follows_the_environment_variables(variables, expected, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache.cache_folder() == Path(expected)


MIXTURE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "dtype": "float32",
    "vocab_size": 1024,
    "hidden_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "initializer_range": 0.02,
}


@pytest.fixture
def mixture(tmp_path):
    folder = tmp_path / "mixture"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MIXTURE))
    return make_dummy(folder).folder


def test_dummy_mixture_routes_evenly_and_generates_varied_tokens(mixture):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(mixture).eval()
    steps: list[torch.Tensor] = []
    router = model.model.layers[-1].mlp.gate
    norms = router.weight.norm(dim=1)
    assert norms.min().item() == pytest.approx(norms.max().item(), rel=1e-5)
    router.register_forward_hook(lambda module, inputs, outputs: steps.append(outputs[-1]))
    prompts = torch.randint(0, 1024, (16, 8), generator=torch.Generator().manual_seed(0))
    tokens = model.generate(prompts, max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
    experts_per_step = [expert_indices.unique().numel() for expert_indices in steps[1:]]
    uniform = 32 * (1 - (1 - 4 / 32) ** 16)
    assert sum(experts_per_step) / len(experts_per_step) == pytest.approx(uniform, rel=0.1)
    assert tokens[0, 8:].unique().numel() > 8


def test_dummy_without_a_tokenizer_gets_one_word_per_id(mixture):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(mixture)
    ids = [5, 1023, 0, 0, 17]
    assert tokenizer.decode(ids) == "w5 w1023 w0 w0 w17"
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
    assert not has_tokenizer(mixture)
