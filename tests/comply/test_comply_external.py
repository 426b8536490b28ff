"""Checks of tokens through the drivers of engines in a process of their own."""

from benchmarker.comply import run_checks
from benchmarker.engines.external.external_engine import ExternalSource
from benchmarker.hardware.device import CpuDevice
from benchmarker.workloads.generation.prompts import Prompt
from benchmarker.workloads.generation.spec import Point
from tests.engines.test_external_engines import driver, sglang, sglang_arguments  # noqa: F401 - fixtures


def subject_of(process, ids, new_tokens):
    source = ExternalSource(name="sglang", driver=process, limit_s=20.0, environment="sglang")
    point = Point(len(ids), None, new_tokens=new_tokens, batch_size=1)
    own = (Prompt(ids, ""),)
    return run_checks.Subject(source, CpuDevice(), point, own, own, "fp16")


def test_sglangs_tokens_are_scored_by_its_prefill(sglang, tmp_path):  # noqa: F811
    # The fake repeats the first id of the prompt, and its prefill always predicts 4.
    sglang.request("open", limit_s=20.0, **sglang_arguments(tmp_path))
    subject = subject_of(sglang, (4, 8), 6)
    assert run_checks.check_length(subject).outcome == "passed"
    found = run_checks.check_timed_output(subject)
    assert (found.outcome, found.text) == (
        "passed",
        "6 of 6 tokens are the likeliest of the engine's prefill, which stands in for its decode step",
    )
    assert run_checks.check_timed_output(subject_of(sglang, (9, 8), 6)).outcome == "failed"
    found = run_checks.check_weights(subject)
    assert (found.outcome, found.text) == (
        "not applicable",
        "the engine has the weights in a process of its own, which does not count them after loading",
    )


def test_an_engine_that_answers_a_token_too_few_fails(driver):  # noqa: F811
    assert next(each.outcome for each in run_checks._findings(subject_of(driver, (1, 2), 12))) == "passed"
    (found,) = run_checks._findings(subject_of(driver, (1, 2), 11))
    assert (found.check, found.outcome) == ("length and end", "failed")
    assert found.text.startswith("sglang: answered [10] tokens where 1 x 11 were asked for")
