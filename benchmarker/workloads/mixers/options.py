"""How the fields of mixers are spelt on the command line, where that is not the field's name."""

from __future__ import annotations

from benchmarker.schema.workload import Options

OPTIONS = Options(
    flags={
        # A sweep has a `--seed` of its own.
        "subject.seed": "--input-seed",
        "subject.block.vocabulary": "--model-vocabulary",
        "subject.tasks.names": "--tasks",
        "subject.tasks.batch_size": "--task-batch-size",
        "subject.tasks.vocabulary": "--task-vocabulary",
    },
    panels={
        "subject": "Layer",
        "subject.block": "Small model",
        "subject.tasks": "Tasks",
        "variant": "Variant",
        "grid": "Grid",
        "procedure": "Procedure",
    },
    example="--variant gdn-fla-chunk --seq-len 1024,4096 --head-dim 128",
)
