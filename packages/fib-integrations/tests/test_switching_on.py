"""Installing, uninstalling, and switching on by environment; import order, threads and forks."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from fib_apply import ApplyRuntime, set_apply_hook
from fib_integrations import (
    UnknownAdapter,
    install_flashinfer_integrations,
    status,
    uninstall_flashinfer_integrations,
)
from fib_integrations.environment import HOOKS, with_startup_hook
from fib_integrations.patching import PatchState
from flashinfer_stand_ins.examples import EXAMPLES, Example, random

RMSNORM = next(example for example in EXAMPLES if example.name == "rmsnorm")
DECODE = next(example for example in EXAMPLES if example.name == "decode, lse")


def seen_names(example: Example, flashinfer: Any) -> list[str]:
    seen: list[str] = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    example.prepare(flashinfer)()
    set_apply_hook(None)
    return seen


# -- order -------------------------------------------------------------------------------------------


def test_nothing_happens_by_importing_us(flashinfer: Any) -> None:
    original = flashinfer.norm.rmsnorm
    importlib.import_module("fib_integrations.installation")
    assert flashinfer.norm.rmsnorm is original
    assert seen_names(RMSNORM, flashinfer) == []


def test_installed_before_the_library_is_imported(importable: None) -> None:
    install_flashinfer_integrations()
    assert {target.state for target in status()} == {PatchState.PENDING}
    assert "flashinfer" not in sys.modules
    flashinfer = importlib.import_module("flashinfer")
    assert {target.state for target in status()} == {PatchState.INSTALLED}
    assert flashinfer.rmsnorm is flashinfer.norm.rmsnorm
    assert seen_names(DECODE, flashinfer) == [DECODE.definition.name]


def test_installed_after_somebody_has_taken_names(flashinfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "taken", flashinfer.norm.rmsnorm, raising=False)
    install_flashinfer_integrations()
    assert flashinfer.rmsnorm is flashinfer.norm.rmsnorm is globals()["taken"]
    assert seen_names(RMSNORM, flashinfer) == ["rmsnorm_h8"]


def test_installed_twice_is_installed_once(flashinfer: Any) -> None:
    install_flashinfer_integrations()
    wrapper = flashinfer.norm.rmsnorm
    install_flashinfer_integrations()
    assert flashinfer.norm.rmsnorm is wrapper
    assert seen_names(RMSNORM, flashinfer) == ["rmsnorm_h8"]


def test_uninstalled_and_installed_again(flashinfer: Any) -> None:
    wrappers = (flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper, flashinfer.mla.BatchMLAPagedAttentionWrapper)
    before = [dict(vars(owner)) for owner in (flashinfer, flashinfer.norm, *wrappers)]
    for _ in range(2):
        install_flashinfer_integrations()
        held = flashinfer.norm.rmsnorm
        assert seen_names(DECODE, flashinfer) == [DECODE.definition.name]
        uninstall_flashinfer_integrations()
        assert [dict(vars(owner)) for owner in (flashinfer, flashinfer.norm, *wrappers)] == before
        assert seen_names(DECODE, flashinfer) == []
        set_apply_hook(lambda name, inputs: pytest.fail("a held wrapper passes calls on"))
        held(random(3, 8), random(8))
        set_apply_hook(None)


def test_a_patch_over_ours_stays_and_is_seen_again(flashinfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install_flashinfer_integrations()
    ours = flashinfer.norm.rmsnorm
    monkeypatch.setattr(flashinfer.norm, "rmsnorm", functools.partial(ours))
    uninstall_flashinfer_integrations()
    assert seen_names(RMSNORM, flashinfer) == []
    install_flashinfer_integrations()
    assert seen_names(RMSNORM, flashinfer) == ["rmsnorm_h8"]


def test_some_adapters_alone(flashinfer: Any) -> None:
    install_flashinfer_integrations(["rope"], also=["torch_mm"])
    assert {target.adapter for target in status()} >= {"rope", "torch_mm"}
    assert seen_names(RMSNORM, flashinfer) == []
    with pytest.raises(UnknownAdapter, match="no adapter 'rop'"):
        install_flashinfer_integrations(["rop"])


def test_torchs_own_functions_where_asked_for() -> None:
    linear, mm = torch.nn.functional.linear, torch.mm
    install_flashinfer_integrations([], also=["torch_linear", "torch_mm"])
    seen: list[str] = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    layer = torch.nn.Linear(16, 8, bias=False)
    expected = linear(torch.ones(3, 16), layer.weight)
    assert torch.equal(layer(torch.ones(3, 16)), expected)
    assert torch.mm(torch.ones(3, 16), layer.weight.t()).shape == (3, 8)
    assert seen == ["gemm_n8_k16", "gemm_n8_k16"]
    uninstall_flashinfer_integrations()
    assert (torch.nn.functional.linear, torch.mm) == (linear, mm)


def test_signatures_are_the_librarys(flashinfer: Any) -> None:
    run = flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run
    before = inspect.signature(run)
    install_flashinfer_integrations()
    assert inspect.signature(flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run) == before


def test_torch_compile_traces_the_original(flashinfer: Any) -> None:
    install_flashinfer_integrations()
    seen: list[str] = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    x, w = torch.ones(3, 8), torch.ones(8)
    compiled = torch.compile(lambda x, w: flashinfer.norm.rmsnorm(x, w) + 1, backend="eager", fullgraph=False)
    torch.testing.assert_close(compiled(x, w), torch.full((3, 8), 2.0))
    torch._dynamo.reset()


# -- solutions that call the library -----------------------------------------------------------------


def test_what_a_solution_calls_goes_to_the_originals(flashinfer: Any, runtime_of: Any) -> None:
    install_flashinfer_integrations()
    seen: list[str] = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    with runtime_of("returning"):
        x, w = random(3, 8), random(8)
        function = flashinfer.norm.rmsnorm.__fib_patched__
        flashinfer.norm.rmsnorm(x, w)
        routes = function._scope["_fib_handlers"]
        (key,) = routes
        routes[key] = lambda *values: flashinfer.norm.rmsnorm(x, w)  # as a solution would that calls it
        assert flashinfer.norm.rmsnorm(x, w).shape == (3, 8)
    assert seen == ["rmsnorm_h8"]


# -- threads and forks -------------------------------------------------------------------------------


def hits_of(runtime: ApplyRuntime) -> int:
    stats = runtime.stats().get(DECODE.definition.name)
    return 0 if stats is None else sum(stats.hits.values())


def test_threads_with_wrappers_of_their_own(flashinfer: Any, runtime_of: Any) -> None:
    """A runtime comes and goes while they call; each time at least one call begins under it, and one without it."""
    expected = DECODE.prepare(flashinfer)()
    install_flashinfer_integrations()
    runtime: ApplyRuntime = runtime_of("passing")
    with runtime:  # a wrapper that was planned where nobody routes is served by the original alone
        calls = [DECODE.prepare(flashinfer) for _ in range(4)]
    before = hits_of(runtime)
    turns, done = threading.Condition(), threading.Event()
    made = 0
    wrong: list[object] = []

    def call(prepared: Any) -> None:
        nonlocal made
        while not done.is_set():
            try:
                for mine, theirs in zip(prepared(), expected, strict=True):
                    torch.testing.assert_close(mine, theirs)
            except Exception as error:  # noqa: BLE001 told below; the others wait for this thread's calls
                wrong.append(error)
            with turns:
                made += 1
                turns.notify()

    def wait_for_a_call() -> None:
        with turns:
            enough = made + len(calls) + 1  # as many as there are threads may have begun before
            turns.wait_for(lambda: made >= enough)

    threads = [threading.Thread(target=call, args=(prepared,)) for prepared in calls]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with runtime:
            wait_for_a_call()
        wait_for_a_call()
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert hits_of(runtime) >= before + 20


def test_installed_by_many_threads_at_once(flashinfer: Any) -> None:
    threads = [threading.Thread(target=install_flashinfer_integrations) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen_names(RMSNORM, flashinfer) == ["rmsnorm_h8"]


FORKING = """
import os, torch
torch.set_num_threads(1)  # the library that torch computes with in threads does not survive a fork
import flashinfer
from fib_apply import set_apply_hook
from fib_integrations import install_flashinfer_integrations, uninstall_flashinfer_integrations
from flashinfer_stand_ins.examples import EXAMPLES

seen = []
example = next(example for example in EXAMPLES if example.name == "decode, lse")
install_flashinfer_integrations()
set_apply_hook(lambda name, inputs: seen.append(name))
planned_before = example.prepare(flashinfer)
if os.fork() == 0:
    planned_before()
    example.prepare(flashinfer)()
    uninstall_flashinfer_integrations()
    planned_before()
    print(len(seen), flush=True)
    os._exit(0)
os.wait()
planned_before()
print(len(seen))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_goes_on_with_what_was_planned(some_stand_ins: Path) -> None:
    assert run(FORKING, some_stand_ins) == ["2", "1"]


# -- by environment ----------------------------------------------------------------------------------

PROGRAM = """
import sys
from fib_integrations.startup import load_plugin
{before}
load_plugin()
print("torch" in sys.modules, "fib_apply.runtime" in sys.modules)
import torch, flashinfer
from fib_apply import runtime
from fib_integrations import status
print(sum(target.state == "installed" for target in status()), runtime._has_asked_environment)
flashinfer.norm.rmsnorm(torch.ones(3, 8), torch.ones(8))
print(runtime._has_asked_environment, runtime.get_runtime() is not None)
"""


def run(program: str, some_stand_ins: Path, *command: str, **variables: str) -> list[str]:
    paths = [str(some_stand_ins), str(Path(__file__).parent / "support")]
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
    done = subprocess.run(
        [sys.executable, *command, "-c", program], env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_plugin_does_nothing_unless_asked(some_stand_ins: Path) -> None:
    lines = run(PROGRAM.format(before=""), some_stand_ins)
    assert lines == ["False False", "0 False", "False False"]
    assert run(PROGRAM.format(before=""), some_stand_ins, FIB_ENABLE_APPLY="0")[1:] == ["0 False", "False False"]


def test_a_plugin_installs_and_starts_at_the_first_call(some_stand_ins: Path, tmp_path: Path) -> None:
    (tmp_path / "definitions").mkdir()
    lines = run(PROGRAM.format(before=""), some_stand_ins, FIB_ENABLE_APPLY="1", FIB_DATASET_PATH=str(tmp_path))
    assert lines[1].endswith(" False")
    assert int(lines[1].split()[0]) > 20
    assert lines[2] == "True True"


def test_an_engine_starts_though_the_environment_is_wrong(some_stand_ins: Path, tmp_path: Path) -> None:
    lines = run(
        PROGRAM.format(before=""), some_stand_ins, FIB_ENABLE_APPLY="1", FIB_DATASET_PATH=str(tmp_path / "none")
    )
    assert lines[2] == "True False"
    assert (
        run("from fib_integrations.startup import load_plugin; load_plugin()", some_stand_ins, FIB_ENABLE_APPLY="1")
        == []
    )
    wrong = {"FIB_ENABLE_APPLY": "1", "FIB_INTEGRATIONS": "no_such_adapter"}
    assert run("from fib_integrations.startup import load_plugin; load_plugin()", some_stand_ins, **wrong) == []


@pytest.mark.parametrize("group", ["vllm.general_plugins", "sglang.srt.plugins"])
def test_engines_find_the_plugin(group: str) -> None:
    points = [p for p in importlib.metadata.entry_points(group=group) if p.name == "fib_integrations"]
    assert points
    assert points[0].value == "fib_integrations.startup:load_plugin"


def test_a_start_up_hook_for_everything_below(some_stand_ins: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the one that was there')\n")
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    inner = "import torch, flashinfer; print(hasattr(flashinfer.norm.rmsnorm, '__fib_patched__'))"
    paths = os.pathsep.join([str(tmp_path), str(some_stand_ins), str(Path(__file__).parent / "support")])
    given = {**os.environ, "PYTHONPATH": paths, "FIB_ENABLE_APPLY": "1"}
    command = [sys.executable, "-m", "fib_integrations.run", "-c", child, inner]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"
    assert "the one that was there" in done.stdout


def test_the_start_up_hook_where_the_library_is_what_imports_torch(some_stand_ins: Path) -> None:
    paths = os.pathsep.join([str(some_stand_ins), str(Path(__file__).parent / "support")])
    program = "import flashinfer; print(hasattr(flashinfer.norm.rmsnorm, '__fib_patched__'))"
    command = [sys.executable, "-m", "fib_integrations.run", "-c", program]
    given = {**os.environ, "PYTHONPATH": paths, "FIB_ENABLE_APPLY": "1"}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"


def test_the_start_up_hook_leaves_a_python_alone_that_has_us_not(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the one that was there')\n")
    given = {**with_startup_hook({"PYTHONPATH": str(tmp_path)}), "FIB_ENABLE_APPLY": "1"}
    program = f"import sys; sys.path[:0] = [{str(HOOKS)!r}, {str(tmp_path)!r}]; import sitecustomize"
    command = [sys.executable, "-S", "-I", "-c", program]  # nothing is installed for it
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines(), done.stderr) == (["the one that was there"], "")


def test_an_engine_starts_though_an_adapter_of_others_cannot_be_imported(some_stand_ins: Path, tmp_path: Path) -> None:
    metadata = tmp_path / "broken-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[fib_integrations.adapters]\nbroken = no_such_module:ADAPTER\n")
    program = f"import sys; sys.path.append({str(tmp_path)!r})\nfrom fib_integrations.startup import load_plugin\n"
    assert run(f"{program}load_plugin(); print('started')", some_stand_ins, FIB_ENABLE_APPLY="1") == ["started"]


def test_the_hook_goes_first_on_the_path_once() -> None:
    once = with_startup_hook({"PYTHONPATH": "/a"})
    assert with_startup_hook(once) == once
    assert once["PYTHONPATH"].endswith(f"hooks{os.pathsep}/a")
