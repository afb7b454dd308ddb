"""Aliases of a patched function: further names for it, as ``from flashinfer.norm import rmsnorm`` makes one.

Names in modules and in a method's class are found and rebound. Any other reference, such as a dictionary, an object or
a closure, can only be reported.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterable, Mapping
from types import CellType, FunctionType
from typing import Any

import attrs


@attrs.frozen
class Alias:
    """A name that was rebound."""

    owner: Any
    name: str
    value: Any = attrs.field(repr=False)
    """The previous value."""

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__name__', self.owner)}.{self.name}"


def rebind_in_modules(pairs: Iterable[tuple[Any, Any]]) -> dict[int, tuple[Alias, ...]]:
    """Rebind names in all imported modules, in one pass.

    torch's own modules are left alone: torch distinguishes functions by identity.

    Args:
        pairs: Current and new values.

    Returns:
        The rebound names by the id of the current value.
    """
    by_id = {id(old): (old, new) for old, new in pairs}
    if not by_id:
        return {}
    found: dict[int, list[Alias]] = {}
    modules = {id(module): module for name, module in list(sys.modules.items()) if name.partition(".")[0] != "torch"}
    for module in modules.values():
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if id(value) in by_id:
                old, names[name] = by_id[id(value)]
                found.setdefault(id(old), []).append(Alias(module, name, old))
    return {key: tuple(aliases) for key, aliases in found.items()}


def rebind_in_class(owner: type, old: Any, new: Any) -> tuple[Alias, ...]:
    """Rebind other names of a method in its class: ``begin_forward = plan``, and partial methods of it."""
    found = []
    for name, value in list(vars(owner).items()):
        if value is old:
            replacement = new
        elif isinstance(value, functools.partialmethod) and value.func is old:
            replacement = functools.partialmethod(new, *value.args, **value.keywords)
        else:
            continue
        found.append(Alias(owner, name, value))
        setattr(owner, name, replacement)
    return tuple(found)


def restore(aliases: Iterable[Alias], wrapper: Any) -> None:
    """Restore the previous values of names that have not been rebound since."""
    for alias in aliases:
        current = vars(alias.owner).get(alias.name)
        if current is wrapper or getattr(current, "func", None) is wrapper:
            setattr(alias.owner, alias.name, alias.value)


_WRAPPED_ATTRIBUTES = ("__wrapped__", "_torchdynamo_inline", "_fib_original")
"""Attributes in which wrappers, ours among them, keep the function they wrap: no calls come from there."""
_MAX_NAMED = 4
"""Naming a holder takes a pass over all objects."""
_HOLDER_TYPES = (dict, list, tuple, set, CellType, functools.partial, staticmethod, classmethod)


def other_holders(functions: Mapping[int, Any]) -> dict[int, tuple[str, ...]]:
    """Objects that refer to functions and cannot be rebound; takes one pass over all objects.

    Args:
        functions: By id.

    Returns:
        Descriptions of the objects, by the function's id.
    """
    values = list(functions.values())
    own = {id(functions), id(values)}
    found: dict[int, list[str]] = {}
    for holder in gc.get_referrers(*values):
        if id(holder) in own or not isinstance(holder, _HOLDER_TYPES):
            continue
        for item in _items(holder):
            names = found.setdefault(id(item), []) if id(item) in functions else None
            if names is not None and len(names) < _MAX_NAMED:
                names.append(_describe(holder))
    return {key: tuple(dict.fromkeys(names)) for key, names in found.items()}


def _items(holder: Any) -> Iterable[Any]:
    if isinstance(holder, dict):
        return [value for name, value in list(holder.items()) if name not in _WRAPPED_ATTRIBUTES]
    if isinstance(holder, functools.partial):
        return (holder.func, *holder.args)
    if isinstance(holder, (staticmethod, classmethod)):
        return (holder.__func__,)
    return (holder.cell_contents,) if isinstance(holder, CellType) else list(holder)


def _describe(holder: Any) -> str:
    if isinstance(holder, dict) and isinstance(holder.get("__name__"), str):
        return f"the module {holder['__name__']}"
    kind = "a closure" if isinstance(holder, CellType) else f"a {type(holder).__name__}"
    near = gc.get_referrers(holder)
    if isinstance(holder, (CellType, staticmethod, classmethod)):  # a tuple or a dictionary lies between
        near = [owner for between in near if isinstance(between, (tuple, dict)) for owner in gc.get_referrers(between)]
    owner = next((owner for owner in near if isinstance(owner, (FunctionType, type))), None)
    return kind if owner is None else f"{kind} of {owner.__module__}.{owner.__qualname__}"
