"""Sites: patched functions, and where their calls go at the moment.

While nobody routes or listens, a call goes to the original. Else generated code (see `covering`) reads the
call and looks its route up by what it read; routes are made when first needed, and forgotten
whenever a runtime starts or stops or somebody else listens.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import attrs
from fib_apply.hook import is_listened
from fib_apply.routing.sites import Runtime

from .adapter import Adapter, Call, Described, Plan, Target
from .binding import binding_of
from .covering import compiled, cover_source, identifier, wrapper_source
from .errors import CannotAdapt
from .log import logger
from .plans import Planned, Plans
from .routes import Maker, OwnSolutions, Route, Served, dispatcher_of, problem

_MOST_ROUTES = 4096
_ERRORS = (Exception,)
"""What a reader may raise: it may be somebody else's, and the engine must go on."""
_INLINE = "_torchdynamo_inline"
"""What torch.compile traces in place of a function: so fib-apply tells it of its stand-ins."""


class _Here(threading.local):
    """Whether this thread is inside a routed call: what a solution calls goes to the originals."""

    is_inside = False


_here = _Here()


@attrs.frozen
class Covered:
    """What a call computes, in words of definitions."""

    definition: str
    inputs: Mapping[str, Any] = attrs.field(repr=lambda inputs: str(list(inputs)))


@attrs.frozen
class Uncovered:
    """Why no definition describes a call."""

    reason: str


class Site:
    """A patched function.

    Args:
        adapter: Whose target it is.
        target: What its calls are.
        original: The function.
        plans: What objects were told, of this adapter.
        own_solutions: Says which solutions of a definition are the original in another form.

    Raises:
        CannotAdapt: The function is not what the adapter was written for.
    """

    __slots__ = (
        "__weakref__",
        "_cover",
        "_is_removed",
        "_maker",
        "_name",
        "_plans",
        "_runtime",
        "_scope",
        "adapter",
        "binding",
        "original",
        "refused",
        "target",
        "wrapper",
    )

    def __init__(
        self,
        adapter: Adapter,
        target: Target,
        original: Callable[..., Any],
        *,
        plans: Plans,
        own_solutions: OwnSolutions,
    ) -> None:
        self.adapter, self.target, self.original = adapter, target, original
        self.refused: Counter[str] = Counter()
        """Why calls were not covered, if that is counted."""
        self._plans = plans
        self._is_removed = False
        self._runtime: Runtime | None = None
        self._maker = Maker(adapter, target, original, own_solutions) if isinstance(target, Call) else None
        self._name = identifier(getattr(original, "__name__", "call"))
        self.binding = binding_of(target, original)
        self._scope = self._make_scope()
        self._cover = compiled(cover_source(self._name, target, self.binding, self._stamp()), self._name, self._scope)
        self.wrapper = self._make_wrapper()

    def _make_scope(self) -> dict[str, Any]:
        target = self.target
        return {
            **self.binding.scope,
            "_fib_original": self.original,
            "_fib_cover": None,
            "_fib_here": _here,
            "_fib_type": type,
            "_fib_str": str,
            "_fib_id": id,
            "_fib_errors": _ERRORS,
            "_fib_served": Served,
            "_fib_read": getattr(target, "read", None),
            "_fib_give": getattr(target, "give", None),
            "_fib_refuse": self._refuse,
            "_fib_broken": self._broken,
            "_fib_resolve": self._resolve,
            "_fib_renew": self._renew,
            "_fib_plans": self._plans.by_id,
            "_fib_forget": self._plans.forget,
            "_fib_remember": self._remember,
            "_fib_generation": None,
            "_fib_returning": {},
            "_fib_passing": {},
        }

    def _stamp(self) -> str:
        """The attribute that each plan replaces, as the adapter's `Plan` says, that of the same class before others."""
        plans = [target for target in self.adapter.targets if isinstance(target, Plan)]
        owner = self.target.path.rpartition(".")[0]
        return next((p.stamp for p in sorted(plans, key=lambda p: p.path.rpartition(".")[0] != owner)), "_plan_info")

    def _make_wrapper(self) -> Callable[..., Any]:
        source = wrapper_source(self._name, self.target, self.binding)
        wrapper = compiled(source, self._name, self._scope)
        functools.update_wrapper(wrapper, self.original)
        vars(wrapper)["__fib_site__"] = self  # the two live as long as each other
        setattr(wrapper, _INLINE, self.original)
        return wrapper

    # -- being pointed -------------------------------------------------------------------------------

    def point(self, runtime: Runtime | None) -> None:
        """Have calls go through a runtime, to listeners, or straight to the original."""
        if self._is_removed:
            return
        self._runtime = runtime
        self._scope |= {"_fib_returning": {}, "_fib_passing": {}, "_fib_generation": object()}
        self._scope["_fib_cover"] = self._cover if runtime is not None or is_listened() else None

    def ask_first(self, ask: Callable[[], None]) -> None:
        """At the first call, have somebody decide who routes and listens; it points this site."""

        def asking(args: tuple[Any, ...], kwargs: dict[str, Any], *same: Any, **named: Any) -> Any:
            del same, named
            ask()
            return self.wrapper(*args, **kwargs)

        self._scope["_fib_cover"] = asking

    def count(self) -> None:
        """From now on, count calls that are not covered, by reason."""
        self._scope["_fib_refuse"] = self._refuse_counted

    def remove(self) -> None:
        """Have all calls go to the original from now on, for whoever still holds the wrapper."""
        self._is_removed = True
        self._scope["_fib_cover"] = None

    def restore(self) -> None:
        """The opposite: for a wrapper that is in place again."""
        self._is_removed = False

    # -- calls ---------------------------------------------------------------------------------------

    def _resolve(
        self, routes: dict[Any, Route], key: Hashable, values: Sequence[Any], is_passing: bool, planned: Planned | None
    ) -> Route:
        assert self._maker is not None  # only covers of calls come here
        described: Described | None
        try:
            described = self._maker.target.describe(key)
            dispatcher = dispatcher_of(described.name, self._runtime)
            reason = problem(self.adapter, described, None if dispatcher is None else dispatcher.definition)
        except _ERRORS as error:
            described, reason = None, self._broken(error)
        if described is None or reason is not None:
            route = self._refusing(reason or "")
        else:
            plan = None if planned is None else planned.value
            route = self._maker.make(described, self._runtime, values, is_passing=is_passing, plan=plan)
        if len(routes) >= _MOST_ROUTES:
            routes.clear()
        routes[key] = route
        return route

    def _refusing(self, reason: str) -> Route:
        def refused(*values: Any) -> Served:
            *_, args, kwargs = values
            return Served(self._scope["_fib_refuse"](reason, args, kwargs))

        return refused

    def _refuse(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del reason
        return self.original(*args, **kwargs)

    def _refuse_counted(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.refused[reason] += 1
        return self.original(*args, **kwargs)

    def _broken(self, error: Exception) -> str:
        """What to say of a call that a reader could not read; a defect of the adapter, told once."""
        reason = f"the adapter could not read it: {type(error).__name__}: {error}"
        if not self.refused[reason]:
            logger.warning("%s: %s; such calls go to the library", self.target.path, reason)
            self.refused[reason] = 1
        return reason

    def _renew(self, planned: Planned) -> None:
        """Forget routes that rest on what is no more in force."""
        planned.returning, planned.passing = {}, {}
        planned.generation = self._scope["_fib_generation"]

    def _remember(self, owner: Any, value: Any) -> None:
        self._plans.remember(owner, value, getattr(owner, self._stamp(), None))

    # -- telling -------------------------------------------------------------------------------------

    def look_at(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Covered | Uncovered:
        """What a call computes, without making it.

        Raises:
            CannotAdapt: It is a method that plans: it computes nothing.
            TypeError: The arguments are not the function's.
        """
        if self._maker is None:
            raise CannotAdapt(self.target.path, "it computes nothing itself")
        arguments = self._arguments(args, kwargs)
        leading: tuple[Any, ...] = ()
        if self._maker.target.reads_plan:
            planned = self._plans.by_id.get(id(args[0]))
            if planned is None:
                return Uncovered("it was not planned since somebody routes or listens")
            if isinstance(planned.value, str):
                return Uncovered(planned.value)
            if getattr(args[0], self._stamp(), None) is not planned.stamp:
                return Uncovered("it was planned by other means since")
            leading = (planned.value,)
        for condition, reason in self.binding.refusals:
            if eval(condition, self._scope, arguments):  # noqa: S307 generated, of identifiers
                return Uncovered(reason)
        scope = {**self._scope, "_fib_leading": leading}
        try:
            found = eval(f"_fib_read(*_fib_leading, {self.binding.passed})", scope, arguments)  # noqa: S307 likewise
            return self._covered(found)
        except _ERRORS as error:
            return Uncovered(self._broken(error))

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = inspect.Signature(self.binding.parameters).bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def _covered(self, found: Any) -> Covered | Uncovered:
        assert self._maker is not None  # the caller has looked
        if isinstance(found, str):
            return Uncovered(found)
        key, values, _ = found
        described: Described = self._maker.target.describe(key)
        dispatcher = dispatcher_of(described.name, self._runtime)
        reason = problem(self.adapter, described, None if dispatcher is None else dispatcher.definition)
        if reason is not None:
            return Uncovered(reason)
        return Covered(described.name, dict(zip(described.inputs, values, strict=False)))
