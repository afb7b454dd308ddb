"""Members of the first release that have another name today."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter, methodcaller
from types import MappingProxyType
from typing import Any

from fib_schema import format_json


def _method(name: str, call: Callable[[Any], Any], doc: str) -> Any:
    def method(self: Any) -> Any:
        return call(self)

    method.__name__, method.__doc__ = name, doc
    return method


def _attribute(name: str) -> property:
    return property(attrgetter(name), doc=f"`{name}`.")


def _stored_tensors(entry: Any) -> dict[str, Any]:
    import torch

    return {name: value for name, value in entry.inputs.items() if isinstance(value, torch.Tensor)}


LEGACY_MEMBERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "Definition": {
            "type": _attribute("op_type"),
            "get_const_axes": _method("get_const_axes", attrgetter("const_axes"), "`const_axes`."),
            "get_var_axes": _method("get_var_axes", attrgetter("var_axes"), "`var_axes`."),
            "get_var_axes_bindings": _attribute("var_axes_bindings"),
        },
        "Solution": {
            "requires_build": _method(
                "requires_build",
                lambda self: self.spec.language.is_compiled,
                "Whether the solution is compiled ahead of time.",
            ),
            "to_json": _method("to_json", lambda self: format_json(self, indent=2), "Format as JSON."),
        },
        "Trace": {"is_workload": _method("is_workload", methodcaller("is_workload_trace"), "`is_workload_trace`.")},
        "TraceSet": {"workload": _attribute("workloads")},
        "BuilderRegistry": {"clear": _method("clear", methodcaller("cleanup"), "`cleanup`.")},
        "Runnable": {"close": _method("close", methodcaller("cleanup"), "`cleanup`.")},
        "WorkloadEntry": {
            "picked": property(_stored_tensors, doc="The stored tensors."),
            "definition_input_names": property(
                lambda self: set(self.definition.inputs), doc="The names of the definition's inputs."
            ),
        },
    }
)
"""By class and name."""


def add_legacy_members(cls: type) -> None:
    """Add the legacy members of a class, if it has any."""
    for name, member in LEGACY_MEMBERS.get(cls.__name__, {}).items():
        setattr(cls, name, member)
