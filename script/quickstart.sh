#!/usr/bin/env bash
# The whole tool on any machine in about ten minutes: a small model in all forms, with what each costs in quality.
#
#   bash script/quickstart.sh                  needs Python 3.11+ and a package index
#   PYTHON=python3 bash script/quickstart.sh   in an environment that has everything already
set -euo pipefail
source "$(dirname "$0")/environment.sh"
exec "$PYTHON" -m benchmarker sweep configs/quickstart.yaml "$@"
