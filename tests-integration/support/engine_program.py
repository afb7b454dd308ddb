"""A program in place of Python for `engines/on_gpu.sh`: each step writes its files in two halves and may be killed.

It obeys the command lines of the harness. `measure` and `report` are the harness itself, with this program as engine.

KILL is "STEP PLACE WHO": at a place (begin, half, end) of a step, the first time that it comes there, it kills itself
("self", as a machine without memory does), the whole session ("all", as a lost machine does), or the script alone
("script"). FAILS is "BEGINNING CODE": steps whose names begin so end with a code.
"""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

OUT = pathlib.Path(os.environ["OUT_OF_TEST"])
ENGINES = pathlib.Path(os.environ["ENGINES_OF_TEST"])
COMMAND = sys.argv[1:]
OPTIONS = dict(itertools.pairwise(COMMAND))
SLOWNESS = {"winners": 1.1, "slow": 0.8}


def processes_of_session():
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == os.getsid(0) and int(folder.name) != os.getpid():
                yield int(folder.name)


def at(step, place):
    """Note that a place is reached, and be killed there."""
    with (OUT / "events").open("a") as file:
        file.write(f"{step} {place}\n")
    failing, _, code = os.environ.get("FAILS", "").partition(" ")
    if place == "begin" and failing and step.startswith(failing):
        print(f"{step} fails | as it was told")
        sys.exit(int(code))
    wanted, done = os.environ.get("KILL", "").split(), OUT / "killed"
    if wanted[:2] != [step, place] or done.exists():
        return
    done.touch()
    if wanted[2] == "script":
        os.kill(os.getsid(0), signal.SIGKILL)
        time.sleep(0.3)  # the next call of the script comes meanwhile
        return
    for process in processes_of_session() if wanted[2] == "all" else ():
        os.kill(process, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def in_halves(step, first, second):
    at(step, "begin")
    first()
    at(step, "half")
    second()
    at(step, "end")


def trace(mode):
    workloads, stale = OUT / "tracing" / "workloads", list((OUT / "tracing").rglob(f"{mode}-*"))
    assert (OUT / "tracing" / "definitions").is_dir()
    assert not stale, stale
    assert mode == "eager" or {path.name for path in workloads.iterdir()} == {"eager-1", "eager-2"}
    workloads.mkdir(exist_ok=True)
    in_halves(f"trace-{mode}", (workloads / f"{mode}-1").touch, (workloads / f"{mode}-2").touch)


def bench():
    traces = OUT / "dataset" / "traces"
    traces.mkdir(exist_ok=True)
    assert (OUT / "dataset" / "solutions").is_dir()
    in_halves("bench", (traces / "1").touch, (traces / "2").touch)


def solutions():
    folder = OUT / "dataset" / "solutions"
    in_halves("solutions", lambda: folder.mkdir(exist_ok=True), (folder / "1").touch)


def arms():
    assert len(list((OUT / "dataset" / "traces").iterdir())) == 2
    for arm in ("routed", "winners"):
        partial = OUT / "arms" / f".{arm}"
        if (OUT / "arms" / arm).exists():
            continue
        partial.mkdir(parents=True, exist_ok=True)
        at("arms", f"half-{arm}")
        partial.rename(OUT / "arms" / arm)
    at("arms", "end")


def warm(arm):
    cache = OUT / "cache" / arm
    cache.mkdir(parents=True, exist_ok=True)
    in_halves(f"warm-{arm}", (cache / "1").touch, (cache / "2").touch)


def record_of(arm, turns):
    routed = {"hits": {"rmsnorm": 9, "gqa_paged_decode": 4}, "unsupported": {}}
    routed["misses"] = {"gqa_paged_prefill: the fallback is the best": 3}
    counts = routed if arm in ("routed", "winners", "slow") else {"hits": {}, "misses": {}, "unsupported": {}}
    return {
        "machine": os.environ.get("MACHINE", "H200 a"), "shape": {"layers": int(OPTIONS.get("--layers", 2))},
        "start_seconds": 10.0, "switch_on_seconds": 0.5, "first_token_ms": [5.0] * len(turns),
        "tokens_per_second": [SLOWNESS.get(arm, 1.0) * turn for turn in turns], "device_ms": {}, "tokens": "same",
        "at_start": counts, "captured": counts, "total": counts, "attempt": os.getppid(), **counts,
    }  # fmt: skip


def engine():
    """An engine process of a round, or one with other settings."""
    record = pathlib.Path(OPTIONS["--record"])
    if "--answers" not in OPTIONS:
        step = f"setting-{record.stem}"
        at(step, "begin")
        (record.parent / f"{record.name}.{os.getpid()}.part").write_text("{")
        at(step, "half")
        write(record, record_of("routed", [1.0]))
        at(step, "end")
        return
    step, answers, turns, word = f"engine-{OPTIONS['--mode']}-{OPTIONS['--arm']}", int(OPTIONS["--answers"]), [], ""
    at(step, "begin")
    while not word.startswith("end"):
        os.write(answers, b".")
        word = sys.stdin.readline().strip()
        if not word:
            sys.exit(4)
        if word == "turn":
            turns.append(6000.0 - len(turns))
        if len(turns) == 1:
            at(step, "half")
    write(record, record_of(OPTIONS["--arm"], turns))
    at(step, "end")
    os.write(answers, b".")
    at(step, "over")


def start(command):
    """The start-up time with a large table."""
    if command == "set":
        folder = OUT / "start" / "arms" / "routed"
        if folder.exists():
            return
        partial = folder.with_name(".routed")
        partial.mkdir(parents=True, exist_ok=True)
        at("start-set", "half")
        partial.rename(folder)
        return
    at("start-measure", "begin")
    write(OUT / "start.json", {"definitions": 200, "seconds": 1.5, "all": [1.5], "ready": "ready for 9 of 9 keys"})
    at("start-measure", "end")


def write(path, content):
    sys.path.insert(0, str(ENGINES))
    from arm_turns import write_whole

    write_whole(path, json.dumps(content))


def harness(command):
    """The harness itself, with this program as the engine."""
    if command == "report":
        at("report", "begin")
    line = f"{sys.executable} {__file__} {COMMAND[0]}"
    if command == "measure":
        at("measure", "begin")
    code = subprocess.run([sys.executable, *COMMAND, "--command-line", line], check=False).returncode
    at(command, "end")
    sys.exit(code)


text = " ".join(COMMAND)
if "vllm_arms.py" in COMMAND[0]:
    what = COMMAND[1]
    harness(what) if what in ("measure", "report") else engine() if what == "engine" else trace(OPTIONS["--mode"])
elif "arm_data_sets.py" in COMMAND[0]:
    arms() if COMMAND[1] == "arms" else solutions()
elif "arm_start.py" in COMMAND[0]:
    start(COMMAND[1])
elif "fib_bench" in text:
    bench()
else:
    assert " warm " in text, text
    warm("start" if "/start/" in text else pathlib.Path(OPTIONS["warm"]).name)
