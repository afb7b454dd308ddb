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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, runtime_checkable

import attrs
import fib_schema
import fib_tracer
import torch
from fib_integrations import install_flashinfer_integrations
from fib_schema import UnknownName
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
        call = fib_tracer.Call(_NO_DEFINITION, entry.axes, entry.inputs_to_dump, _totals(entry.inputs_to_dump))
        if self.decide(call) is Decision.KEEP:
            self.admit(call)
            super().submit(entry)

    def reset(self) -> None:
        """Forget all calls and counts."""
        self.drain()
        super().reset()


_NO_DEFINITION: Any = None  # the policies of the presets read none


def _totals(inputs: Mapping[str, Any]) -> dict[str, int]:
    """The last elements of the stored inputs that end in ``indptr``."""
    offsets = {name: value for name, value in inputs.items() if name.endswith("indptr")}
    return {
        name: int(value[-1])
        for name, value in offsets.items()
        if isinstance(value, torch.Tensor) and value.ndim == 1 and len(value)
    }


def _preset(kind: type[fib_tracer.FilterPolicy], name: str = "") -> Any:
    """The preset for a policy of fib-tracer."""
    return type(name or f"{kind.__name__}Policy", (_Preset, kind), {"__doc__": kind.__doc__})


KeepAllPolicy = _preset(policies.KeepAll)
KeepNonePolicy = _preset(policies.KeepNone)
KeepFirstPolicy = _preset(policies.KeepFirst)
KeepFirstKPolicy = _preset(policies.KeepFirstK)
KeepFirstKByAxesPolicy = _preset(policies.KeepFirstKByAxes)
AttentionFilterPolicy = _preset(policies.Attention, "AttentionFilterPolicy")


# -- adapters to fib-tracer -----------------------------------------------------------------------------


class _AdaptedDump(fib_tracer.InputDumpPolicy):
    """A dump policy of a program, for fib-tracer."""

    policy: ClassVar[Any]

    def __init__(self, **arguments: Any) -> None:
        self._policy = self.policy(**arguments)

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """Return value of the policy."""
        names: Iterable[str] = self._policy.dump(dict(inputs))
        return names


class _AdaptedFilter(fib_tracer.FilterPolicy):
    """A filter policy of a program, for fib-tracer: it receives each call with the copies of its inputs."""

    policy: ClassVar[Any]

    def __init__(self, **arguments: Any) -> None:
        self._policy = self.policy(**arguments)
        self._submitted: dict[int, fib_tracer.WorkloadEntry] = {}

    def submit(self, entry: fib_tracer.WorkloadEntry) -> None:
        """Pass it to the policy."""
        stored = {name: value for name, value in entry.inputs.items() if value is not fib_tracer.RANDOM}
        self._submitted[entry.order] = entry
        self._policy.submit(WorkloadEntry(entry.def_name, dict(entry.axes), stored, entry.order))

    def drain(self) -> list[fib_tracer.WorkloadEntry]:
        """The entries of the calls that the policy returns, which it identifies by `WorkloadEntry.order`."""
        kept = [self._submitted[entry.order] for entry in self._policy.drain()]
        self._submitted.clear()
        return kept

    def reset(self) -> None:
        """Reset the policy."""
        self._submitted.clear()
        self._policy.reset()


# -- registry -----------------------------------------------------------------------------------------


class UnknownPolicy(UnknownName, ValueError):
    """No policy has this name; a ValueError, as the old package documents, and a KeyError, as fib-tracer does."""


@attrs.frozen
class _Policies:
    """Policies of one kind: classes of a program, which are registered with fib-tracer too, and its own."""

    methods: tuple[str, ...]
    adapter: type
    native_register: Callable[..., Any]
    native_get: Callable[[str], type]
    registered: dict[str, type]

    def register(self, name: str, policy: Any = None, override: bool = False) -> Any:
        """Register a class with the methods of the protocol: called with it, or used as its decorator.

        Raises:
            InvalidSetting: It lacks a method, or the name is taken and `override` is false (a ValueError).
        """
        if policy is None:
            return functools.partial(self.register, name, override=override)
        if not isinstance(policy, type) or not all(callable(getattr(policy, method, None)) for method in self.methods):
            raise InvalidSetting(name, policy, "a class with " + ", ".join(self.methods))
        if name in self.registered and not override:
            raise InvalidSetting(name, policy, "override=True, because a policy of that name exists")
        is_native = issubclass(policy, self.adapter.__bases__)
        adapted = policy if is_native else type(self.adapter)(policy.__name__, (self.adapter,), {"policy": policy})
        self.native_register(name, adapted, override=override or name not in self.registered)
        self.registered[name] = policy
        return policy

    def get(self, name: str) -> type:
        """The class of a name.

        Raises:
            UnknownPolicy: There is none (a ValueError).
        """
        if name in self.registered:
            return self.registered[name]
        with _unknown_is_value_error():
            return self.native_get(name)


@contextmanager
def _unknown_is_value_error() -> Iterator[None]:
    try:
        yield
    except UnknownName as error:
        raise UnknownPolicy(error.kind, error.name, error.known) from None


_DUMPING = _Policies(
    ("dump",),
    _AdaptedDump,
    fib_tracer.PolicyRegistry.register_input_dump_policy,
    fib_tracer.PolicyRegistry.get_input_dump_policy,
    {},
)
_FILTERING = _Policies(
    ("submit", "drain", "reset"),
    _AdaptedFilter,
    fib_tracer.PolicyRegistry.register_filter_policy,
    fib_tracer.PolicyRegistry.get_filter_policy,
    {
        "keep_all": KeepAllPolicy,
        "keep_none": KeepNonePolicy,
        "keep_first": KeepFirstPolicy,
        "keep_first_k": KeepFirstKPolicy,
        "keep_first_k_by_axes": KeepFirstKByAxesPolicy,
        "attention": AttentionFilterPolicy,
    },
)


class PolicyRegistry:
    """Policies by name. Those of fib-tracer that have no preset here are found too."""

    register_input_dump_policy = _DUMPING.register
    get_input_dump_policy = _DUMPING.get
    list_input_dump_policies = fib_tracer.PolicyRegistry.list_input_dump_policies
    register_filter_policy = _FILTERING.register
    get_filter_policy = _FILTERING.get
    list_filter_policies = fib_tracer.PolicyRegistry.list_filter_policies


# -- settings -----------------------------------------------------------------------------------------


class TracingConfig(fib_tracer.TracingConfig):
    """The policies for a definition; see `fib_tracer.TracingConfig`.

    Raises:
        InvalidSetting: A policy cannot be made from a setting (a ValueError).
        UnknownPolicy: No policy has that name (a ValueError).
    """

    def __attrs_post_init__(self) -> None:
        with _unknown_is_value_error():
            super().__attrs_post_init__()

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


class TracingConfigRegistry(fib_tracer.TracingConfigRegistry):
    """Settings by definition, and a default for all others; without a default, these are not traced."""

    def __init__(
        self,
        default: fib_tracer.TracingConfig | None = None,
        per_definition: Mapping[str, fib_tracer.TracingConfig] | None = None,
        rules: Iterable[Any] = (),
    ) -> None:
        super().__init__(default, dict(per_definition or {}), tuple(rules))


def _as_documented(make: Callable[[], fib_tracer.TracingConfigRegistry]) -> Callable[[], TracingConfigRegistry]:
    @functools.wraps(make)
    def made() -> TracingConfigRegistry:
        registry = make()
        return TracingConfigRegistry(registry.default, registry.per_definition, registry.rules)

    return made


get_default_configs = _as_documented(fib_tracer.get_default_configs)
get_full_configs = _as_documented(fib_tracer.get_full_configs)
get_attention_only_configs = _as_documented(fib_tracer.get_attention_only_configs)


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
        """The runtime that was started last, by the import of `flashinfer_bench` if ``FIB_ENABLE_TRACING`` says so."""
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


def _without_absent(settings: Any, names: Collection[str]) -> Any:
    """Settings without the definitions that a data set lacks, each of which is logged."""
    per_definition = settings if isinstance(settings, Mapping) else getattr(settings, "per_definition", None)
    if not per_definition:
        return settings
    kept = {name: per_definition[name] for name in present("definition", per_definition, names, logger)}
    return kept if isinstance(settings, Mapping) else attrs.evolve(settings, per_definition=kept)
