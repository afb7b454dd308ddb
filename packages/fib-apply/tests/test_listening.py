"""Those who listen to calls: with which arguments they are called, and how they are started."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fib_apply import apply, enable_apply, hook
from fib_apply import runtime as runtimes
from fib_apply.routing.codegen import compiled, listened_source
from fib_apply.routing.matching import parameters_of
from fib_schema import TraceSet


class Recorder:
    """Notes the arguments of each call by name."""

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
    """However the call is written, defaults included."""
    routed = apply("heard")(function)
    assert routed(*args, **kwargs) == function(*args, **kwargs)
    assert recorder.seen == [heard]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize(("function", "args", "kwargs", "heard"), FORMS)
def test_the_generated_code_tells_each_note_in_turn(
    count: int, function: Any, args: Any, kwargs: Any, heard: Any
) -> None:
    parameters = parameters_of(function)
    if parameters is None:  # takes nothing
        parameters = ()
    told: list[Any] = []

    def note(index: int) -> Any:
        return lambda *values: told.append((index, values))

    scope = {f"_fib_note{index}": note(index) for index in range(count)}
    listened = compiled(listened_source("call", parameters, count), "call", {**scope, "_fib_target": function})
    given = {p.name: heard[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    result = listened(*(heard[p.name] for p in parameters if p.name not in given), **given)
    assert result == function(*args, **kwargs)
    assert told == [(index, tuple(heard.values())) for index in range(count)]


def test_methods_are_heard_with_their_receiver(recorder: Recorder) -> None:
    layer = Layer()
    assert layer.run(1) == (layer, 1, 1.0)
    assert layer.run(x=2, scale=3.0) == (layer, 2, 3.0)
    assert recorder.seen == [{"self": layer, "x": 1, "scale": 1.0}, {"self": layer, "x": 2, "scale": 3.0}]


def test_variadic_functions_are_heard_by_the_names_that_they_have(recorder: Recorder) -> None:
    """What has no name of its own is called after its place."""
    layer = Layer()
    assert layer.run_any(1, 2, 3, scale=4.0, more=5) == (layer, 1, (2, 3), 4.0, {"more": 5})
    assert layer.run_any(x=1) == (layer, 1, (), 1.0, {})
    assert recorder.seen == [
        {"self": layer, "x": 1, "arg2": 2, "arg3": 3, "scale": 4.0, "more": 5},
        {"self": layer, "x": 1, "scale": 1.0},
    ]


def test_several_listen_and_one_that_does_not_care_is_not_called(recorder: Recorder) -> None:
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


def test_what_a_note_raises_the_caller_sees(recorder: Recorder) -> None:
    def refuse(*values: Any) -> None:
        raise PermissionError("not now")

    recorder.bind = lambda definition, names: refuse  # type: ignore[method-assign]
    with pytest.raises(PermissionError, match="not now"):
        apply("heard")(positional)(1, 2)


def test_a_signal_may_change_who_listens_while_that_is_changed(recorder: Recorder) -> None:
    """Its handler runs in the same thread, which must not wait for itself."""
    with hook._lock:
        hook.remove_listener(recorder)
    assert not hook.is_listened()


def test_a_runtime_that_stops_while_listeners_change_is_pointed_to_no_more(tmp_path: Path) -> None:
    """The last who points sees the last state, whichever thread that is."""
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
    """An installed package with listeners; what they do is written down."""
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
    """Whatever the value is: each reads its own."""
    monkeypatch.setenv("FIB_ENABLE_OTHER", "0")
    runtimes._start_listeners()
    assert package == ["other"]


def test_without_a_variable_entry_points_are_not_looked_for(
    package: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**group: str) -> None:
        raise AssertionError(group)

    monkeypatch.setattr("importlib.metadata.entry_points", refuse)
    monkeypatch.setenv("FIB_ENABLE_APPLY", "1")
    runtimes._start_listeners()
    assert package == []


@pytest.mark.parametrize("name", ["BROKEN", "MISSING", "ABSENT"])
def test_a_listener_that_fails_is_said_and_others_are_started(
    package: list[str], name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine's call that has started them goes on."""
    for variable in (name, "ONE", "OTHER"):
        monkeypatch.setenv(f"FIB_ENABLE_{variable}", "1")
    with caplog.at_level(logging.ERROR, "fib_apply"):
        runtimes._start_listeners()
    assert package == ["one", "other"]
    assert [f"FIB_ENABLE_{name}" in record.message for record in caplog.records] == [True]
