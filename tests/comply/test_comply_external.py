"""Token checks of `comply` through the drivers of external engines."""

from benchmarker.comply import run_checks
from benchmarker.engines.external.external_engine import ExternalSource
from benchmarker.hardware.device import CpuDevice
from benchmarker.workloads.generation.prompts import Prompt
from benchmarker.workloads.generation.spec import Point
from tests.engines.test_external_engines import driver, sglang, sglang_arguments  # noqa: F401 - fixtures


def subject_of(process, ids, new_tokens):
    source = ExternalSource(name="sglang", driver=process, limit_s=20.0, environment="sglang")
    point = Point(len(ids), None, new_tokens=new_tokens, batch_size=1)
    prompts = (Prompt(ids, ""),)
    return run_checks.Subject(source, CpuDevice(), point, prompts, prompts, "fp16")


def test_tokens_of_sglang_are_scored_by_its_prefill(sglang, tmp_path):  # noqa: F811
    # The fake repeats the first id of the prompt, and its prefill always predicts 4.
    sglang.request("open", limit_s=20.0, **sglang_arguments(tmp_path))
    subject = subject_of(sglang, (4, 8), 6)
    assert run_checks.check_length(subject).outcome == "passed"
    finding = run_checks.check_timed_output(subject)
    assert (finding.outcome, finding.text) == (
        "passed",
        "6 of 6 tokens are the likeliest of the engine's prefill, which stands in for its decode step",
    )
    assert run_checks.check_timed_output(subject_of(sglang, (9, 8), 6)).outcome == "failed"
    finding = run_checks.check_weights(subject)
    assert (finding.outcome, finding.text) == (
        "not applicable",
        "the engine has the weights in a process of its own, which does not count them after loading",
    )


def test_external_engine_with_a_missing_token_fails(driver):  # noqa: F811
    assert next(finding.outcome for finding in run_checks._findings(subject_of(driver, (1, 2), 12))) == "passed"
    (finding,) = run_checks._findings(subject_of(driver, (1, 2), 11))
    assert (finding.check, finding.outcome) == ("length and end", "failed")
    assert finding.text.startswith("sglang: answered [10] tokens where 1 x 11 were asked for")
