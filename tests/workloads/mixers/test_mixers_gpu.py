"""Mixers on a GPU: each variant runs its kernel and is accurate, and known orders of speed hold.

fla tunes each kernel over up to 48 configurations for every dtype, width and kind of gate, and compiles and times each:
about 170 compilations for one variant with its backward pass. Only the test of speed needs the fastest configuration.
All other tests run one configuration of each kernel.
"""

from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.hardware.device import find_device
from benchmarker.workloads.mixers.mixer import VARIANTS, refused_compiler_is_unsupported
from benchmarker.workloads.mixers.mixers_bench import MixersBench
from benchmarker.workloads.mixers.small_model import Setting, train
from benchmarker.workloads.mixers.spec import MixersBlock, MixersSubject, MixersTasks
from benchmarker.workloads.operation.spec import LengthPoint

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
needs_fla = pytest.mark.skipif(find_spec("fla") is None, reason="fla-core is not installed")

FLA = [name for name in VARIANTS if "-fla-" in name]
POINT = LengthPoint(600, 1, "forward_backward")


@pytest.fixture
def one_configuration(monkeypatch):
    """Make Triton use the smallest tiles with the fewest stages, which fit every GPU, without tuning."""
    from triton.runtime.autotuner import Autotuner

    prune = Autotuner.prune_configs

    def smallest(tuner, *arguments):
        def size(config):
            return config.num_stages, sum(tile for tile in config.kwargs.values() if isinstance(tile, int))

        return [min(prune(tuner, *arguments), key=size)]

    monkeypatch.setattr(Autotuner, "prune_configs", smallest)


def bench_of(variant, **subject):
    spec = MixersSubject(**{"heads": 2, "head_dim": 64, **subject})
    return MixersBench(spec, variant, find_device("cuda"))


@contextmanager
def skip_if_the_library_refuses_the_compiler():
    """Skip the test if fla refuses triton: 3.4.0 to 3.7.0 for the backward pass of the delta rule on Hopper."""
    try:
        with refused_compiler_is_unsupported():
            yield
    except UnsupportedError as error:
        if not str(error).startswith("fla: "):
            raise
        pytest.skip(str(error))


def measured(variant, point=POINT, **subject):
    bench = bench_of(variant, **subject)
    with skip_if_the_library_refuses_the_compiler():
        return bench.cell(point).model_copy(update=bench.correct(point))


@needs_fla
def test_delta_rule_is_slower_at_1024_and_faster_at_16384_positions():
    def latency_s(variant, length):
        point = LengthPoint(length, 2, "forward")
        step = bench_of(variant, heads=16, head_dim=128).step(point)
        step()
        return min(step().latency_s for _ in range(3))

    assert latency_s("gdn-fla-chunk", 1024) > latency_s("softmax-cudnn", 1024)
    assert latency_s("gdn-fla-chunk", 16384) < latency_s("softmax-cudnn", 16384)


@needs_fla
@pytest.mark.usefixtures("one_configuration")
@pytest.mark.parametrize("variant", FLA)
def test_each_kernel_of_the_library_is_accurate(variant):
    mode = "forward_backward" if VARIANTS[variant].has_backward else "forward"
    cell = measured(variant, POINT._replace(mode=mode))
    assert cell.checked.error < 1e-2
    assert cell.checked.lengths == (63, 64, 65, 127)


@needs_fla
@pytest.mark.usefixtures("one_configuration")
def test_wide_values_and_means_are_accurate_in_float16():
    values = {"value_dim": 128, "feature_map": "elu", "dtype": "float16"}
    assert measured("linear-fla-chunk", **values).checked.error < 1e-2
    forward = POINT._replace(mode="forward")
    assert measured("linear-fla-chunk", forward, normalize=True, **values).checked.error < 1e-2


@needs_fla
@pytest.mark.usefixtures("one_configuration")
def test_gradient_that_overflows_in_float16_is_refused():
    """fla-core 0.6.0 squares the denominator of the mean in float16, which overflows from 256 on."""
    with pytest.raises(WrongResultError, match="dq is off by"):
        measured("linear-fla-chunk", dtype="float16", feature_map="elu", normalize=True)


@needs_fla
@pytest.mark.usefixtures("one_configuration")
def test_delta_rule_without_its_gate_is_refused(monkeypatch):
    original = VARIANTS["gdn-fla-chunk"]

    def open_without_gate(shape, where):
        operation = original.open(shape, where)
        return operation.__class__(lambda q, k, v, g, beta: operation.call(q, k, v, 0 * g, beta))

    monkeypatch.setitem(VARIANTS, "gdn-fla-chunk", replace(original, open=open_without_gate))
    with pytest.raises(WrongResultError, match="o is off by"):
        measured("gdn-fla-chunk", POINT._replace(mode="forward"))


@needs_fla
@pytest.mark.usefixtures("one_configuration")
def test_stored_bytes_grow_linearly_except_for_naive_softmax():
    def stored_bytes(variant, length):
        return measured(variant, POINT._replace(seq_len=length)).passes.kept_bytes

    assert stored_bytes("gdn-fla-chunk", 2048) == pytest.approx(2 * stored_bytes("gdn-fla-chunk", 1024), rel=0.05)
    assert stored_bytes("softmax-naive", 2048) > 3 * stored_bytes("softmax-naive", 1024)


@needs_fla
@pytest.mark.usefixtures("one_configuration")
@pytest.mark.parametrize("variant", ["softmax-sdpa", "linear-fla-chunk", "gdn-fla-chunk"])
def test_small_model_with_a_convolution_learns_recall(variant):
    tasks = MixersTasks(names=("mqar",), pairs=(4,), steps=400, learning_rate=3e-3)
    block = MixersBlock(hidden=64, layers=2, short_conv=True)
    subject = MixersSubject(heads=1, head_dim=64, block=block, tasks=tasks)
    with skip_if_the_library_refuses_the_compiler():
        score = train(VARIANTS[variant], subject, Setting("mqar", 4), 0, find_device("cuda"))
    assert score.right / score.asked > 0.8
