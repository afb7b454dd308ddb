"""vLLM: the provider ``fib`` of its IR ops, captures that wait for solutions, and plans that bypass ``plan``.

**Provider.** vLLM dispatches ``rms_norm`` and ``fused_add_rms_norm`` to the first provider of a priority list that
supports the arguments. The plug-in registers ``fib`` when ``vllm.ir.ops`` is imported; the engine's option selects it::

    LLM(..., ir_op_priority={"rms_norm": ["fib"], "fused_add_rms_norm": ["fib"]})

A call that is not routed goes to the next provider of the list. The implementations call it themselves: for a provider
that does not support a call, vLLM prepares a message for its log, which takes longer
(``benchmarks/bench_vllm_provider.py``). Under Inductor, vLLM traces an implementation with fake tensors, which no
solution serves, so that the next provider is compiled into the graph.

**Captures.** vLLM calls each size once and captures it right afterwards, when it starts. Calls wait there for their
solutions, so that the graphs record them for as long as the engine lives. The runtime starts with the loading of the
model, because compiled code then depends on it: on the table of solutions, which is part of the key of vLLM's cache.

**Fast plans.** vLLM calls ``plan`` of a decode wrapper once. Later plans write to the wrapper's buffers and make a new
plan of FlashInfer's kernels, so the runs would be refused as those of an unknown plan. Here a run renews the recorded
plan if the last plan differs in nothing but the contents of these buffers.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, TypeAlias

import torch
from fib_apply.hook import has_listeners
from fib_apply.runtime import get_runtime

from .adapter import PLAN_STATE, VLLM, Adapter, Call, CannotAdapt, Conversion, Original, Target
from .adapters.elementwise import CONSTANTS, convert_fused_add_rmsnorm, convert_rmsnorm, describe
from .adapters.vllm_layers import captures_decodes
from .attention import AttentionPlan, Settings, WrapperPlan, is_replayed
from .environment import is_enabled, when_imported
from .handlers import RecordedPlan
from .installation import provide, start
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
            shadow=_shadow_fused_add,
        ),
    ),
    supported="matrices with weights",
    unsupported="three dimensions; no weight; `variance_size`; an epsilon other than the reference's",
    reference_constants=CONSTANTS,
    engine=VLLM,
)


def install_hooks() -> None:
    """Register the provider, and wrap captures and fast plans, when vLLM's modules are imported, or now."""
    when_imported(_OPS, _register_imported)
    for module in _RUNNERS:
        when_imported(module, functools.partial(_wrap_captures, module))
    when_imported(_BACKEND, _wrap_fast_plan)
    when_imported(_ENVS, _wrap_factors)


def _register_imported() -> None:
    module = sys.modules.get(_OPS)
    if module is not None:
        register(module)


def register(ops: ModuleType) -> dict[str, str]:
    """Register the provider for each op that is as known; returns the problems of the others, which are logged."""
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


# -- captures ----------------------------------------------------------------------------------------

_RUNNERS = ("vllm.v1.worker.gpu.model_runner", "vllm.v1.worker.gpu_model_runner")
"""The modules with a class `_RUNNER`; the engine uses one of them."""
_RUNNER, _CAPTURE, _LOAD = "GPUModelRunner", "capture_model", "load_model"
_ENVS, _FACTORS = "vllm.envs", "compile_factors"
_SECONDS: Final = 300.0
"""The longest time that calls wait in all. Sizes that were run before, by any process, do not wait."""
_WRAPPED = "__fib_wrapped__"


def _wrap_captures(module: str) -> None:
    runner = getattr(sys.modules.get(module), _RUNNER, None)
    _wrap(runner, _LOAD, _starting)
    if not _wrap(runner, _CAPTURE, _waiting):
        _logger.warning("%s has no %s.%s: its graphs may record the engine's own kernels", module, _RUNNER, _CAPTURE)


def _wrap(owner: Any, name: str, make: Callable[[Original], Original]) -> bool:
    """Replace a function once. Returns whether there is one."""
    original = getattr(owner, name, None)
    if original is not None and not hasattr(original, _WRAPPED):
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, _WRAPPED, True)
        setattr(owner, name, wrapper)
    return original is not None


def _waiting(original: Original) -> Original:
    def capture_model(*args: Any, **kwargs: Any) -> Any:
        from fib_apply import capture_phase

        token = captures_decodes.set(_captures_decodes(getattr(args[0] if args else None, "vllm_config", None)))
        try:
            with capture_phase(_SECONDS):
                return original(*args, **kwargs)
        finally:
            captures_decodes.reset(token)

    return capture_model


def _captures_decodes(config: Any) -> bool:
    """Whether decodes have graphs of their own: the mode is a pair, and no draft model has graphs, too."""
    mode = getattr(getattr(config, "compilation_config", None), "cudagraph_mode", None)
    return isinstance(getattr(mode, "value", None), tuple) and getattr(config, "speculative_config", mode) is None


def _starting(original: Original) -> Original:
    def load_model(*args: Any, **kwargs: Any) -> Any:
        if is_enabled():
            start()
        return original(*args, **kwargs)

    return load_model


def _wrap_factors() -> None:
    """Add the table of solutions to the keys of vLLM's compiled code, which has ops where one may serve."""
    _wrap(sys.modules.get(_ENVS), _FACTORS, _keyed)


def _keyed(original: Original) -> Original:
    def compile_factors() -> Mapping[str, object]:
        runtime = get_runtime()
        return {**original(), "FIB": ("" if runtime is None else runtime.table.digest, has_listeners())}

    return compile_factors


# -- fast plans --------------------------------------------------------------------------------------

_BACKEND, _FAST_PLAN = "vllm.v1.attention.backends.flashinfer", "fast_plan_decode"
_OFFSETS, _LAST = "indptr_cpu", "last_page_len_cpu"
_VALUES = frozenset({_OFFSETS, _LAST, "indices", "seq_lens_cpu"})
"""Parameters whose contents may differ from plan to plan."""
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype})
_RENEWS = "__fib_renews__"


class _FastPlan:
    """The last plan of a wrapper that bypassed ``plan``; a run that needs it brings the recorded plan up to date.

    Most plans are followed by a replay instead of a run, so little is done here for each of them.
    """

    __slots__ = ("_args", "_current", "_kwargs", "_parameters", "_settings", "_shared", "state", "value")

    def __init__(self, record: RecordedPlan, given: Mapping[str, Any], parameters: Sequence[str]) -> None:
        self.value, self.state = record.value, record.state
        self._current, self._shared, self._parameters = record.value.current, _shared(given), parameters
        self._settings = _settings_of(record.owner())

    def note(self, state: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep the arguments of a plan that led to a state."""
        self.state, self._args, self._kwargs = state, args, kwargs

    def renew(self, record: RecordedPlan, wrapper: Any, state: Any) -> bool:
        """Renew a recorded plan if the arguments of a later one allow it; whether they do."""
        value = record.value
        if state is not self.state or value is not self.value or value.current is not self._current:
            return False
        given = _named(self._parameters, self._args, self._kwargs)
        if self._shared is None or _shared(given) != self._shared or _settings_of(wrapper) != self._settings:
            return False
        offsets = given[_OFFSETS]
        if not isinstance(offsets, torch.Tensor) or offsets.device.type != "cpu":
            return False  # reading it would wait for the device
        total = int(offsets[-1])
        if not _has_buffers_of(wrapper, value, total):
            return False
        renewed = value.with_indices(total)
        if renewed is value:
            record.state = state
        else:
            record.replace(renewed, state)
            record.renewal, self.value, self._current = self.renew, renewed, renewed.current
        return True


def _wrap_fast_plan() -> None:
    module = sys.modules.get(_BACKEND)
    original = getattr(module, _FAST_PLAN, None)
    if original is None:
        _logger.warning("%s has no %s: decodes in CUDA graphs may not be routed", _BACKEND, _FAST_PLAN)
        return
    if hasattr(original, _RENEWS):
        return
    parameters = list(inspect.signature(original).parameters)
    if not {_OFFSETS, _LAST} <= set(parameters[1:]):
        _logger.warning("%s has other parameters: decodes in CUDA graphs may not be routed", _FAST_PLAN)
        return
    setattr(module, _FAST_PLAN, _renewing(original, parameters))


def _renewing(original: Callable[..., Any], parameters: Sequence[str]) -> Callable[..., Any]:
    planned: weakref.WeakKeyDictionary[Any, _FastPlan] = weakref.WeakKeyDictionary()

    @functools.wraps(original)
    def fast_plan_decode(*args: Any, **kwargs: Any) -> Any:
        wrapper = args[0] if args else kwargs.get(parameters[0])
        patched = getattr(getattr(type(wrapper), "plan", None), "__fib_patched__", None)
        if patched is None or not is_replayed(wrapper):  # for other wrappers, `plan` is called each time
            return original(*args, **kwargs)
        plans = patched.plans
        record, last = plans.by_id.get(id(wrapper)), planned.get(wrapper)
        value, before = getattr(record, "value", None), getattr(wrapper, PLAN_STATE, None)
        result = original(*args, **kwargs)
        record, state = plans.by_id.get(id(wrapper)), getattr(wrapper, PLAN_STATE, None)
        if record is None:
            return result
        if record.value is not value:  # `plan` was called
            if isinstance(record.value, WrapperPlan) and not record.value.is_routable:
                last = planned[wrapper] = _FastPlan(record, _named(parameters, args, kwargs), parameters)
                record.renewal = last.renew
        elif state is before:
            plans.invalidate(wrapper)  # runs could not tell this plan from the last one
        elif last is not None and value is last.value and (before is record.state or before is last.state):
            last.note(state, args, kwargs)
        return result

    setattr(fast_plan_decode, _RENEWS, True)
    return fast_plan_decode


def _named(parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a plan after the wrapper, by name."""
    given = {**dict(zip(parameters, args, strict=False)), **kwargs}
    given.pop(parameters[0], None)
    return given


def _shared(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The arguments that later plans must share; None if they cannot be compared."""
    if not {_OFFSETS, _LAST} <= given.keys():
        return None
    found = {name: value for name, value in given.items() if name not in _VALUES}
    found |= {f"len({name})": len(given[name]) for name in (_OFFSETS, _LAST)}
    return found if _PLAIN.issuperset(map(type, found.values())) else None


def _settings_of(wrapper: Any) -> list[Any]:
    """The settings that a wrapper's next run reads."""
    return [getattr(wrapper, f"_{name}", None) for name in Settings._fields]


def _has_buffers_of(wrapper: Any, value: WrapperPlan, total: int) -> bool:
    """Whether all tensors of a plan are buffers of its wrapper, with room for so many page numbers."""
    buffer = value.buffers.get("kv_indices")
    if buffer is None or not 0 <= total <= len(buffer) or not isinstance(value.current, AttentionPlan):
        return False
    places = {kept.data_ptr() for kept in vars(wrapper).values() if isinstance(kept, torch.Tensor)}
    tensors = (one for one in (*value.current.inputs, buffer) if isinstance(one, torch.Tensor))
    return all(tensor.data_ptr() in places for tensor in tensors)
