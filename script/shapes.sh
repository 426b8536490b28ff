#!/usr/bin/env bash
# Find the batch and the prompt up to which quantized Qwen3-4B is faster than 16 bit: rounds over prompts and batches,
# each followed by llama-bench on the same GPU if LLAMA_BENCH is set.
#
#   PYTHON=python3 bash script/shapes.sh results/shapes                     three rounds; repeat the command to resume
#   ROUNDS=5 bash script/shapes.sh results/shapes --batch-size 1,8          options go to every run; repeat them to resume
#   CUDA_VISIBLE_DEVICES=1 bash script/shapes.sh results/shapes/many --batch-size 32,128     a part on another GPU; compare
#                                                                                           all of results/shapes
#   LLAMA_BENCH=bin/llama-bench GGUF="F16.gguf Q8_0.gguf" bash script/shapes.sh results/shapes
#   CONFIG=configs/quickstart.yaml FORMS="fp16 int8" ROUNDS=2 bash script/shapes.sh /tmp/try --device cpu --prompt-tokens 8,16
#
# The last command is a trial without a GPU. llama-bench measures one sequence. Weights are random; nothing is
# downloaded.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
folder=${1:?give a folder for the results}
shift
config=${CONFIG:-configs/qwen3-4b-shapes.yaml}
rounds=${ROUNDS:-3}
prompts=${PROMPTS:-26,512,4096}
read -r -a forms <<<"${FORMS:-}"
read -r -a files <<<"${GGUF:-}"
[ ${#files[@]} = 0 ] || : "${LLAMA_BENCH:?give the program that reads these files}"

run_llama_bench() {  # FILE OUTPUT OPTIONS...
    local file=$1 output=$2
    shift 2
    [ -e "$output" ] && return
    mkdir -p "$(dirname "$output")"
    "$LLAMA_BENCH" -m "$file" "$@" -fa 1 -ngl 99 -r 3 -o json >"$output.part"
    mv "$output.part" "$output"
}

for round in $(seq "$rounds"); do
    resume=()
    [ -e "$folder/sweep.json" ] && resume=(--resume)
    "$PYTHON" -m benchmarker sweep "$config" "${forms[@]}" "$@" --rounds "$round" "${resume[@]}" --seed 1 --shared-imports \
        --output "$folder" || [ $? = 1 ]  # 1: a variant failed, and the others are compared.
    for file in "${files[@]}"; do
        name=$folder/llama-bench/$(basename "$file" .gguf)
        run_llama_bench "$file" "$name-prompts-$round.json" -p "$prompts" -n 0
        run_llama_bench "$file" "$name-tokens-$round.json" -p 0 -n 128 -d "$prompts"
    done
done
