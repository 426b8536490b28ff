#!/usr/bin/env bash
# Find the length from which a linear mixer is faster than the best softmax variant, in rounds. Needs a GPU.
#
#   bash script/mixers.sh                                the mixers alone, then a small model around each, and its tasks
#   bash script/mixers.sh --heads 96 --seq-len 8192      your shapes, for the mixers only
#   PYTHON=python3 bash script/mixers.sh                 in an existing environment with all requirements
set -euo pipefail
own_environment=${PYTHON:-}
source "$(dirname "$0")/environment.sh"
if [ -z "$own_environment" ]; then
    "$PYTHON" -m pip install --quiet --disable-pip-version-check -c script/constraints.txt -e '.[mixers]'
fi

"$PYTHON" -m benchmarker sweep configs/mixers.yaml "$@"
"$PYTHON" -m benchmarker sweep configs/mixers-block.yaml
