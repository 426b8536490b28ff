#!/usr/bin/env bash
# Build the wheel, install it into an empty environment, and run the quickstart from there, away from the checkout.
#
#   bash script/check-wheel.sh                  llm-quant-benchmarker[all], all variants of configs/quickstart.yaml
#   bash script/check-wheel.sh gptq fp16 gptq   llm-quant-benchmarker[gptq], these variants only
#
# Needs a package index; takes a few minutes and 2 GB under the folder for temporary files, which are removed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extra=${1:-all}
[ $# -gt 0 ] && shift
checkout=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git archive HEAD | tar -x -C "$work" --one-top-level=source
"${PYTHON_BASE:-python3}" -m venv "$work/build"
"$work/build/bin/pip" install --quiet --disable-pip-version-check build
"$work/build/bin/python" -m build --outdir "$work/dist" "$work/source" >"$work/build.log" 2>&1 ||
    { tail -20 "$work/build.log" >&2; exit 1; }

"${PYTHON_BASE:-python3}" -m venv "$work/empty"
# Install torch first, because the wheel does not select its build.
"$work/empty/bin/pip" install --quiet --disable-pip-version-check -c "$checkout/script/constraints.txt" torch
wheel=$(ls "$work"/dist/*.whl)
"$work/empty/bin/pip" install --quiet --disable-pip-version-check -c "$checkout/script/constraints.txt" "$wheel[$extra]"
"$work/empty/bin/pip" check
mkdir "$work/elsewhere" && cd "$work/elsewhere"
unset PYTHONPATH
# Check that every module and data file is installed. Tests run next to the checkout and do not detect missing files.
package=$("$work/empty/bin/python" -c 'import benchmarker, pathlib; print(pathlib.Path(benchmarker.__file__).parent)')
missing=$(cd "$work/source/benchmarker" && find -L . -type f ! -name '*.pyc' | while read -r file; do
    cmp -s "$file" "$package/$file" || echo "$file"
done)
[ -z "$missing" ] || { echo "missing or different in the wheel:" $missing >&2; exit 1; }
"$work/empty/bin/python" -m benchmarker.run --help >/dev/null
"$work/empty/bin/benchmarker" doctor --quick || [ "$extra" != all ]  # It exits with 1 if a library is missing.
"$work/empty/bin/benchmarker" sweep quickstart "$@" --quick --output results
ls -l results/report.html
