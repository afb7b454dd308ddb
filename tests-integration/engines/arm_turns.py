"""Rounds of engine processes that take turns: which are missing, and how they are measured.

In a round of a mode, one engine process of each arm lives at the same time. They are timed one after another, a
fraction of a second each, many times: a machine that gets slower meanwhile slows all arms down. Processes of one
program differ as well, so that a measurement has several rounds. Records are files: a measurement continues with the
rounds that are missing.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Key = tuple[int, str, str]
"""Round, mode and arm of an engine process."""
AGAIN = 75
"""Exit code for "call me again" (EX_TEMPFAIL)."""
START, TURN, END, END_PROFILED = "start", "turn", "end", "end profiled"
"""Words that an engine process is told; it answers each with a byte when it is done."""
_MARGIN = 1.2
"""Factor on the longest round so far that has to fit into the time that is left."""


def planned(rounds: int, arms: Sequence[str], modes: Sequence[str]) -> Iterator[list[Key]]:
    """The engine processes that take turns; their order rotates from round to round."""
    for number in range(rounds):
        for mode in modes:
            yield [(number, mode, arm) for arm in _rotated(arms, number)]


def place(out: Path, key: Key) -> Path:
    """The record of one engine process."""
    number, mode, arm = key
    return out / "rounds" / f"{number:03}-{mode}-{arm}.json"


def measure(
    out: Path, options: argparse.Namespace, engine: Sequence[str], clock: Callable[[], float] = time.monotonic
) -> int:
    """Measure the rounds that are missing, as long as another one fits into the time.

    Imports take as long as the start of an engine, so the processes of the next round import while those of this one
    start. Nothing is timed meanwhile, except the starts of the first round: they are alone.

    Args:
        out: The folder of the records.
        options: Rounds, arms, modes, turns, layers; `seconds` that this may take, and `longest`, a guess for a round.
        engine: The command line of an engine process, without its options.
        clock: Readings in seconds.

    Returns:
        0 if all rounds are complete, `AGAIN` if the time ended before, 1 if an engine process failed.
    """
    (out / "rounds").mkdir(parents=True, exist_ok=True)
    end, durations = clock() + options.seconds, [options.longest]
    missing = [group for group in planned(options.rounds, options.arms, options.modes) if not _is_complete(out, group)]
    processes: dict[Key, EngineProcess] = {}
    try:
        for group, following in zip_longest(missing, missing[1:], fillvalue=()):
            begin = clock()
            if begin + _MARGIN * max(durations) > end:
                print(f"stopped before round {group[0][0]}, {group[0][1]}: call this again", flush=True)
                return AGAIN
            deadline = time.monotonic() + end - begin
            for key in group:
                if key not in processes:
                    processes[key] = EngineProcess(_command(out, options, engine, key), deadline)
            _start([processes[key] for key in group], alone=group[0][0] == 0)
            for key in following:
                processes[key] = EngineProcess(_command(out, options, engine, key), deadline)
            for process in processes.values():
                process.wait()  # also for the imports of the next round
            for turn in range(options.turns):
                for key in _rotated(group, turn):
                    processes[key].ask(TURN)
            for key in group:
                processes.pop(key).finish(END_PROFILED if key[0] == 0 else END)
            for key in group:
                _partial(out, key).rename(place(out, key))  # a round that was not finished leaves no records
            durations = [*(durations if group is not missing[0] else []), clock() - begin]  # the first was a guess
            print(f"round {group[0][0]}, {group[0][1]}: {durations[-1]:.0f} s", flush=True)
    except Ended as ended:
        print(ended, file=sys.stderr)
        return 1
    except TimeoutError:
        print("stopped when the time was over: call this again", file=sys.stderr)
        return AGAIN
    finally:
        for process in processes.values():
            process.kill()
    return 0


def _rotated(items: Sequence[T], turns: int) -> list[T]:
    turn = turns % len(items)
    return [*items[turn:], *items[:turn]]


def _is_complete(out: Path, group: Sequence[Key]) -> bool:
    return all(place(out, key).exists() for key in group)


def _partial(out: Path, key: Key) -> Path:
    return place(out, key).with_suffix(".partial")


def _command(out: Path, options: argparse.Namespace, engine: Sequence[str], key: Key) -> list[str]:
    _, mode, arm = key
    command = [*engine, "engine", str(out), "--arm", arm, "--mode", mode, "--record", str(_partial(out, key))]
    return [*command, "--layers", str(options.layers)]


def _start(processes: Sequence[EngineProcess], *, alone: bool) -> None:
    """Start the engines: one after another, so that each start is timed alone, or all at the same time."""
    for process in processes:
        process.wait()
    for process in processes:
        process.tell(START)
        if alone:
            process.wait()


class Ended(Exception):
    """An engine process has ended, although it was not told to."""


class EngineProcess:
    """A process that imports, answers, and then does what it is told, one word at a time.

    Args:
        command: Its command line; ``--record`` names it in messages.
        deadline: The reading of the monotonic clock at which waiting for it ends.
    """

    def __init__(self, command: Sequence[str], deadline: float) -> None:
        self.name = Path(command[command.index("--record") + 1]).stem
        self.deadline = deadline
        self._answers, answers = os.pipe()
        self._process = subprocess.Popen(
            [*command, "--answers", str(answers)], stdin=subprocess.PIPE, text=True, pass_fds=[answers]
        )
        os.close(answers)
        self._is_asked = True  # to import

    def tell(self, word: str) -> None:
        """Let it do something."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: `wait` says so
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        self._is_asked = True

    def wait(self) -> None:
        """Wait until it has done what it was told last.

        Raises:
            Ended: It has ended.
            TimeoutError: The deadline is over.
        """
        if not self._is_asked:
            return
        if not select.select([self._answers], [], [], max(self.deadline - time.monotonic(), 0.1))[0]:
            raise TimeoutError
        if not os.read(self._answers, 1):
            raise Ended(f"{self.name}: the engine process ended with code {self._process.wait()}")
        self._is_asked = False

    def ask(self, word: str) -> None:
        """Tell it a word and wait."""
        self.tell(word)
        self.wait()

    def finish(self, word: str) -> None:
        """Tell it the last word and wait for its end.

        Raises:
            Ended: It failed.
            TimeoutError: The deadline is over.
        """
        self.ask(word)
        try:
            code = self._process.wait(max(self.deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError from None
        self.kill()
        if code:
            raise Ended(f"{self.name}: the engine process ended with code {code}")

    def kill(self) -> None:
        """End it, and close what leads to it."""
        self._process.kill()
        with suppress(BrokenPipeError), self._process:  # closes its standard input, and waits
            pass
        with suppress(OSError):
            os.close(self._answers)
