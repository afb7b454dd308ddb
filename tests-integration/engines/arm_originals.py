"""Originals that are put back for a while: an engine process is compared with itself, with and without FIB.

Two processes of one program may differ in speed by their memory alone; a process that is compared with itself has one
memory. Only functions that are still called can be exchanged: a captured graph keeps its kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

_PACKAGES = ("flashinfer", "vllm")
_PATCHED, _RENEWS = "__fib_patched__", "__fib_renews__"
"""Attributes of the functions that FIB puts in the place of others: patched ones, and that of vLLM's fast plans."""
_OPS, _NORMS, _PROVIDER = "vllm.ir.ops", ("rms_norm", "fused_add_rms_norm"), "fib"


class Replaced(NamedTuple):
    """A place where FIB has put a function."""

    owner: Any
    name: str
    function: Any
    original: Any


def replaced_functions() -> list[Replaced]:
    """All places in the engine's and FlashInfer's modules and classes where FIB has put a function."""
    found = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _PACKAGES:
            continue
        classes = (one for one in list(vars(module).values()) if isinstance(one, type) and one.__module__ == name)
        for owner in (module, *classes):
            entries = list(vars(owner).items())
            found += [Replaced(owner, key, one, vars(one)["__wrapped__"]) for key, one in entries if _is_of_fib(one)]
    return found


def _is_of_fib(value: Any) -> bool:
    """Whether a value is a function of FIB, and not one that wraps such a function and has its attributes."""
    attributes = getattr(value, "__dict__", {})
    patched = attributes.get(_PATCHED)
    return _RENEWS in attributes or (patched is not None and patched.wrapper is value)


@contextmanager
def originals(replaced: Sequence[Replaced]) -> Iterator[None]:
    """Put originals back, and take FIB out of vLLM's lists of providers, until the block ends."""
    with ExitStack() as stack:
        ops = sys.modules.get(_OPS)
        for op in filter(None, (getattr(ops, name, None) for name in _NORMS)):
            stack.enter_context(op.set_priority([one for one in op.get_priority() if one != _PROVIDER]))
        try:
            for one in replaced:
                setattr(one.owner, one.name, one.original)
            yield
        finally:
            for one in replaced:
                setattr(one.owner, one.name, one.function)
            _bring_up_to_date(replaced)


def _bring_up_to_date(replaced: Sequence[Replaced]) -> None:
    """Let recorded plans have the state to which their wrappers were planned meanwhile.

    The wrappers of graphs are only planned by vLLM's fast plans, which FIB would not follow any more. Each call of a
    wrapper that is not replayed has a plan of its own before it.
    """
    for patched in (vars(one.function)[_PATCHED] for one in replaced if _PATCHED in vars(one.function)):
        for record in list(patched.plans.by_id.values()):
            owner = record.owner()
            if owner is not None:
                record.state = getattr(owner, patched.state_attribute, None)
