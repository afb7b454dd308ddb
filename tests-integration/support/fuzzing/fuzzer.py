"""Fuzzer: random mutations, cases in forked children with limits, deduplicated and minimised findings."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import select
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bad_sets.case import obey_permissions
from bad_sets.healthy import write_healthy

from . import mutations, targets

SECONDS = 20.0
"""A case that is slower is run again with four times as much: the machine may be busy."""
_DATA_BYTES = 3 << 30
_FILE_BYTES = 256 << 20


@dataclass(frozen=True)
class Problem:
    """Wrong behaviour of a target. Problems with one signature are one finding."""

    target: str
    signature: str
    details: str = ""


Case = list[mutations.Mutation]
Work = Callable[[Path, Callable[[str, BaseException | None], None], tuple[str, ...]], None]
"""Work of a child below an empty folder: it reports each target before it starts, and the exception of the target."""


def set_work(case: Case) -> Work:
    """Mutate a healthy set and run the targets on it."""

    def work(folder: Path, report: Callable[[str, BaseException | None], None], only: tuple[str, ...]) -> None:
        root = folder / "set"
        write_healthy(root)
        for mutation in case:
            mutations.apply(root, mutation)
        targets.EXPECTS_KEEPER = not any(map(mutations.touches_all, case))
        targets.run_all(root, report, only)

    return work


def prepared_work(name: str, run: Callable[[Path, Path, Case], None], prepared: Path) -> Callable[[Case], Work]:
    """Run one function on each case, with a folder that was prepared once."""

    def make(case: Case) -> Work:
        def work(folder: Path, report: Callable[[str, BaseException | None], None], _: tuple[str, ...]) -> None:
            report(name, None)
            try:
                run(prepared, folder, case)
            except BaseException as error:  # noqa: BLE001 - everything that escapes is a finding
                report(name, error)

        return work

    return make


def run_case(work: Work, seconds: float = SECONDS, only: tuple[str, ...] = ()) -> list[Problem]:
    """Do some work in a forked child with limits, below a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _child(work, folder, write_end, only)
    os.close(write_end)
    try:
        lines, is_over = _collect(read_end, seconds)
        if is_over:
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(read_end)
        subprocess.run(["chmod", "-R", "u+rwx", str(folder)], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    return _problems(lines, status, is_over=is_over)


def _collect(read_end: int, seconds: float) -> tuple[list[dict[str, Any]], bool]:
    data, end = b"", time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([read_end], [], [], left)[0]:
            is_over = True
            break
        if not (chunk := os.read(read_end, 1 << 16)):
            is_over = False
            break
        data += chunk
    return [json.loads(line) for line in data.splitlines() if line.endswith(b"}")], is_over


def _problems(lines: list[dict[str, Any]], status: int, *, is_over: bool) -> list[Problem]:
    found = [Problem(line["target"], line["signature"], line["details"]) for line in lines if line["signature"]]
    last = lines[-1]["target"] if lines else "nothing"
    if is_over:
        found.append(Problem(last, f"{last}: hang"))
    elif status != 0:
        found.append(Problem(last, f"{last}: the process died with {os.waitstatus_to_exitcode(status)}"))
    return found


def _child(work: Work, folder: Path, write_end: int, only: tuple[str, ...]) -> None:
    code = 0
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        obey_permissions()  # or changed modes would have no effect on root
        os.environ |= {"FIB_CACHE_PATH": str(folder / "cache"), "HOME": str(folder), "TMPDIR": str(folder)}
        tempfile.tempdir = None

        def report(name: str, error: BaseException | None) -> None:
            signature, details = ("", "") if error is None else (f"{name}: {_signature(error)}", _text(error))
            line = {"target": name, "signature": signature, "details": details}
            os.write(write_end, json.dumps(line).encode() + b"\n")

        work(folder, report, only)
    except BaseException:  # noqa: BLE001 - the border of a process
        code = 3
    finally:
        os._exit(code)


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-4))[-1500:].encode("ascii", "backslashreplace").decode()


def _signature(error: BaseException) -> str:
    """The type of an exception and where in our packages it came from, without what differs between cases."""
    if isinstance(error, targets.Finding):
        return str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/packages/fib-" in frame.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "outside"
    return f"{type(error).__name__} in {place}"


def confirmed(work: Work, found: Problem) -> bool:
    """Whether a problem appears again, with four times the time."""
    return any(problem.signature == found.signature for problem in run_case(work, 4 * SECONDS, (found.target,)))


def minimised(case: Case, found: Problem, make_work: Callable[[Case], Work]) -> Case:
    """The case without the mutations that the problem does not need."""
    for mutation in list(case):
        smaller = [other for other in case if other is not mutation]
        problems = run_case(make_work(smaller), SECONDS, (found.target,))
        if any(problem.signature == found.signature for problem in problems):
            case = smaller
    return case


def save(corpus: Path, case: Sequence[mutations.Mutation], found: Problem) -> Path:
    """Write a finding into the corpus; its name is made from the signature."""
    name = hashlib.sha256(found.signature.encode()).hexdigest()[:12]
    path = corpus / f"{name}.json"
    record = {"signature": found.signature, "target": found.target, "mutations": list(case)}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def load(path: Path) -> dict[str, Any]:
    """A case of the corpus."""
    record: dict[str, Any] = json.loads(path.read_text())
    return record


@dataclass(frozen=True)
class Campaign:
    """Target of fuzzing: a function that draws a mutation, and one that applies a list of them."""

    draw: Callable[[random.Random], mutations.Mutation]
    make_work: Callable[[Case], Work]
    corpus: Path


def fuzz(campaign: Campaign, seconds: float, seed: int, say: Callable[[str], None]) -> int:
    """Run random cases for so long; returns the number of new findings, which are saved into the corpus."""
    rng = random.Random(seed)
    campaign.corpus.mkdir(parents=True, exist_ok=True)
    records = [load(path) for path in sorted(campaign.corpus.glob("*.json"))]
    known: set[str] = set()  # findings of the corpus were fixed: those that come again are new ones
    seeds = [record["mutations"] for record in records]
    count = new = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        case = [campaign.draw(rng) for _ in range(rng.choice((1, 1, 2, 3, 5)))]
        if seeds and rng.random() < 0.2:
            case = [*rng.choice(seeds), *case]
        count += 1
        work = campaign.make_work(case)
        for found in run_case(work, only=targets.draw(rng)):
            if found.signature in known or not confirmed(work, found):
                continue
            known.add(found.signature)
            new += 1
            small = minimised(case, found, campaign.make_work)
            path = save(campaign.corpus, small, found)
            say(f"{path.name}: {found.signature}\n    {json.dumps(small)[:400]}\n{found.details}")
    say(f"{campaign.corpus.name}: {count} cases with seed {seed}, {new} findings")
    return new
