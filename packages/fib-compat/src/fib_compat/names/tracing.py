"""Tracing of the old package: policies by its protocols, settings, runtime and the functions that enable it.

A policy is any class with the methods of `FilterPolicy` or `InputDumpPolicy`. Policies that a program registers are
adapted; a preset's name selects fib-tracer's own policy, which decides before anything is copied. Further differences
to `fib_tracer`: enabling installs FlashInfer's adapters, settings may name definitions that the data set lacks,
`TracingRuntime.collect` skips bad calls, and the data set sees what was stored.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import attrs
import fib_schema
import fib_tracer
import torch
from fib_integrations import install_flashinfer_integrations
from fib_tracer import Decision, InvalidSetting, get_tracing_runtime, policies

from .trace_set import TraceSet, present

logger = logging.getLogger("flashinfer_bench.tracing")


@attrs.define
class WorkloadEntry:
    """A call that was collected."""

    def_name: str
    axes: Mapping[str, int]
    inputs_to_dump: Mapping[str, Any]
    """The inputs to store, by name."""
    order: int
    """The position among the calls of the definition."""
    cuda_graph_snapshot: Mapping[str, Any] | None = None


@runtime_checkable
class InputDumpPolicy(Protocol):
    """Chooses the inputs of a call that are stored."""

    def dump(self, inputs: dict[str, Any]) -> list[str]:
        """The names of the inputs to store."""
        ...


@runtime_checkable
class FilterPolicy(Protocol):
    """Chooses the calls that are stored."""

    def submit(self, entry: WorkloadEntry) -> None:
        """Receive a call."""
        ...

    def drain(self) -> list[WorkloadEntry]:
        """The calls to store; none is held any more."""
        ...

    def reset(self) -> None:
        """Forget all calls."""
        ...


# -- presets ------------------------------------------------------------------------------------------


class _Preset(fib_tracer.FilterPolicy):
    """Part of a policy of fib-tracer that decides when a call is submitted. Counts last across drains."""

    def submit(self, entry: Any) -> None:
        """Hold the call if the policy keeps it."""
        unread: Any = None  # presets read no definition
        call = fib_tracer.Call(unread, entry.axes, entry.inputs_to_dump, _totals(entry.inputs_to_dump))
        if self.decide(call) is Decision.KEEP:
            self.admit(call)
            super().submit(entry)

    def reset(self) -> None:
        """Forget all calls and counts."""
        self.drain()
        super().reset()


def _totals(inputs: Mapping[str, Any]) -> dict[str, int]:
    """The last elements of the stored inputs that end in ``indptr``."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor) and value.ndim == 1}
    return {name: int(value[-1]) for name, value in tensors.items() if name.endswith("indptr") and len(value)}


def _preset(kind: type[fib_tracer.FilterPolicy], name: str = "") -> Any:
    """The preset for a policy of fib-tracer."""
    return type(name or f"{kind.__name__}Policy", (_Preset, kind), {"__doc__": kind.__doc__})


KeepAllPolicy = _preset(policies.KeepAll)
KeepNonePolicy = _preset(policies.KeepNone)
KeepFirstPolicy = _preset(policies.KeepFirst)
KeepFirstKPolicy = _preset(policies.KeepFirstK)
KeepFirstKByAxesPolicy = _preset(policies.KeepFirstKByAxes)
AttentionFilterPolicy = _preset(policies.Attention, "AttentionFilterPolicy")
_PRESETS: dict[type, type] = {preset.__mro__[2]: preset for preset in _Preset.__subclasses__()}
"""By the policy of fib-tracer."""


# -- policies of programs --------------------------------------------------------------------------------


class _Adapter:
    """A policy of a program, for fib-tracer."""

    policy: ClassVar[Any]

    def __init__(self, **arguments: Any) -> None:
        self._policy = self.policy(**arguments)


class _AdaptedDump(_Adapter, fib_tracer.InputDumpPolicy):
    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        names: Iterable[str] = self._policy.dump(dict(inputs))
        return names


class _AdaptedFilter(_Adapter, fib_tracer.FilterPolicy):
    """It receives each call with the copies of its inputs, and identifies calls by `WorkloadEntry.order`."""

    def submit(self, entry: fib_tracer.WorkloadEntry) -> None:
        super().submit(entry)
        stored = {name: value for name, value in entry.inputs.items() if value is not fib_tracer.RANDOM}
        self._policy.submit(WorkloadEntry(entry.def_name, dict(entry.axes), stored, entry.order))

    def drain(self) -> list[fib_tracer.WorkloadEntry]:
        submitted = {entry.order: entry for entry in super().drain()}
        return [submitted[entry.order] for entry in self._policy.drain()]

    def reset(self) -> None:
        super().reset()
        self._policy.reset()


@attrs.frozen
class _Policies:
    """Policies of one kind: those of fib-tracer, where those of a program are registered with their adapters."""

    protocol: Any
    adapter: type[_Adapter]
    native_register: Callable[..., Any]
    native_get: Callable[[str], type]

    def register(self, name: str, policy: Any = None, override: bool = False) -> Any:
        """Register a class with the methods of the protocol: called with it, or used as its decorator.

        Raises:
            InvalidSetting: It lacks a method, or the name is taken and `override` is false (a ValueError).
        """
        if policy is None:
            return functools.partial(self.register, name, override=override)
        if not isinstance(policy, type) or not issubclass(policy, self.protocol):
            raise InvalidSetting(name, policy, f"a class with the methods of {self.protocol.__name__}")
        is_native = issubclass(policy, (fib_tracer.InputDumpPolicy, fib_tracer.FilterPolicy))
        adapted = policy if is_native else type(policy.__name__, (self.adapter,), {"policy": policy})
        self.native_register(name, adapted, override=override)
        return policy

    def get(self, name: str) -> type:
        """The class of a name.

        Raises:
            UnknownPolicy: There is none (a ValueError).
        """
        found = self.native_get(name)
        own: type = getattr(found, "policy", found)
        return _PRESETS.get(found, own)


_NATIVE = fib_tracer.PolicyRegistry
_DUMPING = _Policies(InputDumpPolicy, _AdaptedDump, _NATIVE.register_input_dump_policy, _NATIVE.get_input_dump_policy)
_FILTERING = _Policies(FilterPolicy, _AdaptedFilter, _NATIVE.register_filter_policy, _NATIVE.get_filter_policy)


class PolicyRegistry:
    """Policies by name. Those of fib-tracer that have no preset here are found too."""

    register_input_dump_policy = _DUMPING.register
    get_input_dump_policy = _DUMPING.get
    list_input_dump_policies = _NATIVE.list_input_dump_policies
    register_filter_policy = _FILTERING.register
    get_filter_policy = _FILTERING.get
    list_filter_policies = _NATIVE.list_filter_policies


# -- settings -----------------------------------------------------------------------------------------


class TracingConfig(fib_tracer.TracingConfig):
    """The policies for a definition; see `fib_tracer.TracingConfig`."""

    def create_filter_policy(self) -> FilterPolicy:
        """A new filter policy with a state of its own.

        Raises:
            UnknownPolicy: There is none of that name (a ValueError).
        """
        setting = self.filter_policy
        make = PolicyRegistry.get_filter_policy(setting) if isinstance(setting, str) else setting
        policy: FilterPolicy = make(**self.filter_policy_kwargs)
        return policy

    def get_inputs_to_dump(self, names: Sequence[str], values: Iterable[Any]) -> dict[str, Any]:
        """The inputs to store, by name.

        Raises:
            InvalidSetting: The settings or the policy name something else (a ValueError).
        """
        inputs = dict(zip(names, values, strict=True))
        setting = self.input_dump_policy
        chosen = list(setting if isinstance(setting, list | tuple) else self.make_dump_policy().dump(inputs))
        for name in chosen:
            if name not in inputs:
                raise InvalidSetting("input_dump_policy", name, "an input: " + ", ".join(names))
        return {name: inputs[name] for name in chosen}


class TracingRuntime(fib_tracer.TracingRuntime):
    """Records workloads of a data set's definitions.

    Settings of definitions that the data set lacks are logged and ignored; None means `get_full_configs`.

    Raises:
        DataSetNotFound: There is no such folder (a FileNotFoundError).
        NoRoot: The data set is in memory only (a ValueError).
    """

    def __init__(
        self,
        trace_set: fib_schema.TraceSet | str | os.PathLike[str] | None = None,
        tracing_config: Any = None,
        **options: Any,
    ) -> None:
        opened = trace_set if isinstance(trace_set, fib_schema.TraceSet) else TraceSet.from_path(trace_set)
        self._opened = opened
        super().__init__(opened, _without_absent(tracing_config, opened.definition_names()), **options)

    @classmethod
    def get_instance(cls) -> fib_tracer.TracingRuntime | None:
        """The runtime that was started last, by `fib_compat.install` if ``FIB_ENABLE_TRACING`` says so."""
        return get_tracing_runtime()

    def stop(self) -> None:
        """Store what was kept; the runtime that was started before records again.

        Raises:
            RuntimeError: This is not the runtime that was started last.
        """
        if get_tracing_runtime() is not self:
            raise RuntimeError("only the tracing runtime that was started last can be stopped; stop that one first")
        self.__exit__()

    def __exit__(self, *details: object) -> None:
        super().stop()

    def flush(self, timeout_seconds: float | None = None) -> Any:
        """Wait until all kept calls are stored; returns the counts by definition."""
        counts = super().flush(timeout_seconds)
        if isinstance(self._opened, TraceSet):
            self._opened.reread_workloads()
        return counts

    def collect(
        self, name: str, args: Sequence[Any] | Mapping[str, Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Record a call; one that does not fit its definition is logged and skipped."""
        try:
            super().collect(name, args, kwargs)
        except (LookupError, TypeError, ValueError) as error:
            logger.warning("a call of %r is not collected: %s", name, error)


def enable_tracing(
    dataset_path: fib_schema.TraceSet | str | os.PathLike[str] | None = None, tracing_config: Any = None, **options: Any
) -> TracingRuntime:
    """Install FlashInfer's adapters, and record workloads from now on, or within a ``with`` block.

    Raises:
        DataSetNotFound: There is no such folder (a FileNotFoundError).
    """
    install_flashinfer_integrations()
    return TracingRuntime(dataset_path, tracing_config, **options).start()


def _without_absent(settings: Any, names: Collection[str]) -> Any:
    """Settings without the definitions that a data set lacks, each of which is logged."""
    per_definition = settings if isinstance(settings, Mapping) else getattr(settings, "per_definition", None)
    if not per_definition:
        return settings
    kept = {name: per_definition[name] for name in present("definition", per_definition, names, logger)}
    return kept if isinstance(settings, Mapping) else attrs.evolve(settings, per_definition=kept)
