#!/usr/bin/env bash
# How to split a long context over the GPUs of this host? Each way in processes of its own, in rounds, then compared.
#
#   bash script/context-parallel.sh                              all of configs/context-parallel.yaml, over two GPUs
#   bash script/context-parallel.sh --ranks 4 --heads 64         your shapes; options go to the sweep
#   PYTHON=python3 bash script/context-parallel.sh               in an environment that has everything already
set -euo pipefail
source "$(dirname "$0")/environment.sh"

"$PYTHON" -m benchmarker sweep configs/context-parallel.yaml "$@"
