"""Statistics of requests, compared with numpy and with values by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest

from benchmarker.workloads.serving import serving_statistics as statistics
from benchmarker.workloads.serving.record import Load, measured_load
from benchmarker.workloads.serving.slo import DEFAULT_SLO, parse_slo


def load_of(ttft_s=(0.1, 0.2, 0.4), request_s=(1.1, 2.2, 3.4), tokens=(11, 11, 11), **fields) -> Load:
    count = len(ttft_s)
    values = {
        "start_s": tuple(float(start) for start in range(count)),
        "prompt_tokens": (8,) * count,
        "errors": (None,) * count,
        **fields,
    }
    return measured_load(ttft_s=tuple(ttft_s), request_s=tuple(request_s), output_tokens=tuple(tokens), **values)


def test_metrics_follow_the_definitions_of_vllm():
    load = load_of()
    assert statistics.tpots_s(load) == pytest.approx([0.1, 0.2, 0.3])
    # From the first start at 0 s to the end of the third request, which starts at 2 s and takes 3.4 s.
    assert statistics.load_s(load) == pytest.approx(5.4)
    assert statistics.output_tokens_per_s(load) == pytest.approx(33 / 5.4)
    assert statistics.requests_per_s(load) == pytest.approx(3 / 5.4)
    assert statistics.user_tokens_per_s(load) == pytest.approx(5.0)


def test_request_of_one_token_has_no_tpot():
    assert statistics.tpots_s(load_of(tokens=(1, 11, 11)))[0] is None


def test_percentiles_equal_those_of_numpy():
    values = list(np.random.default_rng(0).exponential(size=1000))
    for share in (0.5, 0.9, 0.99):
        assert statistics.percentile(values, share) == pytest.approx(np.percentile(values, 100 * share))


@pytest.mark.parametrize(
    ("share", "count", "exists"), [(0.99, 199, False), (0.99, 200, True), (0.9, 19, False), (0.9, 20, True)]
)
def test_percentile_requires_two_requests_beyond_it(share, count, exists):
    assert (statistics.percentile([1.0] * count, share) is not None) is exists


def test_inter_token_latencies_are_counted_in_bins():
    steps = np.sort(np.random.default_rng(0).integers(200, 400, size=2000))
    bins, counts = np.unique(steps, return_counts=True)
    load = load_of(itl_steps=tuple(map(int, bins)), itl_counts=tuple(map(int, counts)))
    assert statistics.itl_percentile_s(load, 0.5) == pytest.approx(np.percentile(steps, 50) * 1e-4)
    # Three requests have no p99, although they have 2,000 latencies.
    assert statistics.itl_percentile_s(load, 0.99) is None


def test_slo_is_parsed_and_printed():
    slo = parse_slo("TPOT < 30ms,ttft<=0.5s")
    assert str(slo) == "ttft<500ms, tpot<30ms" == DEFAULT_SLO
    assert slo.words == "TTFT 500 ms and TPOT 30 ms"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no limit is given; write ttft<500ms, tpot<30ms"),
        ("ttft 500ms", "'ttft 500ms' is no limit; write ttft<500ms, tpot<30ms"),
        ("ttft<500", "'ttft<500' needs a unit, ms or s; write ttft<500ms"),
        ("latency<2s", "no metric 'latency' of a request; there is e2el, tpot, ttft"),
        ("tftt<500ms", "no metric 'tftt' of a request; did you mean 'ttft'?"),
        ("ttft<1s, ttft<2s", "two limits of ttft; give one of them"),
        ("tpot<0ms", "'tpot<0ms': no request meets a limit of 0"),
    ],
)
def test_invalid_slo_is_refused(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_slo(text)


def test_good_request_is_within_all_limits():
    slo = parse_slo("ttft<200ms, tpot<250ms")
    # The second request lies at its TTFT limit, the third above both.
    assert statistics.good(load_of(), 11, slo) == 2
    # Neither a failed nor a truncated request is good.
    assert statistics.good(load_of(errors=("refused", None, None)), 11, slo) == 1
    assert statistics.good(load_of(tokens=(10, 11, 11)), 11, slo) == 1


def test_failed_and_truncated_requests_are_reported():
    assert statistics.problem_of(load_of(), 11) is None
    failed = load_of(errors=(None, "HTTP 500", "HTTP 500"))
    assert statistics.problem_of(failed, 11) == "2 of 3 requests failed: HTTP 500"
    assert statistics.problem_of(load_of(), 12) == "3 of 3 requests ended with fewer tokens than requested"


@pytest.mark.parametrize(
    ("good", "requests", "verdict"),
    [(200, 200, "passes"), (185, 200, "undecided"), (150, 200, "fails"), (20, 20, "undecided"), (0, 20, "fails")],
)
def test_verdict_of_a_load_uses_wilsons_interval(good, requests, verdict):
    assert statistics.Attainment(good, requests).verdict == verdict
