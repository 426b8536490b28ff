"""Which GPTQ kernel may run where."""

from __future__ import annotations

import pytest

from benchmarker.checkpoints.base import Target
from benchmarker.core.errors import BenchmarkerError, FieldError, SpecError
from benchmarker.quantization.base import TorchGpu
from benchmarker.quantization.gptq import LOADER, GPTQOptions
from benchmarker.quantization.gptqmodel_kernels import KernelName, check_kernel, check_shapes
from benchmarker.schema.config_io import validated
from benchmarker.workloads.generation.generation_job import resolve
from benchmarker.workloads.generation.spec import VariantSpec

H100 = TorchGpu("NVIDIA H100 80GB HBM3", (9, 0), nvidia=True)
T4 = TorchGpu("NVIDIA T4", (7, 5), nvidia=True)
RADEON = TorchGpu("AMD Radeon RX 7900 XTX", (11, 0), nvidia=False)
FORMAT = {"bits": 4, "group_size": 128, "sym": True}


def complaint(kernel: KernelName, gpu: TorchGpu | None, **form: object) -> str:
    with pytest.raises(BenchmarkerError) as caught:
        check_kernel(kernel, FORMAT | form, gpu)
    return str(caught.value)


@pytest.mark.parametrize("kernel", ["auto", "torch", "triton", "exllama_v2", "marlin"])
def test_an_h100_runs_every_gpu_kernel(kernel):
    check_kernel(kernel, FORMAT, H100)


@pytest.mark.parametrize("kernel", ["auto", "torch", "torch_aten"])
def test_a_cpu_runs_the_kernels_made_for_it(kernel):
    check_kernel(kernel, FORMAT, None)


def test_marlin_needs_a_newer_gpu_than_a_t4():
    assert complaint("marlin", T4) == (
        "gptq: the Marlin kernel needs compute capability 8.0; this is NVIDIA T4 (7.5). Set options.kernel to 'triton'."
    )


@pytest.mark.parametrize(("kernel", "title"), [("triton", "Triton"), ("exllama_v2", "ExLlamaV2"), ("marlin", "Marlin")])
def test_gpu_kernels_need_a_gpu(kernel, title):
    assert complaint(kernel, None) == (
        f"gptq: the {title} kernel needs a GPU; this is the CPU. Set options.kernel to 'torch'."
    )


def test_torch_aten_is_for_cpus():
    assert complaint("torch_aten", H100) == (
        "gptq: the torch_aten kernel runs on CPUs; this is NVIDIA H100 80GB HBM3. Set options.kernel to 'triton'."
    )


def test_exllama_is_for_nvidia():
    assert complaint("exllama_v2", RADEON) == (
        "gptq: the ExLlamaV2 kernel needs an NVIDIA GPU; this is AMD Radeon RX 7900 XTX. "
        "Set options.kernel to 'triton'."
    )


def test_a_kernel_that_does_not_know_the_bits():
    assert complaint("exllama_v2", H100, bits=8) == (
        "gptq: the ExLlamaV2 kernel supports bits 4, not 8. Set options.kernel to 'auto'."
    )


def test_a_kernel_that_does_not_know_the_group_size():
    assert complaint("marlin", H100, group_size=256) == (
        "gptq: the Marlin kernel supports group_size -1, 32, 64, 128, not 256. Set options.kernel to 'auto'."
    )


def test_marlin_needs_symmetric_codes():
    assert complaint("marlin", H100, sym=False) == (
        "gptq: the Marlin kernel needs sym=true. Set options.kernel to 'auto'."
    )


def test_a_choice_of_gptqmodel_that_would_crash_is_refused():
    assert complaint("auto", None, group_size=-1) == (
        "gptq: the kernel that gptqmodel chooses on CPUs cannot run 4 bits with group_size=-1. "
        "Set options.kernel to 'torch'."
    )


def test_layers_that_no_kernel_can_cut():
    with pytest.raises(SpecError) as caught:
        check_shapes({"model.layers.0.mlp.up_proj": (128, 100)}, FORMAT)
    assert str(caught.value) == ("gptq: model.layers.0.mlp.up_proj is 128 x 100; its kernels need multiples of 32")


def test_float32_is_refused_before_anything_is_downloaded():
    with pytest.raises(SpecError) as caught:
        LOADER.check(GPTQOptions(), Target("cpu", "float32"))
    assert str(caught.value) == ("gptq: its kernels support 16-bit types only; use --dtype float16 or bfloat16")


def test_a_calibration_text_that_is_not_there():
    with pytest.raises(SpecError) as caught:
        LOADER.check(GPTQOptions(calibration="/nowhere.txt"), Target("cpu", "float16"))
    assert str(caught.value) == (
        "--calibration /nowhere.txt: cannot be read: No such file or directory; "
        "give a text file, or leave --calibration out for the shipped text"
    )


def test_a_calibration_text_that_is_not_text(tmp_path):
    path = tmp_path / "noise"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError) as caught:
        LOADER.check(GPTQOptions(calibration=str(path)), Target("cpu", "float16"))
    assert str(caught.value) == f"--calibration {path}: not a text file in UTF-8"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"bits": 5}, "bits: input should be 2, 3, 4 or 8, not 5"),
        ({"group_size": 100}, "group_size: 100 is not one of -1, 16, 32, 64, 128, 256, 512, 1024"),
        ({"damp_percent": 1.5}, "damp_percent: input should be less than 1, not 1.5"),
        ({"groupsize": 64}, "no key 'groupsize'; did you mean 'group_size'?"),
    ],
)  # fmt: skip
def test_options_are_checked_without_any_library(options, problem):
    variant = validated(VariantSpec, {"quant": "gptq", "options": options}, where="here")
    with pytest.raises(FieldError) as caught:
        resolve(variant)
    assert str(caught.value).endswith(problem)
