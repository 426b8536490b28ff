"""Findings of the doctor on described machines, and its instruments on this machine."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarker.core.console import Terminal
from benchmarker.core.formatting import GIB
from benchmarker.core.process import Streams
from benchmarker.core.tables import to_markdown
from benchmarker.doctor.examine import all_run, examine, finding_lines, outcome_table, reading_table, try_variants
from benchmarker.doctor.findings import Finding, Machine, findings
from benchmarker.doctor.instruments import Reading, energy_and_power, readings
from benchmarker.hardware.device import CpuDevice
from benchmarker.hardware.gpu import AmdGpu, NvidiaGpu
from benchmarker.workloads.generation.engine_trials import Outcome, look, run_arguments, two_layers
from tests.cli.test_cli import typed
from tests.fakes import FakeNvml
from tests.records import cpu_environment, environment


@dataclass(frozen=True)
class FakeCard:
    """GPU with the driver values that the findings read."""

    name: str | None
    vendor: str = "NVIDIA"
    driver: str | None = None
    newest_cuda: str | None = None
    used: int | None = None
    processes: tuple[int, ...] | None = None
    limit_w: float | None = None
    is_sliced: bool = False

    def used_bytes(self) -> int | None:
        return self.used

    def process_ids(self) -> tuple[int, ...] | None:
        return self.processes

    def power_limit_w(self) -> float | None:
        return self.limit_w

    def power_default_w(self) -> float | None:
        return 700.0


H100 = FakeCard("NVIDIA H100", driver="580.159.04", newest_cuda="13.0", used=4 * 2**20, processes=(), limit_w=700.0)
READY = Machine(
    environment=environment(),
    torch_for="cuda",
    torch_runtime="13.0",
    torch_sees_gpu=True,
    torch_says=None,
    architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100"),
    gpus=(H100,),
    has_amd=False,
    has_triton=True,
    compiler="/usr/bin/g++",
    hub=None,
    cache=Path("/cache"),
    free_bytes=100 * GIB,
    busy_processors=0.1,
    missing=("ray",),
)


def findings_of(**changes: Any) -> list[Finding]:
    return findings(replace(READY, **changes))


def obstacle(**changes: Any) -> Finding:
    (failure,) = [finding for finding in findings_of(**changes) if finding.level == "no"]
    return failure


def gpu_like_h100(**changes: Any) -> FakeCard:
    return replace(H100, **changes)


def test_ready_machine_has_one_finding():
    assert findings_of() == [Finding("ok", "torch uses NVIDIA H100 80GB HBM3")]


def test_cpu_build_of_torch_on_a_gpu_is_reported():
    failure = obstacle(torch_for="cpu", torch_runtime=None, torch_sees_gpu=False, environment=cpu_environment())
    assert failure.what == "there is NVIDIA H100, but this torch is built for CPUs only"
    assert failure.do is not None
    assert failure.do.startswith("install a torch built for CUDA")


def test_driver_too_old_for_torch_is_reported():
    gpus = (gpu_like_h100(driver="535.54", newest_cuda="12.2"),)
    failure = obstacle(torch_sees_gpu=False, gpus=gpus, environment=cpu_environment())
    assert failure.what == "driver 535.54 runs CUDA 12.2, and this torch is built for 13.0"
    assert failure.do == "update the driver, or install a torch built for CUDA 12.2 or older"


def test_hip_version_with_a_commit_suffix_is_parsed():
    gpus = (gpu_like_h100(driver="535.54", newest_cuda="12.2"),)
    rocm = {"torch_for": "rocm", "torch_runtime": "6.2.41133-dd7f95766", "has_amd": True}
    failure = obstacle(torch_sees_gpu=False, gpus=gpus, environment=cpu_environment(), **rocm)
    assert "torch does not see it" in failure.what


def test_hidden_gpu_is_reported_with_the_error_of_torch():
    failure = obstacle(torch_sees_gpu=False, torch_says="No CUDA GPUs are available", environment=cpu_environment())
    assert failure.what.endswith("torch does not see it: No CUDA GPUs are available")
    assert failure.do is not None
    assert "CUDA_VISIBLE_DEVICES" in failure.do


@pytest.mark.parametrize("capability", ["6.1", "7.0", "12.0"])
def test_unsupported_compute_capability_is_reported(capability):
    failure = obstacle(environment=environment(device={"capability": capability}))
    assert failure.what.startswith(f"this torch has no kernels for compute capability {capability}")


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.9", "9.0"])
def test_kernels_of_a_lower_minor_capability_are_sufficient(capability):
    on_gpu = environment(device={"capability": capability})
    assert [finding.level for finding in findings_of(environment=on_gpu)] == ["ok"]


def test_rocm_is_reported_as_untested_and_its_architecture_is_checked():
    amd = environment(device={"kind": "rocm", "name": "AMD Radeon RX 7900 XTX", "capability": "gfx1100"})
    rocm = {"torch_for": "rocm", "torch_runtime": "6.4", "environment": amd, "has_amd": True}
    notes = findings_of(**rocm, architectures=("gfx90a", "gfx1100"), gpus=(FakeCard("AMD Radeon RX 7900 XTX"),))
    assert any("not tested by its authors" in finding.what for finding in notes)
    failure = obstacle(**rocm, architectures=("gfx90a",), gpus=(FakeCard("AMD Radeon RX 7900 XTX"),))
    assert failure.what == "this torch has no kernels for gfx1100, only for gfx90a"


def test_cuda_build_of_torch_on_an_amd_gpu_is_reported():
    failure = obstacle(torch_sees_gpu=False, has_amd=True, gpus=(FakeCard("AMD card"),), environment=cpu_environment())
    assert failure.what == "there is AMD card, but this torch is built for CUDA"


def test_busy_capped_and_mig_gpus_have_notes():
    texts = [finding.what for finding in findings_of(gpus=(gpu_like_h100(used=9 * GIB, processes=(1, 2)),))]
    assert "NVIDIA H100 is in use by 2 other programs: 9.00 GiB of its memory are taken" in texts
    texts = [finding.what for finding in findings_of(gpus=(gpu_like_h100(used=9 * GIB, processes=(1,)),))]
    assert "NVIDIA H100 is in use by 1 other program: 9.00 GiB of its memory are taken" in texts
    texts = [finding.what for finding in findings_of(gpus=(gpu_like_h100(limit_w=350.0),))]
    assert "NVIDIA H100 is capped at 350 W of 700" in texts
    texts = [finding.what for finding in findings_of(gpus=(gpu_like_h100(is_sliced=True),))]
    assert "NVIDIA H100 is divided into instances (MIG): the times are those of an instance, not of the card" in texts


def test_ray_is_reported_as_untested_on_gpus():
    message = "Ray: the authors tested sweep --places ray on CPUs only, not on GPUs"
    assert message in [finding.what for finding in findings_of(missing=())]
    assert message not in [finding.what for finding in findings_of()]


def test_missing_programs_are_reported_with_a_remedy():
    assert obstacle(has_triton=False).do == "pip install triton, in the version of torch's own wheel"
    assert obstacle(compiler=None).do == "install one: apt-get install g++"
    assert obstacle(free_bytes=GIB).what == "1.00 GiB are free for /cache, and Qwen3-4B takes 7.54 GiB"
    hub = next(finding for finding in findings_of(hub="ConnectError") if "hub" in finding.what)
    assert hub.do == "give --model qwen3-small, or a folder"


def test_findings_are_sorted_by_severity():
    levels = [finding.level for finding in findings_of(compiler=None, hub="ConnectError")]
    assert levels == ["no", "note", "ok"]
    assert finding_lines(findings_of(compiler=None)).startswith(
        "- ✗ there is no C++ compiler: nothing can be compiled, and GPTQ's kernels cannot be built\n"
        "  - do: install one: apt-get install g++"
    )


def test_missing_library_excludes_only_its_variants(monkeypatch):
    import importlib.metadata

    installed_version = importlib.metadata.version

    def without_torchao(name: str) -> str:
        if name == "torchao":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed_version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_torchao)
    outcomes = list(look(replace(READY, environment=cpu_environment()), CpuDevice()))
    refused = {outcome.variant for outcome in outcomes if outcome.reason and outcome.way == "eager"}
    # transformers cannot read ModelOpt's format; auto-round and compressed-tensors may be installed.
    assert refused - {"autoround", "compressed-tensors", "modelopt"} == {"int8", "int8-dynamic", "fp8", "int4"}
    assert "pip install -e '.[int8]' in benchmarker's folder" in to_markdown(outcome_table(outcomes, tried=False))


def test_variant_for_other_devices_does_not_count_as_failure():
    outcomes = list(look(replace(READY, environment=cpu_environment()), CpuDevice()))
    assert {outcome.variant for outcome in outcomes if outcome.is_for_others} == {"int4", "fp8"}
    runs = [replace(outcome, reason=outcome.reason if outcome.is_for_others else None) for outcome in outcomes]
    assert all_run(runs)
    assert not all_run([replace(outcome, is_for_others=False) for outcome in runs])


def test_outcome_table_lists_each_reason_once():
    outcomes = [
        Outcome("fp16", "eager", None),
        Outcome("fp16", "compile", "needs a C++ compiler"),
        Outcome("int8", "eager", None),
        Outcome("int8", "compile", "needs a C++ compiler"),
    ]
    assert to_markdown(outcome_table(outcomes, tried=True)) == (
        "| variant | eager | compile |\n"
        "| :------ | :---- | :------ |\n"
        "| fp16    | runs  | no      |\n"
        "| int8    | runs  | no      |\n\n"
        "- fp16 compile, int8 compile: needs a C++ compiler\n"
    )


def test_trial_reports_errors_and_skips_known_failures():
    outcomes = [Outcome("fp16", "eager", None), Outcome("gptq", "eager", "no library")]
    command = ("sh", "-c", "echo 'error: fp16: no such thing' >&2; exit 2", "sh")
    results = list(try_variants(outcomes, CpuDevice(), print_line=lambda text: None, command=command))
    assert results == [Outcome("fp16", "eager", "fp16: no such thing"), Outcome("gptq", "eager", "no library")]


def test_variant_that_fails_in_one_engine_is_not_retried(tmp_path):
    outcomes = [Outcome("gptq", "eager", None), Outcome("gptq", "graph", None), Outcome("gptq", "compile", "no Triton")]
    count = tmp_path / "count"
    command = ("sh", "-c", f"echo once >> {count}; echo 'error: gptq: no kernel' >&2; exit 1", "sh")
    results = list(try_variants(outcomes, CpuDevice(), print_line=lambda text: None, command=command))
    assert [outcome.reason for outcome in results] == ["gptq: no kernel", "gptq: no kernel", "no Triton"]
    assert count.read_text() == "once\n"


@pytest.mark.slow
def test_variant_runs_on_the_trial_model():
    with two_layers() as (model, folder):
        arguments = run_arguments(Outcome("int8", "eager", None), CpuDevice(), model=model, folder=folder)
        code, printed = typed("run", *arguments)
        assert code == 0, printed
        assert list((folder / "records").glob("*.json"))


def test_trial_model_has_two_layers_and_is_removed():
    with two_layers() as (model, folder):
        assert '"num_hidden_layers": 2' in (model / "config.json").read_text()
    assert not folder.exists()


def test_instruments_are_correct_on_this_cpu():
    by_instrument = {reading.instrument: reading for reading in readings(CpuDevice())}
    assert by_instrument["clock"].is_right
    assert by_instrument["memory"].is_right
    assert by_instrument["energy"].is_right is by_instrument["bandwidth"].is_right is None
    assert by_instrument["bandwidth"].measured is not None
    assert "unknown" in to_markdown(reading_table(list(by_instrument.values())))


def test_wrong_reading_is_marked():
    wrong_reading = Reading("energy", "J", expected=100.0, measured=40.0, within=(0.8, 1.2), remark="")
    assert wrong_reading.is_right is False
    assert "**wrong**" in to_markdown(reading_table([wrong_reading]))


def test_energy_is_compared_with_power_times_time():
    now = [0.0]

    def work() -> None:
        now[0] += 0.5

    board = SimpleNamespace(energy_j=lambda: 1000 + 300 * now[0], power_w=lambda: 300.0)
    assert energy_and_power(board, work, window_s=5.0, clock=lambda: now[0]) == (1500.0, 1500.0)
    silent_board = SimpleNamespace(energy_j=lambda: None, power_w=lambda: None)
    assert energy_and_power(silent_board, work, window_s=5.0, clock=lambda: now[0]) == (None, None)


def test_nvidia_gpu_is_read_through_nvml():
    nvml = FakeNvml(
        nvmlDeviceGetName="NVIDIA H100",
        nvmlDeviceGetMemoryInfo=SimpleNamespace(used=4 * 2**20, total=80 * GIB),
        nvmlSystemGetCudaDriverVersion_v2=13000,
        nvmlDeviceGetComputeRunningProcesses=[],
        nvmlDeviceGetPowerManagementLimit=700_000,
        nvmlDeviceGetPowerManagementDefaultLimit=700_000,
    )
    gpu = NvidiaGpu(nvml, "handle")
    assert (gpu.name, gpu.driver, gpu.newest_cuda, gpu.process_ids()) == ("NVIDIA H100", "580.159.04", "13.0", ())
    assert gpu.used_bytes() == 4 * 2**20
    assert (gpu.power_limit_w(), gpu.power_default_w(), gpu.is_sliced) == (700.0, 700.0, False)


def test_amd_gpu_is_read_through_amdsmi():
    amdsmi = SimpleNamespace(
        AmdSmiException=RuntimeError,
        amdsmi_get_gpu_asic_info=lambda handle: {"market_name": "AMD Instinct MI300X"},
        amdsmi_get_gpu_driver_info=lambda handle: {"driver_version": "6.12.12"},
        amdsmi_get_gpu_vram_usage=lambda handle: {"vram_used": 300, "vram_total": 196_592},
        amdsmi_get_power_cap_info=lambda handle: {"power_cap": 600_000_000, "default_power_cap": 750_000_000},
    )
    gpu = AmdGpu(amdsmi, None)
    assert (gpu.name, gpu.vendor, gpu.driver) == ("AMD Instinct MI300X", "AMD", "6.12.12")
    assert gpu.used_bytes() == 300 * 2**20
    assert (gpu.power_limit_w(), gpu.power_default_w(), gpu.process_ids()) == (600.0, 750.0, None)


def test_amd_gpu_without_amdsmi_has_no_name():
    failure = obstacle(torch_sees_gpu=False, has_amd=True, gpus=(), environment=cpu_environment())
    assert failure.what == "there is an AMD card, but this torch is built for CUDA"


def test_missing_gpu_is_reported_and_the_cpu_is_examined():
    out = io.StringIO()
    assert examine("cuda:7", Terminal(streams=Streams(out, out)), quick=True) is False
    assert "torch sees no GPU here" in out.getvalue()
    lines = out.getvalue().splitlines()
    assert any(line.startswith("fp16 ") for line in lines)
    # The checkpoint table has eight columns in docs/checkpoints.md.
    assert max(map(len, lines)) <= 100
