#!/usr/bin/env bash
# Run published_run.py on a machine that has torch, Triton, nvcc and a GPU, but neither a network nor our packages.
# usage, from the root of the repository: published_run.sh WHEELS DATA_SET [options of published_run.py]
# WHEELS is a folder with the wheels that the machine lacks; with FlashInfer's among them, --baselines works.
# Results go to $OUT, or ./out.
set -euo pipefail
wheels=$1
data_set=$2
shift 2
site=${SITE:-${TMPDIR:-/tmp}/fib-site}
if [ ! -d "$site" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$wheels"/*.whl
fi
root=$PWD
PYTHONPATH=$site
for name in schema compile bench apply tracer integrations; do
  PYTHONPATH=$PYTHONPATH:$root/packages/fib-$name/src
done
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 COLUMNS=160
python3 "$root/packages/fib-bench/benchmarks/published_run.py" --dataset "$data_set" --output "${OUT:-out}" "$@"
