"""Test the requirements of GPTQ kernels on the GPU, the format and the options."""

from __future__ import annotations

import pytest

from benchmarker.checkpoints.base import Target
from benchmarker.core.errors import BenchmarkerError, FieldError, SpecError
from benchmarker.quantization.base import TorchGpu, check_supported
from benchmarker.quantization.gptq import LOADER, GPTQOptions
from benchmarker.quantization.gptqmodel_kernels import KernelName, check_kernel, check_shape
from benchmarker.schema.config_io import validated
from benchmarker.workloads.generation.generation_job import resolve
from benchmarker.workloads.generation.spec import VariantSpec

H100 = TorchGpu("NVIDIA H100 80GB HBM3", (9, 0), nvidia=True)
T4 = TorchGpu("NVIDIA T4", (7, 5), nvidia=True)
RADEON = TorchGpu("AMD Radeon RX 7900 XTX", (11, 0), nvidia=False)
FORMAT = {"bits": 4, "group_size": 128, "sym": True}


def error_message(kernel: KernelName, gpu: TorchGpu | None, **form: object) -> str:
    with pytest.raises(BenchmarkerError) as caught:
        check_kernel(kernel, FORMAT | form, gpu)
    return str(caught.value)


@pytest.mark.parametrize("kernel", ["auto", "torch", "triton", "exllama_v2", "marlin"])
def test_h100_supports_every_gpu_kernel(kernel):
    check_kernel(kernel, FORMAT, H100)


@pytest.mark.parametrize("kernel", ["auto", "torch", "torch_aten"])
def test_cpu_supports_torch_kernels(kernel):
    check_kernel(kernel, FORMAT, None)


def test_marlin_requires_compute_capability_8():
    assert error_message("marlin", T4) == (
        "gptq: the marlin kernel needs compute capability 8.0; this is NVIDIA T4 (7.5). Set options.kernel to 'triton'."
    )


@pytest.mark.parametrize("kernel", ["triton", "exllama_v2", "marlin"])
def test_gpu_kernels_require_a_gpu(kernel):
    assert error_message(kernel, None) == (
        f"gptq: the {kernel} kernel needs a GPU; this is the CPU. Set options.kernel to 'torch'."
    )


def test_torch_aten_requires_a_cpu():
    assert error_message("torch_aten", H100) == (
        "gptq: the torch_aten kernel runs on CPUs; this is NVIDIA H100 80GB HBM3. Set options.kernel to 'triton'."
    )


def test_exllama_requires_an_nvidia_gpu():
    assert error_message("exllama_v2", RADEON) == (
        "gptq: the exllama_v2 kernel needs an NVIDIA GPU; this is AMD Radeon RX 7900 XTX. "
        "Set options.kernel to 'triton'."
    )


def test_unsupported_number_of_bits_is_refused():
    assert error_message("exllama_v2", H100, bits=8) == (
        "gptq: the exllama_v2 kernel supports bits 4, not 8. Set options.kernel to 'auto'."
    )


def test_unsupported_group_size_is_refused():
    assert error_message("marlin", H100, group_size=256) == (
        "gptq: the marlin kernel supports group_size -1, 32, 64, 128, not 256. Set options.kernel to 'auto'."
    )


def test_marlin_requires_symmetric_quantization():
    assert error_message("marlin", H100, sym=False) == (
        "gptq: the marlin kernel needs sym=true. Set options.kernel to 'auto'."
    )


def test_automatic_kernel_that_would_crash_is_refused():
    assert error_message("auto", None, group_size=-1) == (
        "gptq: the kernel that gptqmodel chooses on CPUs cannot run 4 bits with group_size=-1. "
        "Set options.kernel to 'torch'."
    )


def test_layer_sizes_not_divisible_by_32_are_refused():
    with pytest.raises(SpecError) as caught:
        check_shape("model.layers.0.mlp.up_proj", 128, 100, group_size=128)
    assert str(caught.value) == ("gptq: model.layers.0.mlp.up_proj is 128 x 100; its kernels need multiples of 32")


def test_float32_is_refused_before_download():
    with pytest.raises(SpecError) as caught:
        check_supported(LOADER, GPTQOptions(), Target("cpu", "float32"))
    assert str(caught.value) == ("gptq: computes in float16 or bfloat16, not float32; use --dtype float16 or bfloat16")


def test_missing_calibration_file_is_refused():
    with pytest.raises(SpecError) as caught:
        LOADER.check(GPTQOptions(calibration="/nowhere.txt"), Target("cpu", "float16"))
    assert str(caught.value) == (
        "--calibration /nowhere.txt: cannot be read: No such file or directory; "
        "give a text file, or leave --calibration out for the shipped text"
    )


def test_binary_calibration_file_is_refused(tmp_path):
    path = tmp_path / "noise"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError) as caught:
        LOADER.check(GPTQOptions(calibration=str(path)), Target("cpu", "float16"))
    assert str(caught.value) == f"--calibration {path}: not a text file in UTF-8"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"bits": 5}, "bits: input should be 2, 3, 4 or 8, not 5"),
        ({"group_size": 100}, "group_size: input should be -1, 16, 32, 64, 128, 256, 512 or 1024, not 100"),
        ({"damp_percent": 1.5}, "damp_percent: input should be less than 1, not 1.5"),
        ({"groupsize": 64}, "no key 'groupsize'; did you mean 'group_size'?"),
    ],
)  # fmt: skip
def test_options_are_checked_without_a_library(options, problem):
    variant = validated(VariantSpec, {"quant": "gptq", "options": options}, where="here")
    with pytest.raises(FieldError) as caught:
        resolve(variant)
    assert str(caught.value).endswith(problem)
