"""Entry points of third parties that name builders."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .builder import Builder

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "fib_compile.builders"
_found_ahead: list[EntryPoint] | None = None


def entry_points() -> list[EntryPoint]:
    """All entry points of the group, ordered by name."""
    return _find() if _found_ahead is None else _found_ahead


def find_entry_points_ahead() -> None:
    """Find the entry points for the processes that this one will fork; no code of theirs is imported.

    It reads the metadata of every installed distribution: 6 ms of processor time beside torch and what comes with it.
    """
    global _found_ahead  # noqa: PLW0603 forks inherit it
    _found_ahead = _find()


def _find() -> list[EntryPoint]:
    from importlib import metadata  # 20 ms, which importing this module need not cost

    return sorted(metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value))


def make_builder(point: EntryPoint) -> Builder | None:
    """The builder that an entry point names; None if this machine cannot use it.

    Raises:
        TypeError: It names something else; importing or calling it may raise anything.
    """
    kind = point.load()
    if not (isinstance(kind, type) and issubclass(kind, Builder)):
        raise TypeError(f"{point.value} is of type {type(kind).__name__!r}, and no subclass of fib_compile.Builder")
    if not kind.is_available():
        return None
    builder = cast("type", kind)()  # a builder of an entry point takes no arguments
    for field in ("name", "package_prefix", "build_dir_name"):
        value = getattr(builder, field, None)
        if not isinstance(value, str) or not value:
            raise TypeError(f"{field} of {point.value} is {value!r}; it must be a name")
    return cast("Builder", builder)


def describe(point: EntryPoint) -> str:
    """An entry point with the distribution that declares it."""
    distribution = f"distribution {point.dist.name!r} {point.dist.version}" if point.dist else "an unknown distribution"
    return f"entry point {point.name!r} of {distribution}"
