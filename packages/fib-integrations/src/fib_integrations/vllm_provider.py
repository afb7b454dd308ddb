"""The provider ``fib`` of vLLM's IR ops ``rms_norm`` and ``fused_add_rms_norm``.

vLLM dispatches these ops to the first provider of a priority list that supports the arguments. The plug-in registers
``fib`` when ``vllm.ir.ops`` is imported; the engine's own option selects it::

    LLM(..., ir_op_priority={"rms_norm": ["fib"], "fused_add_rms_norm": ["fib"]})

vLLM appends its defaults to the list. A call that is not routed goes to the next provider of the list, as it would
without this one. The implementations call it themselves: for a provider that does not support a call, vLLM prepares a
message for its log, which takes longer (``benchmarks/bench_vllm_provider.py``).

Eager calls are traced and routed. Under Inductor, vLLM traces an implementation with fake tensors, which no solution
serves, so that the next provider is compiled into the graph.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import torch

from .adapter import Adapter, Call, Conversion, Original, Target
from .adapters.rmsnorm import CONSTANTS, convert_fused_add_rmsnorm, convert_rmsnorm, describe
from .engines import VLLM
from .errors import CannotAdapt
from .import_hooks import when_imported
from .installation import provide
from .patched_function import PatchedFunction

PROVIDER = "fib"
_OPS, _LIST = "vllm.ir.ops", "_priority_impls"
"""The module of the ops, and the attribute of an op that has the list of providers."""
_Functions: TypeAlias = tuple[Callable[..., Any], Callable[..., bool]]
"""An implementation, and the function that says which arguments it supports."""
_logger = logging.getLogger(__name__)


def convert_rms_norm(x: torch.Tensor, weight: Any, epsilon: float, variance_size: int | None = None) -> Conversion:
    """Convert a call of ``rms_norm`` for the definition ``rmsnorm``."""
    return _problem(weight, variance_size) or convert_rmsnorm(x, weight, epsilon)


def convert_fused_add(
    x: torch.Tensor, x_residual: torch.Tensor, weight: Any, epsilon: float, variance_size: int | None = None
) -> Conversion:
    """Convert a call of ``fused_add_rms_norm`` for the definition ``fused_add_rmsnorm``."""
    return _problem(weight, variance_size) or convert_fused_add_rmsnorm(x, x_residual, weight, epsilon)


def _problem(weight: Any, variance_size: int | None) -> str | None:
    if weight is None:
        return "it has no weight"
    return None if variance_size is None else "the variance is that of a part of a row"


def _finalize_fused_add(
    result: torch.Tensor, x: torch.Tensor, x_residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op also returns the sum, which the definition does not; vLLM lets implementations write it in place."""
    return result, x_residual.add_(x)


def _shadow_fused_add(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
    """The output of the next provider, which may write to its inputs: it gets copies."""
    del values
    x, x_residual, *others = args
    return original(x.clone(), x_residual.clone(), *others, **kwargs)[0]


ADAPTER = Adapter(
    name="vllm_ir",
    op_types=("rmsnorm",),
    targets=(
        Call(path=f"{_OPS}.rms_norm", convert=convert_rms_norm, describe=describe),
        Call(
            path=f"{_OPS}.fused_add_rms_norm",
            convert=convert_fused_add,
            describe=describe,
            finalize=_finalize_fused_add,
            added_kernels=("x_residual.add_(x)",),
            shadow=_shadow_fused_add,
        ),
    ),
    supported="matrices with weights",
    unsupported="three dimensions; no weight; `variance_size`; an epsilon other than the reference's",
    reference_constants=CONSTANTS,
    engine=VLLM,
)


def register_when_imported() -> None:
    """Register the provider when vLLM's IR ops are imported, or now if they are."""
    when_imported(_OPS, _register_imported)


def _register_imported() -> None:
    module = sys.modules.get(_OPS)
    if module is not None:
        register(module)


def register(ops: ModuleType) -> dict[str, str]:
    """Register the provider for each op that is as known; returns the problems of the others, which are logged.

    Args:
        ops: The module ``vllm.ir.ops``.
    """
    problems = {}
    for target in ADAPTER.targets:
        name = target.path.rpartition(".")[2]
        op = getattr(ops, name, None)
        try:
            if op is None:
                raise CannotAdapt(target.path, "this version of vLLM has no such op")
            _register(op, name, target)
        except (CannotAdapt, AttributeError, AssertionError, ValueError) as error:  # the errors of vLLM's registration
            problems[name] = f"{type(error).__name__}: {error}"
            _logger.warning("vLLM's op %s has no provider %r: %s", name, PROVIDER, error)
    return problems


def _register(op: Any, name: str, target: Target) -> None:
    native = op.impls["native"].impl_fn
    VLLM.check(target.path, native)
    make, inplace = _IMPLEMENTATIONS[name]
    next_provider = _NextProvider(op, native)

    @functools.wraps(native)
    def call(*args: Any) -> Any:
        return next_provider.call(*args)

    route = provide(ADAPTER, target, call)
    if PROVIDER not in op.impls:
        implementation, supports = make(native, vars(route)["__fib_patched__"], next_provider)
        op.register_impl(PROVIDER, supports_args=supports, inplace=inplace)(implementation)


class _NextProvider:
    """The provider that vLLM would call without this one.

    Args:
        op: Has a list of providers, which vLLM replaces by another list.
        native: The implementation that serves all arguments.

    Raises:
        CannotAdapt: This version of vLLM keeps the list elsewhere.
    """

    def __init__(self, op: Any, native: Callable[..., Any]) -> None:
        if _LIST not in vars(op):
            raise CannotAdapt(f"{_OPS}.{native.__name__}", f"this version of vLLM has no {_LIST} in its ops")
        self._op, self._native = op, native
        self.attributes: Mapping[str, Any] = vars(op)
        """The op's attributes, with the list: it must be read without entering another function."""
        self.known: Any = None
        """The list of the last call of `find`."""
        self.first: Any = None
        """The next provider in that list; None if there is none."""

    def find(self) -> Any:
        """The next provider; None if there is none."""
        listed = self.attributes[_LIST]
        names = [one.provider for one in listed]
        place = names.index(PROVIDER) + 1 if PROVIDER in names else len(listed)
        self.first = listed[place] if place < len(listed) else None
        self.known = listed
        return self.first

    def call(self, *args: Any) -> Any:
        """Call the first of the next providers that supports the arguments.

        It may write to activations: implementations that do so are registered as such.
        """
        first = self.first if self.attributes[_LIST] is self.known else self.find()
        if first is not None and first.supports_args(*args):
            return first.impl_fn(*args)
        names = self._op.get_priority()
        for other in names[names.index(PROVIDER) + 1 :] if PROVIDER in names else ():
            if self._op.impls[other].supports_args(*args):
                return self._op.impls[other].impl_fn(*args)
        return self._native(*args)


def _make_rms_norm(native: Callable[..., Any], patched: PatchedFunction, next_provider: _NextProvider) -> _Functions:
    route, attributes = patched.wrapper, next_provider.attributes

    # both are written once for each op: functions that they shared would cost each call microseconds; `bench_steps.py`
    @functools.wraps(native)  # vLLM compares its schema with that of the op
    def rms_norm(x: Any, weight: Any, epsilon: float, variance_size: int | None = None) -> Any:
        if patched.is_enabled and ("rmsnorm", weight.shape[0], epsilon) not in patched.passed_on:
            return route(x, weight, epsilon, variance_size)
        first = next_provider.first if attributes[_LIST] is next_provider.known else next_provider.find()
        if first is not None and first.supports_args(x, weight, epsilon, variance_size):
            return first.impl_fn(x, weight, epsilon, variance_size)
        return next_provider.call(x, weight, epsilon, variance_size)

    def supports(x: Any, weight: Any, epsilon: float, variance_size: int | None = None) -> bool:
        del x, epsilon
        return weight is not None and variance_size is None

    return rms_norm, supports


def _make_fused_add(native: Callable[..., Any], patched: PatchedFunction, next_provider: _NextProvider) -> _Functions:
    route, attributes = patched.wrapper, next_provider.attributes

    @functools.wraps(native)
    def fused_add_rms_norm(
        x: Any, x_residual: Any, weight: Any, epsilon: float, variance_size: int | None = None
    ) -> Any:
        if patched.is_enabled and ("fused_add_rmsnorm", weight.shape[0], epsilon) not in patched.passed_on:
            return route(x, x_residual, weight, epsilon, variance_size)
        first = next_provider.first if attributes[_LIST] is next_provider.known else next_provider.find()
        if first is not None and first.supports_args(x, x_residual, weight, epsilon, variance_size):
            return first.impl_fn(x, x_residual, weight, epsilon, variance_size)
        return next_provider.call(x, x_residual, weight, epsilon, variance_size)

    def supports(x: Any, x_residual: Any, weight: Any, epsilon: float, variance_size: int | None = None) -> bool:
        del x_residual
        if weight is None or variance_size is not None:
            return False
        first = next_provider.first if attributes[_LIST] is next_provider.known else next_provider.find()
        if first is not None and first.inplace:
            return True
        # vLLM copies the activations for this provider, but not for the next one
        if patched.is_enabled and ("fused_add_rmsnorm", weight.shape[0], epsilon) not in patched.passed_on:
            return True
        return _is_compiling(x)

    return fused_add_rms_norm, supports


def _is_compiling(x: Any) -> bool:
    """Whether a call is only traced for a compiler. In others, vLLM calls the next provider itself."""
    return type(x) is not torch.Tensor and torch.compiler.is_compiling()


_IMPLEMENTATIONS = {"rms_norm": (_make_rms_norm, False), "fused_add_rms_norm": (_make_fused_add, True)}
"""By op: the maker of its functions, and whether the implementation writes to activations."""
