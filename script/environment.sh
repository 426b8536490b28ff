# Sourced by the other scripts. Set PYTHON to an interpreter with all requirements of benchmarker.
#
# If PYTHON is set (PYTHON=python3 bash script/...), that environment is used, and nothing is installed or downloaded.
# Otherwise .venv is created once, with the exact versions of script/constraints.txt.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local candidate
    for candidate in python3.13 python3.12 python3.11 python3; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "benchmarker needs Python 3.11, 3.12 or 3.13; none was found on the PATH" >&2
    return 1
}

# Run pip with the versions of script/constraints.txt and print its latest step every ten seconds.
install() {
    local log=.venv/pip.log
    : >"$log"
    while { sleep 10 && kill -0 $$; } >/dev/null 2>&1; do
        echo "  $((SECONDS - started)) s: $(find .venv -name '*.dist-info' | wc -l) packages installed;" \
            "$(sed -n 's/^ *\([A-Z][a-z]*ing .\{,50\}\).*/\1/p' "$log" | tail -n 1)"
    done {lock}>&- &
    # Ctrl-C does not reach a background process of a script.
    trap "kill $!" EXIT
    # --no-compile saves a minute: most of the 18,000 files are never imported, and Python compiles the others at their
    # first import.
    .venv/bin/python -m pip install --disable-pip-version-check --no-compile -c script/constraints.txt "$@" >"$log"
    kill $!
    trap - EXIT
}

# Without bytecode files every process would compile torch and transformers again: 2 to 10 seconds each.
unset PYTHONDONTWRITEBYTECODE
if [ -n "${PYTHON:-}" ]; then
    "$PYTHON" -c 'import torch, transformers, pydantic, typer' 2>/dev/null ||
        { echo "PYTHON=$PYTHON lacks torch, transformers, pydantic or typer; unset PYTHON to set up .venv" >&2; exit 1; }
    export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
else
    PYTHON=$PWD/.venv/bin/python
    fingerprint=$(cat pyproject.toml script/constraints.txt | cksum)
    is_ready() { [ "$(cat .venv/.installed 2>/dev/null)" = "$fingerprint" ]; }
    if ! is_ready; then
        base=$(find_python)
        mkdir -p .venv
        # The lock prevents two set-ups from installing into .venv at the same time.
        exec {lock}>.venv/.lock
        flock -n "$lock" || { echo "waiting for another set-up of .venv"; flock "$lock"; }
    fi
    if ! is_ready; then
        started=$SECONDS
        echo "setting up .venv, once (about 2 GB), step 1 of 2: torch"
        "$base" -m venv .venv
        install torch
        echo "step 2 of 2: transformers, the quantization libraries and the test tools ($((SECONDS - started)) s so far)"
        install -e '.[all,dev]'
        echo "$fingerprint" >.venv/.installed
        echo ".venv is ready after $((SECONDS - started)) s; for the benchmarker command: . .venv/bin/activate"
    fi
    [ -z "${lock:-}" ] || exec {lock}>&-
fi
