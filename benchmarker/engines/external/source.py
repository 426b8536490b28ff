"""A token source whose tokens come from a driver in another process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarker.core.errors import WrongTokenCountError
from benchmarker.engines.base import PrefillScores, Scores, TokenIds
from benchmarker.engines.external.driver_errors import DriverError
from benchmarker.engines.external.facts import disagreement
from benchmarker.engines.external.subprocess_engine import Driver, SubprocessSource
from benchmarker.measure.clock import Generation
from benchmarker.schema.engine_facts import EngineFacts
from benchmarker.schema.external_facts import ExternalFacts
from benchmarker.schema.model_facts import LoadFacts

FACTS_S = 60.0


class ExternalSource(SubprocessSource):
    """A driver that has opened a model."""

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
        """A token source.

        Args:
            environment: Name of the environment that the driver runs in.
            fields: Of ExternalFacts, as far as the driver cannot know them.
            growth_bytes: Growth of the GPU's memory since before the driver began, as the card's driver tells it; None
                where the engine computes on the CPU.
        """
        super().__init__(name, driver, limit_s=limit_s)
        self.loaded = loaded
        self._environment = environment
        self._fields = fields or {}
        self._growth_bytes = growth_bytes
        self._choosing_share: float | None = None
        self._step_s: float | None = None
        self._disagreements: list[float] = []

    def generate(
        self, prompt_ids: Sequence[TokenIds], new_tokens: int, *, context: Sequence[TokenIds] | None = None
    ) -> Generation:
        """See TokenSource.generate.

        Raises:
            DriverError: It failed.
            WrongTokenCountError: It answered other than so many tokens.
        """
        generation, answer = self._generated(prompt_ids, new_tokens, context)
        counts = [len(row) for row in generation.tokens]
        if counts != [new_tokens] * len(prompt_ids):
            raise WrongTokenCountError(
                f"{self._name}: answered {counts} tokens where {len(prompt_ids)} x {new_tokens} were asked for, so "
                "that its row could not be compared; the engine's own limits, such as max_model_len, may be too small"
            )
        self._keep_times(answer)
        return generation

    def _keep_times(self, answer: dict[str, Any]) -> None:
        decode_ns = answer["last_ns"] - answer["first_ns"]
        if "choosing_ns" in answer and decode_ns:
            self._choosing_share = answer["choosing_ns"] / decode_ns
        if answer.get("step_ns"):
            self._step_s = answer["step_ns"] / 1e9
        difference = disagreement(answer)
        if difference is not None:
            self._disagreements.append(difference)

    def step_scores(self, ids: TokenIds, *, prompt_tokens: int = 1) -> Scores | None:
        """See TokenSource.score; None where the engine's scores are of its prefill."""
        scores = self._scores(ids, together=prompt_tokens, rows_from=prompt_tokens - 1)
        return scores if isinstance(scores, Scores) else None

    def forward_scores(self, ids: TokenIds) -> Scores | None:
        """See TokenSource.forward: the engine's own prefill, where it tells the whole distribution of each position."""
        scores = self._scores(ids, together=len(ids), rows_from=0)
        return scores if isinstance(scores, Scores) else None

    def prefill_scores(self, ids: TokenIds) -> PrefillScores | None:
        """Scores that are of the engine's prefill; None where they are of its decode step."""
        scores = self._scores(ids, together=1, rows_from=0)
        return scores if isinstance(scores, PrefillScores) else None

    def _scores(self, ids: TokenIds, *, together: int, rows_from: int) -> Scores | PrefillScores:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "log_probabilities.f32")
            answer = self._driver.ask(
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

    def facts(self) -> EngineFacts:
        """See TokenSource.facts."""
        answer = self._driver.ask("facts", limit_s=FACTS_S)
        return EngineFacts(
            name=self._name,
            tokens_read="each",
            kv_cache=answer["kv_cache"],
            engine_version=answer["version"],
            external=self.external_facts(answer),
        )

    def peak_bytes(self) -> int | None:
        """See TokenSource.peak_bytes: on the CPU the growth of the engine's process since before it opened the
        model; on a GPU the growth of the card's memory, without the KV cache that is reserved for requests that never
        come."""
        answer = self._driver.ask("facts", limit_s=FACTS_S)
        if self._growth_bytes is None:
            return int(answer["growth_bytes"]) if "growth_bytes" in answer else None
        growth_bytes = self._growth_bytes()
        return None if growth_bytes is None else growth_bytes - (answer.get("kv_cache_bytes") or 0)

    def external_facts(self, answer: dict[str, Any] | None = None) -> ExternalFacts:
        """Build, settings and proof of what ran.

        Args:
            answer: Of the driver to `facts`, where it was asked already.
        """
        answer = answer or self._driver.ask("facts", limit_s=FACTS_S)
        fields = {name: answer[name] for name in ExternalFacts.model_fields if name in answer}
        return ExternalFacts.model_validate(
            {
                **fields,
                **self._fields,
                "environment": self._environment,
                "attention": tuple(answer.get("attention", ())),
                "choosing_share": self._choosing_share,
                "step_s": self._step_s,
                "disagreement": median(self._disagreements) if self._disagreements else None,
            }
        )


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
