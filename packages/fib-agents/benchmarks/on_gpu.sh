#!/usr/bin/env bash
# Run on_gpu.py on a machine that has torch, Triton, nvcc, ncu, compute-sanitizer and a GPU, but neither a network nor our packages.
# usage, from the root of the repository: on_gpu.sh WHEELS [options of on_gpu.py]
# WHEELS is a folder with the wheels that the machine lacks. The report goes to $OUT/agents.md, or ./out/agents.md.
set -euo pipefail
wheels=$1
shift
site=${SITE:-${TMPDIR:-/tmp}/fib-site}
if [ ! -d "$site" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$wheels"/*.whl
fi
packages=$PWD/packages
export PYTHONPATH=$site:$packages/fib-schema/src:$packages/fib-compile/src:$packages/fib-bench/src:$packages/fib-agents/src
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PATH=$PATH:/usr/local/cuda/bin
python3 "$packages/fib-agents/benchmarks/on_gpu.py" --output "${OUT:-out}" "$@"
