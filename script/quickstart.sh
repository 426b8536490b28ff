#!/usr/bin/env bash
# The whole tool on any machine in four to twelve minutes: a small model in all forms, with what each costs in quality.
#
#   bash script/quickstart.sh                  needs Python 3.11+ and a package index
#   PYTHON=python3 bash script/quickstart.sh   in an environment that has everything already
set -euo pipefail
source "$(dirname "$0")/environment.sh"
# Importing the libraries takes longer than measuring a model this small: once a round is enough.
[ "$(uname)" != Linux ] || set -- --shared-imports "$@"
exec "$PYTHON" -m benchmarker sweep configs/quickstart.yaml "$@"
