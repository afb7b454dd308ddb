"""Tracing of the old package: settings, runtime and the functions that enable it.

Differences to `fib_tracer`: enabling installs FlashInfer's adapters, policies need no base class, settings may name
definitions that the data set lacks, `TracingRuntime.collect` skips bad calls, and the data set sees what was stored.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import attrs
import fib_schema
import fib_tracer
from fib_apply.environment import enabled_by_environment
from fib_integrations import install_flashinfer_integrations
from fib_tracer import InvalidSetting, disable_tracing, get_tracing_runtime

from .policies import (
    DUMP_PRESETS,
    FILTER_PRESETS,
    AdaptedDump,
    AdaptedFilter,
    FilterPolicy,
    InputDumpPolicy,
    PolicyRegistry,
)
from .trace_set import TraceSet

__all__ = [
    "TracingConfig",
    "TracingConfigRegistry",
    "TracingRuntime",
    "disable_tracing",
    "enable_tracing",
    "get_attention_only_configs",
    "get_default_configs",
    "get_full_configs",
]

logger = logging.getLogger("flashinfer_bench.tracing")


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
            policy = PolicyRegistry.get_input_dump_policy(setting)
            if not _is_preset(policy, DUMP_PRESETS):
                made = policy(**self.input_dump_policy_kwargs)
                return made if isinstance(made, fib_tracer.InputDumpPolicy) else AdaptedDump(made)
        elif not isinstance(setting, fib_tracer.InputDumpPolicy) and isinstance(setting, InputDumpPolicy):
            return AdaptedDump(setting)
        return super().make_dump_policy()

    def make_filter_policy(self) -> fib_tracer.FilterPolicy:
        """A new filter policy for fib-tracer."""
        setting: Any = self.filter_policy
        if isinstance(setting, str):
            policy: Any = PolicyRegistry.get_filter_policy(setting)
            if not _is_preset(policy, FILTER_PRESETS):
                made = policy(**self.filter_policy_kwargs)
                return made if isinstance(made, fib_tracer.FilterPolicy) else AdaptedFilter(made)
        elif isinstance(setting, type) and not issubclass(setting, fib_tracer.FilterPolicy):
            policy = setting(**self.filter_policy_kwargs)
            return AdaptedFilter(policy)
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

        Args:
            names: Of the inputs.
            values: In the same order.

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


def _is_preset(policy: type, presets: Mapping[str, type]) -> bool:
    return policy in presets.values()


class TracingConfigRegistry(fib_tracer.TracingConfigRegistry):
    """Settings by definition, and a default for all others; without a default, these are not traced."""

    def __init__(
        self,
        default: fib_tracer.TracingConfig | None = None,
        per_definition: Mapping[str, fib_tracer.TracingConfig] | None = None,
        rules: Iterable[Any] = (),
    ) -> None:
        super().__init__(default, dict(per_definition or {}), tuple(rules))

    def register(self, name: str, config: fib_tracer.TracingConfig, override: bool = False) -> Self:  # type: ignore[override]
        """Set the settings of one definition; returns this registry.

        Raises:
            InvalidSetting: It has some already, and `override` is false (a ValueError).
        """
        return self.register_many({name: config}, override)

    def register_many(self, configs: Mapping[str, fib_tracer.TracingConfig], override: bool = False) -> Self:  # type: ignore[override]
        """Set the settings of several definitions; returns this registry."""
        super().register_many(configs, override)
        return self


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

    Args:
        trace_set: The data set, or its folder; None means ``FIB_DATASET_PATH`` or the default.
        tracing_config: Settings for all definitions, by definition, a registry, or None for `get_full_configs`. Those
            of definitions that the data set lacks are logged and ignored.
        options: Those of `fib_tracer.TracingRuntime`.

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
        """Record a call; one that does not fit its definition is logged and skipped.

        Args:
            name: The definition's name.
            args: Inputs by position, in the definition's order; or by name.
            kwargs: Inputs by name.
        """
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

    Args:
        dataset_path: The data set or its folder; None means ``FIB_DATASET_PATH`` or the default.
        tracing_config: Settings; see `TracingRuntime`.
        options: Those of `fib_tracer.TracingRuntime`.

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
