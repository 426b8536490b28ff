#!/usr/bin/env bash
# Measure a small model in all quantizations, with their quality, on any Linux machine.
#
#   bash script/quickstart.sh                  needs Python 3.11+ and a package index
#   PYTHON=python3 bash script/quickstart.sh   in an existing environment with all requirements
set -euo pipefail
source "$(dirname "$0")/environment.sh"
# Importing the libraries takes longer than measuring such a small model, so each round imports them once.
[ "$(uname)" != Linux ] || set -- --shared-imports "$@"
exec "$PYTHON" -m benchmarker sweep configs/quickstart.yaml "$@"
