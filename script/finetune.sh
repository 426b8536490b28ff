#!/usr/bin/env bash
# Compare full fine-tuning, LoRA and QLoRA, each in its own process, in rounds. Needs a GPU.
#
#   bash script/finetune.sh                                  all of configs/finetune.yaml, on Qwen/Qwen3-4B
#   bash script/finetune.sh --load-format dummy              the same shapes with random weights; nothing is downloaded
#   bash script/finetune.sh --seq-len 4096 --batch-size 1    your lengths
#   PYTHON=python3 bash script/finetune.sh                   in an existing environment with all requirements
set -euo pipefail
source "$(dirname "$0")/environment.sh"

"$PYTHON" -m benchmarker sweep configs/finetune.yaml "$@"
