#!/usr/bin/env bash
# Measure Qwen3-4B in every quantization, each in its own process, and compare them.
#
#   bash script/qwen3-4b.sh                                        all variants of configs/qwen3-4b.yaml
#   bash script/qwen3-4b.sh fp16 int8                              these variants only
#   bash script/qwen3-4b.sh fp16 int8 --load-format dummy --runs 3   options go to every run
#   PYTHON=python3 bash script/qwen3-4b.sh                         in an existing environment with all requirements
set -euo pipefail
source "$(dirname "$0")/environment.sh"
exec "$PYTHON" -m benchmarker sweep configs/qwen3-4b.yaml "$@"
