"""Routing of the old package: settings, runtime and the functions that enable it.

Differences to `fib_apply`: the fastest solution is routed even if its reference was faster, enabling installs
FlashInfer's adapters, the objects of a data set count and not its folder, settings may name definitions that the data
set lacks, and a call waits for a solution that is not built beforehand, instead of going to its fallback meanwhile.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import attrs
import fib_apply
import fib_schema
from fib_apply.config import CONFIG_VARIABLE
from fib_integrations import install_flashinfer_integrations

from .trace_set import TraceSet, present

if TYPE_CHECKING:
    from fib_apply.routing.dispatcher import Dispatcher

logger = logging.getLogger("flashinfer_bench.apply")
BUILD_SECONDS = 600.0
"""Longest wait of a call for solutions of its definition to be built."""
Source: TypeAlias = "fib_schema.TraceSet | str | os.PathLike[str] | None"


_is_bound: Any = attrs.fields_dict(fib_apply.ApplyConfig)["max_atol"].validator


@attrs.frozen
class ApplyConfig(fib_apply.ApplyConfig):
    """Settings of `fib_apply.ApplyConfig`; the fastest solution is routed, also if the reference was faster.

    Traces count up to an absolute error of 1e-2 and a relative error of 1e-5, unless other bounds are given; None
    trusts the verdict of the benchmark.
    """

    max_atol: float | None = attrs.field(default=1e-2, validator=_is_bound)
    max_rtol: float | None = attrs.field(default=1e-5, validator=_is_bound)
    require_speedup: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))


class ApplyConfigRegistry(fib_apply.ApplyConfigRegistry):
    """Settings by definition, and a default for all others; without a default, these are not routed.

    Raises:
        InvalidSetting: A value is not an `ApplyConfig` (a ValueError).
    """

    def __init__(
        self,
        default: fib_apply.ApplyConfig | None = None,
        per_definition: Mapping[str, fib_apply.ApplyConfig] | None = None,
    ) -> None:
        super().__init__(default, dict(per_definition or {}))
        if default is None:
            object.__setattr__(self, "default", None)  # documented so; `for_runtime` has a default

    def get(self, name: str) -> fib_apply.ApplyConfig | None:  # type: ignore[override] # documented so
        """The settings of a definition, or None."""
        return self.per_definition.get(name, self.default)

    def register(self, name: str, config: fib_apply.ApplyConfig, override: bool = False) -> Self:  # type: ignore[override]
        """Set the settings of one definition; returns this registry.

        Raises:
            InvalidSetting: It has settings, and `override` is false (a ValueError).
        """
        return self.register_many({name: config}, override)

    def register_many(self, configs: Mapping[str, fib_apply.ApplyConfig], override: bool = False) -> Self:  # type: ignore[override]
        """Set the settings of several definitions; returns this registry."""
        settings = self.for_runtime()
        settings.register_many(configs, override)
        self.per_definition.update(settings.per_definition)
        return self

    def for_runtime(self) -> fib_apply.ApplyConfigRegistry:
        """The settings for `fib_apply`, with a default."""
        return fib_apply.ApplyConfigRegistry(self.default, self.per_definition)  # None becomes fib_apply's default


def get_default_registry() -> ApplyConfigRegistry:
    """The settings that `enable_apply` uses without an argument: the defaults, for every definition."""
    return ApplyConfigRegistry(ApplyConfig())


class ApplyRuntime(fib_apply.ApplyRuntime):
    """Routes calls to the solutions that a data set's traces select for this hardware.

    Settings of definitions that the data set lacks are logged and ignored.

    Raises:
        DataSetNotFound: There is no such folder (a FileNotFoundError).
    """

    def __init__(self, trace_set: Source = None, apply_config: Any = None, **options: Any) -> None:
        if apply_config is None and not os.environ.get(CONFIG_VARIABLE):
            apply_config = get_default_registry()
        self._registry = apply_config if isinstance(apply_config, ApplyConfigRegistry) else None
        source = trace_set.for_routing() if isinstance(trace_set, TraceSet) else trace_set
        native = apply_config if self._registry is None else self._registry.for_runtime()
        super().__init__(source, native, **{"wait_seconds": BUILD_SECONDS, **options})
        present("definition", self.config.per_definition, self.table.definitions, logger)

    def stop(self) -> None:
        """Deactivate this runtime; the one below becomes active again.

        Raises:
            RuntimeError: This is not the runtime that was started last.
        """
        if fib_apply.get_runtime() is not self:
            raise RuntimeError("only the apply runtime that was started last can be stopped; stop that one first")
        super().stop()

    def dispatcher(self, name: str) -> Dispatcher | None:
        """The dispatcher of a definition; None if it is unknown or has no settings."""
        if self._registry is not None and self._registry.get(name) is None:
            return None
        return super().dispatcher(name)


def enable_apply(dataset_path: Source = None, apply_config: Any = None, **options: Any) -> ApplyRuntime:
    """Install FlashInfer's adapters, and route calls by a data set: from now on, or within a ``with`` block.

    Raises:
        DataSetNotFound: There is no such folder (a FileNotFoundError).
    """
    install_flashinfer_integrations()
    return ApplyRuntime(dataset_path, apply_config, **options).start()
