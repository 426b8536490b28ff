#!/usr/bin/env bash
# On a GPU: check the instruments (doctor), then measure joules per token of the
# variants of a config, three windows each, and the report with its charts.
#
#   PYTHON=python3 bash script/bench-energy.sh results/energy            Qwen3-4B with random weights, all variants
#   PYTHON=python3 bash script/bench-energy.sh results/energy fp16 int8  these alone
#   CONFIG=configs/quickstart.yaml bash script/bench-energy.sh /tmp/try fp16   a trial on a processor
#
# Takes about three minutes a variant. Nothing is downloaded.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
folder=${1:?give a folder for the results}
shift
config=${CONFIG:-configs/qwen3-4b.yaml}
mkdir -p "$folder"

"$PYTHON" -m benchmarker doctor | tee "$folder/doctor.md" || echo "doctor: not all is well; see above"
"$PYTHON" -m benchmarker sweep "$config" "$@" --quick --energy --load-format dummy --quality off \
    --prompt-tokens 26 --new-tokens 100 --output "$folder/records" | tee "$folder/sweep.log"
"$PYTHON" -m benchmarker compare "$folder/records" | tee "$folder/table.md"
"$PYTHON" -m benchmarker report "$folder/records" -o "$folder/report.html" --plots "$folder/plots" ||
    echo "no report: needs matplotlib, jinja2 and markdown-it-py"
