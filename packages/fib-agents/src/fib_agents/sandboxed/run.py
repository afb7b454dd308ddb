"""Caller's side of confined commands: their folder and limits, the jobs of `call`, and what is read from it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import attrs
import torch
from fib_bench.inputs.generation import generator_of, make_input_values, refusing
from fib_bench.judge.device import lock_of
from fib_bench.temporary_folders import TemporaryFolder
from fib_bench.worker.client import server_environment
from fib_compile.device import architectures_of_machine, torch_dtype
from fib_compile.registry import reference_solution
from fib_schema import Definition, Solution, Workload, format_json
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from ..errors import ToolFailed, ToolMissing
from ..workspace import Workspace
from .call import INPUTS, OUTPUTS, Job
from .confine import Settings

COMMAND = (sys.executable, "-P", "-m", "fib_agents.sandboxed.call")
_SEED = 0
_POLL_SECONDS = 0.02
_OUTPUT_BYTES = 1 << 20
_GRACE_SECONDS = 10.0
Values = Mapping[str, torch.Tensor | int | float | bool | None]


@attrs.frozen
class Finished:
    """An ended command."""

    code: int | None
    """Its exit status, negative for a signal; None if it was ended because of the time limit."""
    output: str
    """Its stdout and stderr, the middle of more than 1 MiB left out; untrusted text."""
    isolation_level: int
    isolation: str
    seconds: float

    @property
    def end(self) -> str:
        """The end in words."""
        if self.code is None:
            return "was ended by the time limit"
        if self.code < 0:
            return f"was ended by {signal.strsignal(-self.code) or -self.code}"
        return f"exited with status {self.code}"


class Sandbox:
    """A folder in which confined commands look into one solution. A context manager."""

    def __init__(self, workspace: Workspace, solution: Solution, *, local_sockets: bool = False) -> None:
        self._workspace = workspace
        self._solution = solution
        self._local_sockets = local_sockets
        self._folder = TemporaryFolder()
        self.path = self._folder.path
        """The home, temporary and working folder of commands, which may plant anything in it."""
        self.log_path = self.path / "tool.log"
        """The log of a tool; its call cannot reach it."""
        if local_sockets:
            self.path = self._folder.path / "call"
            self.path.mkdir(mode=0o700)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.remove()

    @property
    def defers_files(self) -> bool:
        """Whether the processes that load the solution confine their files themselves."""
        return self._local_sockets and not self._workspace.trusts_solutions

    def write(self, name: str, data: bytes) -> None:
        """Write a new file into the folder; commands can read it.

        Raises:
            OSError: There is one of this name, or it cannot be written.
        """
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self.path / name, flags, 0o644), "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # the command may run as another user
            file.write(data)

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        """The content of a file that a command has written; None if there is none. It is untrusted.

        Raises:
            ToolFailed: It is a link, no regular file, or larger than `limit_bytes`.
        """
        return _read(self.path / name, limit_bytes)

    def read_log(self, limit_bytes: int) -> bytes | None:
        """The log of the tool; as `read`."""
        return _read(self.log_path, limit_bytes)

    def run(
        self, command: Sequence[str], *, timeout_seconds: float, environment: Mapping[str, str] | None = None
    ) -> Finished:
        """Run a command until it ends or the time is over.

        Raises:
            ToolFailed: It could not be confined or started.
            CancelledError: The workspace was cancelled.
        """
        settings = Settings(
            command=list(command),
            environment=server_environment(self._workspace.device) | self._architectures() | dict(environment or {}),
            folder=str(self._folder.path),
            call_folder=str(self.path),
            device=self._workspace.device,
            hidden=[str(self._workspace.root.resolve())],
            local_sockets=self._local_sockets,
            is_confined=not self._workspace.trusts_solutions,
            solution=format_json(self._solution),
        )
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        with tempfile.TemporaryFile() as output, os.fdopen(read_end, "rb") as report:
            begin = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fib_agents.sandboxed.confine", str(write_end)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[write_end],
                start_new_session=True,
            )
            os.close(write_end)
            is_over = self._wait(process, json.dumps(attrs.asdict(settings)).encode(), begin + timeout_seconds)
            messages = _messages(report.read(1 << 16))
            text = _shown(output.fileno())
            if "problem" in messages or "isolation" not in messages:
                problem = messages.get("problem", "it did not start")
                raise ToolFailed(command[0], f"could not be run: {problem}", text[-2000:])
            code = None if is_over else messages.get("code")
            isolation = messages["isolation"]
            return Finished(code, text, isolation["level"], isolation["text"], time.monotonic() - begin)

    def build(self, call: Sequence[str], *, timeout_seconds: float) -> None:
        """Build the solution of a call, if it has to be built: a profiler or sanitizer would slow the compiler down.

        Raises:
            ToolFailed: It does not build.
        """
        if not self._solution.spec.language.is_compiled:
            return
        ended = self.run([*COMMAND, "build", call[-1]], timeout_seconds=timeout_seconds)
        if ended.code != 0:
            raise ToolFailed(self._solution.name, f"does not build: it {ended.end}", ended.output[-2000:])

    def _architectures(self) -> dict[str, str]:
        """The variable for the architectures of the devices, which a build needs and the sandbox may hide."""
        found = architectures_of_machine() if self._workspace.is_cuda else ()
        return {"FIB_CUDA_ARCH_LIST": ",".join(found)} if found else {}

    def _wait(self, process: subprocess.Popen[bytes], settings: bytes, end: float) -> bool:
        """Wait for the end; returns whether the time was over."""
        assert process.stdin is not None
        process.stdin.write(settings)
        process.stdin.close()
        cancelled = self._workspace.cancelled
        while process.poll() is None:
            is_cancelled = cancelled is not None and cancelled.is_set()
            if is_cancelled or time.monotonic() > end:
                process.terminate()
                try:
                    process.wait(_GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                if is_cancelled:
                    raise CancelledError
                return True
            time.sleep(_POLL_SECONDS)
        return False


def _read(path: Path, limit_bytes: int) -> bytes | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ToolFailed(path.name, f"the file that was written cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit_bytes:
            problem = f"the file that was written is not a regular file of at most {limit_bytes} bytes"
            raise ToolFailed(path.name, problem)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit_bytes)
    finally:
        os.close(descriptor)


def find_program(name: str, remedy: str) -> str:
    """The absolute path of a program.

    Raises:
        ToolMissing: It is not installed.
    """
    paths = (str(path) for path in _installed(name) if path.is_file() and os.access(path, os.X_OK))
    found = shutil.which(name) or next(paths, None)
    if found is None:
        raise ToolMissing(name, remedy)
    return str(Path(found).absolute())  # commands run in a folder of their own


def _installed(name: str) -> list[Path]:
    """Paths where the CUDA toolkit has programs, and Triton, which brings some of them."""
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"]
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "backends" / "nvidia" / "bin")
    return [folder / name for folder in folders]


def _messages(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in data.splitlines():
        found |= json.loads(line)
    return found


def _shown(descriptor: int) -> str:
    """The text of an output file, the middle of a long one left out."""
    size = os.fstat(descriptor).st_size
    if size <= _OUTPUT_BYTES:
        return os.pread(descriptor, size, 0).decode("utf-8", "replace")
    half = _OUTPUT_BYTES // 2
    head, tail = os.pread(descriptor, half, 0), os.pread(descriptor, half, size - half)
    note = f"\n[... {size - _OUTPUT_BYTES} bytes left out ...]\n"
    return head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")


# -- jobs of `call` --------------------------------------------------------------------------------


def make_values(
    workspace: Workspace, definition: Definition, workload: Workload, distribution: str = "normal"
) -> Values:
    """The inputs of a workload on the CPU.

    Raises:
        InputError: They cannot be made.
        ToolFailed: The function of the definition that makes inputs has failed.
    """
    with refusing(definition, workload):
        generator = generator_of(definition)
    given = {}
    if names := generator.names(workload):
        function, call, request = generator.call(definition, workload, names, _SEED)
        given = call_once(workspace, function, None, call, request)
    made = make_input_values(
        definition, workload, seed=_SEED, root=workspace.root, synthesize_missing=False, device="cpu",
        distribution=distribution, given=given,
    )  # fmt: skip
    return made.values


def write_job(
    sandbox: Sandbox,
    workspace: Workspace,
    definition: Definition,
    solution: Solution | None,
    workload: Workload,
    values: Values,
    *,
    warm_calls: int = 0,
    saves_outputs: bool = False,
) -> list[str]:
    """Write the inputs and the job; returns the command that does it."""
    tensors = {name: value.contiguous() for name, value in values.items() if isinstance(value, torch.Tensor)}
    job = Job(
        definition=format_json(definition),
        solution=None if solution is None else format_json(solution),
        axes=dict(workload.axes),
        device=workspace.device,
        scalars={name: value for name, value in values.items() if name not in tensors},
        warm_calls=warm_calls,
        saves_outputs=saves_outputs,
        confines_files=sandbox.defers_files,
    )
    sandbox.write(INPUTS, save_tensors(tensors))
    sandbox.write("job.json", json.dumps(attrs.asdict(job)).encode())
    return [*COMMAND, "call", str(sandbox.path / "job.json")]


def call_once(
    workspace: Workspace, definition: Definition, solution: Solution | None, workload: Workload, values: Values
) -> dict[str, torch.Tensor]:
    """The outputs of one call in the sandbox; of the reference if there is no solution."""
    with Sandbox(workspace, solution or reference_solution(definition)) as sandbox:
        command = write_job(sandbox, workspace, definition, solution, workload, values, saves_outputs=True)
        ended = sandbox.run(command, timeout_seconds=workspace.timeout_seconds)
        if ended.code != 0:
            what = "the reference" if solution is None else solution.name
            raise ToolFailed(what, ended.end, ended.output[-500:])
        return read_outputs(sandbox, definition, workload)


@contextmanager
def device_alone(workspace: Workspace) -> Iterator[None]:
    """Hold the lock of the device, so that a profiler does not disturb an evaluation that is being timed."""
    if not workspace.is_cuda:
        yield
        return
    with lock_of(torch.device(workspace.device)).alone():
        yield


def read_outputs(sandbox: Sandbox, definition: Definition, workload: Workload) -> dict[str, torch.Tensor]:
    """The outputs of a call; names, shapes and dtypes are those of the definition, values are untrusted.

    Raises:
        ToolFailed: There are none, or they are not what the definition says.
    """
    shapes = dict(zip(definition.outputs, definition.get_output_shapes(workload.axes), strict=True))
    wanted = {name: (tuple(shapes[name] or ()), torch_dtype(spec.dtype)) for name, spec in definition.outputs.items()}
    size = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in wanted.values())
    data = sandbox.read(OUTPUTS, size + (1 << 16))
    if data is None:
        raise ToolFailed("call", "it wrote no outputs")
    try:
        found = load_tensors(data)
    except SafetensorError as error:
        raise ToolFailed("call", "its outputs are not a safetensors file") from error
    if {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in found.items()} != wanted:
        raise ToolFailed("call", "its outputs have other names, shapes or dtypes than the definition")
    return found
