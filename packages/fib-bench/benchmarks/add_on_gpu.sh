#!/usr/bin/env bash
# Run bench_add.py on a machine that has torch, Triton and a GPU, but neither a network nor our packages.
# usage, from the root of the repository: add_on_gpu.sh WHEELS [options of bench_add.py]
# WHEELS is a folder with the wheels that the machine lacks. Output and errors go to $OUT/add.md, or ./out/add.md.
set -euo pipefail
wheels=$1
shift
site=${SITE:-${TMPDIR:-/tmp}/fib-site}
if [ ! -d "$site" ]; then
  python3 -m pip install -q --no-index --no-deps --no-cache-dir --upgrade --target "$site" "$wheels"/*.whl
fi
packages=$PWD/packages
export PYTHONPATH=$site:$packages/fib-schema/src:$packages/fib-compile/src:$packages/fib-bench/src
export PYTHONUNBUFFERED=1
python3 -m compileall -q "$packages"/*/src  # as an installation does
mkdir -p "${OUT:-out}"
python3 "$packages/fib-bench/benchmarks/bench_add.py" --device cuda "$@" 2>&1 | tee "${OUT:-out}/add.md"
