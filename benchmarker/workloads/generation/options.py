"""How the fields of a generation are spelt on the command line, where that is not the field's name."""

from __future__ import annotations

from benchmarker.engines.registry import ENGINES, engine_name
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.workload import Options, Shorthand

OPTIONS = Options(
    flags={
        "subject.model.id": "--model",
        "variant.options": "--option",
        "variant.engine_options": "--engine-option",
        "grid.prompts": "--prompt",
        "subject.quality.size": "--quality",
        "subject.quality.text": "--eval-text",
        "subject.quality.top_k": "--quality-topk",
        "subject.quality.baseline": "--quality-baseline",
    },
    helps={
        "variant.quant": f"{', '.join(LOADERS)}; docs/config.md says what each is.",
        "variant.options": "The quantization's own, as key=value; repeat it.",
        "variant.engine": f"{', '.join(ENGINES)}; docs/engines.md says what each is.",
        "variant.engine_options": "The engine's own, as key=value; repeat it.",
        "variant.split": (
            "How several GPUs share the model: tensors (all of them work on each token) or layers (they take turns)."
        ),
        "grid.prompts": "A prompt text in place of lengths; repeat it.",
        "subject.quality.text": (
            "Text file, or data set as NAME:CONFIG:SPLIT.  \\[default: the text that ships with benchmarker]"
        ),
    },
    repeated=("grid.prompts",),
    shorthands=(
        Shorthand("--runtime", "variant.engine", "An older word for --engine; graph is cuda_graph."),
        Shorthand("--compile", "variant.engine", "Short for --engine compile.", value="compile"),
        Shorthand("--calibration", "variant.options", "Text file that GPTQ is calibrated on.", key="calibration"),
    ),
    todays=lambda place, value: engine_name(value) if place == "variant.engine" else value,
    panels={
        "subject.model": "Model",
        "variant": "Variant",
        "grid": "Grid",
        "procedure": "Procedure",
        "subject.quality": "Quality",
    },
    example="--quant int8 --prompt-tokens 26 --new-tokens 100",
)
