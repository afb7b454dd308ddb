"""Load probe: loads solutions in a child process first and caches the verdicts.

A solution that raises at import is found out by building it. One that exits, crashes or hangs would take the
engine with it, so it is loaded in a child process first.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

import attrs
from fib_compile.device import library_versions
from fib_schema import Definition, Solution, get_fib_cache_path
from fib_schema.files import explain_os_error
from fib_schema.framing import framed

from ..cache_files import publish, read_published
from ..events import EventKind, emit, finished
from ..log import logger
from .probe_process import Job, Verdict, run_jobs

Pair: TypeAlias = tuple[Definition, Solution]
OnDone: TypeAlias = Callable[[str, str | None], None]

_FORMAT = 1


def probe(
    pairs: Sequence[Pair],
    *,
    timeout_seconds: float = 120.0,
    cache_root: Path | None = None,
    on_done: OnDone | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, str | None]:
    """Load solutions in a child process, to see whether the process survives.

    Verdicts are cached in ``apply-v1/probes``; delete that folder to probe again, e.g. solutions that hung. The
    child has the builders and the environment of this process. A solution that raises passes: building it here
    reports the error. A solution whose threads end the process later is blamed only while it is being loaded;
    otherwise the next one is.

    Args:
        pairs: What to probe.
        timeout_seconds: Maximum load time of each solution.
        cache_root: In place of ``FIB_CACHE_PATH``.
        on_done: Called in this thread with the name and the result of each solution, cached ones included.
        is_cancelled: Asked while the child works.

    Returns:
        By name, None for a solution that is safe to load, else the reason why it is not.

    Raises:
        Cancelled: `is_cancelled` returned true.
    """
    results: dict[str, str | None] = {}

    def set_result(solution: Solution, reason: str | None) -> None:
        results[solution.name] = results.get(solution.name) or reason
        if on_done is not None:
            on_done(solution.name, reason)

    cache = _VerdictCache.in_folder(cache_root)
    unknown = []
    for pair in pairs:
        if (verdict := cache.load(pair[1])) is not None:
            set_result(pair[1], verdict.reason)
        else:
            unknown.append(pair)
    jobs = [Job(*pair) for pair in unknown]
    began = time.monotonic()
    with contextlib.closing(run_jobs(jobs, timeout_seconds, is_cancelled)) as verdicts:
        for (definition, solution), verdict in zip(unknown, verdicts, strict=True):
            seconds, began = time.monotonic() - began, time.monotonic()
            emit(finished(EventKind.PROBED, definition.name, solution.name, seconds, verdict.reason))
            if verdict.is_reproducible:
                cache.save(solution, verdict.reason)
            set_result(solution, verdict.reason)
    return results


@attrs.frozen
class _VerdictCache:
    """Verdicts by the content of solutions and the versions of the libraries that they use."""

    root: Path
    versions: bytes

    @classmethod
    def in_folder(cls, root: Path | None) -> _VerdictCache:
        return cls(
            root or get_fib_cache_path(), framed(part for item in sorted(library_versions().items()) for part in item)
        )

    def load(self, solution: Solution) -> Verdict | None:
        """The cached verdict; None if there is none, or the file is damaged."""
        try:
            content = json.loads(read_published(self.root, self._name(solution)))
        except (OSError, ValueError):
            return None
        match content:
            case {"format": int(version), "reason": str() | None as reason} if version == _FORMAT:
                return Verdict(reason)
        return None

    def save(self, solution: Solution, reason: str | None) -> None:
        content = {"format": _FORMAT, "solution": solution.name, "reason": reason}
        try:
            publish(self.root, self._name(solution), json.dumps(content).encode())
        except OSError as error:
            logger.warning("the probe verdict of %s cannot be cached: %s", solution.name, explain_os_error(error))

    def _name(self, solution: Solution) -> str:
        parts = framed((solution.hash(), self.versions, str(_FORMAT)))
        return f"probes/{blake2b(parts, digest_size=20).hexdigest()}.json"
