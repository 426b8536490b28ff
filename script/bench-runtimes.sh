#!/usr/bin/env bash
# The same model in every quantization and every runtime, one after another, and the table of them side by side:
# tok/s, time per token, the limits of the device, kernels per token, and what setting up takes with the compiler's
# cache empty and filled. Qwen3-4B with random weights, prompt 26, 100 new tokens, batch 1.
#
#   bash script/bench-runtimes.sh                                    everything
#   bash script/bench-runtimes.sh --variants 'fp16 gptq:kernel=marlin' --runtimes 'graph compile'
#   bash script/bench-runtimes.sh --output results/here              folder for the records, table.md and explained.md
#   bash script/bench-runtimes.sh --depth 0,4096,16384               anything else goes to every run, and wins
#   bash script/bench-runtimes.sh --model qwen3-tiny --dtype bfloat16 --variants 'fp16 int8'   a look, on any machine
#   PYTHON=python3 bash script/bench-runtimes.sh                     in an environment that has everything already
set -euo pipefail
source "$(dirname "$0")/environment.sh"

variants='fp16 int8 gptq:kernel=torch gptq:kernel=exllama_v2 bnb4'
runtimes='eager graph compile'
output=results/runtimes/$(date -u +%Y%m%d-%H%M%S)
given=()
while [ $# -gt 0 ]; do
    case $1 in
        --variants | --runtimes | --output)
            [ $# -gt 1 ] || { echo "$1: a value is missing" >&2; exit 2; }
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        *) given+=("$1"); shift ;;
    esac
done

caches=$(mktemp -d)
trap 'rm -rf "$caches"' EXIT
failed=()

# A run that could not measure is a row that says why, or a line at the end: the others still run.
measure() {
    local quant=${1%%:*} runtime=$2 name=$3
    local options=()
    [ "$1" = "$quant" ] || options=(--option "${1#*:}")
    echo
    echo "== $name"
    "$PYTHON" -m benchmarker.run --model Qwen/Qwen3-4B --load-format dummy --prompt-tokens 26 --new-tokens 100 \
        --quant "$quant" "${options[@]}" --runtime "$runtime" --name "$name" --output "$output" "${given[@]}" ||
        failed+=("$name")
}

for variant in $variants; do
    for runtime in $runtimes; do
        name="${variant/:*=/-} $runtime"
        if [ "$runtime" = compile ]; then
            # Twice with one cache: empty the first time, filled the second.
            export TORCHINDUCTOR_CACHE_DIR="$caches/$variant"
            measure "$variant" "$runtime" "$name"
            measure "$variant" "$runtime" "$name"
            unset TORCHINDUCTOR_CACHE_DIR
        else
            measure "$variant" "$runtime" "$name"
        fi
    done
done

echo
"$PYTHON" -m benchmarker compare "$output" | tee "$output/table.md"
"$PYTHON" -m benchmarker explain "$output" | tee "$output/explained.md"
if [ ${#failed[@]} -gt 0 ]; then
    printf 'not measured, or not in all cells: %s\n' "${failed[@]}"
    exit 1
fi
