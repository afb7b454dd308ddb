#!/usr/bin/env bash
# Run the tests that need a device and bench_device.py, where torch and a GPU are, but neither a network nor our packages.
# usage, from the root of the repository: on_gpu.sh WHEELS [options of bench_device.py]
# WHEELS is a folder with the wheels that the machine lacks. Reports go to $OUT, or ./out.
set -euo pipefail
wheels=$1
shift
site=${SITE:-${TMPDIR:-/tmp}/fib-site}
if [ ! -d "$site" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$wheels"/*.whl
fi
packages=$PWD/packages
export PYTHONPATH=$site:$packages/fib-schema/src:$packages/fib-compile/src:$packages/fib-apply/src:$packages/fib-tracer/src
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
status=0
python3 -m pytest -q -m gpu -p no:cacheprovider packages/fib-tracer/tests || status=$?
python3 packages/fib-tracer/benchmarks/bench_device.py --out "${OUT:-out}" "$@" || status=$?
exit "$status"
