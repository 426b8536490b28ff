"""What a printed profiler table of a QLoRA run says by itself."""

from pathlib import Path

import pytest

from benchmarker.cli.app import app
from benchmarker.profiling.float32 import is_float32
from benchmarker.profiling.printed_table import read_tables
from benchmarker.workloads.finetune.log_verdict import finetune_sentences

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def said():
    return "\n".join(finetune_sentences(read_tables((DATA / "qlora-table.txt").read_text())))


@pytest.mark.parametrize(
    "sentence",
    [
        "20 steps of 28 layers with 7 packed weights each",
        "gradient checkpointing is on everywhere",
        "matrix products are 60.3 % of the kernel time",
        "dequantizing is 7.1 % (11,760 calls, 3 for each weight and step): it is not the price",
        "float32 products without tensor cores are 11.1 % (434.35 ms in 38 calls",
        "the output layer",
        "attention in float32 is 9.6 %",
        "`fmha_cutlassB_f32_aligned_64x64_k128_sm80` is 5.8 %",
        "together 20.7 % is float32, as peft's prepare_model_for_kbit_training leaves norms and output layer",
        "recomputing is about 29.6 %",
        "30 % busy with the profiler on",
        "its 1.4370 s of device total is the forward pass alone",
        "418 of 11,760 unpacking kernels are missing, 0.71 of a step",
        "-354 GiB at `CheckpointFunction` is what was allocated less what was freed, and no memory in use",
        "not in the log: tokens, batch and length",
    ],
)
def test_the_log_says_where_its_time_goes(said, sentence):
    assert sentence in said


def test_a_table_of_something_else_says_nothing():
    assert finetune_sentences(read_tables((DATA / "attention-two-profiles.txt").read_text())) == ()


def test_without_the_total_nothing_is_said():
    text = (DATA / "qlora-table.txt").read_text().split("Self CPU time total")[0].replace("%", "")
    tables = [table for table in read_tables(text) if table.device_s is None]
    assert finetune_sentences(tables) == ()


def test_explain_prints_it(capsys):
    import typer

    typer.main.get_command(app).main(["explain", str(DATA / "qlora-table.txt")], standalone_mode=False)
    assert "- recomputing is about 29.6 %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)", True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention)", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8", True),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x64", False),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", False),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN", False),
    ],
)
def test_float32_is_told_from_what_only_adds_up_in_it(name, expected):
    assert is_float32(name) is expected
