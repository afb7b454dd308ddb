"""Tracing of the old package: policies by its protocols, settings, runtime and the functions that enable it.

A policy is any class with the methods of `FilterPolicy` or `InputDumpPolicy`. Policies that a program registers are
adapted; a preset's name selects fib-tracer's own policy, which decides before anything is copied. Further differences
to `fib_tracer`: enabling installs FlashInfer's adapters, settings may name definitions that the data set lacks,
`TracingRuntime.collect` skips bad calls, and the data set sees what was stored.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import attrs
import fib_schema
import fib_tracer
import torch
from fib_apply.config import enabled_by_environment
from fib_integrations import install_flashinfer_integrations
from fib_schema import UnknownName
from fib_tracer import Decision, InvalidSetting, disable_tracing, get_tracing_runtime, policies

from .trace_set import TraceSet

__all__ = [
    "AttentionFilterPolicy",
    "FilterPolicy",
    "InputDumpPolicy",
    "KeepAllPolicy",
    "KeepFirstKByAxesPolicy",
    "KeepFirstKPolicy",
    "KeepFirstPolicy",
    "KeepNonePolicy",
    "PolicyRegistry",
    "TracingConfig",
    "TracingConfigRegistry",
    "TracingRuntime",
    "WorkloadEntry",
    "disable_tracing",
    "enable_tracing",
    "get_attention_only_configs",
    "get_default_configs",
    "get_full_configs",
]

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
    """Chooses the calls that are stored. Subclasses inherit a policy that keeps all."""

    def submit(self, entry: WorkloadEntry) -> None:
        """Receive a call."""
        _held(self).append(entry)

    def drain(self) -> list[WorkloadEntry]:
        """The calls to store; none is held any more."""
        held = list(_held(self))
        _held(self).clear()
        return held

    def reset(self) -> None:
        """Forget all calls."""
        _held(self).clear()


def _held(policy: object) -> list[WorkloadEntry]:
    held: list[WorkloadEntry] = policy.__dict__.setdefault("_entries", [])  # subclasses need not call __init__
    return held


# -- presets ------------------------------------------------------------------------------------------


class _Preset(FilterPolicy):
    """A policy of fib-tracer, which is asked when a call is submitted. Counts last across drains."""

    kind: ClassVar[type[fib_tracer.FilterPolicy]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._policy = self.kind(*args, **kwargs)

    def submit(self, entry: WorkloadEntry) -> None:
        """Hold the call if the policy keeps it."""
        call = fib_tracer.Call(_NO_DEFINITION, entry.axes, entry.inputs_to_dump, _totals(entry.inputs_to_dump))
        if self._policy.decide(call) is Decision.KEEP:
            self._policy.admit(call)
            super().submit(entry)

    def reset(self) -> None:
        """Forget all calls and counts."""
        super().reset()
        self._policy.reset()


_NO_DEFINITION: Any = None  # the policies of the presets read none


def _totals(inputs: Mapping[str, Any]) -> dict[str, int]:
    """The last elements of the stored inputs that end in ``indptr``."""
    offsets = {name: value for name, value in inputs.items() if name.endswith("indptr")}
    return {
        name: int(value[-1])
        for name, value in offsets.items()
        if isinstance(value, torch.Tensor) and value.ndim == 1 and len(value)
    }


class KeepAllPolicy(_Preset):
    """Keeps all calls."""

    kind = policies.KeepAll


class KeepNonePolicy(_Preset):
    """Keeps no call."""

    kind = policies.KeepNone


class KeepFirstKPolicy(_Preset):
    """Keeps the first k calls."""

    kind = policies.KeepFirstK


class KeepFirstPolicy(_Preset):
    """Keeps the first call."""

    kind = policies.KeepFirst


class KeepFirstKByAxesPolicy(_Preset):
    """Keeps the first k calls of each combination of axis sizes."""

    kind = policies.KeepFirstKByAxes


class AttentionFilterPolicy(_Preset):
    """Keeps the first k calls of each average sequence length, by the stored inputs that end in ``indptr``."""

    kind = policies.Attention


# -- registry -----------------------------------------------------------------------------------------

_FILTER_PRESETS: Mapping[str, type] = {
    "keep_all": KeepAllPolicy,
    "keep_none": KeepNonePolicy,
    "keep_first": KeepFirstPolicy,
    "keep_first_k": KeepFirstKPolicy,
    "keep_first_k_by_axes": KeepFirstKByAxesPolicy,
    "attention": AttentionFilterPolicy,
}


class UnknownPolicy(UnknownName, ValueError):
    """No policy has this name; a ValueError, as the old package documents, and a KeyError, as fib-tracer does."""


class PolicyRegistry:
    """Policies by name. Those of fib-tracer that have no preset here are found too."""

    registered_dumping: ClassVar[dict[str, type]] = {}
    registered_filtering: ClassVar[dict[str, type]] = dict(_FILTER_PRESETS)

    @classmethod
    def register_input_dump_policy(cls, name: str, policy: Any = None, override: bool = False) -> Any:
        """Register a class with the methods of `InputDumpPolicy`: called with it, or used as its decorator.

        Raises:
            InvalidSetting: It lacks a method, or the name is taken and `override` is false (a ValueError).
        """
        return _register(cls.registered_dumping, name, policy, ("dump",), override=override)

    @classmethod
    def register_filter_policy(cls, name: str, policy: Any = None, override: bool = False) -> Any:
        """Register a class with the methods of `FilterPolicy`; see `register_input_dump_policy`."""
        return _register(cls.registered_filtering, name, policy, ("submit", "drain", "reset"), override=override)

    @classmethod
    def get_input_dump_policy(cls, name: str) -> type:
        """The class of a name.

        Raises:
            UnknownPolicy: There is none (a ValueError).
        """
        return _get(cls.registered_dumping, "input dump policy", name, fib_tracer.PolicyRegistry.get_input_dump_policy)

    @classmethod
    def get_filter_policy(cls, name: str) -> type:
        """The class of a name; see `get_input_dump_policy`."""
        return _get(cls.registered_filtering, "filter policy", name, fib_tracer.PolicyRegistry.get_filter_policy)

    @classmethod
    def list_input_dump_policies(cls) -> list[str]:
        """The names, sorted."""
        return sorted({*cls.registered_dumping, *fib_tracer.PolicyRegistry.list_input_dump_policies()})

    @classmethod
    def list_filter_policies(cls) -> list[str]:
        """The names, sorted."""
        return sorted({*cls.registered_filtering, *fib_tracer.PolicyRegistry.list_filter_policies()})


def _register(registered: dict[str, type], name: str, policy: Any, methods: Iterable[str], *, override: bool) -> Any:
    def register(cls: Any) -> Any:
        missing = [method for method in methods if not callable(getattr(cls, method, None))]
        if not isinstance(cls, type) or missing:
            raise InvalidSetting(name, cls, "a class with " + ", ".join(methods))
        if name in registered and not override:
            raise InvalidSetting(name, cls, "override=True, because a policy of that name exists")
        registered[name] = cls
        return cls

    return register if policy is None else register(policy)


def _get(registered: Mapping[str, type], kind: str, name: str, find: Callable[[str], type]) -> type:
    if name in registered:
        return registered[name]
    try:
        return find(name)
    except UnknownName as error:
        raise UnknownPolicy(kind, name, tuple({*registered, *error.known})) from None


# -- adapters to fib-tracer -----------------------------------------------------------------------------


class _AdaptedDump(fib_tracer.InputDumpPolicy):
    """A dump policy of a program, for fib-tracer."""

    def __init__(self, policy: InputDumpPolicy) -> None:
        self._policy = policy

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """Return value of the policy."""
        return self._policy.dump(dict(inputs))


class _AdaptedFilter(fib_tracer.FilterPolicy):
    """A filter policy of a program, for fib-tracer: it receives each call with the copies of its inputs."""

    def __init__(self, policy: FilterPolicy) -> None:
        self._policy = policy
        self._entries: dict[int, fib_tracer.WorkloadEntry] = {}

    def submit(self, entry: fib_tracer.WorkloadEntry) -> None:
        """Pass it to the policy."""
        stored = {name: value for name, value in entry.inputs.items() if value is not fib_tracer.RANDOM}
        self._entries[entry.order] = entry
        self._policy.submit(WorkloadEntry(entry.def_name, dict(entry.axes), stored, entry.order))

    def drain(self) -> list[fib_tracer.WorkloadEntry]:
        """The entries of the calls that the policy returns, which it identifies by `WorkloadEntry.order`."""
        kept = [self._entries[entry.order] for entry in self._policy.drain()]
        self._entries.clear()
        return kept

    def reset(self) -> None:
        """Reset the policy."""
        self._entries.clear()
        self._policy.reset()


class TracingConfig(fib_tracer.TracingConfig):
    """The policies for a definition; see `fib_tracer.TracingConfig`.

    Raises:
        InvalidSetting: A policy cannot be made from a setting (a ValueError).
        UnknownPolicy: No policy has that name (a ValueError).
    """

    def make_dump_policy(self) -> fib_tracer.InputDumpPolicy:
        """A new input dump policy for fib-tracer."""
        setting = self.input_dump_policy
        if isinstance(setting, str):
            policy: Any = PolicyRegistry.get_input_dump_policy(setting)
            if setting in PolicyRegistry.registered_dumping:
                made = policy(**self.input_dump_policy_kwargs)
                return made if isinstance(made, fib_tracer.InputDumpPolicy) else _AdaptedDump(made)
        elif not isinstance(setting, fib_tracer.InputDumpPolicy) and isinstance(setting, InputDumpPolicy):
            return _AdaptedDump(setting)
        return super().make_dump_policy()

    def make_filter_policy(self) -> fib_tracer.FilterPolicy:
        """A new filter policy for fib-tracer."""
        setting: Any = self.filter_policy
        if isinstance(setting, str):
            policy: Any = PolicyRegistry.get_filter_policy(setting)
            if setting in PolicyRegistry.registered_filtering and policy not in _FILTER_PRESETS.values():
                made = policy(**self.filter_policy_kwargs)
                return made if isinstance(made, fib_tracer.FilterPolicy) else _AdaptedFilter(made)
        elif isinstance(setting, type) and not issubclass(setting, fib_tracer.FilterPolicy):
            policy = setting(**self.filter_policy_kwargs)
            return _AdaptedFilter(policy)
        return super().make_filter_policy()

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
        is_listed = isinstance(setting, (list, tuple))
        chosen = list(setting) if is_listed else list(self.make_dump_policy().dump(inputs))
        for name in chosen:
            if name not in inputs:
                raise InvalidSetting("input_dump_policy", name, "an input: " + ", ".join(names))
        return {name: inputs[name] for name in chosen}


class TracingConfigRegistry(fib_tracer.TracingConfigRegistry):
    """Settings by definition, and a default for all others; without a default, these are not traced."""

    def __init__(
        self,
        default: fib_tracer.TracingConfig | None = None,
        per_definition: Mapping[str, fib_tracer.TracingConfig] | None = None,
        rules: Iterable[Any] = (),
    ) -> None:
        super().__init__(default, dict(per_definition or {}), tuple(rules))


def get_default_configs() -> TracingConfigRegistry:
    """The default settings, for all definitions."""
    return _changeable(fib_tracer.get_default_configs())


def get_full_configs() -> TracingConfigRegistry:
    """Dense operators once for each size, attention by average length with its indices, all others by default."""
    return _changeable(fib_tracer.get_full_configs())


def get_attention_only_configs() -> TracingConfigRegistry:
    """Attention like `get_full_configs`; nothing else is traced."""
    return _changeable(fib_tracer.get_attention_only_configs())


def _changeable(registry: fib_tracer.TracingConfigRegistry) -> TracingConfigRegistry:
    return TracingConfigRegistry(registry.default, registry.per_definition, registry.rules)


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
        """The runtime that was started last; the first call starts one if ``FIB_ENABLE_TRACING`` says so."""
        global _has_read_environment  # noqa: PLW0603 once per process
        if get_tracing_runtime() is None and not _has_read_environment and enabled_by_environment("FIB_ENABLE_TRACING"):
            enable_tracing()
        _has_read_environment = True
        return get_tracing_runtime()

    def stop(self) -> None:
        """Store what was kept; the runtime that was started before records again.

        Raises:
            RuntimeError: This is not the runtime that was started last.
        """
        if get_tracing_runtime() is not self:
            raise RuntimeError("only the tracing runtime that was started last can be stopped; stop that one first")
        self._finish()

    def __exit__(self, *details: object) -> None:
        self._finish()

    def _finish(self) -> None:
        super().stop()
        self._show_stored()

    def flush(self, timeout_seconds: float | None = None) -> Any:
        """Wait until all kept calls are stored; returns the counts by definition."""
        counts = super().flush(timeout_seconds)
        self._show_stored()
        return counts

    def _show_stored(self) -> None:
        if isinstance(self._opened, TraceSet):
            self._opened.reread_workloads()

    def collect(
        self, name: str, args: Sequence[Any] | Mapping[str, Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Record a call; one that does not fit its definition is logged and skipped."""
        try:
            super().collect(name, args, kwargs)
        except (LookupError, TypeError, ValueError) as error:
            logger.warning("a call of %r is not collected: %s", name, error)


_has_read_environment = False


def enable_tracing(
    dataset_path: fib_schema.TraceSet | str | os.PathLike[str] | None = None,
    tracing_config: Any = None,
    **options: Any,
) -> TracingRuntime:
    """Install FlashInfer's adapters, and record workloads from now on, or within a ``with`` block.

    Raises:
        DataSetNotFound: There is no such folder (a FileNotFoundError).
    """
    install_flashinfer_integrations()
    runtime = TracingRuntime(dataset_path, tracing_config, **options)
    runtime.start()
    return runtime


def _without_absent(settings: Any, names: Iterable[str]) -> Any:
    """Settings without the definitions that a data set lacks, each of which is logged."""
    per_definition = settings if isinstance(settings, Mapping) else getattr(settings, "per_definition", None)
    if not per_definition:
        return settings
    known = frozenset(names)
    for name in sorted(per_definition.keys() - known):
        logger.warning("the data set has no definition %r, which the settings of tracing name", name)
    kept = {name: config for name, config in per_definition.items() if name in known}
    if isinstance(settings, Mapping):
        return kept
    return attrs.evolve(settings, per_definition=kept)
