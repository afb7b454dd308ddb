#!/usr/bin/env bash
# Compare vLLM with and without routing on a GPU machine. Each command takes less than nine minutes; call this script
# again until it says "complete": it continues where it stopped. The tables are in OUT/report.md.
# usage, from the root of the repository: on_gpu.sh SITE DEFINITIONS OUT [options of vllm_arms.py]
# SITE has vLLM and what it needs, DEFINITIONS the definitions of the public data set. The options are the same in each call.
# Exit codes: 0 complete, 75 call it again, others a problem that it prints.
set -euo pipefail
site=$1 definitions=$(realpath "$2") out=$(realpath -m "$3")
shift 3
options=("$@")
root=$PWD
for package in schema compile bench apply tracer integrations; do path=${path:-}:$root/packages/fib-$package/src; done
export PYTHONPATH=$site$path PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export FIB_CACHE_PATH=${FIB_CACHE_PATH:-$out/cache} TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$out/triton}
arms=(python3 "$root/tests-integration/engines/vllm_arms.py")
data_sets=(python3 "$root/tests-integration/engines/arm_data_sets.py")
warm=(python3 -c 'import sys; from fib_apply.cli import main; sys.exit(main())')
mkdir -p "$out"
exec 9> "$out/lock" # steps of a call that was killed hold it, too
! command -v flock > /dev/null || flock --nonblock 9 || { echo "another call holds $out/lock: call this again"; exit 75; }
again() { echo "$1: call this again"; exit 75; }
limited() { # SECONDS COMMAND...: its status; 75 if the time was not enough, or if it was killed
  local status=0
  timeout --kill-after=10 "$@" || status=$?
  case $status in
    124 | 137 | 143) return 75 ;;
    *) return $status ;;
  esac
}
stop_unless() { # STEP STATUS ALLOWED...: end this call, unless the status of a step is allowed
  local step=$1 status=$2
  shift 2
  case " $* " in *" $status "*) return 0 ;; esac
  [ "$status" = 75 ] && again "$step is not complete"
  echo "$step failed (status $status)"
  exit "$status"
}
if [ ! -e "$out/dataset" ]; then
  for mode in eager graphs; do # captured calls have other layouts; what a killed command has traced is thrown away
    if [ ! -e "$out/traced-$mode" ]; then
      rm -rf "$out/tracing"
      if [ $mode = eager ]; then
        mkdir "$out/tracing"
        cp -r "$definitions" "$out/tracing/definitions"
      else
        cp -r "$out/traced-eager" "$out/tracing"
      fi
      status=0
      limited 255 "${arms[@]}" trace "$out" --mode $mode "${options[@]}" || status=$?
      stop_unless "the trace ($mode)" $status 0
      mv "$out/tracing" "$out/traced-$mode"
    fi
  done
  mv "$out/traced-graphs" "$out/dataset"
  again traced
fi
if [ ! -e "$out/benched" ]; then
  status=0
  limited 60 "${data_sets[@]}" solutions "$out" || status=$?
  stop_unless "writing solutions" $status 0
  limited 460 python3 -m fib_bench.cli.main run "$out/dataset" --resume --max-workloads 16 || status=$?
  stop_unless "the benchmark" $status 0 1 # 1: some work could not run; the arms have the rest
  touch "$out/benched"
  again benchmarked
fi
if [ ! -e "$out/warmed" ]; then
  status=0
  limited 60 "${data_sets[@]}" arms "$out" || status=$?
  stop_unless "writing arms" $status 0
  waiting=()
  for arm in "$out"/arms/*; do
    limited 460 "${warm[@]}" warm "$arm" &
    waiting+=($!)
  done
  failed=0
  for process in "${waiting[@]}"; do
    status=0
    wait "$process" || status=$?
    [ $status = 0 ] || [ $failed = 75 ] || failed=$status
  done
  stop_unless "the warm-up of an arm" $failed 0
  touch "$out/warmed"
  again warm
fi
begin=$SECONDS status=0
limited 530 "${arms[@]}" measure "$out" --seconds 500 "${options[@]}" || status=$?
stop_unless "the measurement" $status 0
[ $((SECONDS - begin)) -lt 60 ] || again measured
status=0
"${arms[@]}" report "$out" "${options[@]}" > "$out/report.part" || status=$?
mv "$out/report.part" "$out/report.md"
cat "$out/report.md"
[ $status = 0 ] || { echo "the report has problems (status $status)"; exit $status; }
echo complete
