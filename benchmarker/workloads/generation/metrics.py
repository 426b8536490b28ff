"""What is computed from the raw times of text generation."""

from __future__ import annotations

from benchmarker.schema.metric import Metric

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
        name="decode",
        heading="decode tok/s",
        unit="1/s",
        scale=1.0,
        better="higher",
        formula="new tokens of all sequences after the first, divided by the seconds from the first to the last",
        of_latency=lambda cell, tpot_s: cell.batch_size / tpot_s,
        time=lambda cell, sample: sample.tpot_s,
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
RANKED_BY = ("decode", "tok/s")
"""The time to the first token is the host's on a GPU, and repeats badly; a cell of one new token has no other."""
