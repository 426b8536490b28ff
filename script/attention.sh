#!/usr/bin/env bash
# Compare attention implementations, each in its own process, in rounds. Needs a GPU.
#
#   bash script/attention.sh                                        configs/attention.yaml, then attention-types.yaml
#   bash script/attention.sh --head-dim 64 --heads 32 --kv-heads 8  your shapes; options go to both sweeps
#   PYTHON=python3 bash script/attention.sh                         in an existing environment with all requirements
set -euo pipefail
source "$(dirname "$0")/environment.sh"

"$PYTHON" -m benchmarker sweep configs/attention.yaml "$@"
"$PYTHON" -m benchmarker sweep configs/attention-types.yaml "$@"
