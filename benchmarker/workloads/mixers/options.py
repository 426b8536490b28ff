"""How the fields of mixers are spelt on the command line, where that is not the field's name."""

from __future__ import annotations

from benchmarker.schema.workload import Options

OPTIONS = Options(
    # A sweep has a `--seed` of its own.
    flags={"subject.seed": "--input-seed"},
    example="--variant gdn-fla-chunk --seq-len 1024,4096 --head-dim 128",
)
