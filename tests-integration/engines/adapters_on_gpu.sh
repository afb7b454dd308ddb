#!/usr/bin/env bash
# Run flashinfer_adapters.py on a machine that has torch, nvcc and a GPU, but neither a network nor our packages.
# usage, from the root of the repository: adapters_on_gpu.sh WHEELS DATA_SET [options of flashinfer_adapters.py]
# WHEELS is a folder with the wheels that the machine lacks, FlashInfer among them. Reports go to $OUT, or ./out.
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
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
python3 "$root/tests-integration/engines/flashinfer_adapters.py" "$data_set" --out "${OUT:-out}" "$@"
