#!/usr/bin/env bash
# Run transformer_block.py on a machine that has torch, Triton, nvcc and a GPU, but neither a network nor our packages.
# usage, from the root of the repository: on_gpu.sh WHEELS DATA_SET [options of transformer_block.py]
# WHEELS is a folder with the wheels that the machine lacks. Reports go to $OUT, or ./out.
set -euo pipefail
wheels=$1
data_set=$2
shift 2
site=${SITE:-${TMPDIR:-/tmp}/fib-site}
if [ ! -d "$site" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$wheels"/*.whl
fi
root=$PWD
packages=$root/packages
export PYTHONPATH=$site:$packages/fib-schema/src:$packages/fib-compile/src:$packages/fib-bench/src:$packages/fib-apply/src
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
python3 "$root/tests-integration/transformer_block.py" "$data_set" --out "${OUT:-out}" "$@"
