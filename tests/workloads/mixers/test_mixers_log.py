"""What a printed log of a comparison of mixers says, and what of it is void."""

from pathlib import Path

import pytest

from benchmarker.profiling.categories import category
from benchmarker.profiling.printed_table import read_tables
from benchmarker.workloads.mixers.log_values import read_values
from benchmarker.workloads.mixers.log_verdict import delta_net_parameters, mixer_sentences

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def text():
    return (DATA / "token-mixers.txt").read_text()


@pytest.fixture(scope="module")
def tables(text):
    return read_tables(text)


def test_speeds_memory_and_scores_are_read_by_model_and_length(text):
    log = read_values(text)
    assert log.lengths == [256, 512, 1024]
    assert log.step_s["GatedDeltaNet"][1024] == pytest.approx(0.45503)
    assert (log.peak_mb["Linear"][512], log.forward_mb["Softmax"][2048]) == (3804.1, 920.2)
    assert (log.vocabulary, log.is_by_character, log.parameters["Linear"]) == (1015, True, 3.83e6)
    assert len(log.accuracy["Flash"]) == 10


@pytest.mark.parametrize(
    "sentence",
    [
        "bound by the device, all of them: kernels take 94 % or more of the step without the profiler (Softmax 97 %",
        "the kernel time is Softmax at 256 forward 32 %, backward 67 %, optimizer 1.0 %; Flash",
        "62 % of the kernel time is in the mixer's own kernels, 8.4 % in the short convolution",
        "head_dim 256 and expand_v 2, so that a layer carries 524,288 numbers, 32 times Linear's 16,384",
        "Softmax ran flash attention too: the same peak to the digit at every length (1,490.0 MB at 256)",
        "their perplexities 7.39 and 7.56 differ by 2.3 %",
        "0.00 % to 0.67 % is at chance (1 of 1,015 is 0.0985 %): the models were not trained on these tasks",
        "perplexity is for each character (Softmax's 7.39 is 2.9 bits)",
        "5,846,528 parameters of Softmax are not the trained model's 3.77 M: they are of a vocabulary of about 5,070",
        "at 1,024 positions and width 256 the scores are 24 % of the arithmetic",
        "Softmax's 144.7 MB at 256, is 16 MB below the line",
        "GatedDeltaNet at 1,024 fits in the test of speed (22,671.0 MB) and not under the profiler",
    ],
)
def test_what_the_log_says_and_what_of_it_is_void(text, tables, sentence):
    assert sentence in "\n".join(mixer_sentences(tables, text))


def test_a_delta_net_of_another_size_is_not_called_fla_s_default(text, tables):
    changed = text.replace("参数量: 5.1 M", "参数量: 3.8 M")
    assert "not comparable" not in "\n".join(mixer_sentences(tables, changed))


def test_accuracies_above_chance_are_left_alone(text, tables):
    changed = text.replace("Linear | Acc: 0.67%", "Linear | Acc: 67.0%").replace(
        "Linear | Acc: 0.33%", "Linear | Acc: 33%"
    )
    assert "say nothing" not in "\n".join(mixer_sentences(tables, changed))


def test_peaks_that_differ_do_not_say_that_flash_ran(text, tables):
    changed = text.replace(
        "Flash | 24.5±0.09ms | 1337270 tok/s | 1490.0MB", "Flash | 24.5±0.09ms | 1337270 tok/s | 990.0MB"
    )
    assert "ran flash attention too" not in "\n".join(mixer_sentences(tables, changed))


def test_the_parameters_of_a_delta_net_by_hand():
    # One layer of width 2 with one head: q, k 2x256 each, v, gate, output 2x512 each, decay and strength 2 each.
    mixer = 2 * (256 + 256 + 3 * 512 + 2) + 4 * (256 + 256 + 512) + 2
    layer = mixer + 512 + 8 * 4 + 4 * 2
    assert delta_net_parameters({"hidden_size": 2, "num_layers": 3, "num_heads": 1}, 10) == 3 * layer + 2 * 10 * 2


@pytest.mark.parametrize("name", ["attention-two-profiles.txt", "qlora-table.txt", "reference-log.md"])
def test_another_log_gives_no_sentence(name):
    other = (DATA / name).read_text()
    assert mixer_sentences((), other) == ()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ChunkGatedDeltaRuleFunctionBackward", "linear attention"),
        ("FusedChunkFunctionBackward", "linear attention"),
        ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "linear attention"),
        ("chunk_bwd_kernel_dqkwg", "linear attention"),
        ("fused_chunk_fwd_kernel", "linear attention"),
        ("recompute_w_u_fwd_kernel", "linear attention"),
        ("merge_16x16_to_64x64_inverse_kernel", "linear attention"),
        ("CausalConv1dFunctionBackward", "convolution"),
        ("flash_fwd_kernel", "attention"),
        ("aten::chunk", "bookkeeping"),
    ],
)
def test_a_mixers_kernels_have_a_purpose(name, expected):
    assert category(name) == expected
