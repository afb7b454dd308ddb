#!/usr/bin/env bash
# Run on_gpu.py on a machine that has torch, Triton, nvcc and a GPU, but neither a network nor our packages.
# usage, from the root of the repository: on_gpu.sh WHEELS DATA_SET [options of on_gpu.py]
# WHEELS is a folder with the wheels that the machine lacks. Reports go to $OUT, or ./out.
set -euo pipefail
wheels=$1
data_set=$2
shift 2
site=${SITE:-${TMPDIR:-/tmp}/fib-site}
if [ ! -d "$site" ]; then
  python3 -m pip install -q --no-index --no-deps --no-cache-dir --upgrade --target "$site" "$wheels"/*.whl
fi
root=$PWD
export PYTHONPATH=$site:$root/packages/fib-schema/src:$root/packages/fib-compile/src:$root/packages/fib-bench/src
export PYTHONUNBUFFERED=1
python3 -m compileall -q "$root"/packages/*/src  # as an installation does
python3 "$root/packages/fib-bench/benchmarks/on_gpu.py" --dataset "$data_set" --output "${OUT:-out}" "$@"
