"""How the fields of fine-tuning are spelt on the command line, where that is not the field's name."""

from __future__ import annotations

from benchmarker.schema.workload import Options

OPTIONS = Options(
    # A sweep has a `--seed` of its own.
    flags={"subject.model.id": "--model", "subject.seed": "--input-seed"},
    panels={
        "subject.model": "Model",
        "subject": "Subject",
        "variant": "Variant",
        "grid": "Grid",
        "procedure": "Procedure",
    },
    example="--variant qlora --model qwen3-small --seq-len 512",
)
