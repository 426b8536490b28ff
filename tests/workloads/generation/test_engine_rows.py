"""Rows of external engines: names, ranking, memory and notes."""

from __future__ import annotations

import pytest

from benchmarker.comparison.ranking import ranking_of
from benchmarker.core.errors import SpecError
from benchmarker.report.columns import other_cells
from benchmarker.schema.model import EngineFacts, ExternalFacts
from benchmarker.schema.record import Memory
from benchmarker.workloads.generation.reading.generation_caveats import caveats, external_notes
from benchmarker.workloads.generation.reading.generation_tables import brief, costs
from benchmarker.workloads.generation.record import NO_TOKENIZER
from benchmarker.workloads.generation.spec import VariantSpec
from tests.jobs import job_of
from tests.records import cell, compare_records, record, sample

FACTS = ExternalFacts(
    environment="vllm",
    version="0.24.0",
    python="3.12",
    weight_bytes=2**30,
    kv_cache_bytes=50 * 2**30,
    linear_kernels={"MacheteLinearKernel": 144},
    attention=("FlashAttentionImpl (FA3)",),
    settings={
        "dtype": "float16",
        "cudagraph_mode": "FULL",
        "async_scheduling": True,
        "max_num_seqs": 128,
    },
)


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ({"quant": "fp16", "engine": "vllm", "engine_options": {"quantization": "fp8"}}, "vllm fp8"),
        ({"quant": "gptq", "engine": "vllm", "engine_options": {"max_model_len": 4608}}, "vllm gptq"),
        (
            {"quant": "gptq", "engine": "vllm", "engine_options": {"linear_backend": "marlin", "max_num_seqs": 128}},
            "vllm gptq linear_backend=marlin",
        ),
        ({"quant": "fp16", "engine": "sglang", "engine_options": {"mem_fraction_static": 0.8}}, "sglang fp16"),
        ({"quant": "fp16", "engine": "llama-cpp", "engine_options": {"gguf": "Q4_0"}}, "llama-cpp Q4_0"),
        (
            {"quant": "fp16", "engine": "vllm", "engine_options": {"speculative": "ngram:5"}},
            "vllm fp16 speculative=ngram:5",
        ),
        ({"quant": "int8", "engine": "native"}, "int8 native"),
    ],
)
def test_default_name_contains_the_distinguishing_options(variant, name):
    assert VariantSpec.model_validate(variant).name == name


def batch(name: str, engine: str, ttft_s: float, tpot_s: float, **fields: object):
    """Return a record of 8 sequences whose call takes the TTFT and 10 steps."""
    call = sample(ttft_s + 10 * tpot_s, new_tokens=11, ttft_s=ttft_s)
    return record("fp16", cell(samples=(call, call), new_tokens=11, batch_size=8), name=name, runtime=engine, **fields)


def test_batches_with_overlapping_prefill_are_ranked_by_the_whole_call():
    # vLLM has the higher decode rate but the slower call: it decodes some sequences before others have a first token.
    records = [batch("native", "native", 0.1, 0.11), batch("vllm", "vllm", 0.7, 0.1)]
    comparison = compare_records(records, baseline="native")
    ranking = ranking_of(comparison)
    assert [row.variant for row in ranking.measured] == ["native", "vllm"]
    assert ranking.rows[0].ranking.name == "tok/s"
    assert ranking.rows[1].speed_up is not None
    assert ranking.rows[1].speed_up.ratio.value == pytest.approx(1.2 / 1.7)
    assert (
        "Rates, speed-ups and order at batch 8 are those of whole calls: vllm decodes some sequences while it prefills "
        "others, so that its decode rate has another meaning."
    ) in caveats(records, comparison.rows)  # type: ignore[arg-type]


def test_decode_rates_and_call_rates_have_separate_columns():
    def measured(name: str, engine: str, shift: float, number: int):
        samples = {size: (sample(1.0 + size + shift, new_tokens=11, ttft_s=1.0),) * 2 for size in (1, 8, 32)}
        cells = [cell(samples=calls, new_tokens=11, batch_size=size) for size, calls in samples.items()]
        return record("fp16", *cells, name=name, runtime=engine, round_number=number)

    engines = {"native": 0.0, "vllm": 0.5}
    results = compare_records([measured(name, name, engines[name], number) for number in range(3) for name in engines])
    (sheet,) = other_cells(results, max(results.measured_cells))
    rates = {column.heading: [column.text(row) for row in sheet.rows] for column in sheet.columns[2:4]}
    # One sequence: ten steps in 1 s. Eight sequences, of which vLLM prefills some while it decodes: 88 tokens in 9 s.
    assert rates == {"decode tok/s": ["10.00", "–"], "tok/s": ["–", "9.778"]}


def test_engines_without_overlapping_prefill_are_ranked_by_decode_rate():
    comparison = compare_records([batch("native", "native", 0.1, 0.11), batch("compile", "compile", 0.7, 0.1)])
    assert [row.variant for row in ranking_of(comparison).measured] == ["compile", "native"]
    assert ranking_of(comparison).rows[0].ranking.name == "decode"


def test_peak_is_split_into_weights_and_working_memory():
    measured = cell(memory=Memory(peak_allocated_bytes=3 * 2**30))
    engine = EngineFacts(name="vllm", tokens_read="each", kv_cache="paged", external=FACTS)
    rows = compare_records([record("gptq", measured, runtime="vllm", engine=engine, load=None)]).rows
    texts = {column.heading: column.text(rows[0]) for column in costs(rows)}  # type: ignore[arg-type]
    assert texts == {"peak GiB": "3.00", "weights GiB": "1.00", "working GiB": "2.00", "reserved KV GiB": "50.00"}


def test_accepted_drafts_are_shown_as_tokens_per_step():
    samples = (sample(1.0, new_tokens=11).model_copy(update={"accepted_tokens": 5}),)
    rows = compare_records([record("fp16", cell(samples=samples, new_tokens=11), runtime="vllm")]).rows
    # Ten tokens after the first, five of them drafts: five steps.
    assert {column.heading: column.text(rows[0]) for column in brief(rows)[0]}["tok/step"] == "2.000"  # type: ignore[arg-type]


def test_speculative_decoding_of_random_weights_is_refused():
    with pytest.raises(SpecError, match=r"^--engine-option speculative: random weights .*, or leave it out$"):
        job_of(
            model={"id": "qwen3-small", "load_format": "dummy"},
            form={"quant": "fp16", "engine": "vllm", "engine_options": ["speculative=ngram:5"]},
        )


def test_kernels_and_settings_of_an_engine_are_one_caveat():
    engine = EngineFacts(name="vllm", tokens_read="each", kv_cache="paged", external=FACTS)
    records = [record("gptq", name=name, runtime="vllm", engine=engine) for name in ("vllm a", "vllm b")]
    (line,) = [line for line in caveats(records, compare_records(records).rows) if "ran with" in line]  # type: ignore[arg-type]
    assert line == (
        "vllm a, vllm b: ran with version 0.24.0, MacheteLinearKernel in 144 linears, FlashAttentionImpl (FA3), "
        "dtype=float16, cudagraph_mode=FULL, async_scheduling=True, max_num_seqs=128."
    )


def test_random_prompts_of_a_model_without_tokenizer_are_a_caveat():
    records = [record("fp16", cell([1.0], prompt_source=source)) for source in (NO_TOKENIZER, "shipped text")]
    with_ids, with_text = (caveats([one], compare_records([one]).rows) for one in records)  # type: ignore[arg-type]
    assert "fp16: the model has no tokenizer: its prompts are random token ids" in with_ids
    assert not any("random token ids" in line for line in with_text)


def test_note_on_the_reserved_kv_cache_distinguishes_cpu_and_gpu():
    assert external_notes([FACTS])[0].startswith(
        "50.00 GiB are reserved for its KV cache, which its peak contains on a CPU and not on a GPU; "
    )


def test_rounds_of_a_variant_share_one_note_on_the_clock_and_none_on_a_missing_peak():
    def run(number, difference):
        facts = FACTS.model_copy(update={"disagreement": difference, "ttft_disagreement": difference})
        engine = EngineFacts(name="vllm", tokens_read="each", kv_cache="paged", external=facts)
        timed = cell(memory=Memory())
        return record("fp16", timed, name="a", runtime="vllm", engine=engine, round_number=number)

    records = [run(0, 0.05), run(1, 0.14), run(2, 0.07)]
    lines = caveats(records, compare_records(records).rows)  # type: ignore[arg-type]
    (line,) = [line for line in lines if "differs from our clock" in line]
    assert "by 14 %" in line
    assert not any("reserved" in line for line in lines)


def test_clock_difference_is_noted_with_metric_and_reason():
    facts = FACTS.model_copy(update={"disagreement": 0.14, "ttft_disagreement": 0.14, "tpot_disagreement": 0.001})
    assert external_notes([facts])[-1] == (
        "its own TTFT differs from our clock's by 14 %, more than 2 %; its TTFT is that of each sequence from its "
        "arrival at the engine, ours from the call until every sequence has a token"
    )
