"""Patched functions: the wrapper that replaces a library function, and the state behind it.

While no runtime is enabled and no listener is registered, a call goes to the original. Otherwise generated code
(`wrapper_codegen`) converts the call and looks up its handler (`handlers`). Handlers are made at the first call of a
key and discarded when a runtime starts or stops, or the listeners change.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from fib_apply.hook import callbacks_for, has_listeners
from fib_apply.routing.call_sites import Runtime
from torch._C._dynamo import eval_frame

from .adapter import PLAN_STATE, Adapter, Call, CannotAdapt, DefinitionRef, Target, definition_mismatch
from .baselines import matching_baselines, may_win
from .handlers import Handler, HandlerFactory, OriginalResult, PassedOn, PlanStore, RecordedPlan, find_dispatcher
from .wrapper_codegen import compiled, dispatch_source, identifier, inlined_source, read_signature, wrapper_source

if TYPE_CHECKING:
    from fib_apply.routing.dispatcher import Dispatcher

_logger = logging.getLogger(__name__)
_MAX_HANDLERS = 4096
_CONVERSION_ERRORS = (Exception,)
"""An adapter may be third-party code, and the engine must go on."""
_INLINE = "_torchdynamo_inline"
"""The function that torch.compile traces instead of this one, as in `fib_apply.routing.call_sites`."""

_CONSTANT = "_dynamo_marked_constant"
"""The attribute that `torch.compiler.assume_constant_result` sets, whose module takes a second to import."""


class _ThreadState(threading.local):
    """Whether this thread is inside a handler: a solution's own calls of the library go to the originals."""

    is_in_handler = False


_thread_state = _ThreadState()


@attrs.frozen
class ConvertedCall:
    """The definition that describes a call, and its inputs."""

    definition: str
    inputs: Mapping[str, Any] = attrs.field(repr=lambda inputs: str(list(inputs)))


@attrs.frozen
class UnsupportedCall:
    """The reason why no definition describes a call."""

    reason: str


@attrs.frozen(eq=False)
class _Binding:
    """Everything that is known of definitions while one runtime is enabled; engines plan, and so ask, at each step."""

    runtime: Runtime | None = None
    described: dict[DefinitionRef, tuple[DefinitionRef, Dispatcher | None] | str] = attrs.field(factory=dict)
    """The definition and its dispatcher, or the reason why its calls are unsupported."""
    baselines: dict[str, frozenset[str]] = attrs.field(factory=dict)
    routes: dict[tuple[str, str], Callable[..., Any]] = attrs.field(factory=dict)
    handlers: dict[tuple[DefinitionRef, bool], Handler] = attrs.field(factory=dict)
    """Handlers that are the same for all plans, by definition and whether the caller passes buffers."""
    passed_on: dict[Any, PassedOn] = attrs.field(factory=dict)
    """The `PatchedFunction.passed_on`."""


class PatchedFunction:
    """A library function and the wrapper that replaces it.

    Raises:
        CannotAdapt: The function differs from what the adapter was written for.
    """

    def __init__(self, adapter: Adapter, target: Target, original: Callable[..., Any], *, plans: PlanStore) -> None:
        self.adapter, self.target, self.original = adapter, target, original
        self.unsupported_counts: Counter[str] = Counter()
        """The number of unsupported calls by reason, if they are counted."""
        self.plans = plans
        """The plans of the adapter's objects."""
        self.is_enabled = False
        """Whether calls are converted: there is a runtime or a listener, or the first call starts one."""
        self.passed_on: Mapping[Any, PassedOn] = {}
        """The handlers of all calls of a key, or of all runs of plans of some sizes, which need not be converted."""
        self.is_active = True
        """Whether calls may be converted; if not, `deactivate` has sent them to the original."""
        self._binding = _Binding()
        self._reported: set[str] = set()
        self._name = identifier(getattr(original, "__name__", "call"))
        self.signature = read_signature(target, original)
        self._source = dispatch_source(self._name, target, self.signature)
        self._scope = self._make_scope()
        self._dispatch = compiled(self._source, self._name, self._scope)
        self.wrapper = compiled(wrapper_source(self._name, target, self.signature), self._name, self._scope)
        functools.update_wrapper(self.wrapper, original)
        vars(self.wrapper)["__fib_patched__"] = self
        self._hide_dispatch_from_dynamo()

    def _hide_dispatch_from_dynamo(self) -> None:
        """Make torch.compile trace the original where it meets the dispatch function, and run that as it is.

        The wrapper itself is traced: of a method whose wrapper has an inlined function, Dynamo calls that function
        without the object after a graph break.
        """
        self._trace_instead(self._dispatch, self.original)
        skip_frames(self._dispatch)

    def _trace_instead(self, dispatch: Callable[..., Any], traced: Callable[..., Any]) -> None:
        """Make Dynamo trace a function in place of a dispatch function; it guards the identity of what is set here."""
        setattr(dispatch, _INLINE, compiled(inlined_source(self._name), self._name, {"_fib_original": traced}))

    def may_serve(self, key: Hashable) -> bool:
        """Whether calls of a key may be routed, or are traced."""
        found = self._describe(key, self._binding)
        if isinstance(found, str):
            return False
        definition, dispatcher = found
        if dispatcher is not None:
            baselines = self._baselines(dispatcher, self._binding)
            if dispatcher.is_counted or may_win(dispatcher, baselines):
                return True
        return bool(callbacks_for(definition.name, definition.inputs))

    def _make_scope(self) -> dict[str, Any]:
        return {
            **self.signature.scope,
            "_fib_original": self.original,
            "_fib_dispatch": None,
            "_fib_thread": _thread_state,
            "_fib_type": type,
            "_fib_str": str,
            "_fib_id": id,
            "_fib_errors": _CONVERSION_ERRORS,
            "_fib_original_result": OriginalResult,
            "_fib_passed_on": PassedOn,
            "_fib_make_key": getattr(self.target, "key", None),
            "_fib_convert": getattr(self.target, "convert", None),
            "_fib_finalize": getattr(self.target, "finalize", None),
            "_fib_fall_through": self._fall_through,
            "_fib_conversion_failed": self._conversion_failed,
            "_fib_add_handler": self._add_handler,
            "_fib_plans": self.plans.by_id,
            "_fib_invalidate": self.plans.invalidate,
            "_fib_record_plan": self._record_plan,
            "_fib_start_plan": self._start_plan,
            "_fib_generation": None,
            "_fib_handlers": {},
            "_fib_dps_handlers": {},
            "_fib_keys_passed_on": {},
        }

    # -- switching -----------------------------------------------------------------------------------

    def make_binding(self, runtime: Runtime | None) -> Callable[[], None]:
        """Return what routes calls through a runtime, notifies listeners only, or calls the original directly."""
        return functools.partial(self._bind, runtime)

    def _bind(self, runtime: Runtime | None) -> None:
        if not self.is_active:
            return
        self._binding = _Binding(runtime)
        self.passed_on = self._binding.passed_on
        self._scope |= {"_fib_handlers": {}, "_fib_dps_handlers": {}, "_fib_generation": object()}
        self._scope["_fib_keys_passed_on"] = self.passed_on
        if (make := getattr(self.target, "compiled_as", None)) is not None:
            may_serve = lambda key: self.may_serve(key)  # noqa: E731, PLW0108 a bound method has no attributes of its own
            setattr(may_serve, _CONSTANT, True)
            self._trace_instead(self._dispatch, make(self.original, self.wrapper, may_serve))
        self._set_dispatch(self._dispatch if runtime is not None or has_listeners() else None)

    def _set_dispatch(self, dispatch: Callable[..., Any] | None) -> None:
        self._scope["_fib_dispatch"] = dispatch
        self.is_enabled = dispatch is not None

    def start_at_first_call(self, start: Callable[[], None]) -> None:
        """Call a function at the first call; it connects this one to fib-apply, which binds it."""

        @skip_frames
        def starting(args: tuple[Any, ...], kwargs: dict[str, Any], *same: Any, **named: Any) -> Any:
            del same, named
            start()
            return self.wrapper(*args, **kwargs)

        self._trace_instead(starting, self.original)  # a compiler may come first, and must find no break
        self._set_dispatch(starting)

    def enable_counting(self) -> None:
        """Count unsupported calls by reason from now on."""
        self._scope["_fib_fall_through"] = self._count_and_fall_through

    def deactivate(self) -> None:
        """Send all calls to the original, for callers that still hold the wrapper."""
        self.is_active = False
        self._set_dispatch(None)

    # -- calls ---------------------------------------------------------------------------------------

    def _add_handler(
        self,
        handlers: dict[Any, Handler],
        key: Hashable,
        values: Sequence[Any],
        is_dps: bool,
        plan: RecordedPlan | None,
    ) -> Handler:
        binding = self._binding  # another thread may bind another runtime meanwhile
        found = self._describe(key, binding)
        if isinstance(found, str):
            handler: Handler = self._unsupported_handler(found)
        else:
            handler = self._handler(*found, binding, values, is_dps, None if plan is None else plan.value)
        if len(handlers) >= _MAX_HANDLERS:
            handlers.clear()
        handlers[key] = handler
        if isinstance(handler, PassedOn) and not handler.callbacks:
            place = key if plan is None else plan.pass_on(key, handler)
            if len(binding.passed_on) >= _MAX_HANDLERS:
                binding.passed_on.clear()
            if place is not None:
                binding.passed_on[place] = handler
        return handler

    def _handler(
        self,
        definition: DefinitionRef,
        dispatcher: Dispatcher | None,
        binding: _Binding,
        values: Sequence[Any],
        is_dps: bool,
        plan: Any,
    ) -> Handler:
        """The handler of a definition's calls. Most plans share one: engines plan at each step."""
        has_own = dispatcher is not None and plan is not None and (dispatcher.may_have_setup or not plan.is_routable)
        if not has_own and (known := binding.handlers.get((definition, is_dps))) is not None:
            return known
        baselines = self._baselines(dispatcher, binding)
        factory = HandlerFactory(self._call_target(), self.original, self._current_fall_through, binding.routes)
        handler = factory.make(definition, dispatcher, values, is_dps=is_dps, baselines=baselines, plan=plan)
        if not has_own:
            binding.handlers[definition, is_dps] = handler
        return handler

    def _describe(self, key: Any, binding: _Binding) -> tuple[DefinitionRef, Dispatcher | None] | str:
        """The definition of a key and its dispatcher, or the reason why the calls are unsupported."""
        try:
            definition = self._call_target().describe(key)
            if definition not in binding.described:
                dispatcher = find_dispatcher(definition.name, binding.runtime)
                at_hand = None if dispatcher is None else dispatcher.definition
                problem = definition_mismatch(self.adapter, definition, at_hand)
                binding.described[definition] = problem or (definition, dispatcher)
            return binding.described[definition]
        except _CONVERSION_ERRORS as error:
            return self._conversion_failed(error)

    def _call_target(self) -> Call:
        assert isinstance(self.target, Call)  # other targets have no handlers
        return self.target

    def _baselines(self, dispatcher: Dispatcher | None, binding: _Binding) -> frozenset[str]:
        if dispatcher is None or binding.runtime is None:
            return frozenset()
        known, definition = binding.baselines, dispatcher.definition
        if definition.name not in known:
            known[definition.name] = matching_baselines(self.adapter, binding.runtime, definition)
        return known[definition.name]

    def _unsupported_handler(self, reason: str) -> Handler:
        def unsupported(*values: Any) -> OriginalResult:
            *_, args, kwargs = values
            return OriginalResult(self._current_fall_through(reason, args, kwargs))

        return unsupported

    def _current_fall_through(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._scope["_fib_fall_through"](reason, args, kwargs)

    def _fall_through(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del reason
        return self.original(*args, **kwargs)

    def _count_and_fall_through(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.unsupported_counts[reason] += 1
        return self.original(*args, **kwargs)

    def _conversion_failed(self, error: Exception) -> str:
        """The reason to state for a call whose conversion raised; a defect of the adapter, logged once."""
        reason = f"its conversion raised {type(error).__name__}"  # not with the message, which may differ for each call
        if reason not in self._reported:
            self._reported.add(reason)
            _logger.warning("%s: the call falls through, because %s: %s", self.target.path, reason, error)
        return reason

    def _record_plan(self, owner: Any, value: Any, previous: RecordedPlan | None) -> None:
        self.plans.record(owner, value, getattr(owner, PLAN_STATE, None), previous)

    def _start_plan(self, plan: RecordedPlan) -> None:
        """Prepare for the first run of a plan; the decision for an earlier plan of its sizes counts for it, too."""
        plan.discard_handlers(self._scope["_fib_generation"])
        known = self._binding.passed_on.get(getattr(plan.value, "sizes", None))
        if known is not None and not isinstance(plan.value.current, str):
            plan.pass_on(plan.value.current, known)

    # -- explaining ----------------------------------------------------------------------------------

    def explain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ConvertedCall | UnsupportedCall:
        """Convert a call without making it.

        Raises:
            CannotAdapt: The function is a method that plans: it computes nothing itself.
            TypeError: The arguments do not match the function's parameters.
        """
        if not isinstance(self.target, Call):
            raise CannotAdapt(self.target.path, "it computes nothing itself")
        plan = self.plans.by_id.get(id(args[0])) if args else None
        if plan is not None and getattr(args[0], PLAN_STATE, None) is not plan.state:
            plan.renew(args[0], getattr(args[0], PLAN_STATE, None))
        copied = {} if plan is None else {id(args[0]): plan.detached()}
        overrides = {
            "_fib_thread": _ThreadState(),
            "_fib_plans": copied,
            "_fib_handlers": {},
            "_fib_dps_handlers": {},
            "_fib_keys_passed_on": {},
            "_fib_add_handler": self._explaining_handler,
            "_fib_start_plan": lambda plan: plan.discard_handlers(None),
            "_fib_fall_through": lambda reason, *_: UnsupportedCall(reason),
        }
        dispatch = compiled(self._source, self._name, {**self._scope, **overrides})
        found: ConvertedCall | UnsupportedCall = dispatch(tuple(args), dict(kwargs), *args, **kwargs)
        return found

    def _explaining_handler(self, handlers: Any, key: Hashable, values: Sequence[Any], *others: Any) -> Handler:
        del handlers, others
        found = self._describe(key, self._binding)
        if isinstance(found, str):
            result: ConvertedCall | UnsupportedCall = UnsupportedCall(found)
        else:
            result = ConvertedCall(found[0].name, dict(zip(found[0].inputs, values, strict=False)))
        return lambda *_: OriginalResult(result)


F = TypeVar("F", bound=Callable[..., Any])


def skip_frames(function: F) -> F:
    """Make Dynamo run a function and all that it calls as they are. Returns the function.

    Dynamo compiles each function that is called while a compiled function runs as it is, such as after a graph break
    within ``try``. Of torch 2.6, only the function's own frame is skipped.
    """
    module: Any = eval_frame
    if hasattr(module, "skip_code"):
        module.skip_code(function.__code__)
    else:
        skip = module._FrameAction.SKIP  # noqa: SLF001 torch has no public name for it
        module.set_code_exec_strategy(function.__code__, module._FrameExecStrategy(skip, skip))  # noqa: SLF001
    return function
