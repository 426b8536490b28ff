"""What is computed from the raw times of text generation."""

from __future__ import annotations

from benchmarker.schema.workload import Metric

METRICS = (
    Metric(
        name="latency",
        heading="latency s",
        unit="s",
        scale=1.0,
        better="lower",
        formula="seconds from the call to the last token, with the device drained at both ends",
        of_sample=lambda cell, sample: sample.latency_s,
    ),
    Metric(
        name="ttft",
        heading="TTFT ms",
        unit="s",
        scale=1e3,
        better="lower",
        formula="seconds from the call until the first new token is known",
        of_sample=lambda cell, sample: sample.ttft_s,
    ),
    Metric(
        name="tpot",
        heading="TPOT ms",
        unit="s",
        scale=1e3,
        better="lower",
        formula="seconds from the first new token to the last, divided by the tokens after the first",
        of_sample=lambda cell, sample: sample.tpot_s,
    ),
    Metric(
        name="tok/s",
        heading="tok/s",
        unit="1/s",
        scale=1.0,
        better="higher",
        formula="new tokens of all sequences, divided by the latency",
        of_latency=lambda cell, latency_s: cell.new_tokens * cell.batch_size / latency_s,
    ),
)
HEADLINE = "tok/s"
