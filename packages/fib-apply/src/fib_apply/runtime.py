"""Apply runtime: routes calls by the table of one data set. Runtimes nest; the last one started is active.

Nothing here imports torch before a call is routed or a solution is built.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from fib_schema import TraceSet

from . import activation
from .build_service.service import BuildService, OnProgress
from .config import ApplyConfigRegistry
from .configuration import Configuration, SettingsOrFile
from .errors import InvalidSetting, NoKernel
from .events import emit, logger, reload_failed, reloaded
from .metrics import CallMetrics, DefinitionStats
from .readiness import Readiness, WarmUpOutcome, observed_warm_up
from .replicas import AgreedKernels, NoAgreement, ReplicaGroup, Synchronization
from .router import Router, load_table
from .routing.call_sites import Name, call_fallback, definition_of, serve_directly
from .routing.native.module import wait_with_native
from .selection.table import ApplyTable
from .synchronizer import Synchronizer, check_settings

if TYPE_CHECKING:
    from .routing.dispatcher import Dispatcher


_FORKED = "the runtime was made before this process was forked; make another one"


class ApplyRuntime:
    """Routes calls to the solutions that a data set's traces select for this hardware.

    Args:
        trace_set: The data set, or its folder; None means ``FIB_DATASET_PATH`` or the default.
        apply_config: Settings for all definitions, or by definition, or a YAML file with them; None means the file
            of ``FIB_APPLY_CONFIG``, or the defaults.
        stats: Whether calls are counted; None means as the file says.
        on_progress: Called while solutions are built.
        wait_seconds: How long a call may wait for a solution that is being built; by default the fallback serves it.
        replicas: The processes that must route alike: nothing is routed before `synchronize`, and only that changes it.

    Raises:
        DataSetNotFound: There is no such folder.
        InvalidConfigFile: `apply_config` is a file that is not valid (a ValueError).
        InvalidSetting: There are replicas, and settings compare calls with the fallback (`ApplyConfig.shadow_ratio`).
    """

    def __init__(
        self,
        trace_set: TraceSet | str | os.PathLike[str] | None = None,
        apply_config: SettingsOrFile = None,
        *,
        stats: bool | None = None,
        on_progress: OnProgress | None = None,
        wait_seconds: float = 0.0,
        replicas: ReplicaGroup | None = None,
    ) -> None:
        self.configuration = Configuration.of(apply_config, stats)
        """The settings, and where they come from."""
        self._on_progress = on_progress or (lambda *_: None)
        self._replicas = replicas
        self._staged: tuple[Router, Configuration] | None = None
        check_settings(replicas, self.configuration.registry)
        self._lock = threading.RLock()
        self._reloads = self._loaded = self._entered = 0
        self._below: tuple[activation.ActiveRuntime, ...] = ()
        self._source = trace_set
        self._make_router = partial(Router, metrics=dict[str, CallMetrics](), wait_seconds=wait_seconds)
        table = load_table(trace_set, self.configuration.registry)
        make = partial(self._make_router, build_service=BuildService(), quarantined={})
        self._router = make(table, self.configuration, agreed=None if replicas is None else AgreedKernels())
        self.is_off = self.configuration.why_off() is not None
        """Whether it routes no calls: ``FIB_ENABLE_APPLY`` is 0, or the file of ``FIB_APPLY_CONFIG`` is not usable."""
        self._is_prepared = False

    def start(self) -> Self:
        """Build ahead of time, and make this runtime the active one."""
        activation.initialize()
        if self.is_off:
            logger.info("routing is off: %s", self.configuration.why_off() or _FORKED)
        else:
            self.prepare()
        self._below = activation.push(self)
        return self

    def stop(self) -> None:
        """Deactivate this runtime; the one below becomes active again."""
        activation.remove(self)

    def __enter__(self) -> Self:
        self._entered += 1
        return self if activation.is_active(self) else self.start()

    def __exit__(self, *details: object) -> None:
        self._entered -= 1
        if self._entered == 0:
            activation.remove(self, self._below)

    @classmethod
    def get_instance(cls) -> ApplyRuntime | None:
        """The active runtime."""
        return get_runtime()

    # -- calls ---------------------------------------------------------------------------------------

    def dispatcher(self, name: str) -> Dispatcher | None:
        """The dispatcher of a definition, or None if the data set has none of that name."""
        if (found := self._router.dispatcher(name)) is not None:
            activation.request_native_guards(self)
        return found

    def dispatch(
        self,
        def_name: str,
        args: Sequence[Any] | Mapping[str, Any] | None = (),
        kwargs: Mapping[str, Any] | Callable[..., Any] | None = None,
        fallback: Callable[..., Any] | None = None,
        *,
        runtime_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Serve one call. ``dispatch(name, {...}, fallback)`` is the older form.

        Args:
            def_name: The definition's name.
            args: Inputs by position, followed by outputs or nothing.
            kwargs: Inputs and outputs by name.
            fallback: Serves the call if no solution does; takes the same arguments.
            runtime_kwargs: The same as `kwargs`.

        Raises:
            NoKernel: No solution serves the call, and there is no fallback.
        """
        if callable(kwargs):
            kwargs, fallback = None, kwargs
        positional = () if args is None or isinstance(args, Mapping) else tuple(args)
        named = {**(args if isinstance(args, Mapping) else {}), **(kwargs or {}), **(runtime_kwargs or {})}
        dispatcher = None if self.is_off else self.dispatcher(def_name)
        return serve_directly(dispatcher, def_name, positional, named, fallback)

    def __call__(
        self,
        def_name_or_resolver: Name,
        runtime_kwargs: Mapping[str, Any] | None = None,
        fallback: Callable[..., Any] | None = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Serve one call, as `apply` does with the active runtime. To decorate a function, use `apply`."""
        if runtime_kwargs is None and args is None and kwargs is None:
            raise TypeError("a runtime serves calls only: pass args=(...), kwargs={...} or runtime_kwargs={...}")
        args, named = args or (), {**(kwargs or {}), **(runtime_kwargs or {})}
        name = definition_of(def_name_or_resolver, args, named)
        if name is None:
            return call_fallback("?", "its resolver named no definition", args, named, fallback)
        return self.dispatch(name, args, named, fallback)

    def plan(self, def_name: str, *inputs: Any, fallback: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Set up the best solution for inputs; returns a function for calls with equal inputs. See `Dispatcher.plan`.

        Raises:
            NoKernel: The data set has no such definition, and there is no fallback.
        """
        dispatcher = None if self.is_off else self.dispatcher(def_name)
        if dispatcher is not None:
            return dispatcher.plan(*inputs, fallback=fallback)
        if fallback is None:
            raise NoKernel(def_name, "there is no such definition")
        return fallback

    # -- table and builds ----------------------------------------------------------------------------

    def prepare(self, *, waits: bool = True) -> None:
        """Build ahead of time, as the settings say; once.

        Args:
            waits: Whether this returns after the builds; else they run in the background.
        """
        with self._lock:
            is_first, self._is_prepared = not self._is_prepared, True
        build = partial(self._router.build_ahead, self._on_progress)
        if is_first and waits:
            build()
        elif is_first:
            self._router.build_service.submit(build, "building ahead")

    def reload(self) -> None:
        """Load the changed data set, as a whole for each call. With replicas, it takes effect in `synchronize`."""
        self.rebuild()

    def rebuild(
        self,
        traceset: TraceSet | str | os.PathLike[str] | None = None,
        config: SettingsOrFile = None,
    ) -> None:
        """Load another data set or other settings; a configuration file is read again.

        Of concurrent reloads, the one that began last counts. If one fails, the earlier table stays.

        Args:
            traceset: The data set, or its folder; None means the present one.
            config: Settings, or a file with them; None means the present ones.

        Raises:
            DataSetNotFound: There is no such folder.
            InvalidConfigFile: A configuration file is not valid.
            OSError: A configuration file cannot be read.
        """
        with self._lock:
            number = self._reloads = self._reloads + 1
        began = time.monotonic()
        try:
            configuration = self.configuration.renewed(config)
            check_settings(self._replicas, configuration.registry)
            source = self._source if traceset is None else traceset
            if isinstance(source, TraceSet) and source.root is not None:
                source = source.root  # the objects of an opened set do not change
            table = load_table(source, configuration.registry)
            earlier = self._router
            made = self._make_router(
                table,
                configuration,
                build_service=earlier.build_service.successor(),
                quarantined=earlier.still_quarantined(table),
                agreed=earlier.agreed,
            )
            is_off = configuration.why_off() is not None
            if not is_off:
                made.build_ahead(self._on_progress)
            made.continue_quarantines(self._router)
            with self._lock:  # builders may decorate functions and reload, so no lock is held before
                if number < self._loaded:
                    return
                if self._replicas is not None:
                    self._loaded, self._source, self._staged = number, source, (made, configuration)
                    return
                is_changed = table.digest != self.table.digest
                self._loaded, self._source, self._router = number, source, made
                self.configuration, self.is_off = configuration, is_off
            self._rebind()
        except Exception as error:
            emit(reload_failed(time.monotonic() - began, error))
            raise
        emit(reloaded(time.monotonic() - began, is_changed=is_changed))

    def synchronize(self, timeout_seconds: float = 60.0) -> Synchronization:
        """Agree with all replicas on what is routed from now on; blocks until all have called this.

        All must call it at the same place of their sequence of calls, while no other thread calls. What all have built,
        quarantines of any, and a reload that all have made take effect. Without an agreement nothing changes.

        Args:
            timeout_seconds: How long to wait for the others, their builds included.

        Raises:
            InvalidSetting: The runtime was made without `replicas`.
        """
        if self._replicas is None:
            raise InvalidSetting("replicas", None, "a ReplicaGroup, to synchronize with")
        with self._lock:
            current, staged = self._router, self._staged
        wanted, configuration = staged or (current, self.configuration)
        off = configuration.why_off() is not None
        synchronizer = Synchronizer(self._replicas, current, wanted, self._on_progress, is_off=off)
        try:
            agreement, agreed = synchronizer.agree(timeout_seconds)
        except NoAgreement as error:
            logger.error("the replicas have not agreed, and route as before: %s", error)
            return Synchronization(False, str(error))
        make = partial(self._make_router, build_service=wanted.build_service, quarantined=agreement.quarantined)
        made = make(wanted.table, configuration, agreed=agreed)
        with self._lock:
            self._router, self.configuration, self.is_off = made, configuration, off
            if self._staged is staged:  # else there was another reload meanwhile
                self._staged = None
        self._rebind()
        return Synchronization(True, solutions=tuple(sorted(agreed.runnables)))

    def _rebind(self) -> None:
        if get_runtime() is self:
            activation.rebind_call_sites()

    def wait_until_built(self, timeout_seconds: float) -> bool:
        """Wait for builds and warm-ups in the background, native guards included; returns whether all are finished."""
        return wait_with_native(self._router.build_service.wait, timeout_seconds)

    def warm_up(self, timeout_seconds: float) -> Readiness:
        """Wait for builds, first runs and native guards before CUDA graphs are captured; see `fib_apply.warm_up`."""
        with observed_warm_up() as outcome:
            self.wait_and_settle(timeout_seconds, outcome)
        return outcome.readiness()

    def wait_and_settle(self, timeout_seconds: float, outcome: WarmUpOutcome) -> None:
        """Do the work of `warm_up`, and add its results to an outcome, which the caller logs."""
        activation.request_native_guards(self)  # adapters request them only when they are first called
        outcome.is_finished = self.wait_until_built(max(0.0, timeout_seconds))
        outcome.add(self._router.close_capture_gate())

    def prepare_captures(self, timeout_seconds: float) -> None:
        """Let calls wait for their solutions until the next `warm_up`; see `fib_apply.capture_phase`."""
        self._router.open_capture_gate(timeout_seconds)

    # -- inspection ----------------------------------------------------------------------------------

    @property
    def config(self) -> ApplyConfigRegistry:
        """The settings."""
        return self._router.config

    @property
    def table(self) -> ApplyTable:
        """The table of selected solutions."""
        return self._router.table

    def stats(self) -> dict[str, DefinitionStats]:
        """The current counts by definition; empty if calls are not counted."""
        return self._router.stats()

    def left_out(self) -> dict[str, str]:
        """The solutions that are not called, each with the reason."""
        return self._router.left_out()

    def explain(self, name: str, /, *args: Any, **kwargs: Any) -> str:
        """Explanation of a definition's routing: the solutions, the reasons and the generated code.

        With the arguments of a call: the solution that would serve it now, or the reason why the fallback would;
        nothing is called.

        Raises:
            UnknownName: The data set has no such definition (a KeyError).
            InvalidRecord: Its file has changed since the table was made.
        """
        if self.is_off and (args or kwargs):
            self.table.definition(name)
            return f"the fallback: routing is off ({self.configuration.why_off()})"
        return self._router.explain(name, args, kwargs)


def get_runtime() -> ApplyRuntime | None:
    """The active runtime; on first use, the environment may start one in the background (``FIB_ENABLE_APPLY``)."""
    found = activation.active_runtime()
    assert found is None or isinstance(found, ApplyRuntime)  # no other class is ever pushed
    return found


def set_runtime(runtime: ApplyRuntime | None) -> None:
    """Make one runtime the only active one; None deactivates all."""
    for replaced in activation.replace_all(*(() if runtime is None else (runtime,))):
        if isinstance(replaced, ApplyRuntime) and replaced is not runtime:
            ApplyRuntime.stop(replaced)  # without what a subclass adds for calls by a program


connect = activation.connect


def _make_default() -> ApplyRuntime:
    made = ApplyRuntime()
    if not made.is_off:
        made.prepare(waits=False)
    return made


activation.set_default_runtime(_make_default)
