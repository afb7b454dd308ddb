"""No lock is held while other code runs, and no call, decoration or import waits for a build."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from apply_samples import THREE, new_definition, new_solution, new_trace, set_of, write_set
from fib_apply import (
    ApplyKeyFactory,
    ApplyRuntime,
    AxesOnlyKeyBuilder,
    add_event_listener,
    add_listener,
    apply,
    enable_apply,
    remove_event_listener,
    remove_listener,
)

pytestmark = pytest.mark.usefixtures("without_probes")

SECONDS = 300.0
"""After which a thread counts as blocked."""


def in_other_thread(call):
    """Whether a call returns in a thread of its own, while this one waits."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return not thread.is_alive()


@pytest.fixture(name="found")
def found_fixture():
    return set_of()


def decorate():
    return apply("scale")(lambda x: 2 * x)


def test_a_listener_may_wait_for_a_thread_that_decorates_and_enables(found):
    results = []

    class Waiting:
        def bind(self, definition, names):
            if threading.current_thread() is threading.main_thread() and len(results) < 4:
                results.append(in_other_thread(decorate))
                results.append(in_other_thread(lambda: enable_apply(found).stop()))

    listener = Waiting()
    add_listener(listener)
    try:
        decorate()
        with enable_apply(found):
            pass
    finally:
        remove_listener(listener)
    assert len(results) >= 4
    assert all(results)


def test_a_key_builder_may_wait_for_a_thread_that_calls(found):
    results = []
    scale = decorate()

    class Waiting(AxesOnlyKeyBuilder):
        def __init__(self, definition):
            super().__init__(definition)
            if threading.current_thread() is threading.main_thread():
                results.append(in_other_thread(lambda: apply("scale", args=(torch.ones(2, 4),), fallback=scale)))

    with enable_apply(found) as runtime:
        ApplyKeyFactory.register("elementwise", Waiting)
        runtime.reload()
        scale(torch.ones(2, 4))
    assert results
    assert all(results)


def test_a_solution_may_reload_while_it_is_built(monkeypatch):
    content = "import fib_apply\nruntime = getattr(fib_apply, 'of_a_test', None)\nif runtime: runtime.reload()\n"
    runtime = ApplyRuntime(set_of(content + THREE))
    monkeypatch.setitem(sys.modules["fib_apply"].__dict__, "of_a_test", runtime)
    assert in_other_thread(runtime.prepare)
    assert runtime.left_out() == {}


def test_the_last_of_concurrent_reloads_counts(found, tmp_path):
    other = write_set(tmp_path, definitions=[new_definition("another")])
    runtime = ApplyRuntime(found)
    inner = []

    def rebuild(event):
        if threading.current_thread() is threading.main_thread() and not inner:
            inner.append(in_other_thread(lambda: runtime.rebuild(other)))

    add_event_listener(rebuild)
    runtime.reload()
    remove_event_listener(rebuild)
    assert inner == [True]
    assert runtime.table.definitions == ("another",)


SERVER = """
import os, sys, threading, torch, fib_apply
@fib_apply.apply("scale")
def scale(x):
    return 2 * x
x = torch.ones(2, 4)
first = float(scale(x)[0, 0])
open(sys.argv[1], "w").close()  # the build waits for this file
assert fib_apply.wait_until_built(300)
print(first, float(scale(x)[0, 0]))
"""
SLOW = """
import os, pathlib, time
from fib_apply import apply
@apply("scale")
def other(x):
    return x
while os.environ["FIB_ENABLE_APPLY"] == "1" and not pathlib.Path({path!r}).exists():
    time.sleep(0.01)
def run(x, y):
    y.copy_(3 * x)
"""


def run(program, *arguments, **variables):
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, **variables}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest.mark.slow
def test_calls_do_not_wait_for_builds_of_the_runtime_of_the_environment(tmp_path):
    """The solution decorates a function when it is built, and is built only after the first call has returned."""
    go = tmp_path / "go"
    write_set(
        tmp_path / "set", new_trace("fast", m=2), solutions=[new_solution("fast", content=SLOW.format(path=str(go)))]
    )
    printed = run(SERVER, str(go), FIB_ENABLE_APPLY="1", FIB_DATASET_PATH=str(tmp_path / "set"))
    assert printed == "2.0 3.0"


@pytest.mark.slow
def test_enabling_in_a_module_that_a_solution_imports_does_not_wait(tmp_path):
    (tmp_path / "engine.py").write_text(
        "import os, fib_apply\nif os.environ.get('FIB_ENABLE_APPLY') != '0':\n"
        f"    runtime = fib_apply.enable_apply({str(tmp_path / 'set')!r})\n"
    )
    content = f"import engine\n{THREE}"
    write_set(tmp_path / "set", new_trace("fast", m=2), solutions=[new_solution("fast", content=content)])
    program = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport torch, engine, fib_apply\n"
        "assert fib_apply.wait_until_built(300)\n"
        "print(float(fib_apply.apply('scale')(lambda x: 2 * x)(torch.ones(2, 4))[0, 0]), engine.runtime.left_out())\n"
    )
    assert run(program) == "3.0 {}"


CANCELLED = """
import fib_apply, torch
@fib_apply.apply("scale")
def scale(x):
    return 2 * x
fib_apply.disable_apply()
assert fib_apply.wait_until_built(300)
print(fib_apply.get_runtime(), float(scale(torch.ones(2, 4))[0, 0]))
"""


@pytest.mark.slow
def test_disabling_also_ends_a_runtime_that_is_being_started(tmp_path):
    write_set(
        tmp_path, new_trace("fast", m=2), solutions=[new_solution("fast", content="def run(x, y): y.copy_(3 * x)\n")]
    )
    assert run(CANCELLED, FIB_ENABLE_APPLY="1", FIB_DATASET_PATH=str(tmp_path)) == "None 2.0"
