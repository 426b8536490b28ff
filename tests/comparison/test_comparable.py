"""Records that share a table, records that are refused with a reason, and the names under --force."""

from __future__ import annotations

import os

import pytest

from benchmarker.checkpoints.cache import DESCRIPTION, Description
from benchmarker.checkpoints.files import model_fingerprint
from benchmarker.execution.jobs import make_job
from benchmarker.report.compare import compare
from benchmarker.report.verify import verify
from benchmarker.schema.registry import workload_of
from tests.records import cell, environment, load, record, refusal, rounds, rows_of, save


def test_records_of_two_devices_are_refused_with_counts(tmp_path):
    other = environment(device={"name": "AMD Instinct MI300X", "driver": "6.4"})
    save(tmp_path, record("fp16"), record("int8"), record("gptq", environment=other))
    assert refusal(tmp_path) == (
        "these records do not compare: device is NVIDIA H100 80GB HBM3 in 2 records and AMD Instinct MI300X in "
        "1 record; driver is 580.159.04 in 2 records and 6.4 in 1 record. "
        "Give fewer paths, or --force to compare them all the same"
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": {"id": "Qwen/Qwen3-8B"}}, "model is Qwen/Qwen3-4B in 1 record and Qwen/Qwen3-8B in 1 record"),
        ({"model": {"revision": "1cfa9a72"}}, "model revision is unknown in 1 record and 1cfa9a72 in 1 record"),
        ({"model": {"load_format": "dummy"}}, "load_format is auto in 1 record and dummy in 1 record"),
        ({"model": {"config_sha256": "cd" * 32}}, "model shapes (config_sha256) is abababababab in 1 record and"),
        ({"benchmarker": "0.2.0"}, "benchmarker is 0.1.0 in 1 record and 0.2.0 in 1 record"),
        (
            {"environment": environment(packages={"torch": "2.12.0", "transformers": "5.17.0"})},
            "torch is 2.11.0+cu130 in 1 record and 2.12.0 in 1 record",
        ),
        (
            {"environment": environment(packages={"torch": "2.11.0+cu130"})},
            "transformers is 5.17.0 in 1 record and unknown in 1 record",
        ),
    ],
)
def test_refusal_lists_the_differing_field_and_its_values(tmp_path, change, field):
    save(tmp_path, record("fp16"), record("int8", **change))
    assert field in refusal(tmp_path)


def test_refusal_of_two_models_advises_checkpoints_of_one(tmp_path):
    save(tmp_path, record("fp16"), record("gptq", model={"id": "./quantized"}))
    assert refusal(tmp_path).endswith(
        "1 record. Measure checkpoints of one model with `run --model MODEL --checkpoint FOLDER`, give fewer paths, or "
        "--force to compare them all the same"
    )


@pytest.mark.parametrize("workload", ["generation", "serving", "finetune"])
def test_load_format_of_a_dummy_folder_is_recorded_before_loading(tmp_path, workload):
    about = Description(kind="dummy", model="qwen3-tiny", options={}, created="2026-01-01")
    (tmp_path / DESCRIPTION).write_text(about.model_dump_json())
    variant = {"variant.variant": "lora"} if workload == "finetune" else {}
    job = make_job({"subject.model.id": str(tmp_path), **variant}, workload=workload)
    assert workload_of(workload).record_fields(job)["model"].load_format == "dummy"


def on_cpu(**changes):
    return environment(device={"kind": "cpu", "name": "a CPU", "driver": None, "runtime": None}, **changes)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"variables": {"ATEN_CPU_CAPABILITY": "default"}}, "instruction switches is unknown in 1 record and ATEN_CPU"),
        ({"variables": {"TORCH_COMPILE_DISABLE": "1"}}, "compiler switches is unknown in 1 record and TORCH_COMPILE"),
        ({"cores": 64}, "cores is 16 in 1 record and 64 in 1 record"),
        ({"python": "3.13.1"}, "Python is 3.11 in 1 record and 3.13 in 1 record"),
        ({"governor": "powersave"}, "governor is performance in 1 record and powersave in 1 record"),
    ],
)
def test_different_cpu_switches_cores_or_governors_are_refused(tmp_path, change, field):
    first = {"python": "3.11.9", "governor": "performance"}
    save(tmp_path, record("fp16", environment=on_cpu(**first)), record("int8", environment=on_cpu(**first | change)))
    assert field in refusal(tmp_path)


def test_only_known_different_power_limits_are_refused(tmp_path):
    environments = [environment(device={"power_limit_w": watts}) for watts in (700.0, 500.0, None)]
    save(tmp_path / "two", record("fp16", environment=environments[0]), record("int8", environment=environments[1]))
    save(tmp_path / "unknown", record("fp16", environment=environments[0]), record("int8", environment=environments[2]))
    assert "power limit is 700 W in 1 record and 500 W in 1 record" in refusal(tmp_path / "two")
    assert set(rows_of(tmp_path / "unknown")) == {"fp16", "int8"}


def test_different_auto_kernels_between_rounds_are_refused(tmp_path):
    records = [
        record("gptq", round_number=number, load=load(notes=(f"kernel auto: {kernel}",)))
        for number, kernel in enumerate(("MarlinLinear", "MarlinLinear", "TorchLinear"))
    ]
    save(tmp_path, *records)
    assert (
        "kernel of variant 'gptq' is kernel auto: MarlinLinear in 2 records and kernel auto: TorchLinear in 1 record"
        in refusal(tmp_path)
    )


def test_version_of_an_unused_library_may_differ(tmp_path):
    versions = {"torch": "2.11.0+cu130", "transformers": "5.17.0"}
    newer, older = (environment(packages=versions | {"torchao": number}) for number in ("0.18.0", "0.17.0"))
    save(tmp_path / "unused", record("fp16", environment=newer), record("bnb4", environment=older))
    save(tmp_path / "used", record("int8", environment=newer), record("int8", name="again", environment=older))
    assert set(rows_of(tmp_path / "unused")) == {"fp16", "bnb4"}
    assert "torchao is 0.18.0 in 1 record and 0.17.0 in 1 record" in refusal(tmp_path / "used")


def test_quantized_checkpoint_and_its_base_model_compare_with_a_note(tmp_path):
    base = record("fp16", model={"revision": "1cfa9a72"})
    checkpoint = {"id": "someone/Qwen3-4B-GPTQ-Int4", "revision": "77aa"}
    save(tmp_path, base, record("gptq", model=checkpoint, load=load(quantized_fraction=0.9)))
    comparison = compare([tmp_path])
    assert {row.variant: row.is_baseline for row in comparison.rows} == {"fp16": True, "gptq": False}
    note = "someone/Qwen3-4B-GPTQ-Int4 is taken for a quantized checkpoint of Qwen/Qwen3-4B, by its name"
    assert note in comparison._repr_markdown_()


@pytest.mark.parametrize(
    ("model", "fraction"),
    [
        ({"id": "someone/Qwen3-4B-Instruct-GPTQ"}, 0.9),
        ({"id": "someone/Qwen3-4B-GPTQ"}, 0.0),
        ({"id": "someone/Qwen3-4B-GPTQ", "config_sha256": "cd" * 32}, 0.9),
    ],
    ids=["another model", "not quantized", "other shapes"],
)
def test_other_models_with_a_similar_name_are_refused(tmp_path, model, fraction):
    save(tmp_path, record("fp16"), record("gptq", model=model, load=load(quantized_fraction=fraction)))
    assert f"model is Qwen/Qwen3-4B in 1 record and {model['id']} in 1 record" in refusal(tmp_path)


def test_one_folder_through_two_paths_is_one_model(tmp_path):
    folder, alias = tmp_path / "models" / "tiny", tmp_path / "alias"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    alias.symlink_to(folder)
    paths = [str(folder), str(alias), os.path.relpath(folder)]
    same = [
        record(quant, model={"id": path, "files_sha256": model_fingerprint(path)})
        for quant, path in zip(("fp16", "int8", "bnb4"), paths, strict=True)
    ]
    save(tmp_path / "same", *same)
    assert set(rows_of(tmp_path / "same")) == {"fp16", "int8", "bnb4"}
    save(tmp_path / "other", same[0], record("int8", model={"id": "elsewhere/tiny", "files_sha256": "0" * 64}))
    assert "in 1 record and elsewhere/tiny in 1 record" in refusal(tmp_path / "other")


def test_records_with_different_inputs_are_refused(tmp_path):
    save(tmp_path, record("fp16"), record("int8", cell(inputs_sha256="e" * 64)))
    message = "input at prompt 26, 50 new tokens, batch 1 (inputs_sha256) is 6f3c6f3c6f3c in 1 record and eeeeeeeeeeee"
    assert message in refusal(tmp_path)


def test_one_variant_name_with_two_options_is_refused(tmp_path):
    save(
        tmp_path,
        record("gptq", options={"group_size": 128}),
        record("gptq", options={"group_size": 32}, round_number=1),
    )
    assert "options of variant 'gptq' is group_size=128 in 1 record and group_size=32 in 1 record" in refusal(tmp_path)


def test_one_variant_name_with_two_gpu_counts_is_refused(tmp_path):
    single, split = record("fp16"), record("fp16", run_id="split")
    split = split.model_copy(update={"variant": split.variant.model_copy(update={"gpus": 2, "split": "tensors"})})
    save(tmp_path, single, split)
    assert "gpus of variant 'fp16' is unset in 1 record and 2 by tensors in 1 record" in refusal(tmp_path)
    assert set(rows_of(tmp_path, force=True)) == {"fp16 (unset)", "fp16 (2 by tensors)"}


def test_library_in_only_one_environment_is_no_difference(tmp_path):
    with_torchao = {"torch": "2.11.0+cu130", "transformers": "5.17.0", "torchao": "0.18.0"}
    save(tmp_path, record("fp16"), record("int8", environment=environment(packages=with_torchao)))
    assert len(compare([tmp_path]).rows) == 2


def test_variants_of_different_dtypes_are_compared(tmp_path):
    save(tmp_path, record("fp16"), record("fp16", name="bf16", model={"dtype": "bfloat16"}))
    assert rows_of(tmp_path)["bf16"]["verdict"] == "not tested"


def test_force_adds_the_device_to_the_variant_names(tmp_path):
    other = environment(device={"name": "NVIDIA L4"})
    save(tmp_path, record("fp16", cell([1.0])), record("fp16", cell([3.0]), environment=other, run_id="other"))
    rows = rows_of(tmp_path, force=True)
    assert {name: row["latency_s"] for name, row in rows.items()} == {
        "fp16 (NVIDIA H100 80GB HBM3)": 1.0,
        "fp16 (NVIDIA L4)": 3.0,
    }


def test_forced_names_contain_only_the_first_difference(tmp_path):
    other = environment(device={"name": "NVIDIA L4", "driver": "570.1"}, cpu="EPYC")
    save(tmp_path, record("fp16"), record("int8"), record("fp16", environment=other, run_id="other"))
    assert list(rows_of(tmp_path, force=True)) == ["fp16 (NVIDIA H100 80GB HBM3)", "fp16 (NVIDIA L4)", "int8"]


def test_single_runs_are_grouped_by_quantization_and_sweeps_are_not(tmp_path):
    forms = [("fp16", "eager"), ("int8", "eager"), ("fp16", "cuda_graph")]
    records = [record(quant, name=f"{quant} {runtime}", runtime=runtime) for quant, runtime in forms]
    save(tmp_path / "runs", *records)
    assert list(rows_of(tmp_path / "runs")) == ["fp16 eager", "fp16 cuda_graph", "int8 eager"]
    save(tmp_path / "sweep", *(run_record.model_copy(update={"sweep": "monday"}) for run_record in records))
    assert list(rows_of(tmp_path / "sweep")) == ["fp16 eager", "int8 eager", "fp16 cuda_graph"]


def test_rounds_on_two_devices_are_not_paired(tmp_path):
    other = environment(device={"name": "NVIDIA L4"})
    trend = [1.0, 1.1, 1.2, 1.3, 1.4]
    save(tmp_path, *rounds("fp16", trend), *rounds("int8", trend, environment=other))
    assert rows_of(tmp_path, force=True)["int8"]["verdict"] == "inconclusive"
    # In paired rounds on one device, equal trends cancel.
    save(tmp_path / "one", *rounds("fp16", trend), *rounds("int8", trend))
    assert rows_of(tmp_path / "one")["int8"]["verdict"] == "same"


def test_record_with_only_the_second_text_joins_its_cell(tmp_path):
    both = record("fp16", cell(inputs_sha256="a" * 64, text=0), cell([2.0] * 5, inputs_sha256="b" * 64, text=1))
    second = record("fp16", cell([2.0] * 5, inputs_sha256="b" * 64, text=1), round_number=1)
    save(tmp_path, both, second)
    rows = {row.cell.text: row for row in compare([tmp_path]).rows if row.cell}
    assert [rows[0].rounds, rows[1].rounds] == [1, 2]
    assert verify([tmp_path]).mismatches == ()
