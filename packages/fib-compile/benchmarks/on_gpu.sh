#!/usr/bin/env bash
# Run on_gpu.py on a machine that has torch, Triton, nvcc and a GPU, but neither a network nor our packages.
# usage, from the root of the repository: on_gpu.sh WHEELS [install | options of on_gpu.py]
# WHEELS is a folder with the wheels that the machine lacks; `install` adds them to those of earlier calls, and no more.
# Reports go to $OUT, or ./out.
set -euo pipefail
wheels=$1
shift
site=${SITE:-${TMPDIR:-/tmp}/fib-site}
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$wheels"/*.whl
if [ "${1:-}" = install ]; then exit; fi
root=$PWD
# CuTe DSL's module is in a folder of its own, which its .pth file adds only where pip installs it into the system.
export PYTHONPATH=$site:$(printf '%s:' "$site"/nvidia_cutlass_dsl/*_packages)$root/packages/fib-schema/src:$root/packages/fib-compile/src PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
python3 "$root/packages/fib-compile/benchmarks/on_gpu.py" --out "${OUT:-out}" "$@"
