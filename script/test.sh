#!/usr/bin/env bash
# Lint, types and tests, in .venv or in the environment that PYTHON names.
#
#   bash script/test.sh                 everything
#   bash script/test.sh -m 'not slow'   arguments go to pytest
set -euo pipefail
source "$(dirname "$0")/environment.sh"
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy
# One thread each: on models this small, threads that wait for each other take longer than the work.
OMP_NUM_THREADS=1 "$PYTHON" -m pytest -n 2 --dist loadfile "$@"
