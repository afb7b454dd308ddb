#!/usr/bin/env bash
# Run what needs a GPU of these tests, on a machine that has torch, Triton, nvcc and pytest, but neither a network nor
# our packages. usage, from the root of the repository: on_gpu.sh WHEELS DATA_SET model|graphs|dispatch
# WHEELS is a folder with the wheels that the machine lacks. Reports go to $OUT, or ./out.
# `model` benchmarks solutions and runs two layers with those that are chosen. `graphs` needs FlashInfer: it runs the GPU
# tests of page numbers in buffers of CUDA graphs, and replays runs of FlashInfer's wrappers for CUDA graphs after later
# plans. `dispatch` measures what routing adds to a call on this machine's host, with tensors on the CPU.
set -euo pipefail
case $#:${3:-} in
  3:model | 3:graphs | 3:dispatch) ;;
  *) echo "usage: $0 WHEELS DATA_SET model|graphs|dispatch" >&2; exit 2 ;;
esac
wheels=$1
data_set=$2
what=$3
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
if [ "$what" = graphs ]; then
  export FIB_TEST_DATASET=$data_set
  status=0
  python3 -m pytest -p no:cacheprovider -m gpu "$root/packages/fib-bench/tests/test_padding_check.py" || status=1
  python3 -m pytest -p no:cacheprovider -m gpu -k padded "$root/tests-integration/test_solutions.py" || status=1
  python3 "$root/tests-integration/engines/graph_wrappers.py" "$data_set" || status=1
  exit $status
fi
if [ "$what" = dispatch ]; then
  mkdir -p "${OUT:-out}"
  exec python3 "$root/packages/fib-apply/benchmarks/bench_dispatch.py" --rounds 30 --json "${OUT:-out}/dispatch.json"
fi
FIB_TEST_DATASET=$data_set exec python3 -m pytest -p no:cacheprovider "$root/tests-integration/test_bench_then_apply.py"
