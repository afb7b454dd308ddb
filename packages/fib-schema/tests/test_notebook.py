"""Records in notebooks and consoles: short representations, escaped HTML, frames of pandas, and clean names."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

import fib_schema
import pytest
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Performance,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    UnknownName,
    Workload,
)
from fib_schema.display import escape_line
from fib_schema.notebook import PandasMissing, traces_html
from hypothesis import given
from hypothesis import strategies as st

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"
DEFINITION = Definition(
    "scale_h64",
    "elementwise",
    axes={"M": AxisVar("rows"), "H": AxisConst(64)},
    inputs={"x": TensorSpec(("M", "H"), "float32"), "factor": TensorSpec(None, "float32")},
    outputs={"y": TensorSpec(("M", "H"), "float32")},
    reference="def run(x, factor):\n    return x * factor\n",
    description=HOSTILE,
    constraints=["M > 0"],
)
WORKLOAD = Workload(
    {"M": 8}, {"x": SafetensorsInput("blob/x.safetensors", "x"), "factor": ScalarInput(2.0)}, "eight-rows"
)
SPEC = BuildSpec("python", ("cpu",), "main.py::run", destination_passing_style=False)
SOLUTION = Solution("scale_torch", "scale_h64", "ada", SPEC, (SourceFile("main.py", f"# {HOSTILE}\ndef run(): ...\n"),))


def passed(**extra: Any) -> Trace:
    performance = Performance(0.0123, 0.0246, 2.0, extra=extra or None)
    evaluation = Evaluation(
        "PASSED",
        Environment("cpu"),
        "2026-11-24T12:00:00Z",
        correctness=Correctness(0.5, 0.25),
        performance=performance,
    )
    return Trace("scale_h64", WORKLOAD, "scale_torch", evaluation)


def failed(log: str = HOSTILE) -> Trace:
    evaluation = Evaluation("RUNTIME_ERROR", Environment("cpu"), "2026-11-24T12:00:00Z", log=log)
    return Trace("scale_h64", WORKLOAD, "scale_torch", evaluation)


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        (DEFINITION, "<Definition 'scale_h64' (elementwise): x[M, H], factor -> y[M, H]; M varies, H=64>"),
        (SOLUTION, "<Solution 'scale_torch' of 'scale_h64' by ada: python, main.py::run, for cpu>"),
        (WORKLOAD, "<Workload 'eight-rows': M=8>"),
        (Workload({}, {"x": RandomInput()}, "w"), "<Workload 'w': no variable axes>"),
        (Trace("scale_h64", WORKLOAD), "<Trace 'eight-rows' of 'scale_h64'>"),
        (passed(), "<Trace 'scale_torch' on 'eight-rows' of 'scale_h64': PASSED 12.3 us>"),
        (
            failed("first line\nsecond"),
            "<Trace 'scale_torch' on 'eight-rows' of 'scale_h64': RUNTIME_ERROR: first line>",
        ),
        (failed("").evaluation, "<Evaluation RUNTIME_ERROR on cpu>"),
    ],
)
def test_a_record_is_one_short_line(record: object, shown: str) -> None:
    assert repr(record) == shown


@given(st.text(max_size=2000))
def test_no_log_makes_a_representation_long_or_writes_controls(log: str) -> None:
    shown = repr(failed(log))
    assert len(shown) < 400
    assert escape_line(shown) == shown


@pytest.mark.parametrize("record", [DEFINITION, SOLUTION, WORKLOAD, passed(), failed()])
def test_html_shows_text_of_records_escaped(record: Any) -> None:
    page = record._repr_html_()
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert page.count("<table>") == page.count("</table>") > 0


def test_html_has_what_the_record_has() -> None:
    page = DEFINITION._repr_html_()
    assert "<td>axes: M: description</td><td>rows</td>" in page
    assert "<td>inputs: x: dtype</td><td>float32</td>" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\u202e" in page
    assert "return x * factor" in page
    assert "untrusted" in failed()._repr_html_()
    assert "blob/x.safetensors" in WORKLOAD._repr_html_()


def test_a_table_of_many_traces_is_cut_off() -> None:
    page = traces_html([passed()] * 150)
    assert page.count("<tr>") == 101
    assert "50 more; to_frame() has all" in page


def test_a_data_set_shows_its_definitions() -> None:
    page = TraceSet(definitions={"scale_h64": DEFINITION}, solutions={"scale_h64": [SOLUTION]})._repr_html_()
    assert "<td>scale_h64</td><td>elementwise</td><td>1</td>" in page


def test_a_frame_has_a_row_for_each_trace_and_a_column_for_each_axis() -> None:
    pytest.importorskip("pandas", reason="needs the extra pandas")
    traces = [passed(timing={"interval_ms": [0.012, 0.013]}), passed(timing={"interval_ms": "?"}), failed()]
    frame = TraceSet(definitions={"scale_h64": DEFINITION}, traces={"scale_h64": traces}).to_frame()
    assert list(frame["status"]) == ["PASSED", "PASSED", "RUNTIME_ERROR"]
    assert list(frame["axes.M"]) == [8, 8, 8]
    assert frame["speedup"][0] == 2.0
    assert (frame["interval_low_ms"][0], frame["interval_high_ms"][0]) == (0.012, 0.013)
    assert math.isnan(frame["interval_low_ms"][1])
    assert math.isnan(frame["latency_ms"][2])


def test_a_frame_of_nothing_is_empty() -> None:
    pytest.importorskip("pandas", reason="needs the extra pandas")
    assert len(TraceSet().to_frame()) == 0


def test_without_pandas_a_frame_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PandasMissing, match=r"pip install 'fib-schema\[pandas\]'"):
        TraceSet().to_frame()


@pytest.mark.parametrize(
    ("look_up", "said"),
    [
        (lambda s: s.definitions["scale_h65"], "no definition is named 'scale_h65'; did you mean 'scale_h64'?"),
        (lambda s: s.solutions["scale_h65"], "no definition with solutions is named 'scale_h65'; did you mean"),
        (lambda s: s.traces["scale"], "no definition with traces is named 'scale'"),
        (lambda s: s.definitions["scale_h64"].axes["m"], "no key is named 'm'"),
        (lambda s: s.definitions["scale_h64"].inputs["factr"], "no key is named 'factr'; did you mean 'factor'?"),
    ],
)
def test_a_missing_key_names_near_ones(look_up: Callable[[TraceSet], object], said: str) -> None:
    trace_set = TraceSet(
        definitions={"scale_h64": DEFINITION}, solutions={"scale_h64": [SOLUTION]}, traces={"scale_h64": [passed()]}
    )
    with pytest.raises(UnknownName) as error:
        look_up(trace_set)
    assert str(error.value).startswith(said)
    assert isinstance(error.value, KeyError)
    assert trace_set.definitions.get("scale_h65") is None


def test_an_unknown_name_among_many_says_how_many_there_are() -> None:
    error = UnknownName("definition", "zzz", tuple(f"gemm_{index:03}" for index in range(100)))
    assert str(error).endswith("'gemm_006', 'gemm_007' and 92 more")


def test_names_of_a_package_are_its_public_ones() -> None:
    importlib.import_module("fib_schema.codec")
    public = {name for name in dir(fib_schema) if not name.startswith("__")}
    assert public == set(fib_schema.__all__) - {"__version__"}
