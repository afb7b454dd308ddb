"""Fast path for parsing lines of traces.

A canonical line decodes with msgspec straight into the shapes below: all fields known, all types exact. Anything
else (an unknown field, a bare NaN, a bad name, an error of any kind) is a fast-path miss: the slow path of
`_reader` decides whether the line is valid. Workloads and environments recur on thousands of lines, so equal
bytes share one record.

Records remember the order of their keys, which a msgspec struct does not tell. A line that equals its own
encoding, but for spaces, has the canonical order; any other line is decoded a second time into dicts.

Measured on two cores: 200,000 traces (169 MB) in 14 s by the slow path, 3.05 s by the fast one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import attrs
import msgspec
from msgspec import UNSET, Raw, UnsetType

from ._checks import component_problem
from ._decoding import may_be_too_deep, nesting
from ._limits import MAX_DEPTH, MAX_SIZE
from ._record import NO_FIELDS, FrozenDict, Record
from ._trace_lines import FastPathMiss
from .trace import NEEDS_CORRECTNESS, Correctness, Environment, Evaluation, EvaluationStatus, Performance, Trace
from .workload import RandomInput, SafetensorsInput, ScalarInput, Workload

R = TypeVar("R", bound=Record)
Keys = tuple[str, ...]

_MAX_SHARED = 100_000
_STATUSES = {str(status): status for status in EvaluationStatus}
_FLOAT_WORDS = {"NaN": float("nan"), "Infinity": float("inf")}


class _Strict(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Base of the shapes of canonical lines."""


class _Correctness(_Strict):
    max_relative_error: float | str
    max_absolute_error: float | str
    extra: dict[str, Any] | UnsetType | None = UNSET


class _Performance(_Strict):
    latency_ms: float | str
    reference_latency_ms: float | str
    speedup_factor: float | str
    extra: dict[str, Any] | UnsetType | None = UNSET


class _Evaluation(_Strict):
    status: str
    environment: Raw
    timestamp: str
    log: str | UnsetType = UNSET
    correctness: _Correctness | UnsetType | None = UNSET
    performance: _Performance | UnsetType | None = UNSET
    extra: dict[str, Any] | UnsetType | None = UNSET


class _Line(_Strict):
    definition: str
    workload: Raw
    solution: str | None
    evaluation: _Evaluation | None


class _Random(_Strict, tag="random"):
    pass


class _Scalar(_Strict, tag="scalar"):
    value: bool | int | float


class _Safetensors(_Strict, tag="safetensors"):
    path: str
    tensor_key: str


class _Workload(_Strict):
    axes: dict[str, int]
    inputs: dict[str, _Random | _Scalar | _Safetensors]
    uuid: str
    extra: dict[str, Any] | UnsetType | None = UNSET


class _Environment(_Strict):
    hardware: str
    libs: dict[str, str] | UnsetType = UNSET


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_workload = msgspec.json.Decoder(_Workload).decode
_decode_environment = msgspec.json.Decoder(_Environment).decode
_decode_untyped = msgspec.json.decode
_encode = msgspec.json.Encoder().encode
_without_spaces = msgspec.json.format


def trace_parser() -> Callable[[bytes], Trace]:
    """Make a function that parses one canonical line or raises `FastPathMiss`.

    It keeps the records that lines share; make one per data set.
    """
    workloads: dict[bytes, Workload] = {}
    environments: dict[bytes, Environment] = {}
    names: set[str] = set()

    def parse(text: bytes) -> Trace:
        try:
            if text[_FIRST_VALUE] != b'"':
                text = _without_spaces(text, indent=-1)
            line = _decode_line(text)
            order = None if text.startswith(_encode(line)) else _decode_untyped(text)
            evaluation = line.evaluation
            if line.definition not in names:
                _check_name(line.definition, names)
            key = bytes(line.workload)
            workload = workloads.get(key) or _shared(workloads, key, _workload)
            keys = _TRACE_KEYS if order is None else _shared_keys(tuple(order))
            if evaluation is None and line.solution is None:
                return _new_trace(NO_FIELDS, keys, line.definition, workload, None, None)
            if evaluation is None or line.solution is None:
                raise FastPathMiss
            if line.solution not in names:
                _check_name(line.solution, names)
            key = bytes(evaluation.environment)
            environment = environments.get(key) or _shared(environments, key, _environment)
            made = _evaluation(evaluation, environment, order and order["evaluation"], text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise FastPathMiss from error
        return _new_trace(NO_FIELDS, keys, line.definition, workload, line.solution, made)

    return parse


def _shared(known: dict[bytes, R], text: bytes, make: Callable[[bytes], R]) -> R:
    """Make the record of some JSON, and keep it for lines with the same bytes."""
    made = make(text)
    if len(known) < _MAX_SHARED:
        known[text] = made
    return made


def _shared_keys(keys: Keys) -> Keys:
    """The keys as one tuple for all records that have them; there are few orders, for all keys are known."""
    return _KEYS.setdefault(keys, keys)


def _check_name(name: str, names: set[str]) -> None:
    if component_problem(name):
        raise FastPathMiss
    if len(names) < _MAX_SHARED:
        names.add(name)


def _unchecked_constructor(cls: type[R]) -> Callable[..., R]:
    """A function of all fields of `cls`, in the order of ``attrs.fields``, that only sets them.

    It is generated, as attrs generates ``__init__``, because a loop over the fields costs as much
    again as setting them.
    """
    slots = {name: slot for base in cls.__mro__ for name, slot in vars(base).items()}
    names = [field.name for field in attrs.fields(cls)]
    lines = [f"def construct({', '.join(names)}):", " record = new(cls)"]
    lines += [f" set_{name}(record, {name})" for name in names]
    lines.append(" return record")
    scope: dict[str, Any] = {"cls": cls, "new": cls.__new__}
    scope |= {f"set_{name}": slots[name].__set__ for name in names}
    exec("\n".join(lines), scope)  # noqa: S102 the text is made of the names of our own fields
    constructor: Callable[..., R] = scope["construct"]
    return constructor


_new_trace = _unchecked_constructor(Trace)
_new_evaluation = _unchecked_constructor(Evaluation)
_new_correctness = _unchecked_constructor(Correctness)
_new_performance = _unchecked_constructor(Performance)
_new_workload = _unchecked_constructor(Workload)

_TRACE_KEYS = ("definition", "workload", "solution", "evaluation")
_FIRST_VALUE = slice(len('{"definition":'), len('{"definition":"'))
"""Position of the quote of the first value in a canonical line without spaces."""
_CORRECTNESS_KEYS: Keys = ("max_relative_error", "max_absolute_error")
_PERFORMANCE_KEYS: Keys = ("latency_ms", "reference_latency_ms", "speedup_factor")
_CORRECTNESS_KEYS_EXTRA: Keys = (*_CORRECTNESS_KEYS, "extra")
_PERFORMANCE_KEYS_EXTRA: Keys = (*_PERFORMANCE_KEYS, "extra")
_KEYS: dict[Keys, Keys] = {}


def _evaluation(plain: _Evaluation, environment: Environment, order: Any, text: bytes) -> Evaluation:
    """Make an evaluation; `order` is the same as plain objects, or None if the keys are in the canonical order."""
    status = _STATUSES.get(plain.status)
    log, extra = plain.log, plain.extra
    correctness, performance = plain.correctness or None, plain.performance or None
    if (
        status is None
        or (correctness is None) is (status in NEEDS_CORRECTNESS)
        or (performance is None) is (status is EvaluationStatus.PASSED)
    ):
        raise FastPathMiss
    if order is None:
        keys = _evaluation_keys(
            log is not UNSET, plain.correctness is not UNSET, plain.performance is not UNSET, extra is not UNSET
        )
    else:
        keys = _shared_keys(tuple(order))
    return _new_evaluation(
        NO_FIELDS,
        keys,
        status,
        environment,
        plain.timestamp,
        "" if log is UNSET else log,
        None if correctness is None else _correctness(correctness, order and order["correctness"], text),
        None if performance is None else _performance(performance, order and order["performance"], text),
        None if extra is None or extra is UNSET else _extra(extra, text),
    )


@cache
def _evaluation_keys(log: bool, correctness: bool, performance: bool, extra: bool) -> Keys:
    optional = {"log": log, "correctness": correctness, "performance": performance, "extra": extra}
    return ("status", "environment", "timestamp", *(key for key, given in optional.items() if given))


def _correctness(plain: _Correctness, order: Any, text: bytes) -> Correctness:
    relative, absolute, extra = plain.max_relative_error, plain.max_absolute_error, plain.extra
    if type(relative) is not float or relative < 0:
        relative = _float(relative)
    if type(absolute) is not float or absolute < 0:
        absolute = _float(absolute)
    if order is None:
        keys = _CORRECTNESS_KEYS if extra is UNSET else _CORRECTNESS_KEYS_EXTRA
    else:
        keys = _shared_keys(tuple(order))
    kept = None if extra is None or extra is UNSET else _extra(extra, text)
    return _new_correctness(NO_FIELDS, keys, relative, absolute, kept)


def _performance(plain: _Performance, order: Any, text: bytes) -> Performance:
    latency, reference, speedup = plain.latency_ms, plain.reference_latency_ms, plain.speedup_factor
    extra = plain.extra
    if type(latency) is not float or latency < 0:
        latency = _float(latency)
    if type(reference) is not float or reference < 0:
        reference = _float(reference)
    if type(speedup) is not float or speedup < 0:
        speedup = _float(speedup)
    if order is None:
        keys = _PERFORMANCE_KEYS if extra is UNSET else _PERFORMANCE_KEYS_EXTRA
    else:
        keys = _shared_keys(tuple(order))
    kept = None if extra is None or extra is UNSET else _extra(extra, text)
    return _new_performance(NO_FIELDS, keys, latency, reference, speedup, kept)


def _extra(plain: dict[str, Any], text: bytes) -> FrozenDict[str, Any]:
    """Freeze extra fields of a line; nothing else in it can nest deeply."""
    if may_be_too_deep(text) and nesting(_decode_untyped(text)) > MAX_DEPTH:
        raise FastPathMiss
    return FrozenDict(plain)


def _float(value: float | str) -> float:
    """NaN or infinity, from its word."""
    found = _FLOAT_WORDS.get(str(value))
    if found is None:
        raise FastPathMiss
    return found


def _workload(text: bytes) -> Workload:
    typed, plain = _decode_workload(text), _decode_untyped(text)
    axes, uuid = typed.axes, typed.uuid
    if (axes and not 0 <= min(axes.values()) <= max(axes.values()) <= MAX_SIZE) or component_problem(uuid):
        raise FastPathMiss
    inputs = {name: _input(item, _shared_keys(tuple(plain["inputs"][name]))) for name, item in typed.inputs.items()}
    keys = _shared_keys(tuple(plain))
    extra = None if typed.extra is None or typed.extra is UNSET else _extra(typed.extra, text)
    return _new_workload(NO_FIELDS, keys, FrozenDict(axes), FrozenDict(inputs), uuid, extra)


def _input(typed: _Random | _Scalar | _Safetensors, keys: Keys) -> RandomInput | ScalarInput | SafetensorsInput:
    if isinstance(typed, _Random):
        return _RANDOM
    if isinstance(typed, _Scalar):
        return ScalarInput(typed.value, source_keys=keys)
    return SafetensorsInput(typed.path, typed.tensor_key, source_keys=keys)


_RANDOM = RandomInput(source_keys=("type",))


def _environment(text: bytes) -> Environment:
    plain = _decode_environment(text)
    keys = _shared_keys(tuple(_decode_untyped(text)))
    return Environment(plain.hardware, NO_FIELDS if plain.libs is UNSET else plain.libs, source_keys=keys)
