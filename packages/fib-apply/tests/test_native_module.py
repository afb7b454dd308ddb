"""The native module: built once, tried before it is used, and replaced by Python guards where it cannot be built."""

import shutil
import sysconfig

import pytest
import torch
from apply_samples import THREE, data_set, new_definition, new_solution, new_trace
from fib_apply import ApplyRuntime, apply, disable_apply, enable_apply, get_runtime, warm_up
from fib_apply.routing.native import module
from fib_apply.routing.native.module import guards_in_use, loaded_guards, prepare_native, request_native


@pytest.fixture(autouse=True)
def _fresh(cache_path, monkeypatch):
    monkeypatch.delenv(module.NATIVE_VARIABLE, raising=False)
    state = module._State()
    monkeypatch.setattr(module, "_state", state)
    yield
    state.executor.close()
    assert state.executor.wait(300)


@pytest.fixture
def built(native_folder):
    shutil.copytree(native_folder, module.module_folder(), dirs_exist_ok=True)


def compiler(folder, action, monkeypatch):
    """A compiler that fails in some way when it compiles the module; returns a file with a line for each time."""
    calls, program = folder / "calls", folder / "cxx"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *guards.cpp*) echo call >> {calls}; {action};; *) exec c++ "$@";; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    calls.touch()
    return calls


def test_a_built_module_is_loaded_without_a_compiler(built, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert prepare_native() is None
    assert loaded_guards() is not None


def test_routes_are_made_again_when_the_module_is_loaded_in_the_background(built):
    rebound = []

    def on_ready():
        rebound.append(1)

    request_native(on_ready)
    request_native(on_ready)
    assert module.wait_for_native(300)
    assert rebound == [1]
    request_native(on_ready)  # it is loaded
    assert module.wait_for_native(300)
    assert rebound == [1]


def test_an_active_runtime_requests_the_module(built):
    runtime = ApplyRuntime(data_set())
    assert runtime.dispatcher("scale") is not None
    assert not module._state.is_requested
    with ApplyRuntime(data_set()) as active:
        assert active.dispatcher("scale") is not None
        assert module.wait_for_native(300)
        assert loaded_guards() is not None
    assert get_runtime() is None
    disable_apply()


def resolved():
    """A function whose definition is known at its first call, as of the functions that adapters patch."""

    @apply(lambda x: "resolved")
    def scale(x):
        return 2 * x

    return scale


def test_a_warm_up_waits_for_native_guards_although_no_call_has_asked_for_them(built):
    name = "resolved"
    solution = new_solution("s", content=THREE, definition=name)
    trace = new_trace("s", m=2, definition=name)
    traces = data_set(trace, solutions=[solution], definition=new_definition(name))
    scale = resolved()
    with enable_apply(traces) as runtime:
        assert not module._state.is_requested
        assert str(warm_up(300.0)).endswith("; native guards")
        for _ in range(3):
            assert torch.equal(scale(torch.ones(2, 4)), 3 * torch.ones(2, 4))
        found = runtime.explain(name)
    assert "calls pass native guards" in found
    assert "_fib_table_value_returning(" in found
    assert "_fib_guard" not in found


def test_a_warm_up_says_which_guards_are_used_and_why(tmp_path, monkeypatch):
    compiler(tmp_path, f"while [ ! -e {tmp_path}/end ]; do sleep 0.05; done; exit 1", monkeypatch)
    with enable_apply(data_set()) as runtime:
        readiness = warm_up(0.1)
        assert (readiness.is_finished, readiness.guards) == (
            False,
            "Python guards, because native ones are being built",
        )
        (tmp_path / "end").touch()
        assert runtime.wait_until_built(300.0)
        assert "Python guards, because native ones are not used: " in warm_up(300.0).guards
        monkeypatch.setenv(module.NATIVE_VARIABLE, "0")
        assert warm_up(300.0).guards.endswith("because native ones are not used: FIB_APPLY_NATIVE is 0")
        assert "calls pass Python guards, because" in runtime.explain("scale")


def test_guards_that_nobody_asked_for_are_not_loaded():
    assert guards_in_use() == "Python guards, because native ones are not loaded yet"


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        ("echo error: no such header; exit 1", "error: no such header"),
        pytest.param('while [ "$1" != -o ]; do shift; done; echo junk > "$2"', "self-test", marks=pytest.mark.slow),
    ],
)
def test_a_failing_compiler_leaves_python_guards_in_use(tmp_path, monkeypatch, action, problem):
    compiler(tmp_path, action, monkeypatch)
    assert problem in str(prepare_native())
    assert loaded_guards() is None
    assert problem in guards_in_use()


def test_no_compiler_and_no_cache_leave_python_guards_in_use(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert "a C++ compiler is needed" in str(prepare_native())
    (tmp_path / "file").touch()
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "file" / "below"))
    assert "file" in str(prepare_native())
    assert loaded_guards() is None


def test_unsupported_pythons_are_named(monkeypatch):
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    assert "free-threaded" in str(prepare_native())
    monkeypatch.setenv(module.NATIVE_VARIABLE, "0")
    assert prepare_native() == "FIB_APPLY_NATIVE is 0"
    request_native(lambda: None)
    assert not module._state.is_requested
