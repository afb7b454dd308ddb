"""torch.compile: what Dynamo traces where eager code runs a dispatcher.

A dispatcher is plain Python that Dynamo must not look into. Each gets a *stand-in*: a generated
function of the same signature that Dynamo traces in its place, and that eager calls never meet. The
stand-in holds one opaque operator for calls that fit the definition, and the user's function for all
others: another rank, dtype or constant dimension, two devices, a tensor subclass, autocast, an
argument that requires grad. The operator calls the decorated function when the graph runs, so what
is enabled then is what serves.

Dynamo finds the stand-in in the attribute by which torch.compile marks its own results
(``_torchdynamo_inline``; so since torch 2.0). The public `torch.compiler.substitute_in_graph` does the
same, but cannot be undone and keeps for ever each function it was told of; the attribute lives and
dies with the dispatcher. Guards of a graph see the attribute's value alone: enabling retraces
once, disabling and enabling again reuse the graphs there are, and so does a new dispatcher.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import attrs
from fib_compile.signatures import VARIADIC, argument_list, default_values, given_condition, parameter_list
from fib_schema import AxisConst, Definition, DType, TensorSpec
from fib_schema.definition import TORCH_DTYPE_NAMES
from fib_schema.framing import framed

from ..errors import CannotRoute

if TYPE_CHECKING:
    import torch

NAMESPACE = "fib_apply"
"""Where torch keeps the operators: ``torch.ops.fib_apply``."""

_ATTRIBUTE = "_torchdynamo_inline"
_MEMO = "_fib_apply_stand_ins"


@attrs.frozen
class StandIn:
    """What Dynamo traces in place of a dispatcher."""

    traced: Callable[..., Any] = attrs.field(repr=False)
    operator: str | None
    """Its name in ``torch.ops.fib_apply``; None where calls are always traced into the user's function."""
    reason: str = ""
    """Why there is no operator."""

    def attach(self, dispatcher: Callable[..., Any]) -> None:
        """Have Dynamo trace the stand-in wherever it meets this dispatcher; eager calls are as before."""
        setattr(dispatcher, _ATTRIBUTE, self.traced)


def make_stand_in(
    wrapper: Callable[..., Any],
    definition: Definition,
    *,
    function: Callable[..., Any],
    arguments: Mapping[str, str] | None = None,
) -> StandIn:
    """The stand-in for dispatchers of a decorated function; the same one for the same definition.

    torch learns of the operator when Dynamo first traces the stand-in. From then on the operator and the
    wrapper stay for the life of the process, for graphs may call them at any time.

    Args:
        wrapper: The decorated function, which the operator calls. It must be a Python function.
        definition: What its calls compute.
        function: The user's function, of the same signature.
        arguments: Which parameter carries an input or output of the definition, by the names of
            the latter; those of the same name unless given. With outputs, calls are
            destination-passing.
    """
    if arguments is None:
        arguments = {name: name for name in (*definition.inputs, *definition.outputs)}
    parameters = tuple(inspect.signature(function).parameters.values())
    carried = {parameter.name for parameter in parameters}
    slots = tuple(_slots(definition, {name: at for name, at in arguments.items() if at in carried}))
    call = _Call(definition, parameters, slots)
    if reason := call.reason_against():
        return StandIn(function, None, reason)
    # With the identity, for functools.wraps hands the memo on to another wrapper.
    memo: dict[tuple[int, str], StandIn] = wrapper.__dict__.setdefault(_MEMO, {})
    digest = call.digest(wrapper)
    key = (id(wrapper), digest)
    if key not in memo:
        memo[key] = _generate(call, _operator_name(definition, digest), wrapper, function)
    return memo[key]


@attrs.frozen
class _Slot:
    """An argument of the operator: what the definition says of it, and the parameter that carries it."""

    name: str
    parameter: str
    spec: TensorSpec
    is_output: bool

    @property
    def axes(self) -> tuple[str, ...]:
        return self.spec.shape or ()


def _slots(definition: Definition, arguments: Mapping[str, str]) -> Iterator[_Slot]:
    for name, spec in definition.inputs.items():
        if name in arguments:
            yield _Slot(name, arguments[name], spec, is_output=False)
    for name, spec in definition.outputs.items():
        if name in arguments:
            yield _Slot(name, arguments[name], spec, is_output=True)


@attrs.frozen
class _Call:
    """How a function's calls map to a definition's; writes the texts that are compiled."""

    definition: Definition
    parameters: tuple[Parameter, ...]
    slots: tuple[_Slot, ...]
    places: Mapping[str, list[tuple[int, int]]] = attrs.field(init=False, eq=False, repr=False)
    """Where the size of an axis can be read off: argument and dimension, those always passed first."""

    @places.default
    def _find_places(self) -> dict[str, list[tuple[int, int]]]:
        found: dict[str, list[tuple[int, int]]] = {}
        for index, slot in sorted(enumerate(self.slots), key=lambda pair: pair[1].spec.optional):
            for dim, axis in enumerate(slot.axes):
                found.setdefault(axis, []).append((index, dim))
        return found

    @property
    def is_destination_passing(self) -> bool:
        return any(slot.is_output for slot in self.slots)

    @property
    def extras(self) -> list[Parameter]:
        """Parameters that the definition knows nothing of."""
        carried = {slot.parameter for slot in self.slots}
        return [parameter for parameter in self.parameters if parameter.name not in carried]

    @property
    def leader(self) -> _Slot | None:
        """The first tensor that each call passes: its device is everyone's."""
        return next((slot for slot in self.slots if not (slot.spec.is_scalar or slot.spec.optional)), None)

    def reason_against(self) -> str:
        """Why no operator can be made; empty if one can."""
        outputs = self.definition.outputs
        carried = {slot.name for slot in self.slots}
        missing = [name for name, spec in self.definition.inputs.items() if name not in carried and not spec.optional]
        if self.is_destination_passing:
            missing += [name for name in outputs if name not in carried]
        if missing:
            return f"the function has no parameter for {missing[0]!r}"
        for parameter in self.parameters:
            if parameter.kind in VARIADIC:
                return f"the function takes any arguments: {parameter}"
        if required := [extra.name for extra in self.extras if extra.default is Parameter.empty]:
            return f"parameter {required[0]!r} is not in the definition and has no default"
        if [extra for extra in self.extras if extra.kind is Parameter.POSITIONAL_ONLY]:
            return "a positional-only parameter is not in the definition"
        return self._reason_against_tensors()

    def _reason_against_tensors(self) -> str:
        outputs = self.definition.outputs
        specs = {**self.definition.inputs, **outputs}
        if self.leader is None:
            return "no input is a tensor that each call passes"
        if not outputs or any(spec.is_scalar or spec.optional for spec in outputs.values()):
            return "outputs must be tensors"
        if packed := [name for name, spec in specs.items() if spec.dtype is DType.FLOAT4_E2M1]:
            return f"the elements of {packed[0]!r} are packed, so its shape is not the definition's"
        axes = {axis for spec in outputs.values() for axis in spec.shape or () if self._const(axis) is None}
        if unknown := axes - self.places.keys():
            return f"no input has axis {min(unknown)!r}"
        return ""

    def _const(self, axis: str) -> int | None:
        found = self.definition.axes[axis]
        return found.value if isinstance(found, AxisConst) else None

    def digest(self, wrapper: Callable[..., Any]) -> str:
        """Digits that stand for all that the operator is, the same in each process."""
        outputs = [f"{self.result_axes(spec)} {spec.dtype}" for spec in self.definition.outputs.values()]
        where = (wrapper.__module__ or "", wrapper.__qualname__)
        parts = [self.definition.name, *where, self.schema(), self.traced_source("it"), *outputs]
        return hashlib.sha256(framed(parts)).hexdigest()[:12]

    def result_axes(self, spec: TensorSpec) -> list[int | str]:
        """An output's shape: sizes that are fixed, and names of axes."""
        sizes = ((axis, self._const(axis)) for axis in spec.shape or ())
        return [axis if size is None else size for axis, size in sizes]

    def schema(self) -> str:
        """In torch's language; arguments are a0, a1 for a name could be one of its words."""
        takes = ", ".join(f"{_schema_type(slot, index)} a{index}" for index, slot in enumerate(self.slots))
        count = 0 if self.is_destination_passing else len(self.definition.outputs)
        return f"({takes}) -> {'Tensor' if count == 1 else '(' + ', '.join(['Tensor'] * count) + ')'}"

    def traced_source(self, operator: str) -> str:
        """The function that Dynamo traces."""
        takes, passes = parameter_list(self.parameters), argument_list(self.parameters, by_name=True)
        operands = ", ".join(slot.parameter for slot in self.slots)
        checks = " and ".join([*self._argument_checks(), *self._axis_checks(), *self._default_checks()])
        lines = (
            f"def traced({takes}):",
            f"    if not ({checks}):",
            f"        return _fib_function({passes})",
            "    _fib_ready()",
            f"    return _fib_torch.ops.{NAMESPACE}.{operator}.default({operands})",
        )
        return "\n".join(lines)

    def entry_source(self) -> str:
        """The function that takes the operator's arguments and calls the wrapper."""
        carried = {slot.parameter for slot in self.slots}
        passes = argument_list([p for p in self.parameters if p.name in carried], by_name=True)
        return f"def entry({', '.join(slot.parameter for slot in self.slots)}):\n    return _fib_wrapper({passes})"

    def _argument_checks(self) -> Iterator[str]:
        for slot in self.slots:
            check = _scalar_check(slot) if slot.spec.is_scalar else self._tensor_check(slot)
            yield f"({slot.parameter} is None or {check})" if slot.spec.optional else check

    def _default_checks(self) -> Iterator[str]:
        for extra in self.extras:
            yield f"not ({given_condition(extra, by_value=True)})"

    def _tensor_check(self, slot: _Slot) -> str:
        at, leader = slot.parameter, self.leader
        checks = [
            f"type({at}) in _fib_tensors",
            f"not ({at}.requires_grad and _fib_torch.is_grad_enabled())",
            f"{at}.dim() == {len(slot.axes)}",
            f"{at}.dtype == _fib_{slot.spec.dtype}",
            *(
                f"{at}.shape[{dim}] == {size}"
                for dim, axis in enumerate(slot.axes)
                if (size := self._const(axis)) is not None
            ),
        ]
        if leader is slot:
            # Autocast changes the dtype of what the function returns, which the operator has promised.
            checks.append(f"not _fib_torch.is_autocast_enabled({at}.device.type)")
        elif leader is not None:
            checks.append(f"{at}.device == {leader.parameter}.device")
        return f"({' and '.join(checks)})"

    def _axis_checks(self) -> Iterator[str]:
        """Places that share an axis agree; an axis that an output needs is there."""
        for axis, places in self.places.items():
            if self._const(axis) is not None:
                continue
            is_always_known = not self.slots[places[0][0]].spec.optional
            pairs = [(places[0], other) for other in places[1:]]
            for one, other in pairs if is_always_known else itertools.combinations(places, 2):
                yield self._agreement(one, other)
            if not is_always_known and any(axis in (spec.shape or ()) for spec in self.definition.outputs.values()):
                yield f"({' or '.join(f'{self.slots[index].parameter} is not None' for index, _ in places)})"

    def _agreement(self, one: tuple[int, int], other: tuple[int, int]) -> str:
        slots = [(self.slots[index], dim) for index, dim in (one, other)]
        absent = [f"{slot.parameter} is None" for slot, _ in slots if slot.spec.optional]
        same = " == ".join(f"{slot.parameter}.shape[{dim}]" for slot, dim in slots)
        return f"({' or '.join([*absent, same])})"

    def shapes(self, args: Sequence[Any]) -> Iterator[tuple[torch.dtype, list[int]]]:
        """What the outputs of a call must be; sizes may be symbols."""
        import torch

        for spec in self.definition.outputs.values():
            sizes = [self._size(axis, args) if isinstance(axis, str) else axis for axis in self.result_axes(spec)]
            yield getattr(torch, TORCH_DTYPE_NAMES[spec.dtype]), sizes

    def _size(self, axis: str, args: Sequence[Any]) -> Any:
        return next(args[index].shape[dim] for index, dim in self.places[axis] if args[index] is not None)


def _schema_type(slot: _Slot, index: int) -> str:
    mark = "?" if slot.spec.optional else ""
    if not slot.spec.is_scalar:
        return f"Tensor(w{index}!)" if slot.is_output else f"Tensor{mark}"
    return f"{_scalar_types(slot.spec)[1]}{mark}"


def _scalar_types(spec: TensorSpec) -> tuple[str, str]:
    """In Python and in torch's schemas. Integers may be symbols: a graph then serves several."""
    if spec.dtype is DType.BOOL:
        return "bool", "bool"
    return ("int", "SymInt") if spec.is_integer else ("float", "float")


def _scalar_check(slot: _Slot) -> str:
    # An int for a float is left to the user's function, for the operator would turn it into a float.
    wanted = _scalar_types(slot.spec)[0]
    check = f"isinstance({slot.parameter}, {wanted})"
    return f"({check} and not isinstance({slot.parameter}, bool))" if wanted == "int" else check


def _operator_name(definition: Definition, digest: str) -> str:
    readable = re.sub(r"[^0-9A-Za-z_]", "_", definition.name)[:80]
    # A digit or an underscore cannot begin it: the one is no identifier, the other torch keeps for itself.
    return f"{readable}_{digest}" if readable[:1].isalpha() else f"op_{readable}_{digest}"


def _generate(call: _Call, name: str, wrapper: Callable[..., Any], function: Callable[..., Any]) -> StandIn:
    import torch

    operator = _Operator.named(name, call, _compiled(call.entry_source(), name, {"_fib_wrapper": wrapper})["entry"])
    dtypes = {slot.spec.dtype for slot in call.slots if not slot.spec.is_scalar}
    namespace = {
        **default_values(call.parameters),
        **{f"_fib_{dtype}": getattr(torch, TORCH_DTYPE_NAMES[dtype]) for dtype in dtypes},
        "_fib_function": function,
        "_fib_type": type,
        "_fib_torch": torch,
        "_fib_tensors": (torch.Tensor, torch.nn.Parameter),
        # Dynamo calls this while it traces: torch takes a millisecond for an operator, which only those
        # who compile should pay.
        "_fib_ready": torch.compiler.assume_constant_result(operator.ready),  # type: ignore[no-untyped-call]
    }
    return StandIn(_compiled(call.traced_source(operator.name), operator.name, namespace)["traced"], operator.name)


def _compiled(source: str, name: str, namespace: dict[str, Any]) -> dict[str, Any]:
    # No __name__: Dynamo would import the module of that name and look for the globals in it.
    exec(compile(source, f"<fib-apply operator {name}>", "exec"), namespace)  # noqa: S102 - made of parameter names
    return namespace


_registering = threading.Lock()
_registered: list[Any] = []  # torch forgets an operator whose Python object is collected


class _Operator:
    """An operator of torch, registered when a graph first needs it."""

    _by_name: ClassVar[WeakValueDictionary[str, _Operator]] = WeakValueDictionary()

    def __init__(self, name: str, call: _Call, entry: Callable[..., Any]) -> None:
        self.name = name
        self._call = call
        self._entry = entry
        self._is_registered = False

    @classmethod
    def named(cls, name: str, call: _Call, entry: Callable[..., Any]) -> _Operator:
        """One of that name, or with a number after it: functions made in a loop share their name."""
        with _registering:
            names = (f"{name}_{count}" if count else name for count in itertools.count())
            free = next(candidate for candidate in names if candidate not in cls._by_name)
            made = cls._by_name[free] = cls(free, call, entry)
        return made

    @property
    def ready(self) -> Callable[[], bool]:
        """Registers the operator unless that is done."""

        def ready() -> bool:
            with _registering:
                if not self._is_registered:
                    self._register()
                self._is_registered = True
            return True

        return ready

    def _register(self) -> None:
        import torch

        mutated = [f"a{index}" for index, slot in enumerate(self._call.slots) if slot.is_output]
        name, schema = f"{NAMESPACE}::{self.name}", self._call.schema()
        made = torch.library.custom_op(name, self._run, mutates_args=mutated, schema=schema)
        made.register_fake(self._fake)
        _registered.append(made)

    def _run(self, *args: Any) -> Any:
        result = self._entry(*args)
        return None if self._call.is_destination_passing else self._outputs(result, args)

    def _fake(self, *args: Any) -> Any:
        if self._call.is_destination_passing:
            return None
        like = self._leader(args)
        return _one_or_all([like.new_empty(sizes, dtype=dtype) for dtype, sizes in self._call.shapes(args)])

    def _leader(self, args: Sequence[Any]) -> torch.Tensor:
        found: torch.Tensor = next(a for a, s in zip(args, self._call.slots, strict=True) if s is self._call.leader)
        return found

    def _outputs(self, result: Any, args: Sequence[Any]) -> Any:
        """The results as graphs expect them: contiguous, and of memory that nothing else has."""
        import torch

        results = list(result) if isinstance(result, (tuple, list)) else [result]
        self._check(results, args)
        taken = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        for index, tensor in enumerate(results):
            own = tensor.contiguous()
            if own.untyped_storage().data_ptr() in taken:
                own = own.clone(memory_format=torch.contiguous_format)
            taken.add(own.untyped_storage().data_ptr())
            results[index] = own
        return _one_or_all(results)

    def _check(self, results: Sequence[Any], args: Sequence[Any]) -> None:
        device = self._leader(args).device
        found = [
            (getattr(r, "dtype", type(r)), list(getattr(r, "shape", ())), getattr(r, "device", None)) for r in results
        ]
        wanted = [(dtype, list(sizes), device) for dtype, sizes in self._call.shapes(args)]
        if found != wanted:
            problem = f"in a compiled graph it must return {_describe(wanted)}, got {_describe(found)}"
            raise CannotRoute(self._call.definition.name, problem)


def _one_or_all(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _describe(results: Sequence[tuple[object, list[int], object]]) -> str:
    return ", ".join(f"{dtype} {shape} on {device}" for dtype, shape, device in results)
