"""Reports of the GPU benchmarks: tables in Markdown for people, and numbers in JSON for programs."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
from fib_compile.device import env_snapshot
from fib_schema import Trace


@attrs.define
class Report:
    """Tables and numbers of one run, in a folder."""

    out: Path
    lines: list[str] = attrs.field(factory=list)
    numbers: dict[str, Any] = attrs.field(factory=dict)
    text_file: str = "report.md"
    numbers_file: str = "numbers.json"

    @classmethod
    def of_section(cls, out: Path, name: str) -> Report:
        """A report in ``NAME.md`` and ``NAME.json``."""
        return cls(out, text_file=f"{name}.md", numbers_file=f"{name}.json")

    def say(self, text: str = "") -> None:
        """Print a line and keep it."""
        print(text, flush=True)
        self.lines.append(text)

    def table(self, title: str, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
        """Print a table in Markdown."""
        self.say(f"## {title}")
        self.say()
        self.say("| " + " | ".join(header) + " |")
        self.say("|" + " --- |" * len(header))
        for row in rows:
            self.say("| " + " | ".join(_cell(value) for value in row) + " |")
        self.say()

    def save(self) -> None:
        """Write both to the output folder."""
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / self.text_file).write_text("\n".join(self.lines) + "\n", "utf-8")
        (self.out / self.numbers_file).write_text(json.dumps(self.numbers, indent=1, default=str), "utf-8")


def _cell(value: object) -> str:
    return str(value).replace("|", "/").replace("\n", " ")


@attrs.frozen
class Budget:
    """A bound on the wall time of a section.

    Args:
        seconds: From now on.
        clock: Monotonic seconds.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    since: float = attrs.field(default=attrs.Factory(lambda self: self.clock(), takes_self=True))

    @property
    def used(self) -> float:
        """Seconds since the budget was made."""
        return self.clock() - self.since

    @property
    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(self.seconds - self.used, 0.0)

    @property
    def is_spent(self) -> bool:
        """Whether no time is left."""
        return self.used >= self.seconds

    def share(self, part: float) -> Budget:
        """A budget of a part of what is left."""
        return Budget(self.left * part, self.clock)


def where_and_when(device: str) -> dict[str, str]:
    """Host, device, driver, versions and date, as a report states them."""
    snapshot = env_snapshot(device)
    found = {"host": platform.node(), "device": f"{device} ({snapshot.hardware})", "driver": _driver()}
    found |= {name: version for name, version in snapshot.libs.items() if name in {"torch", "triton", "cuda", "python"}}
    return found | {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}


def _driver() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return "none"


def timing_of(trace: Trace) -> Mapping[str, Any]:
    """The timing fields of a passing trace."""
    timing: Mapping[str, Any] = performance_of(trace).extra["timing"]
    return timing


def performance_of(trace: Trace) -> Any:
    """The latencies of a passing trace."""
    assert trace.evaluation is not None
    return trace.evaluation.performance


def latency_us(trace: Trace) -> float:
    """The latency of a passing trace."""
    return float(performance_of(trace).latency_ms) * 1e3


def evaluation_extra(trace: Trace) -> Mapping[str, Any]:
    """The further fields of an evaluation."""
    return (trace.evaluation.extra if trace.evaluation else None) or {}


def flags_of(trace: Trace) -> list[str]:
    """The flags of a trace."""
    return list(evaluation_extra(trace).get("flags", ()))


def status_of(trace: Trace) -> str:
    """The verdict."""
    return str(trace.evaluation.status) if trace.evaluation else "NOT_RUN"


def evidence_of(trace: Trace, letters: int = 200) -> str:
    """The first and the last line of the log, shortened."""
    return ends_of(trace.evaluation.log, letters) if trace.evaluation else ""


def ends_of(text: str, letters: int = 300) -> str:
    """The first and the last line of a message, shortened: that of a traceback says what was raised."""
    lines = text.strip().splitlines() or [""]
    return lines[0][:letters] if len(lines) == 1 else f"{lines[0][:letters]} ... {lines[-1][:letters]}"


def plain(trace: Trace) -> dict[str, Any]:
    """The fields of a trace that a report stores."""
    found: dict[str, Any] = {
        "definition": trace.definition,
        "solution": trace.solution,
        "workload": trace.workload.uuid,
        "axes": dict(trace.workload.axes),
        "status": status_of(trace),
        "flags": flags_of(trace),
    }
    if not trace.is_successful():
        return found | {"log": trace.evaluation.log[:2000] if trace.evaluation else ""}
    performance = performance_of(trace)
    about = {"latency_ms": performance.latency_ms, "reference_ms": performance.reference_latency_ms}
    timings = {name: performance.extra.get(name) for name in ("timing", "reference_timing", "not_timed")}
    return found | about | timings


def count(names: Iterable[str]) -> str:
    """Counts of the names, in words."""
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return ", ".join(f"{number} {name}" for name, number in found.items())
