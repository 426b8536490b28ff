#!/usr/bin/env bash
# Compare variants of a model behind a server, with a new server for each variant and round. Needs a GPU.
#
#   bash script/serving.sh                                   all of configs/serving.yaml, at fixed concurrencies
#   bash script/serving.sh --rate 5,20                       requests that arrive at random, 5 and 20 per second
#   bash script/serving.sh --prompt-tokens 2048              your lengths
#   bash script/serving.sh --length-spread 0.3               lengths of 70 % to 130 %
#   PYTHON=python3 bash script/serving.sh                    in an existing environment with all requirements
set -euo pipefail
source "$(dirname "$0")/environment.sh"

"$PYTHON" -m benchmarker sweep configs/serving.yaml "$@"
