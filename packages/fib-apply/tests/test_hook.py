"""Listeners: the arguments that they get, and how they are started."""

import logging
import sys
from typing import Any

import pytest
from fib_apply import apply, hook
from fib_apply.runtime import start_listeners


class Recorder:
    """Records the arguments of each call by name."""

    def __init__(self):
        self.seen: list[dict[str, Any]] = []

    def bind(self, definition, names):
        if definition != "heard":
            return None
        return lambda *values: self.seen.append(dict(zip(names, values, strict=True)))


@pytest.fixture
def recorder():
    found = Recorder()
    hook.add_listener(found)
    yield found
    hook.remove_listener(found)


class Layer:
    """Has functions that are routed."""

    @apply("heard")
    def run(self, x, scale=1.0):
        return self, x, scale

    @apply("heard")
    def run_any(self, x, *rest, scale=1.0, **options):
        return self, x, rest, scale, options


def positional(x, y, /, z=3):
    return x, y, z


def keywords(x, *, y, z=3):
    return x, y, z


def nothing():
    return ()


FORMS = [
    (positional, (1, 2), {}, {"x": 1, "y": 2, "z": 3}),
    (positional, (1, 2), {"z": 5}, {"x": 1, "y": 2, "z": 5}),
    (keywords, (1,), {"y": 2}, {"x": 1, "y": 2, "z": 3}),
    (keywords, (), {"z": 0, "y": 2, "x": 1}, {"x": 1, "y": 2, "z": 0}),
    (nothing, (), {}, {}),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "heard"), FORMS)
def test_listeners_get_all_parameters_by_name_and_the_function_the_call(recorder, function, args, kwargs, heard):
    """For each form of call, defaults included."""
    routed = apply("heard")(function)
    assert routed(*args, **kwargs) == function(*args, **kwargs)
    assert recorder.seen == [heard]


def test_calls_of_methods_include_the_receiver(recorder):
    layer = Layer()
    assert layer.run(1) == (layer, 1, 1.0)
    assert layer.run(x=2, scale=3.0) == (layer, 2, 3.0)
    assert recorder.seen == [{"self": layer, "x": 1, "scale": 1.0}, {"self": layer, "x": 2, "scale": 3.0}]


def test_calls_of_variadic_functions_use_known_names(recorder):
    """A positional argument without a name is named after its position."""
    layer = Layer()
    assert layer.run_any(1, 2, 3, scale=4.0, more=5) == (layer, 1, (2, 3), 4.0, {"more": 5})
    assert layer.run_any(x=1) == (layer, 1, (), 1.0, {})
    assert recorder.seen == [
        {"self": layer, "x": 1, "arg2": 2, "arg3": 3, "scale": 4.0, "more": 5},
        {"self": layer, "x": 1, "scale": 1.0},
    ]


def test_several_listeners_are_called_unless_they_ignore_a_definition(recorder):
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


def test_the_caller_sees_what_a_callback_raises(recorder):
    def refuse(*values):
        raise PermissionError("not now")

    recorder.bind = lambda definition, names: refuse
    with pytest.raises(PermissionError, match="not now"):
        apply("heard")(positional)(1, 2)


@pytest.fixture
def package(tmp_path, monkeypatch, write_distribution):
    """An installed package with listeners; yields a record of their starts."""
    (tmp_path / "those_who_listen.py").write_text(
        "STARTED = []\ndef one(): STARTED.append('one')\ndef other(): STARTED.append('other')\n"
        "def broken(): raise RuntimeError('of the listener')\n"
    )
    write_distribution(
        tmp_path,
        "those_who_listen",
        "[fib_apply.listeners]\nbroken = those_who_listen:broken\nmissing = those_who_listen:nobody\n"
        "absent = no_such_module:one\none = those_who_listen:one\nother = those_who_listen:other\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("FIB_ENABLE_TRACING", "FIB_ENABLE_APPLY"):
        monkeypatch.delenv(name, raising=False)
    import those_who_listen

    yield those_who_listen.STARTED
    del sys.modules["those_who_listen"]


def test_a_listener_is_started_if_its_variable_is_set(package, monkeypatch):
    """For any value: each listener reads its own variable."""
    monkeypatch.setenv("FIB_ENABLE_OTHER", "0")
    start_listeners()
    assert package == ["other"]


@pytest.mark.parametrize("name", ["BROKEN", "MISSING", "ABSENT"])
def test_a_listener_that_fails_is_logged_and_others_are_started(package, name, monkeypatch, caplog):
    """The engine's call that started them continues."""
    for variable in (name, "ONE", "OTHER"):
        monkeypatch.setenv(f"FIB_ENABLE_{variable}", "1")
    with caplog.at_level(logging.ERROR, "fib_apply"):
        start_listeners()
    assert package == ["one", "other"]
    assert [f"FIB_ENABLE_{name}" in record.message for record in caplog.records] == [True]
