"""Finds out, in a process that may die of it, which solutions are safe to load here.

A solution that raises at import is found out by building it. One that ends the process, crashes it or
hangs would take the engine with it: such a solution is loaded in a child process first.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

import attrs
from fib_compile.device import library_versions
from fib_schema import Definition, Solution, get_fib_cache_path, parse_json
from fib_schema.files import atomic_write
from fib_schema.framing import framed

from ..config import CACHE_FOLDER
from ..log import logger
from .probe_child import BEGIN, END, ProbeChild, Verdict

Pair: TypeAlias = tuple[Definition, Solution]
OnDone: TypeAlias = Callable[[str, str | None], None]

_FORMAT = 1
_PR_SET_PDEATHSIG = 1


def probe(
    pairs: Sequence[Pair],
    *,
    timeout_seconds: float = 120.0,
    cache_root: Path | None = None,
    on_done: OnDone | None = None,
) -> dict[str, str | None]:
    """Load solutions in a child process, to see whether the process survives that.

    Verdicts are cached below ``apply-v1/probes``; delete that folder to have all probed again, those that
    hung included. The child builds with the builders of this machine and the environment of this process. A
    solution that raises survives: building it here says what is wrong. One whose threads end the process
    later is blamed only if it is still being loaded then; otherwise the one after it is.

    Args:
        pairs: What to probe.
        timeout_seconds: How long each may take to load.
        cache_root: In place of ``FIB_CACHE_PATH``.
        on_done: Called in this thread with a solution's name and its result, cached ones too.

    Returns:
        For each solution's name None, or why it must not be loaded here.
    """
    results: dict[str, str | None] = {}

    def settle(solution: Solution, reason: str | None) -> None:
        results[solution.name] = results.get(solution.name) or reason
        if on_done is not None:
            on_done(solution.name, reason)

    cache = _Cache.below(cache_root)
    unknown = []
    for pair in pairs:
        if (verdict := cache.load(pair[1])) is not None:
            settle(pair[1], verdict.reason)
        else:
            unknown.append(pair)
    _probe_unknown(unknown, timeout_seconds, cache, settle)
    return results


def _probe_unknown(
    pairs: list[Pair], timeout_seconds: float, cache: _Cache, settle: Callable[[Solution, str | None], None]
) -> None:
    while pairs:
        done = 0
        with contextlib.closing(_verdicts(pairs, timeout_seconds)) as verdicts:
            for (_, solution), verdict in zip(pairs, verdicts, strict=False):
                done += 1
                if verdict.is_lasting:
                    cache.save(solution, verdict.reason)
                settle(solution, verdict.reason)
        pairs = pairs[done:]


def _verdicts(pairs: list[Pair], timeout_seconds: float) -> Generator[Verdict, None, None]:
    """What one child process finds out: something about the first pair at least."""
    try:
        child = ProbeChild(pairs, timeout_seconds)
    except OSError as error:
        # What could not be probed is not loaded: better the fallback than a dead engine.
        yield from (Verdict(f"it could not be probed: {error}", is_lasting=False) for _ in pairs)
        return
    with child:
        yield from child.verdicts()


@attrs.frozen
class _Cache:
    """Reasons by the content of solutions and the versions of the libraries that they use."""

    folder: Path
    versions: bytes

    @classmethod
    def below(cls, root: Path | None) -> _Cache:
        folder = (root or get_fib_cache_path()) / CACHE_FOLDER / "probes"
        return cls(folder, framed(part for item in sorted(library_versions().items()) for part in item))

    def load(self, solution: Solution) -> Verdict | None:
        """What was found out; None if nothing was, or what is there is damaged."""
        try:
            content = json.loads(self._path(solution).read_bytes())
        except (OSError, ValueError):
            return None
        match content:
            case {"format": int(version), "reason": str() | None as reason} if version == _FORMAT:
                return Verdict(reason)
        return None

    def save(self, solution: Solution, reason: str | None) -> None:
        content = {"format": _FORMAT, "solution": solution.name, "reason": reason}
        try:
            atomic_write(self._path(solution), json.dumps(content).encode())
        except OSError as error:
            logger.warning("what was found out about %s cannot be cached: %s", solution.name, error)

    def _path(self, solution: Solution) -> Path:
        parts = framed((solution.hash(), self.versions, str(_FORMAT)))
        return self.folder / f"{blake2b(parts, digest_size=20).hexdigest()}.json"


def main() -> None:
    """Load solutions, in a process of its own.

    The arguments are the descriptors of the pipe for marks and of the jobs, and the parent's process id.
    """
    marks, jobs, parent = map(int, sys.argv[1:])
    _end_with(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # to write a crash of torch to the disk takes seconds
    os.set_inheritable(marks, False)
    with open(jobs, "rb") as file:  # noqa: PTH123 - a descriptor
        lines = file.read().split(b"\n")
    own = os.getpid()
    for definition, solution in zip(lines[::2], lines[1::2], strict=False):
        pair = (parse_json(definition, Definition), parse_json(solution, Solution))
        os.write(marks, BEGIN)
        _load(*pair)
        if os.getpid() != own:
            os._exit(0)  # a copy that the solution forked
        os.write(marks, END)
    os._exit(0)  # threads that were left behind do not count


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)


def _load(definition: Definition, solution: Solution) -> None:
    # Whatever it raises, the process survives; building it in the process that asked will say what is wrong.
    with contextlib.suppress(BaseException):
        from fib_compile import BuilderRegistry

        BuilderRegistry.get_instance().build(definition, solution)


if __name__ == "__main__":
    main()
