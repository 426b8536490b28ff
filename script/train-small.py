"""Train the small real model that ships with benchmarker: `python script/train-small.py --output folder`.

It takes about an hour on one idle core with bfloat16 arithmetic; a GPU is used if available. The text comes from the
running Python (see small_model/corpus.py). The folder always holds the best checkpoint so far, so the training may be
stopped.
"""

from __future__ import annotations

import argparse
import copy
import math
import platform
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from small_model.bigram import bigram_perplexity
from small_model.corpus import Corpus, library_corpus, package_versions
from small_model.tokenizer import train_tokenizer, write_tokenizer
from small_model.training import WINDOW, Plan, mean_loss, new_model, train
from tokenizers import Tokenizer
from transformers import GenerationConfig, Qwen3ForCausalLM

VOCABULARY = 2048
CODE_FOR_MERGES = 2_000_000
"""Characters of code for the tokenizer, in addition to all of the prose."""


def main() -> None:
    options = arguments()
    torch.manual_seed(options.seed)
    corpus = library_corpus()
    tokenizer = train_tokenizer([corpus.prose, corpus.code[:CODE_FOR_MERGES]], vocabulary=VOCABULARY)
    ids = {name: encode(tokenizer, corpus, name) for name in ("prose", "packages", "code", "validation")}
    print(package_versions())
    print(f"Python {platform.python_version()}, text {corpus.sha256}, tokens", {k: len(v) for k, v in ids.items()})
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "evaluation.txt").write_text(corpus.evaluation + "\n", encoding="utf-8")
    model = new_model(VOCABULARY)
    if options.start:
        model = Qwen3ForCausalLM.from_pretrained(options.start, dtype=torch.float32)
    model.to(options.device)
    write_tokenizer(tokenizer, options.output, positions=model.config.max_position_embeddings)
    best = math.inf
    started = time.monotonic()

    def keep(step: int, loss: float) -> None:
        nonlocal best
        print(
            f"step {step}, {time.monotonic() - started:.0f} s, validation perplexity {math.exp(loss):.3f}", flush=True
        )
        if loss < best:
            best = loss
            save(model, options.output)

    plan = Plan(
        steps=options.steps,
        minutes=options.minutes,
        rows=tuple((name, int(count)) for name, count in (word.split("=") for word in options.rows.split(","))),
        dropout=options.dropout,
        learning_rate=options.learning_rate,
        decay=options.decay,
    )
    train(model, texts=ids, validation=ids["validation"], plan=plan, keep=keep)
    shipped = Qwen3ForCausalLM.from_pretrained(options.output, dtype=torch.float32)
    print(yardsticks(shipped, ids["prose"], encode(tokenizer, corpus, "evaluation")))


def yardsticks(model: Qwen3ForCausalLM, learned: torch.Tensor, judged: torch.Tensor) -> str:
    """Return perplexities of the evaluation text: of guessing, of a bigram model, and of the saved model."""
    bigram = bigram_perplexity(learned.numpy(), judged.numpy(), vocabulary=VOCABULARY)
    perplexity = math.exp(mean_loss(model, judged, scored_from=WINDOW // 2))
    return f"evaluation text: chance {VOCABULARY}, bigram model {bigram:.2f}, this model {perplexity:.2f}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--start", type=Path, help="folder of an earlier training to continue")
    parser.add_argument("--rows", default="prose=3,packages=4,code=1", help="windows of each kind of text in a step")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--learning-rate", type=float, default=6e-3)
    parser.add_argument("--decay", type=float, default=0.8, help="final share of the training with a falling rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def encode(tokenizer: Tokenizer, corpus: Corpus, name: str) -> torch.Tensor:
    """Return the token ids of one part of the text, [tokens]."""
    return torch.from_numpy(np.array(tokenizer.encode(getattr(corpus, name)).ids))


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Save config, generation config and weights in bfloat16; the tied output layer is not repeated."""
    weights = {name: one.to("cpu", torch.bfloat16).contiguous() for name, one in model.state_dict().items()}
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = copy.deepcopy(model.config)
    config.dtype, config.architectures = torch.bfloat16, [type(model).__name__]
    config.save_pretrained(folder)
    GenerationConfig(do_sample=False, bos_token_id=0, eos_token_id=1, pad_token_id=0).save_pretrained(folder)


if __name__ == "__main__":
    main()
