#!/usr/bin/env bash
# Run on_gpu.py on a machine that has torch, Triton, nvcc and a GPU, but neither a network nor our packages.
# usage, from the root of the repository: on_gpu.sh WHEELS DATA_SET [options of on_gpu.py]
# WHEELS is a folder with the wheels that the machine lacks, as `tools/dev.py bundle WHEELS 3.12 serve` makes it (14 MB).
# The report goes to $OUT/suite.md, or ./out/suite.md. It ends within 4 minutes.
set -euo pipefail
wheels=$1
data_set=$2
shift 2
site=${SITE:-${TMPDIR:-/tmp}/fib-site}
if [ ! -d "$site" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$wheels"/*.whl
fi
packages=$PWD/packages
export PYTHONPATH=$site:$packages/fib-schema/src:$packages/fib-compile/src:$packages/fib-bench/src:$packages/fib-serve/src
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PATH=$PATH:/usr/local/cuda/bin
timeout --kill-after 5 220 \
  python3 "$packages/fib-serve/benchmarks/on_gpu.py" --dataset "$data_set" --output "${OUT:-out}" "$@"
