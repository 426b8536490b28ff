"""Checks of `benchmarker comply` on fake engines with and without the fault that they detect."""

import json
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest
import torch

from benchmarker.comply import memory_check, planted_delay, run_checks
from benchmarker.comply.folder_checks import check_false_verdicts, check_order, false_share
from benchmarker.engines.base import PrefillScores, Scores
from benchmarker.hardware.device import CpuDevice, find_device
from benchmarker.measure.clock import Generation
from benchmarker.schema.comply_file import COMPLY_FILE, ComplyFile, comply_lines, judged
from benchmarker.schema.record_io import RUN_ORDER, SWEEP_FILE, write_json
from benchmarker.sweep.resume import SweepFile
from benchmarker.sweep.sweep_plan import order
from benchmarker.workloads.generation.prompts import Prompt, inputs_sha256
from benchmarker.workloads.generation.spec import Point
from tests import records

VOCABULARY = 7


def next_token(ids):
    return (sum(ids) + 1) % VOCABULARY


class Source:
    """Engine on a simulated clock: 10 ms for the prompt and 1 ms for each further token."""

    is_elsewhere = False
    model = None

    def facts(self):
        return SimpleNamespace(external=None)

    def __init__(self, *, cached=False, skipped=False, missing=0, early=False, clock=1.0):
        self.cached, self.skipped, self.missing, self.early, self.clock = cached, skipped, missing, early, clock
        self.now_ns = 0
        self.seen_prompts = set()

    def generate(self, prompts, new_tokens, context=None):
        rows = []
        for prompt in prompts:
            ids = list(prompt)
            for _ in range(new_tokens - self.missing):
                ids.append((next_token(ids) + self.skipped) % VOCABULARY)
            rows.append(tuple(ids[len(prompt) :]))
        is_cached = self.cached and tuple(map(tuple, prompts)) in self.seen_prompts
        self.seen_prompts.add(tuple(map(tuple, prompts)))
        start = self.now_ns
        prefill = 0 if is_cached else 10_000_000
        self.now_ns += prefill + 1_000_000 * (new_tokens - 1)
        first = start + (0 if self.early else prefill)
        end = start + round((self.now_ns - start) * self.clock)
        return Generation(tuple(rows), start, first, end, end)

    def step_scores(self, ids, *, prompt_tokens):
        rows = numpy.full((len(ids) - prompt_tokens + 1, VOCABULARY), -9.0, dtype=numpy.float32)
        for number in range(len(rows)):
            rows[number, next_token(ids[: prompt_tokens + number])] = -0.1
        return Scores(rows)


def subject_of(source, batch_size=1, depth=0):
    point = Point(2, None, new_tokens=5, batch_size=batch_size, depth=depth)
    prompts = [Prompt((number, number + 1), "") for number in range((run_checks.REPEATS + 1) * batch_size)]
    return run_checks.Subject(source, find_device("cpu"), point, prompts[:batch_size], prompts)


def outcome(check, source, records=()):
    return check(replace(subject_of(source), records=records)).outcome


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (run_checks.check_timed_output, {"skipped": True}),
        (run_checks.check_no_caching, {"cached": True}),
        (run_checks.check_length, {"missing": 1}),
        (run_checks.check_first_token, {"early": True}),
    ],
)
def test_check_fails_only_with_its_fault(check, fault):
    assert outcome(check, Source()) == "passed"
    assert outcome(check, Source(**fault)) == "failed"


def test_clock_that_is_3_percent_fast_fails(monkeypatch):
    def by_hand(device, generate):
        before = source.now_ns
        generation = generate()
        return generation, (source.now_ns - before) / 1e9

    monkeypatch.setattr(run_checks, "timed_by_hand", by_hand)
    source = Source()
    assert outcome(run_checks.check_clock, source) == "passed"
    source = Source(clock=0.97)
    assert outcome(run_checks.check_clock, source) == "failed"


def test_message_latency_of_an_external_engine_is_subtracted(monkeypatch):
    def by_hand(device, generate):
        before = source.now_ns
        generation = generate()
        return generation, (source.now_ns - before) / 1e9 + 0.005

    monkeypatch.setattr(run_checks, "timed_by_hand", by_hand)
    source = Source()
    assert outcome(run_checks.check_clock, source) == "failed"
    source.is_elsewhere = True
    finding = run_checks.check_clock(subject_of(source))
    assert (finding.outcome, finding.text) == (
        "passed",
        "the engine's latency is 1.0000 of the loop by hand, by the difference between 5 tokens and one token; "
        "limit 2 %",
    )
    source = Source(clock=0.97)
    source.is_elsewhere = True
    assert outcome(run_checks.check_clock, source) == "failed"
    subject = replace(subject_of(source), point=Point(2, None, new_tokens=1, batch_size=1))
    assert run_checks.check_clock(subject).outcome == "not applicable"


def test_prefill_scores_replace_missing_step_scores():
    class Prefilling(Source):
        def step_scores(self, ids, *, prompt_tokens):
            return None

        def prefill_scores(self, ids):
            top = numpy.array([[next_token(ids[: end + 1]), 99] for end in range(len(ids))])
            return PrefillScores(top, numpy.array([[-0.1, -3.0]] * len(ids), dtype=numpy.float32))

    finding = run_checks.check_timed_output(subject_of(Prefilling()))
    message = "tokens are the likeliest of the engine's prefill, which stands in for its decode step"
    assert (finding.outcome, finding.text) == ("passed", f"5 of 5 {message}")
    finding = run_checks.check_timed_output(subject_of(Prefilling(skipped=True)))
    assert (finding.outcome, finding.text) == ("failed", f"0 of 5 {message}")


def timed_cell(latency_s):
    shape = {"new_tokens": 5, "batch_size": 1, "depth": 0, "inputs_sha256": inputs_sha256(subject_of(Source()).own)}
    return SimpleNamespace(**shape, status="ok", samples=[SimpleNamespace(latency_s=latency_s)])


STEAL = "the hypervisor took 4 % of our cores' time meanwhile"


@pytest.mark.parametrize(
    ("slow_runs", "disturbance", "fault", "expected"),
    [
        (4, None, {}, "passed"),
        (5, None, {}, "failed"),
        (4, STEAL, {}, "passed"),
        (5, STEAL, {}, "disturbed"),
        (5, STEAL, {"skipped": True}, "failed"),
    ],
)
def test_slow_run_is_repeated_up_to_five_times(monkeypatch, slow_runs, disturbance, fault, expected):
    class Slow(Source):
        def generate(self, *arguments, **options):
            self.clock = next(clocks)
            return super().generate(*arguments, **options)

    clocks = iter([1.4] * slow_runs + [1.0])
    monkeypatch.setattr(run_checks, "why_disturbed", lambda load: disturbance)
    monkeypatch.setattr(run_checks.HostGauge, "between", lambda *times: object())
    subject = replace(subject_of(Slow(**fault)), records=[SimpleNamespace(cells=[timed_cell(0.014)])])
    finding = run_checks.check_timed_output(subject)
    assert finding.outcome == expected
    assert finding.text.endswith(f"; {STEAL}, in each of 5 tries") == (expected == "disturbed")


def test_latency_outside_the_timed_range_fails(monkeypatch):
    monkeypatch.setattr(run_checks, "why_disturbed", lambda load: None)
    timed = timed_cell(0.0139)
    longer = SimpleNamespace(**{**vars(timed), "new_tokens": 50, "samples": [SimpleNamespace(latency_s=9.0)]})
    record = SimpleNamespace(cells=[timed, longer])
    assert outcome(run_checks.check_timed_output, Source(), [record]) == "passed"
    # The spread between processes is unknown with a single process.
    record.cells[0].samples[0].latency_s = 0.0135
    assert outcome(run_checks.check_timed_output, Source(), [record]) == "passed"
    assert outcome(run_checks.check_timed_output, Source(), [record] * 3) == "failed"
    record.cells[0].samples[0].latency_s = 0.010
    assert outcome(run_checks.check_timed_output, Source(), [record]) == "failed"
    finding = run_checks.check_timed_output(replace(subject_of(Source()), records=[record] * 3))
    assert finding.text == (
        "5 of 5 tokens are the likeliest of the scored step; in the last of 5 tries it took 0.0140 s, the timed runs "
        "0.0098 to 0.0102 s (widened by 2 %)"
    )


def test_caching_check_requires_different_prompts():
    subject = subject_of(Source(cached=True))
    same = replace(subject, prompts=[subject.own[0]] * len(subject.prompts))
    assert run_checks.check_no_caching(same).outcome == "not applicable"


def test_context_tokens_are_passed_and_scored():
    class Deep(Source):
        def generate(self, prompts, new_tokens, context=None):
            assert context == [(6,)]
            return super().generate([(*before, *ids) for before, ids in zip(context, prompts, strict=True)], new_tokens)

    subject = subject_of(Deep(), depth=1)
    subject = replace(subject, own=[Prompt((0, 1), "", context=(6,))])
    assert run_checks.check_timed_output(subject).outcome == "passed"


def test_output_check_is_not_applicable_without_scores():
    source = Source()
    source.step_scores = lambda ids, *, prompt_tokens: None
    source.prefill_scores = lambda ids: None
    assert outcome(run_checks.check_timed_output, source) == "not applicable"


def test_planted_delay_passes_and_a_wrong_clock_fails(monkeypatch):
    now_ns = 0

    def sleep(seconds):
        nonlocal now_ns
        now_ns += round(seconds * 1e9)

    def tick():
        nonlocal now_ns
        now_ns += 20_000
        return now_ns

    monkeypatch.setattr(planted_delay, "time", SimpleNamespace(perf_counter_ns=tick, sleep=sleep))
    device = find_device("cpu")
    assert [finding.outcome for finding in planted_delay.check_planted_delay(device)] == ["passed", "passed"]
    monkeypatch.setattr(run_checks, "why_disturbed", lambda load: None)
    monkeypatch.setattr(run_checks, "TRIES", 1)
    source = planted_delay.DelayedSource
    monkeypatch.setattr(planted_delay, "DelayedSource", lambda mean_s, times: source(1.03 * mean_s, times))
    assert planted_delay.check_planted_delay(device)[0].outcome == "failed"


def test_too_long_planted_delay_on_a_busy_machine_is_disturbed(monkeypatch):
    monkeypatch.setattr(run_checks, "why_disturbed", lambda load: STEAL)
    monkeypatch.setattr(run_checks.HostGauge, "between", lambda *times: object())
    delays = iter([(0.006, 0.9)] * 5 + [(0.0048, 1 / 1.03)])
    monkeypatch.setattr(planted_delay, "_delays", lambda *arguments: next(delays))
    findings = planted_delay.check_planted_delay(find_device("cpu"))
    assert [finding.outcome for finding in findings] == ["disturbed", "disturbed"]
    assert findings[0].text.endswith(f"(+20.0 %); limit 2.5 %; {STEAL}, in each of 5 tries")
    findings = planted_delay.check_planted_delay(find_device("cpu"))
    assert [finding.outcome for finding in findings] == ["failed", "passed"]
    assert not any("tries" in finding.text for finding in findings)


def test_memory_check_compares_growth_with_a_known_block(monkeypatch):
    device = find_device("cpu")
    monkeypatch.setattr(memory_check, "BLOCK_BYTES", 2**28)
    finding = memory_check.check_memory(device)
    assert (finding.outcome, finding.text[:20]) == ("passed", "0.25 GiB allocated; ")
    peak = CpuDevice.peak_memory
    monkeypatch.setattr(
        CpuDevice, "peak_memory", lambda self: replace(peak(self), growth_bytes=round(1.03 * peak(self).growth_bytes))
    )
    assert memory_check.check_memory(device).outcome == "failed"


def test_weights_unpacked_after_loading_fail():
    model = torch.nn.Linear(1024, 1024, dtype=torch.float16)
    source = Source()
    assert outcome(run_checks.check_weights, source) == "not applicable"
    source.model = model
    record = SimpleNamespace(load=SimpleNamespace(weight_bytes=2 * 1025 * 1024))
    assert outcome(run_checks.check_weights, source, [record]) == "passed"
    faulty = SimpleNamespace(load=SimpleNamespace(weight_bytes=3 * 1025 * 1024))
    assert outcome(run_checks.check_weights, source, [record, faulty]) == "failed"
    model.float()
    finding = run_checks.check_weights(replace(subject_of(source), records=[record]))
    assert (finding.outcome, finding.text) == (
        "failed",
        "2.0000 of the record's 2.0 MiB after 5 tokens; limit 2 %",
    )


def test_power_passes_and_false_verdicts_are_below_5_percent(monkeypatch):
    assert planted_delay.check_power().outcome == "passed"
    monkeypatch.setattr(planted_delay, "TWIN_SLOWER", 1.0)
    assert planted_delay.found_slower(0.003) == 0
    random_times = random.Random(3)
    logs = [random_times.gauss(0.5, 0.01) for _ in range(8)]
    assert false_share(logs, random.Random(1)) <= 0.05
    assert math.isclose(
        false_share([value + 3 for value in logs], random.Random(1)), false_share(logs, random.Random(1))
    )


def line(number, variant, start, end):
    values = {
        "round": number,
        "variant": variant,
        "pid": 1,
        "start": start,
        "end": end,
        "worker": None,
        "device": "GPU-1",
    }
    return json.dumps(values) + "\n"


def sweep_folder(tmp_path, lines):
    names = ("a", "b", "c")
    file = SweepFile(config="c.yaml", arguments=(), variants=names, rounds=2, seed=1, started_at="2026-01-01")
    write_json(file, tmp_path / SWEEP_FILE)
    (tmp_path / RUN_ORDER).write_text("".join(lines), encoding="utf-8")
    return tmp_path


def planned():
    names = [(number, name) for number in range(2) for name in order(("a", "b", "c"), number, 1)]
    return [line(number, name, 10.0 * position, 10.0 * position + 9) for position, (number, name) in enumerate(names)]


def test_planned_order_passes_and_violations_fail(tmp_path):
    assert check_order(tmp_path, ()).outcome == "not applicable"
    finding = check_order(sweep_folder(tmp_path, planned()), ())
    assert (finding.outcome, finding.text) == (
        "passed",
        "6 processes of 2 rounds in the planned order, one at a time on a device",
    )
    swapped = planned()
    swapped[0], swapped[1] = (
        text.replace(old, new) for text, old, new in ((swapped[0], '"a"', '"b"'), (swapped[1], '"b"', '"a"'))
    )
    finding = check_order(sweep_folder(tmp_path, swapped), ())
    assert finding.text == "round 1 ran b, a, c; planned was a, b, c"
    simultaneous = [*planned(), line(1, "a", 51.0, 60.0)]
    assert "ran at the same time on GPU-1" in check_order(sweep_folder(tmp_path, simultaneous), ()).text


def test_compare_lists_each_failed_check(tmp_path):
    findings = (judged("clock", "1.03 of the loop", holds=False, variant="fp16"), judged("power", "fine", holds=True))
    write_json(ComplyFile(benchmarker="0.1.0", device="a CPU", findings=findings), tmp_path / COMPLY_FILE)
    assert comply_lines([tmp_path]) == (
        "clock of fp16: failed in `benchmarker comply`: 1.03 of the loop",
        "`benchmarker comply`: 1 of 2 checks passed on a CPU",
    )
    findings += (judged("clock", "fine", holds=True, variant="int8"),)
    write_json(ComplyFile(benchmarker="0.1.0", device="a CPU", findings=findings), tmp_path / COMPLY_FILE)
    assert comply_lines([tmp_path])[1] == (
        "`benchmarker comply`: 2 of 3 checks passed on a CPU; no check of int8 failed"
    )


def test_false_verdicts_require_six_rounds():
    records_of_rounds = [records.record(name, round_number=number) for number in range(2) for name in ("fp16", "int8")]
    (finding,) = check_false_verdicts(records.compare_records(records_of_rounds))
    assert finding.text == "not testable for 1 row of 2 paired rounds: it needs 6"
