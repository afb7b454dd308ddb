#!/usr/bin/env bash
# Compare vLLM with and without routing on a GPU machine. Each command takes less than nine minutes; call this script
# again until it says "complete": it continues where it stopped. The tables are in OUT/report.md.
# usage, from the root of the repository: on_gpu.sh SITE DEFINITIONS OUT [options of vllm_arms.py]
# SITE has vLLM and what it needs, DEFINITIONS the definitions of the public data set.
set -euo pipefail
site=$1 definitions=$2 out=$3
shift 3
root=$PWD
for package in schema compile bench apply tracer integrations; do path=${path:-}:$root/packages/fib-$package/src; done
export PYTHONPATH=$site$path PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export FIB_CACHE_PATH=${FIB_CACHE_PATH:-$out/cache} TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$out/triton}
arms=(python3 "$root/tests-integration/engines/vllm_arms.py")
data_sets=(python3 "$root/tests-integration/engines/arm_data_sets.py")
limit=(timeout --kill-after=10 530)
mkdir -p "$out/dataset"
if [ ! -e "$out/traced.json" ]; then
  [ -d "$out/dataset/definitions" ] || cp -r "$definitions" "$out/dataset/definitions"
  "${limit[@]}" "${arms[@]}" trace "$out" "$@"
  echo "traced: call this again"; exit 75
fi
if [ ! -e "$out/benched" ]; then
  "${data_sets[@]}" solutions "$out"
  status=0
  "${limit[@]}" python3 -m fib_bench.cli.main run "$out/dataset" --resume --max-workloads 8 || status=$?
  case $status in
    0) ;;
    1) echo "some work could not run; the arms have the rest" ;;
    124 | 137) echo "benchmark is not complete: call this again"; exit 75 ;;
    *) exit $status ;;
  esac
  "${data_sets[@]}" arms "$out"
  for arm in "$out"/arms/*; do
    "${limit[@]}" python3 -c 'import sys; from fib_apply.cli import main; sys.exit(main())' warm "$arm" ||
      echo "warm ended with status $? for $arm" &
  done
  wait
  touch "$out/benched"
  echo "benchmarked: call this again"; exit 75
fi
"${arms[@]}" measure "$out" --seconds 500 "$@"
if [ ! -e "$out/settings/complete" ]; then
  mkdir -p "$out/settings"
  routed_with() { # NAME SETTINGS: the hits and misses of the routed arm with other settings of vLLM
    local record=$out/settings/$1
    timeout --kill-after=10 400 "${arms[@]}" engine "$out" --arm routed --turns 2 --record "$record.json" \
      --settings "$2" > "$record.log" 2>&1 || grep -v '^ *$' "$record.log" | tail -1 > "$record.failed"
  }
  routed_with fp8-cache '{"kv_cache_dtype": "fp8"}' &
  routed_with chunked-prefill '{"max_num_batched_tokens": 512, "max_num_seqs": 64}' &
  routed_with speculative \
    '{"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}}' &
  wait
  touch "$out/settings/complete"
  echo "other settings are run: call this again"; exit 75
fi
"${arms[@]}" report "$out" "$@" | tee "$out/report.md"
echo complete
