"""Reports of data set validation: their records, status and text form."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import attrs
from fib_schema import InvalidRecord, Problem
from fib_schema.display import counted, escape_line
from fib_schema.files import write_output

__all__ = [
    "CheckMessage",
    "CheckResult",
    "DatasetReport",
    "DefinitionReport",
    "ReportConfig",
    "compute_definition_status",
    "render_report",
    "render_text_report",
]

_LEVELS = ("info", "warning", "error")
_STATUS_OF_LEVEL = {"info": "passed", "warning": "warning", "error": "failed"}
_WORST_FIRST = ("failed", "warning", "passed", "skipped")


class _Plain:
    """Conversion to and from plain objects, by pydantic's names."""

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        """As plain objects."""
        del mode
        record: Any = self
        plain: dict[str, Any] = json.loads(json.dumps(attrs.asdict(record)))  # tuples become lists
        return plain

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """As JSON."""
        return json.dumps(self.model_dump(), indent=indent)

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """From plain objects.

        Raises:
            InvalidRecord: They have another form (a ValueError).
        """
        if isinstance(obj, cls):
            return obj
        try:
            return cls(**obj)
        except (TypeError, ValueError, KeyError) as error:
            problem = Problem("<memory>", "$", f"is no {cls.__name__}: {error}")
            raise InvalidRecord(cls.__name__, (problem,)) from error

    @classmethod
    def model_validate_json(cls, json_data: str | bytes) -> Self:
        """From JSON; see `model_validate`."""
        try:
            plain = json.loads(json_data)
        except ValueError as error:
            problem = Problem("<memory>", "$", f"is not JSON: {error}")
            raise InvalidRecord(cls.__name__, (problem,)) from error
        return cls.model_validate(plain)


@attrs.frozen
class CheckMessage(_Plain):
    """A finding of a check."""

    level: str = attrs.field(validator=attrs.validators.in_(_LEVELS))
    """``info``, ``warning`` or ``error``."""
    message: str


def _messages(value: Sequence[Any]) -> tuple[CheckMessage, ...]:
    return tuple(CheckMessage.model_validate(item) for item in value)


@attrs.frozen
class CheckResult(_Plain):
    """The findings of one check."""

    status: str = attrs.field(default="passed", validator=attrs.validators.in_(_WORST_FIRST))
    """``passed``, ``warning``, ``failed`` or ``skipped``."""
    messages: tuple[CheckMessage, ...] = attrs.field(default=(), converter=_messages)

    @classmethod
    def of(cls, messages: Sequence[CheckMessage]) -> CheckResult:
        """The result of a check that was run; the worst message decides."""
        statuses = {_STATUS_OF_LEVEL[message.level] for message in messages}
        return cls(_worst(statuses, "passed"), tuple(messages))


def _worst(statuses: set[str], default: str) -> str:
    return next((status for status in _WORST_FIRST if status in statuses), default)


def _checks(value: Mapping[str, Any]) -> dict[str, CheckResult]:
    return {name: CheckResult.model_validate(item) for name, item in value.items()}


def compute_definition_status(checks: Mapping[str, CheckResult]) -> str:
    """The worst status of checks; ``skipped`` only if all were."""
    return _worst({check.status for check in checks.values()}, "skipped")


@attrs.frozen
class DefinitionReport(_Plain):
    """The checks of one definition."""

    name: str
    op_type: str
    status: str
    checks: dict[str, CheckResult] = attrs.field(factory=dict, converter=_checks)


def _listed(value: Sequence[str]) -> tuple[str, ...]:
    return tuple(value)


def _names(value: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(value)


@attrs.frozen
class ReportConfig(_Plain):
    """Data set and checks of a report."""

    dataset: str
    checks: tuple[str, ...] = attrs.field(default=(), converter=_listed)
    disable_gpu: bool = False
    op_types: tuple[str, ...] | None = attrs.field(default=None, converter=_names)
    definitions: tuple[str, ...] | None = attrs.field(default=None, converter=_names)


def _config(value: Any) -> ReportConfig:
    return ReportConfig.model_validate(value)


def _check(value: Any) -> CheckResult:
    return CheckResult.model_validate(value)


def _definitions(value: Sequence[Any]) -> tuple[DefinitionReport, ...]:
    return tuple(DefinitionReport.model_validate(item) for item in value)


@attrs.frozen
class DatasetReport(_Plain):
    """The report of a data set."""

    config: ReportConfig = attrs.field(converter=_config)
    timestamp: str
    definitions: tuple[DefinitionReport, ...] = attrs.field(default=(), converter=_definitions)
    other: CheckResult = attrs.field(factory=CheckResult, converter=_check)
    """Findings in files that belong to no definition."""

    @property
    def status(self) -> str:
        """The worst status of the definitions and other files."""
        return _worst({self.other.status, *(definition.status for definition in self.definitions)}, "passed")


def render_text_report(report: DatasetReport) -> str:
    """The report as text: a line for each definition, its findings below, and counts last."""
    lines = [f"data set {report.config.dataset}, checked {report.timestamp}: {', '.join(report.config.checks)}"]
    lines += [f"  {message.level}: {message.message}" for message in report.other.messages]
    for definition in report.definitions:
        lines.append(f"{definition.status}: {definition.op_type}/{definition.name}")
        for name, check in definition.checks.items():
            if check.status == "skipped":
                lines.append(f"  {name}: skipped")
            lines += [f"  {name}: {message.level}: {message.message}" for message in check.messages]
    counts = [(status, sum(d.status == status for d in report.definitions)) for status in _WORST_FIRST]
    shown = ", ".join(f"{count} {status}" for status, count in counts if count)
    errors = sum(m.level == "error" for m in _all_messages(report))
    lines.append(f"{counted(len(report.definitions), 'definition')}: {shown or 'none'}; {counted(errors, 'error')}")
    return "\n".join(map(escape_line, lines)) + "\n"


def _all_messages(report: DatasetReport) -> list[CheckMessage]:
    checks = [report.other, *(check for definition in report.definitions for check in definition.checks.values())]
    return [message for check in checks for message in check.messages]


def render_report(report_json: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> str:
    """The text form of a report that was written as JSON.

    Args:
        report_json: The file.
        output: The file to write the text to; None writes none.

    Raises:
        InvalidRecord: The file is not a report (a ValueError).
        OSError: The file cannot be read, or the text cannot be written.
    """
    try:
        report = DatasetReport.model_validate_json(Path(report_json).read_bytes())
    except InvalidRecord as error:
        problem = Problem(str(report_json), "$", f"is not a report of 'validate --outputs json': {error}")
        raise InvalidRecord("report", (problem,)) from error
    text = render_text_report(report)
    if output is not None:
        write_output(output, text.encode("utf-8", "backslashreplace"))
    return text
