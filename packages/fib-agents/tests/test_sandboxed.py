"""Confined commands: what they can reach, that they end, and files that they plant for the caller."""

import os
import re
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import attrs
import pytest
import torch
from fib_agents import read_guide
from fib_agents.errors import ToolFailed
from fib_agents.inspection import ProfilerOptions, checked_profile
from fib_agents.sandboxed.call import DEFERRED
from fib_agents.sandboxed.run import Finished, Sandbox, find_program, make_values, read_outputs, write_job
from fib_agents.workspace import choose_workloads, read_solution
from fib_schema import BuildSpec, Solution, SourceFile


@pytest.fixture
def solution():
    spec = BuildSpec("python", ("cpu",), "kernel.py::run")
    return Solution("s", "softmax_n64", "a", spec, (SourceFile("kernel.py", "def run(x):\n    return x\n"),))


@pytest.fixture
def sandbox(workspace, solution):
    with Sandbox(workspace, solution) as made:
        yield made


def run(sandbox, code, seconds=60):
    return sandbox.run([sys.executable, "-c", code], timeout_seconds=seconds)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_command_sees_its_files_and_reports_its_end(sandbox):
    sandbox.write("in.txt", b"hello")
    ended = run(sandbox, "import sys; open('out.txt', 'w').write(open('in.txt').read()); print('said'); sys.exit(3)")
    assert (ended.code, ended.output) == (3, "said\n")
    assert sandbox.read("out.txt", 100) == b"hello"
    assert sandbox.read("none.txt", 100) is None


def test_a_command_cannot_read_the_data_set_or_open_sockets(sandbox, workspace):
    if run(sandbox, "pass").isolation_level < 3:
        pytest.skip("this system does not confine commands fully")
    ended = run(
        sandbox,
        f"import os, socket\nfor f in (lambda: os.listdir({str(workspace.root)!r}), socket.socket):\n    try:\n"
        "        f()\n        print('done')\n    except OSError as error:\n        print(type(error).__name__)\n",
    )
    assert ended.output == "PermissionError\nPermissionError\n"


def test_environment_variables_of_the_caller_stay_outside(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    ended = run(sandbox, "import os; print(os.environ.get('SECRET_TOKEN'), os.environ['HOME'] == os.getcwd())")
    assert ended.output == "None True\n"


def test_a_build_knows_the_architecture_without_seeing_a_device(workspace, solution, monkeypatch):
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a 8.0")
    with Sandbox(attrs.evolve(workspace, device="cuda:0"), solution) as sandbox:
        ended = run(sandbox, "from fib_compile.device import architectures_of_machine as f; print(f())")
    assert ended.output == "('8.0', '9.0a')\n"


@pytest.mark.parametrize("code", ["os.setsid()", "os.setsid(); os.fork() and os._exit(0)"])
def test_nothing_that_a_command_started_outlives_it(sandbox, code):
    ended = run(
        sandbox,
        f"import os, time\nread, write = os.pipe()\nif os.fork() == 0:\n    {code}\n"
        "    os.write(write, str(os.getpid()).encode())\n    time.sleep(1000)\nprint(os.read(read, 20).decode())\n",
    )
    assert not is_alive(int(ended.output))


@pytest.mark.slow
def test_a_command_is_ended_when_its_time_is_over(sandbox):
    ended = run(
        sandbox,
        "import os, signal\nsignal.signal(15, lambda *_: 0)\nprint(os.getpid(), flush=True)\nwhile True: pass",
        15,  # on a busy machine it starts slowly
    )
    assert ended.code is None
    assert not is_alive(int(ended.output))


def test_a_cancelled_command_is_ended(workspace, solution):
    cancelled = threading.Event()
    cancelled.set()
    with Sandbox(attrs.evolve(workspace, cancelled=cancelled), solution) as sandbox, pytest.raises(CancelledError):
        run(sandbox, "while True: pass")


def test_a_planted_link_is_not_followed(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    run(sandbox, f"import os; os.symlink({str(secret)!r}, 'out.txt'); os.mkfifo('pipe'); os.mkdir('folder')")
    for name in ("out.txt", "pipe", "folder"):
        with pytest.raises(ToolFailed):
            sandbox.read(name, 100)
    with pytest.raises(FileExistsError):
        sandbox.write("out.txt", b"overwritten")
    assert secret.read_text() == "secret"


def test_a_large_file_and_a_flood_of_output_are_bounded(sandbox):
    ended = run(sandbox, "import sys\nsys.stdout.write('x' * 5_000_000)\nopen('big', 'wb').truncate(1000)")
    assert len(ended.output) < 1_100_000
    assert "bytes left out" in ended.output
    with pytest.raises(ToolFailed, match="at most 999 bytes"):
        sandbox.read("big", 999)


def test_a_command_that_does_not_exist_is_an_error(sandbox):
    with pytest.raises(ToolFailed, match="FileNotFoundError"):
        sandbox.run(["/nonexistent/ncu"], timeout_seconds=20)


def test_the_report_of_the_supervisor_cannot_be_forged(sandbox):
    ended = run(
        sandbox,
        "import os, sys\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'{\"code\": 0}\\n')\n"
        "    except OSError:\n        pass\nsys.exit(5)",
    )
    assert ended.code == 5


def test_the_supervisor_imports_nothing_from_the_current_folder(sandbox, tmp_path, monkeypatch):
    (tmp_path / "attrs.py").write_text("raise SystemExit('planted')\n")
    monkeypatch.chdir(tmp_path)
    assert run(sandbox, "print('fine')").output == "fine\n"


@pytest.mark.parametrize(
    "code",
    [
        "open('outputs.safetensors', 'wb').write(b'\\xff' * 64)",
        "open('outputs.safetensors', 'wb').write((2**62).to_bytes(8, 'little') + b'{}')",
        "save_file({'y': torch.zeros(4, 64, dtype=torch.float64)}, 'outputs.safetensors')",
        "save_file({'y': torch.zeros(4, 64), 'more': torch.zeros(1)}, 'outputs.safetensors')",
        "open('outputs.safetensors', 'wb').truncate(1 << 29)",
        "pass",
    ],
    ids=["noise", "header", "dtype", "extra", "huge", "none"],
)
@pytest.mark.slow
def test_outputs_that_are_none_are_refused(workspace, definition, sandbox, code):
    imports = "import torch\nfrom safetensors.torch import save_file\n" if "save_file" in code else ""
    assert run(sandbox, imports + code).code == 0
    (workload,) = choose_workloads(workspace.open(), definition, ["rows-4"], 1)
    with pytest.raises(ToolFailed):
        read_outputs(sandbox, definition, workload)


TOOL = """\
#!{python}
import subprocess, sys
words = sys.argv[1:]
log = words[words.index("--log-file") + 1]
call = words[next(i for i, word in enumerate(words) if word == {python!r}):]
ended = subprocess.run(call)
open(log, "w").write({log!r})
sys.exit(ended.returncode)
"""


READS_THE_DATA_SET = """\
import pathlib


def is_refused(action):
    try:
        action()
    except PermissionError:
        return True
    return False


def run(x):
    here = pathlib.Path.cwd()
    (here / "tool.log").symlink_to("/proc/self/comm")
    refused = [
        is_refused(lambda: list(pathlib.Path({root!r}).iterdir())),
        is_refused(lambda: (here.parent / "tool.log").write_text("forged")),
        is_refused(lambda: (here.parent / "planted").symlink_to("/etc/passwd")),
        is_refused(lambda: pathlib.Path("/proc/self/oom_score_adj").write_text("0")),
    ]
    return x * 0 + sum(refused)
"""


def tool_in(folder, text, monkeypatch):
    """Put a program in the place of ncu, which needs a GPU."""
    folder.mkdir()
    program = folder / "ncu"
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_a_call_below_a_tool_confines_its_own_files(workspace, definition, tmp_path, monkeypatch):
    """The tool keeps its files, and a call whose settings it drops does not load the solution."""
    tool_in(tmp_path / "bin", TOOL.format(python=sys.executable, log=""), monkeypatch)
    trace_set = workspace.open()
    source = READS_THE_DATA_SET.format(root=str(workspace.root.resolve()))
    solution = read_solution(workspace, trace_set, definition, {"kernel.py": source})
    (workload,) = choose_workloads(trace_set, definition, ["rows-4"], 1)
    with Sandbox(workspace, solution, local_sockets=True) as sandbox:
        values = make_values(workspace, definition, workload, "normal")
        call = write_job(sandbox, workspace, definition, solution, workload, values, saves_outputs=True)
        command = ProfilerOptions().command(find_program("ncu", ""), str(sandbox.log_path), call)
        sandbox.build(call, timeout_seconds=120)
        ended = sandbox.run(command, timeout_seconds=120)
        assert ended.code == 0, ended.output
        if ended.isolation_level < 2:
            pytest.skip("this system does not confine files")
        assert read_outputs(sandbox, definition, workload)["y"].unique().tolist() == [4.0]
        dropped = sandbox.run(["/usr/bin/env", "-u", DEFERRED, *call], timeout_seconds=120)
    assert dropped.code == 1
    assert f"{DEFERRED} is not set" in dropped.output


@pytest.mark.slow
def test_a_tool_runs_the_call_in_its_sandbox_and_its_log_is_read(workspace, definition, tmp_path, monkeypatch):
    """A program in place of ncu, which needs a GPU: it runs the call and writes a log, as ncu does."""
    log = "==PROF== Softmax 2.5 us"
    tool_in(tmp_path / "bin", TOOL.format(python=sys.executable, log=log), monkeypatch)
    source = re.findall(r"```cpp\n(.*?)```", read_guide("tvm-ffi"), re.S)[0]
    trace_set = workspace.open()
    solution = read_solution(workspace, trace_set, definition, {"kernel.cpp": source})
    (workload,) = choose_workloads(trace_set, definition, ["rows-4"], 1)
    with Sandbox(workspace, solution, local_sockets=True) as sandbox:
        values = make_values(workspace, definition, workload, "normal")
        call = write_job(sandbox, workspace, definition, solution, workload, values, warm_calls=1, saves_outputs=True)
        command = ProfilerOptions().command(find_program("ncu", ""), str(sandbox.log_path), call)
        sandbox.build(call, timeout_seconds=120)
        ended = sandbox.run(command, timeout_seconds=120)
        assert ended.code == 0, ended.output
        report = checked_profile((sandbox.read_log(10_000) or b"").decode(), ended.code, ended.output)
        outputs = read_outputs(sandbox, definition, workload)
    assert report == log
    assert torch.allclose(outputs["y"], torch.softmax(values["x"], -1), atol=1e-6)


@pytest.mark.parametrize(
    ("code", "end"),
    [(None, "was ended by the time limit"), (-11, "was ended by Segmentation fault"), (3, "exited with status 3")],
)
def test_a_command_tells_its_end_in_words(code, end):
    assert Finished(code, "", 3, "", 0.1).end == end


@pytest.mark.slow
def test_inputs_of_a_problem_generator_are_made_in_the_sandbox(workspace, definition):
    source = "\nimport os\ndef make(arguments, device):\n    return {'x': torch.full((4, 64), float(os.getpid()))}\n"
    extra = {"input_generator": {"function": "make", "inputs": ["x"]}}
    changed = attrs.evolve(definition, reference=definition.reference + source, extra=extra)
    (workload,) = choose_workloads(workspace.open(), definition, ["rows-4"], 1)
    values = make_values(workspace, changed, workload, "normal")
    assert set(values["x"].flatten().tolist()) != {float(os.getpid())}
    assert values["x"].unique().numel() == 1
