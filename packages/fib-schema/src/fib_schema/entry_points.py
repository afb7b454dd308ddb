"""Entry points of installed packages, by which FIB's packages find builders, evaluators, policies and adapters."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs

from .errors import FibError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@attrs.frozen
class UnusableEntryPoint(FibError, ImportError):
    """An entry point that cannot be loaded, or names something else than its group wants."""

    entry_point: str
    """As `describe` returns it."""
    problem: str

    def __str__(self) -> str:
        return f"{self.entry_point}: {self.problem}"


def find_entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, ordered by name; nothing is imported.

    Those of one search path are looked for once, which forked processes inherit: it reads the metadata of every
    installed distribution, 6 to 10 ms of processor time beside torch and what comes with it.
    """
    return _found(group, tuple(sys.path))


def load_entry_point(point: EntryPoint) -> Any:
    """Import what an entry point names.

    Raises:
        UnusableEntryPoint: Importing it fails, in whatever way.
    """
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise UnusableEntryPoint(describe(point), f"{type(error).__name__}: {error}") from error


def describe(point: EntryPoint) -> str:
    """An entry point with its value and the distribution that declares it."""
    distribution = f"distribution {point.dist.name!r} {point.dist.version}" if point.dist else "an unknown distribution"
    return f"entry point {point.name!r} ({point.value}) of {distribution}"


@lru_cache(maxsize=32)
def _found(group: str, search_path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    del search_path  # where entry points are found
    from importlib.metadata import entry_points  # 20 ms, which importing this module need not cost

    found = {(point.name, point.value): point for point in reversed(list(entry_points(group=group)))}
    return tuple(found[key] for key in sorted(found))
