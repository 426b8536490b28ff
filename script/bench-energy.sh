#!/usr/bin/env bash
# Check the instruments of a GPU (doctor), measure joules per token of the variants of a config in three windows each,
# and write the report with its charts.
#
#   PYTHON=python3 bash script/bench-energy.sh results/energy            Qwen3-4B with random weights, all variants
#   PYTHON=python3 bash script/bench-energy.sh results/energy fp16 int8  these variants only
#   CONFIG=configs/quickstart.yaml bash script/bench-energy.sh /tmp/try fp16   a trial on a CPU
#
# Takes about three minutes per variant. Nothing is downloaded.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
folder=${1:?give a folder for the results}
shift
config=${CONFIG:-configs/qwen3-4b.yaml}
mkdir -p "$folder"

"$PYTHON" -m benchmarker doctor | tee "$folder/doctor.md" || echo "doctor: a check failed; see above"
"$PYTHON" -m benchmarker sweep "$config" "$@" --quick --energy --load-format dummy --quality off \
    --prompt-tokens 26 --new-tokens 100 --output "$folder/records" | tee "$folder/sweep.log"
"$PYTHON" -m benchmarker compare "$folder/records" | tee "$folder/table.md"
"$PYTHON" -m benchmarker report "$folder/records" -o "$folder/report.html" --plots "$folder/plots" ||
    echo "no report: it requires matplotlib, jinja2 and markdown-it-py"
