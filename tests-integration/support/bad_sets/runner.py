"""Runner: puts kinds of bad sets through commands, several cases at a time."""

import gc
import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from .case import Running, preload
from .kind import Kind
from .kinds_files import FILES
from .kinds_lines import LINES
from .kinds_sets import BLOBS, SETS
from .kinds_values import VALUES
from .verdicts import problems

HEALTHY = Kind("healthy", lambda _: None, "set", (), is_error=False)
"""No damage: every command must succeed, or the other verdicts say nothing."""
KINDS = (HEALTHY, *VALUES, *LINES, *FILES, *BLOBS, *SETS)
assert len({kind.name for kind in KINDS}) == len(KINDS), Counter(kind.name for kind in KINDS).most_common(3)


@dataclass(frozen=True)
class Result:
    kind: str
    command: str
    code: int | None
    seconds: float
    problems: tuple[str, ...]
    output: str


def run_cases(kinds, commands, *, at_once):
    """Run every command on every kind of damage."""
    # Not `TemporaryDirectory`: a fork that ends would remove it.
    root = Path(tempfile.mkdtemp(prefix="bad-sets-"))
    root.chmod(0o755)  # cases of another user are below
    (root / "cache").mkdir()
    try:
        for has_torch in (False, True):
            concerned = [command for command in commands if command.has_torch == has_torch]
            cases = [(kind, command) for kind in kinds for command in concerned if command.takes(kind)]
            random.Random(0).shuffle(cases)  # a run that is interrupted has seen something of everything
            if cases:
                preload(has_torch=has_torch)
                gc.freeze()  # a collection in a fork would copy the pages of all modules
                yield from _run(cases, root / ("heavy" if has_torch else "light"), at_once)
    finally:
        subprocess.run(["rm", "-rf", str(root)], check=True)


def _run(cases, root, at_once):
    waiting = iter(enumerate(cases))
    running = []
    root.mkdir()
    while True:
        while len(running) < at_once and (case := next(waiting, None)) is not None:
            number, (kind, command) = case
            folder = root / f"{number}"
            folder.mkdir()
            running.append(Running(kind, command, folder, root.parent / "cache"))
        if not running:
            return
        for case in list(running):
            if (outcome := case.outcome()) is None:
                continue
            running.remove(case)
            found = tuple(problems(case.kind, case.command, outcome))
            yield Result(case.kind.name, case.command.name, outcome.code, outcome.seconds, found, outcome.output)
            case.remove()
        time.sleep(0.002)


def selected(words, names):
    """The names that contain one of the words, or all names without words."""
    return {name for name in names if not words or any(word in name for word in words)}


def print_table(results, say=print):
    """Print a line per kind and problem, with the commands that have it; then totals."""
    lines = {}
    for result in results:
        for problem in result.problems:
            lines.setdefault((result.kind, problem), []).append(result.command)
    commands = len({result.command for result in results})
    for (kind, problem), found in sorted(lines.items()):
        where = f"all {commands} commands" if len(found) == commands else "; ".join(found[:6])
        more = f" and {len(found) - 6} more" if len(found) > 6 and len(found) < commands else ""
        say(f"{kind}\n    {problem}\n    {where}{more}")
    kinds = {result.kind for result in results}
    bad = {result.kind for result in results if result.problems}
    good = len(kinds) - len(bad)
    say(f"\n{len(kinds)} kinds, {commands} commands, {len(results)} cases; {good} kinds without a problem")
    classes = Counter(problem.partition(":")[0] for result in results for problem in result.problems)
    for name, count in classes.most_common():
        concerned = {r.kind for r in results if any(p.startswith(name + ":") for p in r.problems)}
        say(f"{name:10} {count:5} cases of {len(concerned)} kinds")


def cpu_count():
    return len(os.sched_getaffinity(0))
