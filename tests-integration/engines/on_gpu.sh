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
mkdir -p "$out"
again() { echo "$1: call this again"; exit 75; }
if [ ! -e "$out/dataset" ]; then
  source=$definitions
  for mode in eager graphs; do # captured calls have other layouts; what a killed command has traced is thrown away
    if [ ! -e "$out/traced-$mode" ]; then
      rm -rf "$out/tracing"
      if [ $mode = eager ]; then
        mkdir "$out/tracing"
        cp -r "$source" "$out/tracing/definitions"
      else
        cp -r "$source" "$out/tracing"
      fi
      status=0
      timeout --kill-after=10 255 "${arms[@]}" trace "$out" --mode $mode "$@" || status=$?
      case $status in
        0) mv "$out/tracing" "$out/traced-$mode" ;;
        124 | 137) again "the trace is not complete" ;;
        *) exit $status ;;
      esac
    fi
    source=$out/traced-$mode
  done
  mv "$source" "$out/dataset"
  again traced
fi
if [ ! -e "$out/benched" ]; then
  "${data_sets[@]}" solutions "$out"
  status=0
  "${limit[@]}" python3 -m fib_bench.cli.main run "$out/dataset" --resume --max-workloads 16 || status=$?
  case $status in
    0) ;;
    1) echo "some work could not run; the arms have the rest" ;;
    124 | 137) again "the benchmark is not complete" ;;
    *) exit $status ;;
  esac
  touch "$out/benched"
  again benchmarked
fi
if [ ! -e "$out/warmed" ]; then
  "${data_sets[@]}" arms "$out"
  waiting=()
  for arm in "$out"/arms/*; do
    "${limit[@]}" python3 -c 'import sys; from fib_apply.cli import main; sys.exit(main())' warm "$arm" &
    waiting+=($!)
  done
  failed=0
  for process in "${waiting[@]}"; do
    status=0
    wait "$process" || status=$?
    case $status in
      0) ;;
      124 | 137) failed=75 ;;
      *) [ $failed = 75 ] || failed=$status ;;
    esac
  done
  [ $failed = 0 ] || { echo "an arm is not warm (status $failed)"; exit $failed; }
  touch "$out/warmed"
  again warm
fi
begin=$SECONDS
"${arms[@]}" measure "$out" --seconds 500 "$@"
[ $((SECONDS - begin)) -lt 60 ] || again measured
if [ ! -e "$out/settings/complete" ]; then
  mkdir -p "$out/settings"
  routed_with() { # NAME SETTINGS: the hits and misses of the routed arm with other settings of vLLM
    local record=$out/settings/$1
    [ ! -e "$record.json" ] || return 0
    rm -f "$record.failed"
    timeout --kill-after=10 400 "${arms[@]}" engine "$out" --arm routed --turns 2 --record "$record.json" \
      --settings "$2" > "$record.log" 2>&1 ||
      { echo "status $?"; grep -v '^ *$' "$record.log" | tail -1; } > "$record.failed"
  }
  routed_with fp8-cache '{"kv_cache_dtype": "fp8"}' &
  routed_with chunked-prefill '{"max_num_batched_tokens": 512, "max_num_seqs": 64}' &
  routed_with speculative \
    '{"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}}' &
  wait
  ls "$out/settings/"*.json > /dev/null || { echo "no other setting could be run; see $out/settings/*.log"; exit 1; }
  touch "$out/settings/complete" # those that failed are problems of the report
  again "other settings are run"
fi
"${arms[@]}" report "$out" "$@" | tee "$out/report.md"
echo complete
