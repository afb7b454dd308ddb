"""Tests of the sandbox: what its measures keep a solution from on this machine, and what it still can do."""

import ast
import errno
import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import uuid
from pathlib import Path

import attrs
import pytest
from fib_bench import BenchmarkConfig
from fib_bench.errors import InvalidConfig
from fib_bench.judge.evaluate import Judge
from fib_bench.judge.functions import build_request
from fib_bench.sandbox import landlock, processes, syscalls
from fib_bench.sandbox.environment import unreadable_path
from fib_bench.sandbox.landlock import landlock_abi
from fib_bench.sandbox.model import LIMIT_VARIABLE, Isolation, Level, NotPossible, SandboxPaths, SandboxPolicy, Threat
from fib_bench.sandbox.policy import MEASURES, confine_files, isolate, limit_from_environment, prepare
from fib_bench.sandbox.processes import require_other_user, reserve_uid, wanted_namespaces, why_not
from fib_bench.sandbox.seccomp import Filter, Refusal, worker_filter
from fib_bench.sandbox.syscalls import enter_namespaces, mount_empty_memory
from fib_bench.transport.messages import Build, Built
from fib_bench.worker.client import ForkServerClient, Rejected
from fib_schema import Definition, EvaluationStatus, SupportedBindings, format_json
from hypothesis import given
from hypothesis import strategies as st

from .samples import DOUBLE, GOOD, in_a_child, make_solution, make_workload

PROCESS = frozenset({Threat.PRIVILEGES, Threat.RESOURCES})
CONFINED = PROCESS | {Threat.FILES, Threat.MEMORY}


@pytest.fixture(autouse=True)
def _leaves_no_process(survivors):
    yield
    assert survivors() == {}


@pytest.fixture(scope="session")
def isolation(server):
    """Properties of the workers of the shared server."""
    definition = Definition("d", "elementwise", {}, {}, {}, "def run(): pass\n")
    with server.spawn() as worker:
        worker.request(Build("cpu", format_json(definition), None), Built, seconds=60)
        assert worker.isolation is not None
        return worker.isolation


@pytest.fixture
def stops(isolation):
    """Skips a test where a threat is not stopped."""

    def check(threat):
        if threat not in isolation.stopped:
            pytest.skip(f"nothing stops a worker here from trying to {threat}: {dict(isolation.missing)}")

    return check


@pytest.fixture
def attempts(server):
    """Results of a solution that runs the bodies of functions: return values, or the kinds of errors, by body.

    It runs them when it is imported; a worker is confined before it reads a solution.
    """

    def run(bodies, **names):
        code = (
            "import ctypes, os, signal, socket, subprocess, sys\nfound = {}\n"
            + "".join(f"{name} = {value!r}\n" for name, value in names.items())
            + "".join(
                f"def attempt():\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
                f"try:\n    found[{body!r}] = f'done: {{attempt()}}'\n"
                f"except Exception as error:\n    found[{body!r}] = f'refused: {{type(error).__name__}}'\n"
                for body in bodies
            )
            + "raise ValueError(f'<<{found}>>')\n"
        )
        with server.spawn() as worker, pytest.raises(Rejected) as caught:
            worker.request(build_request("cpu", DOUBLE, make_solution(code)), Built, seconds=60)
        answers = re.findall(r"ValueError: <<({.*?})>>", caught.value.message, re.DOTALL)
        assert answers, caught.value
        return ast.literal_eval(answers[-1])

    return run


@pytest.fixture
def attempt(attempts):
    return lambda body, **names: attempts([body], **names)[body]


class TestLevel:
    @given(st.sets(st.sampled_from(Threat)))
    def test_a_level_needs_all_that_those_below_it_need(self, threats):
        level = Isolation({"m": frozenset(threats)}, {}).level
        assert (level >= Level.PROCESS) == (threats >= PROCESS)
        assert (level >= Level.CONFINED) == (threats >= CONFINED)
        assert (level >= Level.SANDBOXED) == (threats == set(Threat))

    @pytest.mark.parametrize(
        ("text", "level"), [("0", 0), ("1", 1), ("2", 2), ("3", 3), ("", 3), ("none", 0), (" Confined ", 2)]
    )
    def test_the_variable_limits_it(self, monkeypatch, text, level):
        monkeypatch.setenv(LIMIT_VARIABLE, text)
        assert limit_from_environment() == level

    @pytest.mark.parametrize("text", ["4", "-1", "all"])
    def test_the_variable_must_name_a_level(self, monkeypatch, text):
        monkeypatch.setenv(LIMIT_VARIABLE, text)
        with pytest.raises(InvalidConfig, match=rf"{LIMIT_VARIABLE}.*'{text}' is not a level.*sandboxed"):
            limit_from_environment()


def test_every_measure_holds_or_says_why_not(isolation):
    assert {*isolation.held, *isolation.missing} == {measure.name for measure in MEASURES}
    assert isolation.held.keys().isdisjoint(isolation.missing)
    assert all(isolation.missing.values())
    assert isolation.level >= Level.PROCESS


def test_a_trace_says_how_its_worker_was_isolated(evaluate, isolation):
    codes = (GOOD, "def run(x):\n    raise ValueError", "import nothing_of_this_name", "import os\nos._exit(3)")
    for evaluation in evaluate(*map(make_solution, codes)):
        assert evaluation.extra["isolation"] == isolation.to_extra()


def _can_mount():
    """Whether the system lets a worker mount, tried in a process of its own."""

    def mount():
        enter_namespaces(wanted_namespaces())
        mount_empty_memory("/dev/shm")
        return "mounted"

    return in_a_child(mount) == "mounted"


FILE_ATTACKS = (
    "return open(secret).read()",
    "os.symlink(secret, 'link')\nreturn open('link').read()",
    "os.link(secret, 'hard')\nreturn open('hard').read()",
    "return subprocess.run(['cat', secret], check=True)",
    "open(secret, 'a')",
    "os.unlink(secret)",
    "open(secret + '.new', 'w')",
    "return os.listdir(home)",
    "return os.listdir(temporary)",
    "open(os.path.join(temporary, new), 'w')",
    "import fib_bench\nopen(fib_bench.__file__, 'a')",
    "return os.listdir(cache)",
    "return os.listdir(os.environ['FIB_CACHE_PATH'] + '/..')",
    "open('/proc/sys/kernel/core_pattern', 'r+')",
    "open('/etc/shadow').read()",
    "return os.listdir(f'/proc/{os.getppid()}/cwd/')",
    "return os.listdir(f'/proc/{judge}/root/tmp')",
)


class TestFiles:
    def test_of_others_are_refused(self, stops, attempts, tmp_path, cache_path):
        stops(Threat.FILES)
        secret = tmp_path / "secret"
        secret.write_text("expected")
        places = {"home": str(Path.home()), "temporary": tempfile.gettempdir(), "cache": str(cache_path)}
        new = f"new-{uuid.uuid4()}"  # the error would be another one if a folder had this name
        found = attempts(FILE_ATTACKS, secret=str(secret), judge=os.getpid(), new=new, **places)
        refused = {f"refused: {name}" for name in ("PermissionError", "CalledProcessError", "OSError")}
        assert {body: result for body, result in found.items() if result not in refused} == {}
        assert found.keys() == {*FILE_ATTACKS}
        assert secret.read_text() == "expected"
        assert os.listdir(tmp_path) == ["secret"]
        assert not os.path.lexists(os.path.join(places["temporary"], new))

    @pytest.mark.parametrize("place", ["a data set within a readable folder", "the current folder of the run"])
    def test_folders_within_the_search_path_are_hidden(self, stops, monkeypatch, tmp_path, place):
        stops(Threat.FILES)
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "secret").write_text("expected")
        hidden = []
        if place == "the current folder of the run":
            monkeypatch.chdir(tmp_path / "data")
        else:
            monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
            hidden = [tmp_path / "data"]
        code = f"raise ValueError(open('{tmp_path}/data/secret').read())"
        with ForkServerClient("cpu", hidden) as server, server.spawn() as worker:
            request = Build("cpu", format_json(DOUBLE), format_json(make_solution(code)))
            with pytest.raises(Rejected, match="PermissionError"):
                worker.request(request, Built, seconds=60)

    def test_shared_memory_of_others_is_hidden_and_its_own_ends_with_it(self, attempt):
        if not _can_mount():
            pytest.skip("mounts are not allowed here")
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="fib-tests-") as of_others:
            body = """
                open("/dev/shm/left-by-a-solution", "w").write("x")
                return os.listdir("/dev/shm")
            """
            assert attempt(body) == "done: ['left-by-a-solution']"
            found = os.listdir("/dev/shm")
            assert Path(of_others.name).name in found
            assert "left-by-a-solution" not in found

    def test_its_own_folder_is_its_home(self, attempt):
        body = """
            import pathlib, tempfile
            home = pathlib.Path.home()
            (home / "a" / "b").mkdir(parents=True)
            (home / "a" / "b" / "f").write_text("x")
            (home / "a" / "b" / "f").rename(home / "g")
            os.symlink("g", home / "link")
            os.mkfifo(home / "fifo")
            return [os.getcwd() == str(home) == tempfile.gettempdir(), (home / "link").read_text()]
        """
        assert attempt(body) == "done: [True, 'x']"


MEMORY_ATTACKS = (
    "return open(f'/proc/{pid}/mem', 'rb').read(1)",
    "return open(f'/proc/{pid}/environ', 'rb').read()",
    "return open(f'/proc/{pid}/maps').read(1)",
    "return [os.readlink(f'/proc/{pid}/fd/{n}') for n in range(3)]",
    "assert ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0",
    "assert ctypes.CDLL(None).syscall(438, os.pidfd_open(pid), 0, 0) >= 0",  # pidfd_getfd
)
COMMAND_LINE_ATTACKS = (
    "return open(f'/proc/{pid}/cmdline').read()",
    "return open(f'/proc/{pid}/status').read()",
    "return os.listdir(f'/proc/{pid}')",
    "return os.listdir('/proc')",
    "folders = [n for n in range(3, 99) if os.path.exists(f'/proc/self/fd/{n}/../cmdline')]\n"
    "return [os.open(f'../../{pid}/cmdline', 0, dir_fd=n) for n in folders or [99]]",
    "subprocess.run(['cat', f'/proc/{pid}/cmdline'], check=True)",
    "open('a.c', 'w').write(f'#include \"/proc/{pid}/cmdline\"')\n"
    "done = subprocess.run(['cc', '-c', 'a.c'], capture_output=True, text=True)\n"
    "if 'Permission denied' in done.stderr: raise PermissionError\n"
    "return done.stderr",
)
"""Command lines of programs outside of the benchmark can have tokens, which every user of a machine reads."""
SIGNAL_ATTACKS = (
    "os.kill(pid, signal.SIGKILL)",
    "os.kill(pid, signal.SIGSTOP)",
    "signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL)",
    "os.killpg(os.getpgid(pid), signal.SIGKILL)",
)
KERNEL_ATTACKS = (
    "os.setpriority(os.PRIO_PROCESS, pid, 19)",
    "import resource\nresource.prlimit(pid, resource.RLIMIT_CPU, (1, 1))",
    "os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))",
)
ATTACKS = [
    (Threat.MEMORY, ("judge", "server"), MEMORY_ATTACKS),
    (Threat.FILES, ("judge", "init"), COMMAND_LINE_ATTACKS),
    (Threat.SIGNALS, ("judge", "server"), SIGNAL_ATTACKS),
    (Threat.KERNEL, ("server",), KERNEL_ATTACKS),
]
OWN_FILES = (
    "open('/proc/self/maps').read()\nopen(f'/proc/{os.getpid()}/status').read()",
    "open('/proc/thread-self/comm').read()\nos.listdir('/proc/self/task')",
    "open('/proc/self/comm').read()\nopen('/proc/mounts').read()",
    "[open(f'/proc/{name}').read() for name in ('cpuinfo', 'meminfo', 'stat')]",
    "open('/proc/sys/kernel/osrelease').read()\nos.listdir('/proc/sys/vm')",
    "import threading\n"
    "def rename():\n    open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w').write('x')\n"
    "thread = threading.Thread(target=rename)\nthread.start()\nthread.join()",
)


class TestOtherProcesses:
    @pytest.mark.parametrize(("threat", "targets", "bodies"), ATTACKS)
    def test_are_out_of_reach(self, stops, attempts, server, threat, targets, bodies):
        stops(threat)
        pids = {"judge": os.getpid(), "server": server._process.pid, "init": 1}
        for target in targets:
            found = attempts(bodies, pid=pids[target])
            assert {body: result for body, result in found.items() if not result.startswith("refused")} == {}
            assert found.keys() == {*bodies}

    def test_own_process_and_machine_are_readable(self, attempts):
        assert attempts(OWN_FILES) == dict.fromkeys(OWN_FILES, "done: None")

    def test_files_of_the_kernel_for_root_are_refused(self, stops, attempts):
        """A worker may keep the capability to read the files of root, for a Python environment that only root reads."""
        stops(Threat.FILES)
        names = [name for name in ("timer_list", "slabinfo", "vmallocinfo", "kcore") if Path("/proc", name).exists()]
        bodies = [f"return open('/proc/{name}', 'rb').read(1)" for name in names]
        assert attempts(bodies) == dict.fromkeys(bodies, "refused: PermissionError")


class TestNetwork:
    def test_a_local_server_cannot_be_reached(self, stops, attempt):
        stops(Threat.NETWORK)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            assert attempt("socket.create_connection(('127.0.0.1', port), 5)", port=port) == "refused: PermissionError"

    def test_there_are_no_sockets(self, stops, attempts):
        stops(Threat.NETWORK)
        families = ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG")
        found = attempts([f"socket.socket(socket.{family}, socket.SOCK_DGRAM)" for family in families])
        assert all(result.startswith("refused") for result in found.values()), found

    @pytest.mark.parametrize("is_abstract", [False, True])
    def test_a_daemon_cannot_be_reached(self, stops, attempt, is_abstract):
        stops(Threat.SERVICES)
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            address = f"\0{folder}" if is_abstract else f"{folder}/daemon"
            listener.bind(address)
            listener.listen()
            found = attempt("socket.socket(socket.AF_UNIX).connect(address)", address=address)
        assert found == "refused: PermissionError"


class TestKernel:
    def test_rare_calls_are_refused(self, stops, attempts):
        """A user namespace, shared memory of others; and on x86-64 by number io_uring, userfaultfd and keyctl."""
        stops(Threat.KERNEL)
        calls = ["unshare(0x10000000)", "shmget(0, 4096, 0o1600)"]
        if os.uname().machine == "x86_64":
            ring = "ctypes.byref(ctypes.create_string_buffer(120))"
            calls += [f"syscall(425, 8, {ring})", "syscall(323, 1)", "syscall(250, 0, -3, 0)"]
        library = "library = ctypes.CDLL(None, use_errno=True)"
        found = attempts([f"{library}\nreturn library.{call}, ctypes.get_errno()" for call in calls])
        assert {*found.values()} <= {"done: (-1, 1)", "done: (-1, 13)"}, found

    def test_there_are_no_privileges(self, stops, attempt):
        stops(Threat.PRIVILEGES)
        body = """
            lines = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
            return lines["NoNewPrivs"], int(lines["CapEff"], 16) & ~4, int(lines["CapPrm"], 16) & ~4
        """
        assert attempt(body) == "done: ('1', 0, 0)"


class TestResources:
    def test_too_many_threads_end_the_worker(self, evaluate):
        code = (
            "import threading\n"
            "def run(x):\n"
            "    while True:\n"
            "        try:\n"
            "            threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
            "        except RuntimeError:\n"
            "            pass\n"
        )
        bad, good = evaluate(make_solution(code), make_solution(GOOD, name="good"), timeout_seconds=30.0)
        assert bad.status is EvaluationStatus.RUNTIME_ERROR
        assert re.match(r"the worker was ended: it had more than \d+ processes and threads", bad.log)
        assert good.status is EvaluationStatus.PASSED, good.log

    @pytest.mark.slow
    def test_a_fork_bomb_ends(self, evaluate):
        """A bomb of small orphans, which ends by itself, later, so that a failure of this test stays bounded."""
        bomb = (
            "import os, time\n"
            "end = time.monotonic() + 20\n"
            "while time.monotonic() < end:\n"
            "    try:\n"
            "        if os.fork() == 0:\n"
            "            os.setsid()\n"
            "            os.fork() and os._exit(0)\n"
            "    except OSError:\n"
            "        pass\n"
        )
        code = (
            "import subprocess, sys\n"
            "def run(x):\n"
            f"    subprocess.run([sys.executable, '-IS', '-c', {bomb!r}])\n"
            "    return x * 2\n"  # passes if there was no bomb
        )
        bad, good = evaluate(make_solution(code), make_solution(GOOD, name="good"), timeout_seconds=10.0)
        assert bad.status in {EvaluationStatus.RUNTIME_ERROR, EvaluationStatus.TIMEOUT}
        assert good.status is EvaluationStatus.PASSED, good.log

    def test_memory_is_bounded(self, stops, attempt):
        """The requested level is never used, and the machine lacks it."""
        stops(Threat.RESOURCES)
        body = "import torch\nreturn [torch.empty(1 << 32, dtype=torch.uint8) for _ in range(1 << 14)]"
        assert attempt(body) in {"refused: RuntimeError", "refused: MemoryError"}

    def test_there_are_no_core_dumps(self, stops, attempt):
        stops(Threat.RESOURCES)
        assert attempt("import resource\nreturn resource.getrlimit(resource.RLIMIT_CORE)") == "done: (0, 0)"


HONEST = (
    "import tempfile\nwith tempfile.NamedTemporaryFile() as file:\n    file.write(b'x')",
    "import threading\n"
    "threads = [threading.Thread(target=len, args=('',)) for _ in range(64)]\n"
    "for thread in threads: thread.start()\n"
    "for thread in threads: thread.join()",
    "import torch\ntorch.set_num_threads(2)\ntorch.ones(512, 512) @ torch.ones(512, 512)",
    "a, b = socket.socketpair()\na.send(b'x')\nassert b.recv(1) == b'x'",
    "from multiprocessing.shared_memory import SharedMemory\n"
    "memory = SharedMemory(create=True, size=64)\nmemory.close()\nmemory.unlink()",
    "subprocess.run([sys.executable, '-c', 'import torch, fib_bench'], check=True)",
    "open('a.cpp', 'w').write('#include <vector>\\nint main() { return std::vector<int>(3).at(0); }')\n"
    "subprocess.run(['c++', '-O2', '-fopenmp', 'a.cpp', '-o', 'a'], check=True)\n"
    "subprocess.run(['./a'], check=True)",
    "import getpass, platform\nassert getpass.getuser()\nplatform.platform()\nos.cpu_count()",
    "open(os.devnull, 'w').write('x')\nassert os.urandom(3)",
    "os.kill(os.getpid(), 0)\nsubprocess.Popen(['sleep', '60']).kill()",
    "import importlib.metadata, json\nassert importlib.metadata.version('torch')\nimport torch._dynamo",
)
FORK_POOL = (
    "import multiprocessing\n"
    "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
    "    assert pool.map(abs, [-1]) == [1]"
)


class TestHonest:
    """All measures that are possible are in force, and nothing of this notices."""

    @pytest.mark.parametrize("bodies", [HONEST, (FORK_POOL,)], ids=["most", "fork-pool"])
    def test_ways_of_working_are_possible(self, attempts, bodies):
        assert attempts(bodies) == dict.fromkeys(bodies, "done: None")

    @pytest.mark.slow
    def test_a_torch_extension_compiles(self, evaluate, isolation):
        code = (
            "#include <torch/csrc/utils/pybind.h>\n"  # compiles in 7 s; torch/extension.h in 23 s
            "at::Tensor run(const at::Tensor& x) { return x.mul(2); }\n"
            'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }\n'
        )
        solution = make_solution(code, language="cpp")
        spec = attrs.evolve(solution.spec, binding=SupportedBindings.TORCH)
        (evaluation,) = evaluate(attrs.evolve(solution, spec=spec), timeout_seconds=300.0)  # on a busy machine
        assert evaluation.status is EvaluationStatus.PASSED, evaluation.log
        assert evaluation.extra["isolation"] == isolation.to_extra()


def test_a_solution_does_not_get_the_code_of_the_reference(attempt):
    body = """
        import gc
        from fib_schema import Definition
        return [one.reference for one in gc.get_objects() if isinstance(one, Definition)]
    """
    found = attempt(body)
    assert "NotImplementedError" in found
    assert DOUBLE.reference not in found.encode().decode("unicode_escape")


def test_what_a_solution_leaves_in_its_cache_no_other_one_finds(attempt):
    body = "cache = os.environ['FIB_CACHE_PATH']\nopen(cache + '/mine', 'a').close()\nreturn os.listdir(cache)"
    assert "'mine'" in attempt(body)
    other = attempt("return os.listdir(os.environ['FIB_CACHE_PATH'])")
    assert "'mine'" not in other


@pytest.mark.slow
@pytest.mark.parametrize("level", [Level.NONE, Level.PROCESS, Level.CONFINED])
def test_at_a_lower_level_honest_solutions_pass_and_the_servers_memory_is_protected(monkeypatch, device_context, level):
    """On a machine with few features; the judge has a server of its own."""
    monkeypatch.setenv(LIMIT_VARIABLE, str(int(level)))
    reads = "import os\ndef run(x):\n    raise ValueError(open(f'/proc/{os.getppid()}/environ', 'rb').read())"
    quick = {"warmup_runs": 1, "iterations": 3, "num_trials": 2, "confidence": 1.0, "timeout_seconds": 60.0}
    with Judge(BenchmarkConfig(**quick)) as judge:
        judge._context = device_context
        prepared = [judge.prepare(DOUBLE, make_workload(DOUBLE, {"n": 8}))]
        solutions = [make_solution(code, name=f"s{index}") for index, code in enumerate((GOOD, reads))]
        good, bad = (e for solution in solutions for _, e in judge.evaluate(DOUBLE, solution, prepared))
    assert good.status is EvaluationStatus.PASSED, good.log
    assert good.extra["isolation"]["level"] <= level
    assert "PermissionError" in bad.log or level is Level.NONE


KINDS_OF_SOCKETS = (
    (socket.AF_UNIX, socket.SOCK_SEQPACKET),
    (socket.AF_UNIX, socket.SOCK_STREAM),
    (socket.AF_UNIX, socket.SOCK_DGRAM),
    (socket.AF_INET, socket.SOCK_STREAM),
    (socket.AF_INET6, socket.SOCK_DGRAM),
)


def _socket(family, kind):
    """Answer of the system to binding an abstract socket, as a driver does."""
    try:
        with socket.socket(family, kind) as bound:
            bound.bind(f"\0fib-test-{os.getpid()}")
            bound.listen()
    except (ConnectionRefusedError, PermissionError):
        return "refused"
    return "done"


def _answers_of_local_sockets(folder, *, may_unshare):
    """Answers of the system to a process with local sockets, in a network namespace of its own or without one."""
    policy = SandboxPolicy("cuda:0", is_alone=True, local_sockets=True, starts_call=True)

    def answers():
        if not may_unshare:
            _refuse("unshare")()
            why_not.cache_clear()
        isolation = isolate(SandboxPaths(policy, folder, folder))
        found = {name: _tried(action) for name, action in _LOCAL_ACTIONS.items()}
        return {**found, "network": str("namespaces" in isolation.held)}

    return ast.literal_eval(in_a_child(answers))


def _tried(action):
    try:
        action()
    except PermissionError:
        return "refused"
    except OSError as error:
        return type(error).__name__
    return "done"


def _talk():
    """Listen at a port of tools, of which another process may hold some, and connect to it."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        with socket.socket() as listener:
            assert any(_is_bound(listener, port) for port in range(49152, 49216))
            listener.listen()
            socket.create_connection(listener.getsockname()).close()


def _is_bound(listener, port):
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


_LOCAL_ACTIONS = {
    "local": lambda: socket.socket(socket.AF_UNIX),
    "a tool's port": _talk,
    "a web server": lambda: socket.create_connection(("127.0.0.1", 80), 1),
    "packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "a raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "kernel keys": lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET),
}


@pytest.mark.parametrize("may_unshare", [True, False])
def test_local_sockets_reach_the_ports_of_tools_and_nothing_of_others(tmp_path, monkeypatch, may_unshare):
    """Without a network namespace Landlock leaves the ports, and the profiler's restriction holds for its call."""
    if not may_unshare and landlock_abi() < 6:
        pytest.skip(f"Landlock {landlock_abi()} has no scopes")
    name = f"\0fib-test-{os.getpid()}-others"

    def connect():
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(name)

    with socket.socket(socket.AF_UNIX) as others:
        others.bind(name)
        others.listen()
        connect()
        monkeypatch.setitem(_LOCAL_ACTIONS, "a socket of others", connect)
        answers = _answers_of_local_sockets(tmp_path, may_unshare=may_unshare)
    if answers.pop("network") != str(may_unshare):
        pytest.skip("this system allows no network namespace")
    done = {name for name, answer in answers.items() if answer == "done"}
    assert done == {"local", "a tool's port"}
    assert set(answers.values()) <= {"done", "refused", "ConnectionRefusedError"}


@pytest.mark.parametrize("is_listed_before", [True, False])
def test_the_call_of_a_profiler_opens_device_files_that_were_listed_outside(tmp_path, monkeypatch, is_listed_before):
    """Within the restrictions of its profiler it cannot list ``/dev``."""
    if landlock_abi() < 2:
        pytest.skip(f"Landlock {landlock_abi()} confines no files")
    monkeypatch.setattr(landlock, "_DEVICES_OF_CUDA", ("ptm*",))
    device = Path("/dev/ptmx")
    assert device in landlock.cuda_device_files()
    devices = landlock.cuda_device_files() if is_listed_before else None
    profiler = SandboxPolicy("cuda:0", is_alone=True, local_sockets=True, starts_call=True)
    call = attrs.evolve(profiler, starts_call=False)
    folder = tmp_path / "call"
    folder.mkdir()

    if (pid := os.fork()) == 0:
        isolate(SandboxPaths(profiler, tmp_path, tmp_path))
        before = _tried(device.open)
        confine_files(SandboxPaths(call, folder, folder, device_files=devices), is_enclosed=True)
        os._exit(0 if (before, _tried(device.open)) == ("done", "done" if is_listed_before else "refused") else 1)
    assert os.waitpid(pid, 0)[1] == 0


def _isolated(policy, before=lambda: None, *, owner=-1):
    """Level of a process that has done something before, as `explain` tells it."""

    def isolate_it():
        before()
        prepare(policy)
        return _isolate(policy, Path(folder)).explain()

    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, owner, owner)
        return in_a_child(isolate_it)


def _isolate(policy, folder):
    lock, channel = socket.socketpair()
    with lock, channel:
        try:
            uid, reason = reserve_uid(policy, "test", channel), ""
        except NotPossible as error:
            uid, reason = None, str(error)
        return isolate(SandboxPaths(policy, folder, folder, uid, reason))


def _forget():
    """Forget what was found out about this process when it could do more."""
    for function in (landlock_abi, why_not, unreadable_path):
        function.cache_clear()


def _become_nobody():
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    _forget()


def _refuse(*calls):
    """Behaviour of a container that refuses system calls."""

    def refuse():
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        Filter([Refusal(calls)]).load()
        _forget()

    return refuse


REST = frozenset({"limits", "landlock", "no_new_privs", "seccomp"})


class TestElsewhere:
    """Other machines, as far as they can be imitated."""

    @pytest.mark.parametrize(
        ("device", "before", "said", "left"),
        [
            ("cpu", "nobody", ["user: not possible: only root can become another user"], REST),
            ("cuda:0", "", ["namespaces: not possible: CUDA", "user: not possible: CUDA"], REST),
            (
                "cpu",
                "unshare landlock_create_ruleset",
                ["level 1: process", "landlock: not possible: the kernel has Landlock 0", "namespaces: not possible"],
                REST - {"landlock"},
            ),
            (
                "cpu",
                "unshare landlock_create_ruleset setresuid seccomp setgroups prlimit64 capset",
                ["level 0: none", *(f"{measure.name}: not possible" for measure in MEASURES)],
                frozenset(),
            ),
        ],
    )
    def test_what_is_not_possible_is_said_and_the_rest_holds(self, isolation, device, before, said, left):
        if before == "nobody" and os.getuid() != 0:
            pytest.skip("only root can become an ordinary user")
        if before and "seccomp" not in isolation.held:
            pytest.skip("calls cannot be refused here")
        action = _become_nobody if before == "nobody" else _refuse(*before.split()) if before else lambda: None
        explained = _isolated(SandboxPolicy(device), action, owner=65534 if before == "nobody" else -1)
        assert all(text in explained for text in said), explained
        assert all(f"{name}: stops it" in explained for name in left & isolation.held.keys()), explained

    def test_cuda_gets_the_sockets_that_its_driver_needs_and_no_others(self, isolation):
        if "seccomp" not in isolation.held:
            pytest.skip("calls cannot be refused here")

        def answers():
            syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
            worker_filter(True).load()
            return [_socket(*kind) for kind in KINDS_OF_SOCKETS]

        assert in_a_child(answers) == str(["done", "refused", "refused", "refused", "refused"])

    def test_the_command_explains_what_is_possible(self):
        command = [sys.executable, "-m", "fib_bench.sandbox.policy"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        assert re.match(r"level [0-3]: \w+\n", done.stdout)
        assert len(done.stdout.splitlines()) == 1 + len(MEASURES)


class TestReservedUid:
    @pytest.fixture
    def reserve(self, monkeypatch, tmp_path):
        """Reserves a uid; returns it with the socket that keeps it reserved. Workers of other runs take other uids."""
        first = 40_000 + os.getpid() % 100 * 100
        monkeypatch.setattr(processes, "SPARE_UIDS", range(first, first + 100))
        monkeypatch.setattr(processes, "_LOCK_FOLDERS", (tmp_path,))
        try:
            require_other_user(SandboxPolicy("cpu"))
        except NotPossible as reason:
            pytest.skip(str(reason))
        held = []

        def reserve(name):
            lock, channel = socket.socketpair()
            held.append(lock)
            with channel:
                return reserve_uid(SandboxPolicy("cpu"), name, channel), lock

        yield reserve
        for lock in held:
            lock.close()

    def test_is_the_same_for_a_name_unless_it_is_reserved_or_in_use(self, reserve):
        first, lock = reserve("a")
        lock.close()
        again, lock = reserve("a")
        assert again == first
        assert len({first, *(reserve("a")[0] for _ in range(3))}) == 4
        lock.close()
        with subprocess.Popen(["sleep", "60"], user=first) as process:
            try:
                assert reserve("a")[0] != first
            finally:
                process.kill()

    @pytest.mark.parametrize(
        ("policy", "reason"),
        [
            (SandboxPolicy("cuda:0"), "among processes of one user only"),
            (SandboxPolicy("cpu", limit=Level.PROCESS), f"{LIMIT_VARIABLE} is 1"),
        ],
    )
    def test_is_not_possible_for_a_reason(self, policy, reason):
        with pytest.raises(NotPossible, match=reason):
            require_other_user(policy)
