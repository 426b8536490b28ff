#!/usr/bin/env bash
# Compare the duration and the verdicts of a sweep on several GPUs of this host with those of a sweep of the same rounds
# on the first GPU. Checkpoints are created before the timing starts; each sweep has an empty compiler cache.
#
#   PYTHON=python3 bash script/places.sh results/places                         six variants of Qwen3-4B, random weights, GPUs 0 and 1
#   PLACES=local:0,1,2,3 bash script/places.sh results/places --rounds 8  four GPUs; options go to both (except --resume)
#   CONFIG=configs/quickstart.yaml FORMS="fp16 int8" bash script/places.sh /tmp/try --load-format auto --device cpu --rounds 2
#
# The last command is a trial without a GPU. On two H100, six variants and six rounds take half an hour. Nothing is
# downloaded.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
folder=${1:?give a folder for the results}
shift
config=${CONFIG:-configs/qwen3-4b.yaml}
places=${PLACES:-local:0,1}
read -r -a forms <<<"${FORMS:-fp16 fp16-compile int8 gptq gptq-compile bnb4}"
mkdir -p "$folder"
compiled=$(mktemp -d)
trap 'rm -rf "$compiled"' EXIT

measure() {  # NAME PLACES OPTIONS...
    local name=$1 at=$2
    shift 2
    export TORCHINDUCTOR_CACHE_DIR="$compiled/$name" TRITON_CACHE_DIR="$compiled/$name/triton"
    "$PYTHON" -m benchmarker sweep "$config" "${forms[@]}" --rounds 6 --seed 1 --shared-imports --load-format dummy \
        --prompt-tokens 26 --new-tokens 10 --runs 3 --warmup 1 --warmup-limit 2 --no-profile --no-limits \
        "$@" --places "$at" --output "$folder/$name" 2>&1 | tee "$folder/$name.log" ||
        [ "${PIPESTATUS[0]}" = 1 ]  # 1: a variant failed, and the others are compared. 2: a usage error.
}
measure all "$places" "$@"
measure first "${places%%,*}" "$@"

for name in all first; do
    "$PYTHON" -m benchmarker compare "$folder/$name" --format json >"$folder/$name.json"
done
"$PYTHON" - "$folder" <<'PYTHON'
"""Print both durations, their ratio, and the verdict of each sweep for each variant."""

import json
import re
import sys
from pathlib import Path

CELL = ("variant", "prompt_tokens", "new_tokens", "batch_size", "depth")
folder = Path(sys.argv[1])
seconds, rows = {}, {}
for name in ("all", "first"):
    took = re.findall(r"rounds? took (\d+) s \((.*)\)", (folder / f"{name}.log").read_text())
    if not took:
        sys.exit(f"{name}: its rounds did not finish; see {folder / name}.log")
    seconds[name] = int(took[-1][0])
    print(f"{name}: {took[-1][0]} s, {took[-1][1]}")
    cells = json.loads((folder / f"{name}.json").read_text())
    rows[name] = {tuple(cell[field] for field in CELL): cell for cell in cells}
print(f"all / first: {seconds['all'] / seconds['first']:.2f}")


def summary(row):
    """Return speed-up, interval and verdict."""
    numbers = [row[name] for name in ("ratio", "ratio_low", "ratio_high")]
    ratio, low, high = ("-" if number is None else f"{number:.3f}" for number in numbers)
    return f"{ratio} [{low}, {high}] {row['verdict']}"


for cell, row in rows["first"].items():
    other = rows["all"].get(cell)
    line = f"{summary(row)} on the first, {summary(other) if other else 'missing'} on all"
    shape = " x ".join(str(number) for number in cell[1:4])
    verdicts = {row["verdict"], other["verdict"] if other else None}
    if len(verdicts - {"inconclusive", None}) > 1:
        line += ": CONTRADICTION"
    elif len(verdicts) > 1:
        line += ": one is inconclusive, which is no contradiction"
    print(f"{cell[0]} at {shape}: {line}")
PYTHON
