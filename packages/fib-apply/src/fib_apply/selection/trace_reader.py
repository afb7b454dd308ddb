"""Trace reader: reads only the fields of traces that selection needs.

Measured: 200,000 lines take 2.5 s as full records, and a first table may take 4 s in all. A line that does not match
the structs below exactly (an older schema, a NaN, flags, any error) goes to the full parser of fib-schema, which alone
decides what is valid and how to report the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
from fib_schema import Environment, EvaluationStatus, InvalidRecord, Trace, Workload, parse_json
from fib_schema.codec import may_be_too_deep, parse_upgraded
from fib_schema.trace import NEEDS_CORRECTNESS

from .dataset_files import Ignored, read_file

_STATUSES = {str(status): status for status in EvaluationStatus}
_MAX_SHARED = 100_000


class _Correctness(msgspec.Struct, gc=False):
    max_relative_error: float
    max_absolute_error: float
    extra: dict[str, Any] | None = None


class _Performance(msgspec.Struct, gc=False):
    latency_ms: float
    reference_latency_ms: float
    speedup_factor: float
    extra: dict[str, Any] | None = None


class _Evaluation(msgspec.Struct, gc=False):
    status: str
    environment: msgspec.Raw
    timestamp: str
    log: str = ""
    correctness: _Correctness | None = None
    performance: _Performance | None = None
    extra: dict[str, Any] | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """Always empty: the full parser reads flagged evaluations."""
        return ()

    def is_ranked(self) -> bool:
        """Always true: the full parser reads flagged evaluations."""
        return True


class _Line(msgspec.Struct, gc=False):
    definition: str
    workload: msgspec.Raw
    solution: str | None = None
    evaluation: _Evaluation | None = None


class _NeedsFullParser(Exception):
    """The line does not match the structs."""


class TraceReader:
    """Reads traces. The objects that it returns have the attributes of a `Trace` that selection reads.

    Args:
        read: Reads a file.
    """

    def __init__(self, read: Callable[[str], bytes] = read_file) -> None:
        self.problems: list[str] = []
        self._read = read
        self._decode = msgspec.json.Decoder(_Line).decode
        self._workloads: dict[bytes, Workload] = {}
        self._environments: dict[bytes, Environment] = {}

    def read(self, path: str) -> Iterator[Trace]:
        """Yield the evaluations of a file."""
        try:
            data = self._read(path)
        except Ignored as error:
            self.problems.append(f"{path}: ignored: {error}")
            return
        except OSError as error:
            self.problems.append(f"{path}: cannot be read: {error.strerror}")
            return
        decode, finish = self._decode, self._finish
        for number, text in enumerate(data.split(b"\n"), start=1):
            if not text:
                continue
            try:
                line: Any = decode(text)
                if line.evaluation is not None or line.solution is not None:
                    finish(line, line.evaluation)
                    if may_be_too_deep(text):
                        raise _NeedsFullParser
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidRecord, _NeedsFullParser):
                line = self._parse_fully(text, f"{path}:{number}")
            if line is not None and line.evaluation is not None:
                yield cast("Trace", line)

    def _finish(self, line: Any, evaluation: Any) -> None:
        """Check what the structs do not check, and replace raw JSON by records."""
        if (
            line.solution is None
            or evaluation is None
            or (evaluation.extra is not None and evaluation.extra.get("flags"))
        ):
            raise _NeedsFullParser
        status = _STATUSES.get(evaluation.status)
        correctness, performance = evaluation.correctness, evaluation.performance
        if (
            status is None
            or (correctness is None) is (status in NEEDS_CORRECTNESS)
            or (performance is None) is (status is EvaluationStatus.PASSED)
        ):
            raise _NeedsFullParser
        if correctness is not None and (correctness.max_relative_error < 0 or correctness.max_absolute_error < 0):
            raise _NeedsFullParser
        if performance is not None and (
            performance.latency_ms < 0 or performance.reference_latency_ms < 0 or performance.speedup_factor < 0
        ):
            raise _NeedsFullParser
        text = bytes(line.workload)
        line.workload = self._workloads.get(text) or self._shared(text, Workload, self._workloads)
        text = bytes(evaluation.environment)
        evaluation.environment = self._environments.get(text) or self._shared(text, Environment, self._environments)
        evaluation.status = status

    def _shared(self, text: bytes, cls: Any, shared: dict[bytes, Any]) -> Any:
        record = parse_json(text, cls)
        if len(shared) < _MAX_SHARED:
            shared[text] = record
        return record

    def _parse_fully(self, text: bytes, place: str) -> Trace | None:
        if text.isspace():
            return None
        try:
            return parse_upgraded(text, Trace, source=place)[0]
        except InvalidRecord as error:
            self.problems.append(_one_line(error))
            return None


def _one_line(error: InvalidRecord) -> str:
    more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
    return f"{error.problems[0]}{more}" if error.problems else str(error)
