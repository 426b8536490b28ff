#!/usr/bin/env bash
# Compare methods of context parallel attention on the GPUs of this host, in rounds with separate processes.
#
#   bash script/context-parallel.sh                              all of configs/context-parallel.yaml, over two GPUs
#   bash script/context-parallel.sh --ranks 4 --heads 64         your shapes; options go to the sweep
#   PYTHON=python3 bash script/context-parallel.sh               in an existing environment with all requirements
set -euo pipefail
source "$(dirname "$0")/environment.sh"

"$PYTHON" -m benchmarker sweep configs/context-parallel.yaml "$@"
