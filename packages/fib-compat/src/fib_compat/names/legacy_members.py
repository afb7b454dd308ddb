"""Members of the first release that have another name today."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from operator import attrgetter, methodcaller
from types import MappingProxyType
from typing import Any

from fib_schema import EvaluationStatus, format_json, get_fib_cache_path
from fib_schema.files import write_output


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


def _unknown_field(name: str, default: Any) -> property:
    return property(
        lambda self: self.unknown_fields.get(name, default),
        doc=f"The field ``{name}`` of older files, if there is one.",
    )


def _log_file(evaluation: Any) -> str:
    if "log_file" in evaluation.unknown_fields:
        return str(evaluation.unknown_fields["log_file"])
    content = evaluation.log.encode("utf-8", "backslashreplace")
    path = get_fib_cache_path() / "logs" / f"{hashlib.sha256(content).hexdigest()[:20]}.log"
    if not path.exists():
        write_output(path, content)
    return str(path)


def _error(evaluation: Any) -> str | None:
    found: str | None = evaluation.unknown_fields.get("error")
    return found or (None if evaluation.status is EvaluationStatus.PASSED else evaluation.log or None)


LEGACY_MEMBERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "AxisVar": {"parent": _unknown_field("parent", None)},
        "BuildSpec": {"build_commands": _unknown_field("build_commands", ())},
        "Evaluation": {
            "log_file": property(_log_file, doc="The path of a file with `log`, in the cache folder."),
            "error": property(_error, doc="`log` of an evaluation that did not pass, else None."),
        },
        "Builder": {
            "clear_cache": _method(
                "clear_cache",
                lambda _: None,
                "Nothing: a builder holds no runnables, `BuilderRegistry.cleanup` has them.",
            )
        },
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
            "cuda_graph_snapshot": property(lambda _: None, doc="None: captured calls become ordinary entries."),
            "picked": property(_stored_tensors, doc="The stored tensors."),
            "definition_input_names": property(
                lambda self: set(self.definition.inputs), doc="The names of the definition's inputs."
            ),
        },
    }
)
"""Members by class and name."""


def add_legacy_members(cls: type) -> None:
    """Add the legacy members of a class, if it has any."""
    for name, member in LEGACY_MEMBERS.get(cls.__name__, {}).items():
        setattr(cls, name, member)
