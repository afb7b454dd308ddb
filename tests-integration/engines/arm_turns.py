"""Rounds of engine processes that take turns: which are missing, and how they are measured.

In a round of a mode, one engine process of each arm lives at the same time. They are timed one after another, a
fraction of a second each, many times: a machine that gets slower meanwhile slows all arms down. Processes of one
program differ as well, so that a measurement has several rounds. Records are files: a measurement continues with the
rounds that are missing. Records of another machine, or of another model or version, are set aside and measured again.
"""

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
ROUTED = ("routed", "winners", "slow")
"""The arms with a data set of their own."""
BEST_IS_ORIGINAL = "the fallback is the best"
"""The reason for a miss whose recorded key says that the engine's own function is the best: it is decided, too."""
AGAIN = 75
"""Exit code for "call me again" (EX_TEMPFAIL)."""
START, TURN, END, END_PROFILED = "start", "turn", "end", "end profiled"
"""Commands to an engine process; it answers each with a byte when it is done."""
_POLL_SECONDS = 1.0
_QUOTED_LINES = 20
_MARGIN = 1.2
"""Factor on the longest round so far that has to fit into the time that is left."""


def layers_of(options, mode):
    return options.graph_layers if mode == "graphs" else options.layers


def planned(rounds, arms, modes):
    """The engine processes that take turns; their order rotates from round to round."""
    for number in range(rounds):
        for mode in modes:
            yield [(number, mode, arm) for arm in _rotated(arms, number)]


def place(out, key):
    number, mode, arm = key
    return out / "rounds" / f"{number:03}-{mode}-{arm}.json"


def write_whole(path, text):
    """Replace a file by a whole one: a reader finds the old text or the new one, whenever the writer is killed."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(text)
    partial.replace(path)


def decided(counts, beginning=""):
    """Calls that a recorded key decided, of definitions with a beginning: hits, and those served by the original."""
    hits = sum(count for name, count in counts["hits"].items() if name.startswith(beginning))
    best = (count for name, count in counts["misses"].items() if name.startswith(beginning) and _is_best(name))
    return hits + sum(best)


def _is_best(miss):
    return miss.endswith(f": {BEST_IS_ORIGINAL}")


def measure(out, options, engine, clock=time.monotonic):
    """Measure the rounds that are missing, as long as another one fits into the time.

    Imports take as long as the start of an engine, so the processes of the next round import while those of this one
    start. Nothing is timed meanwhile, except the starts of the first round: they are alone.

    Args:
        out: The folder of the records.
        options: Rounds, arms, modes, turns, and layers of both modes; `seconds` that this may take, and `longest`, a
            guess for a round.
        engine: The command line of an engine process, without its options.
        clock: Readings in seconds.

    Returns:
        0 if all rounds are complete, `AGAIN` if the time ended before, 1 if an engine process failed.
    """
    (out / "rounds").mkdir(parents=True, exist_ok=True)
    for stray in (out / "rounds").glob("*.part*"):  # of processes that were killed
        stray.unlink()
    end, durations = clock() + options.seconds, [options.longest]
    missing = [group for group in planned(options.rounds, options.arms, options.modes) if not _is_complete(out, group)]
    processes = {}
    set_aside = 0
    try:
        for group, following in zip_longest(missing, missing[1:], fillvalue=()):
            begin = clock()
            if begin + _MARGIN * max(durations) > end:
                print(f"stopped before round {group[0][0]}, {group[0][1]}: call this again", flush=True)
                return AGAIN
            deadline = time.monotonic() + end - begin
            for key in group:  # of an earlier attempt, whose records were not all written
                place(out, key).unlink(missing_ok=True)
                if key not in processes:
                    processes[key] = EngineProcess(_command(out, options, engine, key), deadline, out / "logs")
            _start([processes[key] for key in group], alone=group[0][0] == 0)
            for key in following:
                processes[key] = EngineProcess(_command(out, options, engine, key), deadline, out / "logs")
            for process in processes.values():
                process.wait()  # also for the imports of the next round
            for turn in range(options.turns):
                for key in _rotated(group, turn):
                    processes[key].request(TURN)
            _finish([processes[key] for key in group], END_PROFILED if group[0][0] == 0 else END)
            for key in group:
                processes.pop(key).kill()
                _partial(out, key).replace(place(out, key))  # a round that was not finished leaves no records
            set_aside += _set_others_aside(out, group)
            durations = [*(durations if group is not missing[0] else []), clock() - begin]  # the first was a guess
            print(f"round {group[0][0]}, {group[0][1]}: {durations[-1]:.0f} s", flush=True)
            if problem := _nothing_decided(out, group):
                print(f"problem: {problem}", file=sys.stderr)
                return 1
    except Ended as ended:
        print(ended, file=sys.stderr)
        return 1
    except TimeoutError:
        print("stopped when the time was over: call this again", file=sys.stderr)
        return AGAIN
    finally:
        for process in processes.values():
            process.kill()
    if set_aside:
        print(f"{set_aside} records of another machine or version were set aside: call this again", flush=True)
    return AGAIN if set_aside else 0


def _set_others_aside(out, group):
    """Move the records that cannot be compared with those of a new round; their number."""
    records = {path: json.loads(path.read_text()) for path in (out / "rounds").glob("*.json")}
    new, mode = records[place(out, group[0])], group[0][1]
    others = [
        path
        for path, record in records.items()
        if record["machine"] != new["machine"]
        or not is_same_model(record, new, is_same_mode=path.name.split("-")[1] == mode)
    ]
    if others:
        folder = out / "rounds-set-aside" / str(int(time.time()))
        folder.mkdir(parents=True)
        for path in others:
            path.replace(folder / path.name)
    return len(others)


def is_same_model(record, other, *, is_same_mode):
    """Whether two records are of the same versions, and of as many layers if they are of one mode."""
    first, second = ({**one["shape"], **({} if is_same_mode else {"layers": 0})} for one in (record, other))
    return bool(first == second)


def _nothing_decided(out, group):
    """The problem of an eager round in which no recorded key decided a call: all others would have it, too.

    Of `winners`, the evaluations may choose nothing: no own kernel is faster.
    """
    for key in group:
        _, mode, arm = key
        if mode == "eager" and arm in ("routed", "slow") and not decided(json.loads(place(out, key).read_text())):
            return f"{mode}, {arm}: no recorded key has decided a call; see the misses in {place(out, key)}"
    return None


def _finish(processes, command):
    """Let processes write their records, one after another, and end, all at the same time."""
    for process in processes:
        process.request(command)
        if command == END_PROFILED:  # its end must not disturb the next profile
            process.wait_for_end()
    for process in processes:
        process.wait_for_end()


def _rotated(items, turns):
    turn = turns % len(items)
    return [*items[turn:], *items[:turn]]


def _is_complete(out, group):
    return all(place(out, key).exists() for key in group)


def _partial(out, key):
    return place(out, key).with_suffix(".partial")


def _command(out, options, engine, key):
    _, mode, arm = key
    command = [*engine, "engine", str(out), "--arm", arm, "--mode", mode, "--record", str(_partial(out, key))]
    return [*command, "--layers", str(layers_of(options, mode))]


def _start(processes, *, alone):
    """Start the engines: one after another, so that each start is timed alone, or all at the same time."""
    for process in processes:
        process.wait()
    for process in processes:
        process.send(START)
        if alone:
            process.wait()


class Ended(Exception):
    """An engine process has ended, although it was not told to."""


class EngineProcess:
    """A process that imports, answers, and then does what it is told, one command at a time.

    Args:
        command: Its command line; ``--record`` names it in messages.
        deadline: The reading of the monotonic clock at which waiting for it ends.
        logs: The folder of its output, which is quoted if it fails.
    """

    def __init__(self, command, deadline, logs):
        self.name = Path(command[command.index("--record") + 1]).stem
        self.deadline = deadline
        self._answers, answers = os.pipe()
        self._is_closed = False
        logs.mkdir(exist_ok=True)
        self._log = logs / f"{self.name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--answers", str(answers)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                pass_fds=[answers],
                env={**os.environ, "PYTHONHASHSEED": "0"},  # one difference less between processes of a program
            )
        os.close(answers)
        self._is_asked = True  # to import

    def send(self, command):
        with suppress(BrokenPipeError):  # it has ended: `wait` says so
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
        self._is_asked = True

    def wait(self):
        """Wait until it has done what it was told last.

        Raises:
            Ended: It has ended.
            TimeoutError: The deadline is over.
        """
        if not self._is_asked:
            return
        while not select.select([self._answers], [], [], _POLL_SECONDS)[0]:
            if self._process.poll() is not None:  # its children may hold the pipe
                raise self._ended()
            if time.monotonic() > self.deadline:
                raise TimeoutError
        if not os.read(self._answers, 1):
            raise self._ended()
        self._is_asked = False

    def request(self, command):
        self.send(command)
        self.wait()

    def wait_for_end(self):
        """Wait for its end after the last command.

        Raises:
            Ended: It failed.
            TimeoutError: The deadline is over.
        """
        try:
            code = self._process.wait(max(self.deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        if code:
            raise self._ended()

    def _ended(self):
        """The error that says how it ended, with the end of its output."""
        code, lines = self._process.wait(), self._log.read_text(errors="replace").splitlines()
        quoted = "\n".join(lines[-_QUOTED_LINES:])
        return Ended(f"{self.name}: the engine process ended with code {code}; the end of {self._log}:\n{quoted}")

    def kill(self):
        if self._is_closed:
            return
        self._is_closed = True
        self._process.kill()
        with suppress(BrokenPipeError), self._process:  # closes its standard input, and waits
            pass
        os.close(self._answers)
