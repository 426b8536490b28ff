"""Run a small random model of each architecture by form and engine on the CPU, and write the table of docs/models.md.

    python -m script.run_architectures FOLDER              an hour on one core; finished runs in FOLDER are kept
    python -m script.run_architectures FOLDER qwen3 llama  these models only, without writing the table

A run is `benchmarker run` in a fork of this process, which has imported the libraries. The last column compares the
float32 tokens of the engine `eager` with those of `generate` of the same checkpoint, loaded by transformers only.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from benchmarker.checkpoints.base import Silent
from benchmarker.checkpoints.read_model import import_libraries, load_tokenizer
from benchmarker.cli.app import app
from benchmarker.quantization.load import find_checkpoint
from benchmarker.schema.model import ModelSpec, QuantSpec
from benchmarker.workloads.generation.prompts import make_prompts
from benchmarker.workloads.generation.spec import Point
from script.make_docs import ROOT, markdown_table, with_lines
from tests.architectures import ARCHITECTURES

MODELS = {
    "qwen3": "Qwen3",
    "llama": "Llama 3",
    "phi3": "Phi-3",
    "gemma4_text": "Gemma 4",
    "qwen3_5_text": "Qwen3.5",
    "granitemoehybrid": "Granite hybrid (Mamba-2)",
    "deepseek_v2": "DeepSeek-V2",
    "gpt_oss": "gpt-oss",
    "qwen3_moe": "Qwen3-MoE",
    "qwen3_5_moe_text": "Qwen3.5-MoE",
}
FORMS = ("fp16", "int8", "bnb4")
ENGINES = ("eager", "compile")
PROMPT, NEW = 24, 8  # Tokens. The sliding windows of the models hold 16.
PAGE = ROOT / "docs/models.md"


class Run(NamedTuple):
    model: str
    form: str
    engine: str
    dtype: str

    def folder(self, results: Path) -> Path:
        return results / "-".join(self)


def runs(models: Sequence[str]) -> list[Run]:
    """Return all runs; those that compile are last."""
    exact = [Run(model, "fp16", "eager", "float32") for model in models]
    return exact + [
        Run(model, form, engine, "bfloat16") for engine in ENGINES for form in reversed(FORMS) for model in models
    ]


def write_config(model: str, results: Path) -> Path:
    prefix, fields = ARCHITECTURES[model]
    folder = results / "models" / model
    config = getattr(transformers, f"{prefix}Config")(**fields, bos_token_id=0, eos_token_id=1, initializer_range=0.2)
    config.save_pretrained(folder)
    return folder


def measure(run: Run, results: Path) -> None:
    folder = run.folder(results)
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "model": write_config(run.model, results), "load-format": "dummy", "dtype": run.dtype, "quant": run.form,
        "engine": run.engine, "device": "cpu", "prompt-tokens": PROMPT, "new-tokens": NEW, "runs": 1, "warmup": 1,
        "warmup-limit": 1, "quality": "off", "output": folder,
    }  # fmt: skip
    app(["run", "--no-profile", *(part for name, value in options.items() for part in (f"--{name}", str(value)))])


def in_fork(function: Callable[[], None], log: Path) -> None:
    process = os.fork()
    if process:
        os.waitpid(process, 0)
        return
    with log.open("w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        try:
            function()
        finally:
            os._exit(0)


def record(run: Run, results: Path) -> dict[str, Any] | None:
    """Return the record of a run; None if it left none."""
    files = sorted(run.folder(results).glob("*.json"))
    loaded: dict[str, Any] | None = json.loads(files[-1].read_text()) if files else None
    return loaded


def outcome(run: Run, results: Path) -> str | None:
    """Return the reason why a run has no result; "" if it was not started, None if it succeeded."""
    if not run.folder(results).with_suffix(".done").exists():
        return ""
    found = record(run, results)
    if found is None:
        log = run.folder(results).with_suffix(".log").read_text().strip().splitlines()
        return log[-1].removeprefix("error: ") if log else "no output"
    (cell,) = found["cells"]
    if cell["samples"] and (found["step_divergence"] or {}).get("verdict") != "wrong":
        return None  # Disturbance by other programs is irrelevant here.
    return str(cell["reason"] or found["reason"] or "the timed step computes another model")


def has_library_tokens(run: Run, results: Path) -> bool:
    found = record(run, results)
    assert found, f"{run.model} has no float32 record"
    (cell,) = found["cells"]
    return tuple(cell["first_tokens"]) == library_tokens(run, results)


def library_tokens(run: Run, results: Path) -> tuple[int, ...]:
    spec = ModelSpec(id=str(write_config(run.model, results)), load_format="dummy", dtype="float32")
    checkpoint = find_checkpoint(spec, QuantSpec(quant="fp16"), progress=Silent())
    (prompt,) = make_prompts(
        Point(PROMPT, None, new_tokens=NEW, batch_size=1),
        tokenizer=load_tokenizer(checkpoint),
        vocabulary=checkpoint.config["vocab_size"],
        chat_template=False,
    )
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32)
    output = model.generate(
        torch.tensor([prompt.ids]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0
    )
    return tuple(output[0, PROMPT:].tolist())


def kind_of(reason: str) -> str:
    """Return a reason without numbers and names that differ between models."""
    shares = re.sub(r"[\w ]+ is (\w+): .*?; (\w+) does", r"less than half of the model is quantized: \2 does", reason)
    return shares.removesuffix("; measure the unquantized model")


def write_table(results: Path) -> None:
    """Write the table and its reasons, numbered, to the page."""
    reasons: dict[str, int] = {}
    rows = []
    for model, title in MODELS.items():
        cells = []
        for form in FORMS:
            words = []
            for engine in ENGINES:
                reason = outcome(Run(model, form, engine, "bfloat16"), results)
                number = reasons.setdefault(kind_of(reason), len(reasons) + 1) if reason else 0
                words.append(f"{engine}: {number}" if number else f"{engine}: –" if reason == "" else engine)
            cells.append(", ".join(words))
        exact = Run(model, "fp16", "eager", "float32")
        is_exact = outcome(exact, results) is None and has_library_tokens(exact, results)
        rows.append((title, *cells, "equal" if is_exact else "–" if outcome(exact, results) == "" else "**other**"))
    lines = markdown_table(("model", *FORMS, "float32 tokens"), rows)
    numbered = [(str(number), reason) for reason, number in reasons.items()]
    text = with_lines(PAGE.read_text(encoding="utf-8"), "runs on a CPU", lines, script="run_architectures.py")
    text = with_lines(text, "reasons", markdown_table(("", "reason"), numbered), script="run_architectures.py")
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    results = Path(sys.argv[1]).resolve()
    results.mkdir(parents=True, exist_ok=True)
    import_libraries("torchao", "bitsandbytes")
    models = sys.argv[2:]
    for run in runs(models or list(MODELS)):
        log = run.folder(results).with_suffix(".log")
        if not log.with_suffix(".done").exists():
            in_fork(partial(measure, run, results), log)
            log.with_suffix(".done").touch()
            print(run, outcome(run, results) or "ran", flush=True)
    if not models:
        write_table(results)


if __name__ == "__main__":
    main()
