"""A token source whose tokens are made by a driver in another process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarker.core.errors import WrongTokenCountError
from benchmarker.engines.base import PrefillScores, Scorer, Scores, TokenIds, TokenSource
from benchmarker.engines.external.driver_process import Driver, DriverError
from benchmarker.measure.clock import Generation
from benchmarker.schema.model import EngineFacts, ExternalFacts, LoadFacts

FACTS_S = 60.0


class ExternalSource(TokenSource):
    """A driver that has opened a model."""

    is_elsewhere = True

    def __init__(
        self,
        name: str,
        driver: Driver,
        *,
        limit_s: float,
        environment: str,
        loaded: LoadFacts | None = None,
        fields: dict[str, Any] | None = None,
        growth_bytes: Callable[[], int | None] | None = None,
    ) -> None:
        """Wrap a driver.

        Args:
            fields: Fields of ExternalFacts that the driver cannot report.
            growth_bytes: Returns the growth of the GPU's memory since before the driver started, as the GPU's library
                reports it; None if the engine computes on the CPU.
        """
        self.loaded = loaded
        self._name = name
        self._driver = driver
        self._limit_s = limit_s
        self._environment = environment
        self._fields = fields or {}
        self._growth_bytes = growth_bytes
        self._choosing_share: float | None = None
        self._step_s: float | None = None
        self._disagreements: list[tuple[float, float]] = []

    @property
    def scorer(self) -> Scorer:
        return ExternalScorer(self, self._name, self._driver, limit_s=self._limit_s)

    def generate(
        self, prompt_ids: Sequence[TokenIds], new_tokens: int, *, context: Sequence[TokenIds] | None = None
    ) -> Generation:
        """See TokenSource.generate. Raises DriverError or WrongTokenCountError."""
        answer = self._driver.request(
            "generate",
            limit_s=self._limit_s,
            prompt_ids=[list(row) for row in prompt_ids],
            new_tokens=new_tokens,
            context=None if context is None else [list(row) for row in context],
        )
        generation = generation_from(self._name, answer)
        counts = [len(row) for row in generation.tokens]
        if counts != [new_tokens] * len(prompt_ids):
            raise WrongTokenCountError(
                f"{self._name}: answered {counts} tokens where {len(prompt_ids)} x {new_tokens} were asked for, so "
                "that its row could not be compared; the engine's own limits, such as max_model_len, may be too small"
            )
        self._keep_times(generation, answer)
        return generation

    def _keep_times(self, generation: Generation, answer: dict[str, Any]) -> None:
        decode_ns = generation.last_ns - generation.first_ns
        if "choosing_ns" in answer and decode_ns:
            self._choosing_share = answer["choosing_ns"] / decode_ns
        if answer.get("step_ns"):
            self._step_s = answer["step_ns"] / 1e9
        differences = disagreement(generation, answer.get("engine_times") or [])
        if differences is not None:
            self._disagreements.append(differences)

    def facts(self) -> EngineFacts:
        answer = self._driver.request("facts", limit_s=FACTS_S)
        return EngineFacts(
            name=self._name,
            tokens_read="each",
            kv_cache=answer["kv_cache"],
            engine_version=answer["version"],
            external=self.external_facts(answer),
        )

    def peak_bytes(self) -> int | None:
        """Return the growth of memory since before the model was opened.

        On the CPU it is the growth of the engine's process. On a GPU it is the growth of the whole GPU without the KV
        cache that is reserved for other requests.
        """
        answer = self._driver.request("facts", limit_s=FACTS_S)
        if self._growth_bytes is None:
            return int(answer["growth_bytes"]) if "growth_bytes" in answer else None
        growth_bytes = self._growth_bytes()
        return None if growth_bytes is None else growth_bytes - (answer.get("kv_cache_bytes") or 0)

    def external_facts(self, answer: dict[str, Any] | None = None) -> ExternalFacts:
        """Return build, settings and proof of what ran."""
        answer = answer or self._driver.request("facts", limit_s=FACTS_S)
        fields = {name: answer[name] for name in ExternalFacts.model_fields if name in answer}
        ttfts, tpots = zip(*self._disagreements, strict=True) if self._disagreements else ((), ())
        return ExternalFacts.model_validate(
            {
                **fields,
                **self._fields,
                "environment": self._environment,
                "attention": tuple(answer.get("attention", ())),
                "choosing_share": self._choosing_share,
                "step_s": self._step_s,
                "disagreement": median(max(pair) for pair in self._disagreements) if ttfts else None,
                "ttft_disagreement": median(ttfts) if ttfts else None,
                "tpot_disagreement": median(tpots) if tpots else None,
            }
        )


class ExternalScorer(Scorer):
    """Predictions that a driver reports: of its decode step, or only of its prefill."""

    def __init__(self, source: ExternalSource, name: str, driver: Driver, *, limit_s: float) -> None:
        self._source = source
        self._name = name
        self._driver = driver
        self._limit_s = limit_s

    def greedy_tokens(self, ids: TokenIds, new_tokens: int) -> tuple[int, ...]:
        return self._source.generate([ids], new_tokens).tokens[0]

    def step_scores(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        scores = self._scores(ids, together=prompt_tokens, rows_from=prompt_tokens - 1)
        return scores if isinstance(scores, Scores) else None

    def forward_scores(self, ids: TokenIds) -> Scores | None:
        """Score a text by the engine's prefill, if it reports the whole distribution of each position."""
        scores = self._scores(ids, together=len(ids), rows_from=0)
        return scores if isinstance(scores, Scores) else None

    def prefill_scores(self, ids: TokenIds) -> PrefillScores | None:
        scores = self._scores(ids, together=1, rows_from=0)
        return scores if isinstance(scores, PrefillScores) else None

    def _scores(self, ids: TokenIds, *, together: int, rows_from: int) -> Scores | PrefillScores:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "log_probabilities.f32")
            answer = self._driver.request(
                "score",
                limit_s=self._limit_s,
                ids=list(ids),
                output=str(output),
                together=together,
                rows_from=rows_from,
            )
            if answer["path"] == "decode":
                return _decode_scores(self._name, output, len(ids) - rows_from, answer["vocabulary"])
        return _prefill_scores(answer["rows"])


def generation_from(name: str, answer: dict[str, Any]) -> Generation:
    """Read a driver's answer to `generate`. Raises DriverError."""
    try:
        times = [int(answer[key]) for key in ("start_ns", "first_ns", "last_ns", "end_ns")]
        tokens = tuple(tuple(int(token) for token in row) for row in answer["tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise DriverError(f"{name}: its driver answered 'generate' without tokens or times") from error
    if times != sorted(times) or times[0] == times[-1]:
        raise DriverError(f"{name}: its driver answered 'generate' with times that make no sense: {times}")
    return Generation(tokens, *times)


def disagreement(generation: Generation, engine_times: Sequence[dict[str, Any] | None]) -> tuple[float, float] | None:
    """Return the largest relative differences of an engine's own TTFT and TPOT from our clock's.

    Args:
        engine_times: `ttft_s` and `tpot_s` of each sequence, as the engine reports them.

    Returns:
        None if the engine reports no times.
    """
    ours = generation.sample(len(generation.tokens[0]))
    reported = [times for times in engine_times if times is not None]

    def largest(name: str, our_s: float | None) -> float | None:
        engine_s = [times[name] for times in reported if times[name] is not None]
        return max((abs(value - our_s) / our_s for value in engine_s), default=None) if our_s else None

    ttft, tpot = largest("ttft_s", ours.ttft_s), largest("tpot_s", ours.tpot_s)
    return None if ttft is None and tpot is None else (ttft or 0.0, tpot or 0.0)


def _decode_scores(name: str, path: Path, positions: int, vocabulary: int) -> Scores:
    import numpy

    values = numpy.fromfile(path, dtype=numpy.float32)
    if len(values) != positions * vocabulary:
        raise DriverError(f"{name}: its driver scored {len(values)} values where {positions} x {vocabulary} are due")
    return Scores(values.reshape(positions, vocabulary))


def _prefill_scores(rows: Sequence[dict[str, Any]]) -> PrefillScores:
    import numpy

    width = max(len(row["ids"]) for row in rows)
    ids = numpy.full((len(rows), width), -1, dtype=numpy.int64)
    values = numpy.full((len(rows), width), -numpy.inf, dtype=numpy.float32)
    for index, row in enumerate(rows):
        ids[index, : len(row["ids"])] = row["ids"]
        values[index, : len(row["ids"])] = row["log_probabilities"]
    return PrefillScores(ids, values)
