"""Installation and activation by the environment; import order, threads and forks."""

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from fib_apply import set_apply_hook
from fib_integrations import install_flashinfer_integrations, status, uninstall_flashinfer_integrations
from fib_integrations.patching import PatchState
from fib_integrations.startup import HOOKS, with_startup_hook
from fib_schema import UnknownName
from flashinfer_stand_ins.examples import EXAMPLES, random
from flashinfer_stand_ins.marks import one_version

RMSNORM = next(example for example in EXAMPLES if example.name == "rmsnorm")
DECODE = next(example for example in EXAMPLES if example.name == "decode, lse")


def seen_names(example, flashinfer):
    seen = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    example.prepare(flashinfer)()
    set_apply_hook(None)
    return seen


def test_install_before_the_library_is_imported(importable):
    install_flashinfer_integrations()
    assert {target.state for target in status() if target.path.startswith("flashinfer.")} == {PatchState.PENDING}
    assert "flashinfer" not in sys.modules
    flashinfer = importlib.import_module("flashinfer")
    states = {target.state for target in status() if target.path.startswith("flashinfer.")}
    assert states == {PatchState.INSTALLED}
    assert flashinfer.rmsnorm is flashinfer.norm.rmsnorm
    assert seen_names(DECODE, flashinfer) == [DECODE.definition.name]


def test_uninstall_restores_everything_and_install_works_again(flashinfer):
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


@one_version
def test_install_selected_adapters(flashinfer):
    install_flashinfer_integrations(["rope"], also=["torch_mm"])
    assert {target.adapter for target in status()} >= {"rope", "torch_mm"}
    assert seen_names(RMSNORM, flashinfer) == []
    with pytest.raises(UnknownName, match="no adapter is named 'rop'"):
        install_flashinfer_integrations(["rop"])


def test_install_patches_torch_on_request():
    linear, mm = torch.nn.functional.linear, torch.mm
    install_flashinfer_integrations([], also=["torch_linear", "torch_mm"])
    seen = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    layer = torch.nn.Linear(16, 8, bias=False)
    expected = linear(torch.ones(3, 16), layer.weight)
    assert torch.equal(layer(torch.ones(3, 16)), expected)
    assert torch.mm(torch.ones(3, 16), layer.weight.t()).shape == (3, 8)
    assert seen == ["gemm_n8_k16", "gemm_n8_k16"]
    uninstall_flashinfer_integrations()
    assert (torch.nn.functional.linear, torch.mm) == (linear, mm)


@one_version
def test_torch_compile_traces_the_original(flashinfer):
    install_flashinfer_integrations()
    seen = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    x, w = torch.ones(3, 8), torch.ones(8)
    compiled = torch.compile(lambda x, w: flashinfer.norm.rmsnorm(x, w) + 1, backend="eager", fullgraph=False)
    torch.testing.assert_close(compiled(x, w), torch.full((3, 8), 2.0))
    torch._dynamo.reset()


def hits_of(runtime):
    stats = runtime.stats().get(DECODE.definition.name)
    return 0 if stats is None else sum(stats.hits.values())


@one_version
def test_threads_with_separate_wrappers(flashinfer, runtime_of):
    """A runtime starts and stops while they call. Each time, at least one call begins with it and one without it."""
    expected = DECODE.prepare(flashinfer)()
    install_flashinfer_integrations()
    runtime = runtime_of("passing")
    with runtime:  # a wrapper that was planned without a runtime is served by the original alone
        calls = [DECODE.prepare(flashinfer) for _ in range(4)]
    before = hits_of(runtime)
    turns, done = threading.Condition(), threading.Event()
    made = 0
    wrong = []

    def call(prepared):
        nonlocal made
        while not done.is_set():
            try:
                for mine, theirs in zip(prepared(), expected, strict=True):
                    torch.testing.assert_close(mine, theirs)
            except Exception as error:  # noqa: BLE001 reported below; the others wait for this thread's calls
                wrong.append(error)
            with turns:
                made += 1
                turns.notify()

    def wait_for_a_call():
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


@one_version
def test_concurrent_installation(flashinfer):
    threads = [threading.Thread(target=install_flashinfer_integrations) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen_names(RMSNORM, flashinfer) == ["rmsnorm_h8"]


FORKING = """
import os, torch
torch.set_num_threads(1)  # torch's thread pool does not survive a fork
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
LOADING = "from fib_integrations.startup import load_plugin\nload_plugin()\nprint('started')\n"
CALLING = """
from fib_integrations.startup import load_plugin
load_plugin()
import torch, flashinfer
from fib_apply import get_runtime, wait_until_built
from fib_integrations import status
print(sum(target.state == "installed" for target in status()))
flashinfer.norm.rmsnorm(torch.ones(3, 8), torch.ones(8))
assert wait_until_built(300)
print(get_runtime() is not None)
"""
FORK_SERVER = """
import json, os, sys
import torch
for name, (program, variables) in json.loads(sys.argv[1]).items():
    print("##", name, flush=True)
    if os.fork() == 0:
        os.environ.update(variables)
        exec(program, {})
        sys.stdout.flush()
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"{name} failed")
"""


def run(program, stand_ins, *arguments, **variables):
    """Run a program with the stand-ins for FlashInfer; returns the lines that it prints."""
    paths = os.pathsep.join([str(stand_ins), str(Path(__file__).parent / "support")])
    environment = {**os.environ, "PYTHONPATH": paths, **variables}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def printed(some_stand_ins, tmp_path_factory, write_distribution):
    """The lines that programs print, each run in a fork of one process that has imported torch."""
    folder = tmp_path_factory.mktemp("environment")
    (folder / "definitions").mkdir()
    write_distribution(folder, "broken", "[fib_integrations.adapters]\nbroken = no_such_module:ADAPTER\n")
    enabled = {"FIB_ENABLE_APPLY": "1"}
    programs = {
        "forking": (FORKING, {}),
        "not enabled": (CALLING, {}),
        "disabled": (CALLING, {"FIB_ENABLE_APPLY": "0"}),
        "enabled": (CALLING, {**enabled, "FIB_DATASET_PATH": str(folder)}),
        "missing data set": (CALLING, {**enabled, "FIB_DATASET_PATH": str(folder / "none")}),
        "no data set": (LOADING, enabled),
        "broken adapter": (f"import sys; sys.path.append({str(folder)!r})\n{LOADING}", enabled),
    }
    found = {}
    for line in run(FORK_SERVER, some_stand_ins, json.dumps(programs)):
        if line.startswith("## "):
            found[line.removeprefix("## ")] = []
        else:
            found[list(found)[-1]].append(line)
    return found


def test_forked_process_keeps_recorded_plans(printed):
    assert printed["forking"] == ["2", "1"]


@pytest.mark.parametrize("variables", [{}, {"FIB_ENABLE_APPLY": "0"}], ids=str)
def test_plugin_imports_nothing_unless_enabled(some_stand_ins, variables):
    program = f"import sys\n{LOADING}print('torch' in sys.modules, 'fib_apply.runtime' in sys.modules)"
    assert run(program, some_stand_ins, **variables) == ["started", "False False"]


@pytest.mark.parametrize("name", ["not enabled", "disabled"])
@pytest.mark.slow
def test_plugin_installs_nothing_unless_enabled(name, printed):
    assert printed[name] == ["0", "False"]


def test_plugin_installs_the_adapters_and_the_first_call_starts_a_runtime(printed):
    installed, has_runtime = printed["enabled"]
    assert int(installed) > 20
    assert has_runtime == "True"


def test_engine_starts_with_a_wrong_environment(printed):
    installed, has_runtime = printed["missing data set"]
    assert int(installed) > 20
    assert has_runtime == "False"
    assert printed["no data set"] == printed["broken adapter"] == ["started"]


@pytest.mark.parametrize("group", ["vllm.general_plugins", "sglang.srt.plugins"])
def test_plugin_is_an_entry_point_of_engines(group):
    points = [p for p in importlib.metadata.entry_points(group=group) if p.name == "fib_integrations"]
    assert points
    assert points[0].value == "fib_integrations.startup:load_plugin"


@pytest.mark.slow
def test_start_up_hook_reaches_child_processes(some_stand_ins, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the existing one')\n")
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    inner = "import torch, flashinfer; print(hasattr(flashinfer.norm.rmsnorm, '__fib_patched__'))"
    paths = os.pathsep.join([str(tmp_path), str(some_stand_ins), str(Path(__file__).parent / "support")])
    variables = {**os.environ, "PYTHONPATH": paths, "FIB_ENABLE_APPLY": "1"}
    command = [sys.executable, "-m", "fib_integrations.run", "-c", child, inner]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"
    assert "the existing one" in done.stdout


def test_start_up_hook_ignores_a_python_without_this_package(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the existing one')\n")
    variables = {**with_startup_hook({"PYTHONPATH": str(tmp_path)}), "FIB_ENABLE_APPLY": "1"}
    program = f"import sys; sys.path[:0] = [{str(HOOKS)!r}, {str(tmp_path)!r}]; import sitecustomize"
    command = [sys.executable, "-S", "-I", "-c", program]  # nothing is installed for it
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines(), done.stderr) == (["the existing one"], "")


def test_start_up_hook_is_first_on_the_path_once():
    once = with_startup_hook({"PYTHONPATH": "/a"})
    assert with_startup_hook(once) == once
    assert once["PYTHONPATH"].endswith(f"hooks{os.pathsep}/a")
