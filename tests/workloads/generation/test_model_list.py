"""Shipped model shapes are listed; models that exceed the memory of the GPU are refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarker.checkpoints.dummy import empty_model
from benchmarker.checkpoints.files import HUB_IDS, read_config, shape_names, shipped_shape
from benchmarker.core.errors import MemoryNeededError
from benchmarker.execution.jobs import make_job
from benchmarker.hardware.device import CpuDevice
from benchmarker.schema.job import Part
from benchmarker.schema.model import ModelSpec
from benchmarker.workloads.generation import generation_job
from benchmarker.workloads.generation.generation_job import least_weight_bytes, refuse_on_gpu, refuse_too_large
from benchmarker.workloads.generation.model_list import list_model
from benchmarker.workloads.generation.read_architecture import describe, on_meta
from tests.jobs import job_with


@pytest.mark.parametrize(
    ("name", "parameters", "active", "layers", "engines"),
    [
        ("qwen3-8b", 8_190_735_360, "all", "36 full attention; dense", "eager, cuda_graph, compile, native"),
        ("llama-3.1-8b", 8_030_261_248, "all", "32 full attention; dense", "eager, cuda_graph, compile, native"),
        ("qwen3.5-4b", 4_205_751_296, "all", "24 linear attention, 8 full attention; dense", None),
        ("gemma-3-4b", 3_880_263_168, "all", "29 sliding window, 5 full attention; dense", None),
        ("qwen3-30b-a3b", 30_532_122_624, "3.35 B", "48 full attention; 8 of 128 experts", None),
        ("gpt-oss-20b", 20_914_757_184, "4.19 B", "12 sliding window, 12 full attention; 4 of 32 experts", None),
    ],
)
def test_shipped_shape_has_the_published_parameters_and_layers(name, parameters, active, layers, engines):
    assert name in HUB_IDS.values()
    folder = shipped_shape(name)
    assert folder is not None
    assert describe(empty_model(folder)).parameters == parameters
    listed = list_model(name)
    assert (listed["active"], listed["layers"]) == (active, layers)
    assert engines is None or listed["engines"] == engines


def test_list_contains_the_share_covered_by_each_quantization():
    assert list_model("qwen3-30b-a3b")["quantizations"] == (
        "fp16; int8, int8-dynamic 99 %; invalid: fp8, int4, gptq, bnb4, bnb8 3 %"
    )


def test_model_too_large_for_the_gpu_is_refused_with_both_sizes():
    folder = shipped_shape("qwen3-30b-a3b")
    assert folder is not None
    needed = least_weight_bytes(on_meta(read_config(folder), "bfloat16"), bits=16, value_bytes=2)
    assert needed == 2 * 30_532_122_624
    fields = {"subject.model.id": "qwen3-30b-a3b", "subject.model.load_format": "dummy", "variant.quant": "fp16"}
    job = make_job(fields)
    refuse_on_gpu(job, needed, 80 * 2**30)
    with pytest.raises(MemoryNeededError) as error:
        refuse_on_gpu(job, needed, 40 * 2**30)
    assert str(error.value) == (
        "qwen3-30b-a3b as fp16 needs at least 56.87 GiB, this GPU has 40.00 GiB; use another quantization, a smaller "
        "model or batch, or more GPUs"
    )


@pytest.mark.parametrize("quant", ["fp16", "bnb4"])
@pytest.mark.parametrize("name", [name for name in shape_names() if name not in ("qwen3-small", "qwen3-tiny")])
def test_shape_too_large_for_the_gpu_is_refused_from_its_config(name, quant, monkeypatch):
    fields = {"subject.model.id": name, "subject.model.load_format": "dummy", "variant.quant": quant}
    config, gpu = read_config(shipped_shape(name)), SimpleNamespace(total_memory=2 * 2**30)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: gpu)
    device = SimpleNamespace(kind="cuda", torch_name="cuda:0")
    with pytest.raises(MemoryNeededError, match=rf"^{name} as {quant} needs at least .* GiB, this GPU has 2.00 GiB; "):
        refuse_too_large(make_job(fields), device, config.get("text_config", config))
    gpu.total_memory = 80 * 2**30
    refuse_too_large(make_job(fields), device, config.get("text_config", config))


def test_files_of_a_model_in_the_home_folder_are_in_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    job = job_with(model=ModelSpec(id="~/model"))
    assert [name for name, *_ in generation_job.key_parts(job)["files"]] == ["config.json"]


def test_fused_experts_left_in_16_bit_are_counted_in_16_bit():
    model = on_meta(read_config(shipped_shape("qwen3-30b-a3b")), "bfloat16")
    needed = [least_weight_bytes(model, bits=4, value_bytes=2, has_narrow_experts=narrow) for narrow in (True, False)]
    assert [round(count / 1e9, 1) for count in needed] == [16.2, 59.7]


def test_quality_process_requires_memory_for_the_weights(monkeypatch, tmp_path):
    config = read_config(shipped_shape("qwen3-8b"))
    fields = {"subject.model.id": "qwen3-8b", "subject.model.load_format": "dummy", "variant.quant": "fp16"}
    job = make_job(fields).model_copy(update={"part": Part(record=tmp_path, sweep="now", only="quality")})
    assert job.points() == []
    monkeypatch.setattr(generation_job, "available_bytes", lambda: 20 * 2**30)
    refuse_too_large(job, CpuDevice(), config)
    monkeypatch.setattr(generation_job, "available_bytes", lambda: 10 * 2**30)
    with pytest.raises(MemoryNeededError, match=r"^memory for the weights: 15.26 GiB needed, 10.00 GiB free; use a "):
        refuse_too_large(job, CpuDevice(), config)
