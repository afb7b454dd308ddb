"""Workload and trace: axis values and inputs of a call, and one evaluation of one solution on one workload.

A trace without an evaluation is a workload alone.

Source: the schema of the public flashinfer-trace data set. What FIB adds to it goes into the
`extra` mappings; `fib_bench` documents their keys.
"""

from __future__ import annotations

from enum import StrEnum
from types import NoneType
from typing import Any, ClassVar, TypeAlias

import attrs

from . import _record
from ._record import NO_FIELDS, FrozenDict, Record


@attrs.frozen
class RandomInput(Record):
    """An input that the benchmark generates from a seed."""

    type: ClassVar[str] = "random"
    """JSON tag."""


def _scalar(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) not in (int, float, bool):
        raise _record.fail(record, attribute.name, f"expected a scalar, got {_record.describe(value)}")
    if type(value) is int and not -(2**63) <= value < 2**64:
        problem = f"no integer type of 64 bits holds {_record.short_repr(value)}; write a smaller one"
        raise _record.fail(record, attribute.name, problem)


@attrs.frozen
class ScalarInput(Record):
    """A literal scalar."""

    value: int | float | bool = attrs.field(validator=_scalar)
    """Value that is passed."""

    type: ClassVar[str] = "scalar"
    """JSON tag."""


def _blob_path(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    _record.check_text(record, attribute.name, value)
    if problem := _record.relative_path_problem(value.removeprefix("./")):
        raise _record.fail(record, attribute.name, f"{problem}; blobs stay below the data set's root")


@attrs.frozen
class SafetensorsInput(Record):
    """A tensor in a safetensors file of the data set."""

    path: str = attrs.field(validator=_blob_path)
    """Relative to the data set's root; a leading ``./`` is allowed."""
    tensor_key: str
    """Name of the tensor in the file."""

    type: ClassVar[str] = "safetensors"
    """JSON tag."""


InputSpec: TypeAlias = RandomInput | ScalarInput | SafetensorsInput


def _axis_sizes(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    for axis, size in value.items():
        if problem := _record.size_problem(size):
            raise _record.fail(record, f"{attribute.name}[{axis!r}]", problem)


@attrs.frozen
class Workload(Record):
    """Concrete axis values and inputs of a definition."""

    axes: FrozenDict[str, int] = attrs.field(converter=_record.to_mapping, validator=_axis_sizes)
    """Sizes of the variable axes, by name."""
    inputs: FrozenDict[str, InputSpec] = attrs.field(converter=_record.to_mapping)
    """Source of the value of each input, by name."""
    uuid: str = attrs.field(validator=_record.name)
    """Identifier of the workload."""
    extra: FrozenDict[str, Any] | None = attrs.field(default=None, converter=_record.to_optional_mapping)
    """Fields beyond the public format, such as the layout of inputs that are not contiguous."""


class EvaluationStatus(StrEnum):
    """Outcome of an evaluation."""

    PASSED = "PASSED"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_NUMERICAL = "INCORRECT_NUMERICAL"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    COMPILE_ERROR = "COMPILE_ERROR"
    TIMEOUT = "TIMEOUT"
    REWARD_HACK = "REWARD_HACK"
    """The solution exploits the benchmark; not in the public data set's schema."""


def _status(value: object) -> EvaluationStatus:
    return _record.member_of(EvaluationStatus, "status", value)


UNRANKED_FLAGS = frozenset({"low_precision", "quick"})
"""Flags in ``extra["flags"]`` that exclude a trace from rankings."""


_COMPARED = EvaluationStatus.PASSED, EvaluationStatus.INCORRECT_NUMERICAL
"""The statuses with which an evaluation has a `Correctness`."""


@attrs.frozen
class Correctness(Record):
    """Errors of the outputs against the reference's; NaN and infinity are possible."""

    max_relative_error: float = 0.0
    """Largest relative error of an element."""
    max_absolute_error: float = 0.0
    """Largest absolute error of an element."""
    extra: FrozenDict[str, Any] | None = attrs.field(default=None, converter=_record.to_optional_mapping)
    """Fields beyond the public format, such as the tolerances in force."""

    def __attrs_post_init__(self) -> None:
        relative, absolute = self.max_relative_error, self.max_absolute_error
        if not (type(relative) is type(absolute) is float and relative >= 0.0 and absolute >= 0.0):
            _record.check_numbers(self, "max_relative_error", "max_absolute_error")


@attrs.frozen
class Performance(Record):
    """Median latencies in milliseconds and their ratio."""

    latency_ms: float = 0.0
    """Median latency of the solution."""
    reference_latency_ms: float = 0.0
    """Median latency of the reference."""
    speedup_factor: float = 0.0
    """``reference_latency_ms / latency_ms``."""
    extra: FrozenDict[str, Any] | None = attrs.field(default=None, converter=_record.to_optional_mapping)
    """Fields beyond the public format, such as how the latency was measured."""

    def __attrs_post_init__(self) -> None:
        latency, reference, speedup = self.latency_ms, self.reference_latency_ms, self.speedup_factor
        are_floats = type(latency) is type(reference) is type(speedup) is float
        if not (are_floats and latency >= 0.0 and reference >= 0.0 and speedup >= 0.0):
            _record.check_numbers(self, "latency_ms", "reference_latency_ms", "speedup_factor")


@attrs.frozen
class Environment(Record):
    """Hardware and libraries of an evaluation."""

    hardware: str
    """As `torch.cuda.get_device_name` says it, or ``cpu``."""
    libs: FrozenDict[str, str] = attrs.field(default=NO_FIELDS, converter=_record.to_mapping)
    """Versions of libraries, by name."""


@attrs.frozen
class Evaluation(Record):
    """The result of running a solution on a workload.

    Raises:
        InvalidField: PASSED lacks correctness or performance, INCORRECT_NUMERICAL lacks
            correctness or has performance, or another status has either.
    """

    status: EvaluationStatus = attrs.field(converter=_status)
    """Outcome."""
    environment: Environment
    """Hardware and libraries."""
    timestamp: str
    """End of the evaluation, in ISO 8601."""
    log: str = attrs.field(default="", repr=False)
    """Reason of a failure, then output of the solution, which is untrusted text."""
    correctness: Correctness | None = None
    """Errors; only if the status is PASSED or INCORRECT_NUMERICAL."""
    performance: Performance | None = None
    """Latencies; only if the status is PASSED."""
    extra: FrozenDict[str, Any] | None = attrs.field(default=None, converter=_record.to_optional_mapping)
    """Fields beyond the public format, such as flags."""

    def __attrs_post_init__(self) -> None:
        correctness = Correctness if self.status in _COMPARED else NoneType
        performance = Performance if self.status is EvaluationStatus.PASSED else NoneType
        are_parts = type(self.correctness) is correctness and type(self.performance) is performance
        if not (are_parts and type(self.environment) is Environment and type(self.timestamp) is type(self.log) is str):
            _record.check_types(self)
            self._check_presence("correctness", correctness is not NoneType)
            self._check_presence("performance", performance is not NoneType)

    @property
    def flags(self) -> tuple[str, ...]:
        """Caveats of the evaluation, from ``extra["flags"]``; without elements that are not text."""
        flags = (self.extra or NO_FIELDS).get("flags", ())
        return tuple(flag for flag in flags if isinstance(flag, str)) if isinstance(flags, list | tuple) else ()

    def is_ranked(self) -> bool:
        """Whether it takes part in rankings: it has none of `UNRANKED_FLAGS`."""
        return self.extra is None or "flags" not in self.extra or UNRANKED_FLAGS.isdisjoint(self.flags)

    def _check_presence(self, field: str, is_wanted: bool) -> None:
        if (getattr(self, field) is not None) != is_wanted:
            problem = "must be given" if is_wanted else "must be absent"
            raise _record.fail(self, field, f"{problem} when status is {self.status}")


@attrs.frozen
class Trace(Record):
    """One evaluation of one solution on one workload; without both, a workload trace."""

    definition: str = attrs.field(validator=_record.name)
    """Name of the definition."""
    workload: Workload
    """Sizes and inputs of the call."""
    solution: str | None = attrs.field(default=None, validator=attrs.validators.optional(_record.name))
    """Name of the solution; None if this is a workload alone."""
    evaluation: Evaluation | None = None
    """Result; None if this is a workload alone."""

    def __attrs_post_init__(self) -> None:
        if type(self.workload) is not Workload or type(self.evaluation) is not Evaluation:
            _record.check_types(self)
        if (self.solution is None) != (self.evaluation is None):
            problem = "solution and evaluation are given together (a trace) or not at all (a workload)"
            raise _record.fail(self, "evaluation", problem)

    def is_workload_trace(self) -> bool:
        """Whether this is a workload alone."""
        return self.evaluation is None

    def is_successful(self) -> bool:
        """Whether the evaluation passed."""
        return self.evaluation is not None and self.evaluation.status is EvaluationStatus.PASSED
