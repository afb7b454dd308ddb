"""Listeners: the arguments that they get, and how they are started."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fib_apply import apply, enable_apply, hook
from fib_apply.routing.codegen import compile_function, notifying_source, parameters_of
from fib_apply.runtime import start_listeners
from fib_schema import TraceSet


class Recorder:
    """Records the arguments of each call by name."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def bind(self, definition: str, names: tuple[str, ...]) -> Callable[..., object] | None:
        if definition != "heard":
            return None
        return lambda *values: self.seen.append(dict(zip(names, values, strict=True)))


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    found = Recorder()
    hook.add_listener(found)
    yield found
    hook.remove_listener(found)


class Layer:
    """Has functions that are routed."""

    @apply("heard")
    def run(self, x: Any, scale: float = 1.0) -> tuple[Any, ...]:
        return self, x, scale

    @apply("heard")
    def run_any(self, x: Any, *rest: Any, scale: float = 1.0, **options: Any) -> tuple[Any, ...]:
        return self, x, rest, scale, options


def positional(x: Any, y: Any, /, z: Any = 3) -> tuple[Any, ...]:
    return x, y, z


def keywords(x: Any, *, y: Any, z: Any = 3) -> tuple[Any, ...]:
    return x, y, z


def nothing() -> tuple[Any, ...]:
    return ()


FORMS: list[Any] = [
    (positional, (1, 2), {}, {"x": 1, "y": 2, "z": 3}),
    (positional, (1, 2), {"z": 5}, {"x": 1, "y": 2, "z": 5}),
    (keywords, (1,), {"y": 2}, {"x": 1, "y": 2, "z": 3}),
    (keywords, (), {"z": 0, "y": 2, "x": 1}, {"x": 1, "y": 2, "z": 0}),
    (nothing, (), {}, {}),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "heard"), FORMS)
def test_listeners_get_all_parameters_by_name_and_the_function_the_call(
    recorder: Recorder, function: Any, args: Any, kwargs: Any, heard: Any
) -> None:
    """For each form of call, defaults included."""
    routed = apply("heard")(function)
    assert routed(*args, **kwargs) == function(*args, **kwargs)
    assert recorder.seen == [heard]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize(("function", "args", "kwargs", "heard"), FORMS)
def test_the_generated_code_calls_each_callback_in_order(
    count: int, function: Any, args: Any, kwargs: Any, heard: Any
) -> None:
    parameters = parameters_of(function)
    if parameters is None:  # takes nothing
        parameters = ()
    told: list[Any] = []

    def note(index: int) -> Any:
        return lambda *values: told.append((index, values))

    scope = {f"_fib_callback{index}": note(index) for index in range(count)}
    listened = compile_function(notifying_source("call", parameters, count), "call", {**scope, "_fib_target": function})
    given = {p.name: heard[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    result = listened(*(heard[p.name] for p in parameters if p.name not in given), **given)
    assert result == function(*args, **kwargs)
    assert told == [(index, tuple(heard.values())) for index in range(count)]


def test_calls_of_methods_include_the_receiver(recorder: Recorder) -> None:
    layer = Layer()
    assert layer.run(1) == (layer, 1, 1.0)
    assert layer.run(x=2, scale=3.0) == (layer, 2, 3.0)
    assert recorder.seen == [{"self": layer, "x": 1, "scale": 1.0}, {"self": layer, "x": 2, "scale": 3.0}]


def test_calls_of_variadic_functions_use_known_names(recorder: Recorder) -> None:
    """A positional argument without a name is named after its position."""
    layer = Layer()
    assert layer.run_any(1, 2, 3, scale=4.0, more=5) == (layer, 1, (2, 3), 4.0, {"more": 5})
    assert layer.run_any(x=1) == (layer, 1, (), 1.0, {})
    assert recorder.seen == [
        {"self": layer, "x": 1, "arg2": 2, "arg3": 3, "scale": 4.0, "more": 5},
        {"self": layer, "x": 1, "scale": 1.0},
    ]


def test_several_listeners_are_called_unless_they_ignore_a_definition(recorder: Recorder) -> None:
    other = Recorder()
    hook.add_listener(other)
    try:
        apply("heard")(positional)(1, 2)
        apply("unheard")(positional)(3, 4)
    finally:
        hook.remove_listener(other)
    apply("heard")(positional)(5, 6)
    assert other.seen == [{"x": 1, "y": 2, "z": 3}]
    assert recorder.seen == [*other.seen, {"x": 5, "y": 6, "z": 3}]


def test_the_caller_sees_what_a_callback_raises(recorder: Recorder) -> None:
    def refuse(*values: Any) -> None:
        raise PermissionError("not now")

    recorder.bind = lambda definition, names: refuse  # type: ignore[method-assign]
    with pytest.raises(PermissionError, match="not now"):
        apply("heard")(positional)(1, 2)


def test_a_signal_handler_may_change_listeners_during_a_change(recorder: Recorder) -> None:
    """The handler runs in the same thread, which must not deadlock."""
    with hook._lock:
        hook.remove_listener(recorder)
    assert not hook.has_listeners()


def test_no_call_site_is_bound_to_a_runtime_that_stops_while_listeners_change(tmp_path: Path) -> None:
    """The last rebind sees the last state, in whichever thread it runs."""
    TraceSet(tmp_path)
    routed: Any = apply("heard")(positional)
    plain = routed.__globals__["_fib_route"]

    def listen() -> None:
        for _ in range(100):
            found = Recorder()
            hook.add_listener(found)
            hook.remove_listener(found)

    threads = [threading.Thread(target=listen) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with enable_apply(tmp_path):
            pass
    for thread in threads:
        thread.join()
    assert routed.__globals__["_fib_route"] is plain


# -- listeners of other packages ---------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An installed package with listeners; yields a record of their starts."""
    (tmp_path / "those_who_listen.py").write_text(
        "STARTED = []\ndef one(): STARTED.append('one')\ndef other(): STARTED.append('other')\n"
        "def broken(): raise RuntimeError('of the listener')\n"
    )
    information = tmp_path / "those_who_listen-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: those-who-listen\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[fib_apply.listeners]\nbroken = those_who_listen:broken\nmissing = those_who_listen:nobody\n"
        "absent = no_such_module:one\none = those_who_listen:one\nother = those_who_listen:other\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("FIB_ENABLE_TRACING", "FIB_ENABLE_APPLY"):
        monkeypatch.delenv(name, raising=False)
    import those_who_listen  # type: ignore[import-not-found]

    yield those_who_listen.STARTED
    del sys.modules["those_who_listen"]


def test_a_listener_is_started_if_its_variable_is_set(package: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For any value: each listener reads its own variable."""
    monkeypatch.setenv("FIB_ENABLE_OTHER", "0")
    start_listeners()
    assert package == ["other"]


@pytest.mark.parametrize("name", ["BROKEN", "MISSING", "ABSENT"])
def test_a_listener_that_fails_is_logged_and_others_are_started(
    package: list[str], name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine's call that started them continues."""
    for variable in (name, "ONE", "OTHER"):
        monkeypatch.setenv(f"FIB_ENABLE_{variable}", "1")
    with caplog.at_level(logging.ERROR, "fib_apply"):
        start_listeners()
    assert package == ["one", "other"]
    assert [f"FIB_ENABLE_{name}" in record.message for record in caplog.records] == [True]
