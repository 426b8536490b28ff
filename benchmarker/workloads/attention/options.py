"""How the fields of attention are spelt on the command line, where that is not the field's name."""

from __future__ import annotations

from benchmarker.schema.workload import Options

OPTIONS = Options(
    # `--dtype` is the layer's; a sweep has a `--seed` of its own.
    flags={"variant.dtype": "--variant-dtype", "subject.seed": "--input-seed"},
    helps={"subject.causal": "Every position attends to all, not only to itself and what is before it."},
    example="--variant flash --seq-len 1024,4096 --head-dim 128",
)
