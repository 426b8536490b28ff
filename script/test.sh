#!/usr/bin/env bash
# Run linter, type checker and tests, in .venv or in the environment of PYTHON.
#
#   bash script/test.sh                 everything except the longest tests, which are marked by_hand
#   bash script/test.sh -m by_hand      the longest tests; needs the extra ray
#   bash script/test.sh -m 'not slow'   arguments go to pytest
set -euo pipefail
source "$(dirname "$0")/environment.sh"
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
# Run mypy during the tests, many of which wait for child processes.
types=$(mktemp)
trap '[ -z "${mypy:-}" ] || kill "$mypy" 2>/dev/null || true; rm -f "$types"' EXIT
"$PYTHON" -m mypy >"$types" 2>&1 &
mypy=$!
[ $# -gt 0 ] || set -- -m 'not by_hand'
# One thread per process, because with such small models synchronization takes longer than the work.
tests=0
OMP_NUM_THREADS=1 "$PYTHON" -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@" || tests=$?
wait "$mypy" || tests=1
cat "$types"
exit "$tests"
