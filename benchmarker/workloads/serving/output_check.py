"""Check of a server's output before its loads: the perplexity of a short text, through the server itself.

A server with wrong scales or a wrong order of packed weights is as fast as a correct one. Its predictions are then no
better than the frequencies of the tokens, which are the limit: a check without the unquantized model.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import numpy as np

from benchmarker.core.console import Terminal
from benchmarker.core.errors import SpecError, WrongResultError
from benchmarker.engines.external.server_process import ServerError, ServerProcess
from benchmarker.engines.external.servers import Server
from benchmarker.quality.evaluation_text import cut, read_text
from benchmarker.workloads.serving.record import OutputCheck

SCORED, LEAST_SCORED = 64, 16
DEATH_S = 3.0  # Longest time from a server's first failed request until its process has ended.
NOT_FINITE = "Out of range float values"  # In vLLM's answer if a log-probability is NaN.


def check_output(
    server: Server, process: ServerProcess, tokenizer: Any, *, positions: int, terminal: Terminal
) -> OutputCheck | None:
    """Score a text by a server; return None if it gives no predictions, or if its `positions` are too few.

    Raises WrongResultError if the output is wrong, and ServerError if the server ended.
    """
    try:
        ids = cut(read_text(None), tokenizer, size="quick").ids
        # The first windows have few sentences.
        text = ids[len(ids) // 2, : min(SCORED + 1, positions - 1)].tolist()
        if len(text) <= LEAST_SCORED:
            return None
        logs = server.log_probabilities(process.url, text)
    except (ServerError, SpecError, LookupError, TypeError) as error:
        process.check(wait_s=DEATH_S)
        if NOT_FINITE not in str(error):
            terminal.line(f"{server.name}: its output is not checked: {error}")
            return None
        logs = [None]
    nats = -fmean(math.nan if log is None else log for log in logs)
    shares = np.unique(ids, return_counts=True)[1] / ids.size
    limit_nats = float(-(shares * np.log(shares)).sum())
    words = f"a text at {nats:.2f} nats a token, and at {limit_nats:.2f} by the frequencies of its tokens alone"
    if not nats < limit_nats:  # True for NaN.
        raise WrongResultError(f"{server.name}: its output is wrong: it predicts {words}")
    terminal.line(f"{server.name}: predicts {words}")
    return OutputCheck(tokens=len(logs), perplexity=math.exp(nats), frequency_perplexity=math.exp(limit_nats))
