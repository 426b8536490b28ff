"""How the fields of context parallel attention are spelt on the command line, where that is not the field's name."""

from __future__ import annotations

from benchmarker.schema.workload import Options

OPTIONS = Options(
    # A sweep has a `--seed` of its own.
    flags={"subject.seed": "--input-seed"},
    example="--variant zigzag --ranks 2 --seq-len 8192,65536",
)
