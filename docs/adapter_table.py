"""Table of the adapters of fib-integrations, from their declarations."""

from __future__ import annotations

from collections.abc import Sequence

from fib_integrations import vllm
from fib_integrations.adapter import Adapter
from fib_integrations.adapters import BUILT_IN


def adapter_table() -> str:
    """Markdown: name, op_types, functions, supported and unsupported calls of each adapter."""
    rows = ["| adapter | op_types | functions | converted | fall through |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*rows, *map(_row, (*BUILT_IN, vllm.ADAPTER))])


def _row(adapter: Adapter) -> str:
    mark = "" if adapter.is_default else ", not by default"
    name = f"`{adapter.name}`" + (", by `ir_op_priority`" if adapter is vllm.ADAPTER else mark)
    op_types = ", ".join(f"`{op_type}`" for op_type in adapter.op_types)
    functions = ", ".join(_functions([target.path for target in adapter.targets]))
    return f"| {name} | {op_types} | {functions} | {adapter.supported} | {adapter.unsupported} |"


def _functions(paths: Sequence[str]) -> list[str]:
    """Names without their modules; of the methods of a class only the class."""
    names = [next((part for part in path.split(".") if part[:1].isupper()), path.rpartition(".")[2]) for path in paths]
    return [f"`{name}`" for name in dict.fromkeys(names)]
