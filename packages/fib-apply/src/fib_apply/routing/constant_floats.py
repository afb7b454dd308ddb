"""Constant floats: launches of kernels whose float arguments are constants, for compiled graphs.

Triton passes a float to a kernel as float32, but Inductor as float64: then some kernels do not compile, and others
round differently than was verified. So a traced kernel is replaced by one of the same parameters that calls it, and in
which the floats are compile-time constants, cast to float32. A traced call has constants for all scalars anyway.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable
from typing import Any

import torch

_LARGEST = torch.finfo(torch.float32).max


class TracedKernel:
    """A kernel in the copy of a solution's function; launches are traced.

    Args:
        kernel: A `triton.runtime.jit.JITFunction`.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._wrapped = torch.library.wrap_triton(kernel)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """A function that launches the kernel."""

        def launch(*args: Any, **options: Any) -> None:
            defaults = {one.name: one.default for one in self._kernel.params if one.has_default}
            given = {**defaults, **dict(zip(self._kernel.arg_names, args, strict=False)), **options}
            names = frozenset(name for name, value in given.items() if self._is_constant(name, value))
            if not names or len(args) > len(self._kernel.arg_names):
                self._wrapped[grid](*args, **options)
            else:
                torch.library.wrap_triton(with_constants(self._kernel, names))[grid](**given)

        return launch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def _is_constant(self, name: str, value: Any) -> bool:
        """Whether an argument is a float at run time that Triton would pass as float32."""
        parameter = next((one for one in self._kernel.params if one.name == name), None)
        if type(value) is not float or parameter is None or parameter.is_constexpr or parameter.annotation:
            return False
        return -_LARGEST <= value <= _LARGEST  # no infinity or NaN, whose texts are no literals


def with_constants(kernel: Any, names: frozenset[str]) -> Any:
    """A kernel of the same parameters that calls a kernel, with some floats as compile-time constants."""
    import triton

    made: dict[frozenset[str], Any] = vars(kernel).setdefault("_fib_apply_with_constants", {})
    if names not in made:
        made[names] = triton.jit(_compiled(kernel, names))
    return made[names]


def _compiled(kernel: Any, names: frozenset[str]) -> Any:
    """The Python function of a kernel made by `with_constants`. Triton and Inductor read its source."""
    import triton
    import triton.language as tl

    name = f"{kernel.fn.__name__}_with_constants"
    source = _source(kernel, name, names)
    filename = f"<fib_apply {name} {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
    scope: dict[str, Any] = {"__name__": __name__, "triton": triton, "tl": tl, kernel.fn.__name__: kernel}
    code = compile(source, filename, "exec")
    exec(code, scope)  # noqa: S102 made of our template and of identifiers
    return scope[name]


def _source(kernel: Any, name: str, names: frozenset[str]) -> str:
    takes = ", ".join(
        f"{one.name}: tl.constexpr" if one.is_constexpr or one.name in names else one.name for one in kernel.params
    )
    # A cast makes a scalar of float32; a constant of Triton would take the type of what it is combined with.
    passed = ", ".join(
        f"{one.name}=tl.cast({one.name}, tl.float32)" if one.name in names else f"{one.name}={one.name}"
        for one in kernel.params
    )
    return f"def {name}({takes}):\n    {kernel.fn.__name__}({passed})\n"
