"""PolicyRegistry: policies by name, including those that other packages offer as entry points."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeVar

from fib_schema import UnknownName

from ..errors import InvalidSetting
from . import dumping, filtering
from .dumping import InputDumpPolicy
from .filtering import FilterPolicy

P = TypeVar("P")

_GROUPS: Mapping[str, str] = {
    "input dump policy": "fib_tracer.input_dump_policies",
    "filter policy": "fib_tracer.filter_policies",
}


class PolicyRegistry:
    """All policies that a `TracingConfig` can name.

    A program registers its own policies. A package offers policies as entry points of the groups
    ``fib_tracer.input_dump_policies`` and ``fib_tracer.filter_policies``.
    """

    _dumping: ClassVar[dict[str, type[InputDumpPolicy]]] = {
        "dump_all": dumping.DumpAll,
        "dump_none": dumping.DumpNone,
        "dump_int": dumping.DumpInt,
    }
    _filtering: ClassVar[dict[str, type[FilterPolicy]]] = {
        "keep_all": filtering.KeepAll,
        "keep_none": filtering.KeepNone,
        "keep_first": filtering.KeepFirst,
        "keep_first_k": filtering.KeepFirstK,
        "keep_random_k": filtering.KeepRandomK,
        "keep_first_k_by_axes": filtering.KeepFirstKByAxes,
        "keep_first_k_by_key": filtering.KeepFirstKByKey,
        "attention": filtering.Attention,
    }

    @classmethod
    def register_input_dump_policy(cls, name: str, policy: Any = None, override: bool = False) -> Any:
        """Register an `InputDumpPolicy`: called with the class, or used as a decorator of it.

        Raises:
            InvalidSetting: It is not such a class, or the name is taken and `override` is false.
        """
        return _register(cls._dumping, "input dump policy", name, policy, InputDumpPolicy, override=override)

    @classmethod
    def register_filter_policy(cls, name: str, policy: Any = None, override: bool = False) -> Any:
        """Register a `FilterPolicy`; see `register_input_dump_policy`."""
        return _register(cls._filtering, "filter policy", name, policy, FilterPolicy, override=override)

    @classmethod
    def get_input_dump_policy(cls, name: str) -> type[InputDumpPolicy]:
        """The class that is registered under a name.

        Raises:
            UnknownName: There is none (a KeyError).
        """
        return _get(cls._dumping, "input dump policy", name, InputDumpPolicy)

    @classmethod
    def get_filter_policy(cls, name: str) -> type[FilterPolicy]:
        """The class that is registered under a name.

        Raises:
            UnknownName: There is none (a KeyError).
        """
        return _get(cls._filtering, "filter policy", name, FilterPolicy)

    @classmethod
    def list_input_dump_policies(cls) -> list[str]:
        """The names, sorted."""
        return _names(cls._dumping, "input dump policy")

    @classmethod
    def list_filter_policies(cls) -> list[str]:
        """The names, sorted."""
        return _names(cls._filtering, "filter policy")


def _register(registered: dict[str, Any], kind: str, name: str, policy: Any, base: type, *, override: bool) -> Any:
    if policy is None:
        return functools.partial(_register, registered, kind, name, base=base, override=override)
    _check(kind, policy, base)
    if name in registered and not override:
        raise InvalidSetting(name, policy, f"override=True, because a {kind} of that name exists")
    registered[name] = policy
    return policy


def _check(kind: str, policy: object, base: type) -> None:
    if not (isinstance(policy, type) and issubclass(policy, base)):
        raise InvalidSetting(kind, policy, f"a subclass of {base.__name__}")


def _get(registered: Mapping[str, type[P]], kind: str, name: str, base: type) -> type[P]:
    if name in registered:
        return registered[name]
    point = _entry_points(kind, tuple(sys.path)).get(name)
    if point is None:
        raise UnknownName(kind, name, tuple(_names(registered, kind)))
    try:
        policy: type[P] = point.load()
    except (ImportError, AttributeError) as error:
        raise InvalidSetting(kind, point.name, f"an entry point that can be loaded: {point.value}: {error}") from error
    _check(kind, policy, base)
    return policy


def _names(registered: Mapping[str, Any], kind: str) -> list[str]:
    return sorted({*registered, *_entry_points(kind, tuple(sys.path))})


@functools.lru_cache(maxsize=8)
def _entry_points(kind: str, search_path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """The entry points by name. Reading the metadata of all packages of the search path takes about 10 ms."""
    del search_path
    return {point.name: point for point in reversed(list(entry_points(group=_GROUPS[kind])))}  # the first one counts
