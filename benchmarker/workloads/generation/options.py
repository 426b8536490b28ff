"""How the fields of a generation are spelt on the command line, where that is not the field's name."""

from __future__ import annotations

from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.workload import Options, Shorthand

OPTIONS = Options(
    flags={
        "subject.model.id": "--model",
        "variant.options": "--option",
        "grid.prompts": "--prompt",
        "subject.quality.size": "--quality",
        "subject.quality.text": "--eval-text",
        "subject.quality.top_k": "--quality-topk",
        "subject.quality.baseline": "--quality-baseline",
    },
    helps={
        "variant.quant": f"{', '.join(LOADERS)}; docs/config.md says what each is.",
        "variant.options": "The quantization's own, as key=value; repeat it.",
        "variant.runtime": "eager (model.generate), graph or compile.",
        "grid.prompts": "A prompt text in place of lengths; repeat it.",
        "subject.quality.text": (
            "Text file, or data set as NAME:CONFIG:SPLIT.  \\[default: the text that ships with benchmarker]"
        ),
    },
    repeated=("grid.prompts",),
    shorthands=(
        Shorthand("--compile", "variant.runtime", "Short for --runtime compile.", value="compile"),
        Shorthand("--calibration", "variant.options", "Text file that GPTQ is calibrated on.", key="calibration"),
    ),
    panels={
        "subject.model": "Model",
        "variant": "Variant",
        "grid": "Grid",
        "procedure": "Procedure",
        "subject.quality": "Quality",
    },
    example="--quant int8 --prompt-tokens 26 --new-tokens 100",
)
