#!/usr/bin/env bash
# Compare ways to split a long context over the GPUs of this host, each in its own processes, in rounds.
#
#   bash script/context-parallel.sh                              all of configs/context-parallel.yaml, over two GPUs
#   bash script/context-parallel.sh --ranks 4 --heads 64         your shapes; options go to the sweep
#   PYTHON=python3 bash script/context-parallel.sh               in an environment that has everything already
set -euo pipefail
source "$(dirname "$0")/environment.sh"

"$PYTHON" -m benchmarker sweep configs/context-parallel.yaml "$@"
