"""Jobs of `call`: the inputs of a workload, written into a sandbox, and the outputs read from it."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import attrs
import torch
from fib_bench.inputs.generation import make_input_values
from fib_bench.judge.device_lock import lock_of
from fib_compile.device import torch_dtype
from fib_schema import Definition, Solution, Workload, format_json
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from ..errors import ToolFailed
from ..workspace import Workspace
from .call import INPUTS, OUTPUTS, STAMPS, Job
from .run import Finished, Sandbox

COMMAND = (sys.executable, "-P", "-m", "fib_agents.sandboxed.call")
_PREPARE = (sys.executable, "-P", "-m", "fib_agents.sandboxed.prepare")
_SEED = 0
_LOG_BYTES = 32 << 20
_STAMPS_BYTES = 4096
PHASES = (
    "sandbox and build", "start of the tool", "imports", "load of the solution", "inputs and warm-up", "inspected call",
)  # fmt: skip
"""Phases of a call below a tool, in their order. Each is named by what has ended at its time stamp."""
Values = Mapping[str, torch.Tensor | int | float | bool | None]


def make_values(workspace: Workspace, definition: Definition, workload: Workload, distribution: str) -> Values:
    """The inputs of a workload on the CPU.

    Raises:
        InputError: They cannot be made.
    """
    made = make_input_values(
        definition,
        workload,
        seed=_SEED,
        root=workspace.root,
        synthesize_missing=False,
        device="cpu",
        distribution=distribution,
    )
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
    return [*COMMAND, str(sandbox.path / "job.json")]


@attrs.frozen(kw_only=True)
class Inspection:
    """One call of a solution under a profiler or a sanitizer."""

    definition: Definition
    solution: Solution
    workload: Workload
    values: Values
    """The inputs, of `make_values`."""
    command: Callable[[str, list[str]], list[str]]
    """Makes the tool's command line from the path of its log and the command line of the call."""
    timeout_seconds: float
    environment: Mapping[str, str] = attrs.Factory(dict)
    warm_calls: int = 0


def inspect_call(workspace: Workspace, inspection: Inspection) -> tuple[str, Finished]:
    """Run a tool on one call in a sandbox of its own, alone on the device.

    Returns:
        The tool's log, which is untrusted, and how it ended.

    Raises:
        ToolFailed: It could not be confined or started, or its log cannot be read.
        CancelledError: The workspace was cancelled.
    """
    of = inspection
    with Sandbox(workspace, of.solution, local_sockets=True) as sandbox:
        call = write_job(
            sandbox, workspace, of.definition, of.solution, of.workload, of.values, warm_calls=of.warm_calls
        )
        command = built_before(call, of.command(str(sandbox.log_path), call))
        with device_alone(workspace):
            begin = time.monotonic()
            ended = sandbox.run(command, timeout_seconds=of.timeout_seconds, environment=of.environment)
        ended = attrs.evolve(ended, phases=read_phases(sandbox, begin, time.monotonic()))
        return (sandbox.read_log(_LOG_BYTES) or b"").decode("utf-8", "replace"), ended


@contextmanager
def device_alone(workspace: Workspace) -> Iterator[None]:
    """Hold the lock of the device, so that a profiler does not disturb an evaluation that is being timed."""
    if not workspace.is_cuda:
        yield
        return
    with lock_of(torch.device(workspace.device)).alone():
        yield


def built_before(call: list[str], command: list[str]) -> list[str]:
    """The command line that builds the solution of a call, if it has to be built, and then executes a command."""
    return [*_PREPARE, call[-1], *command]


def read_phases(sandbox: Sandbox, begin: float, end: float) -> dict[str, float]:
    """The seconds of a call by phase, from the times that its process has written; empty if those are not in order.

    Args:
        sandbox: Where the call ran.
        begin: When its command was started, by the monotonic clock.
        end: When that had ended.
    """
    try:
        stamps = json.loads(sandbox.read(STAMPS, _STAMPS_BYTES) or b"{}")
        times = [begin, *(float(stamps[name]) for name in PHASES if name in stamps), end]
    except (ToolFailed, ValueError, TypeError, ArithmeticError, RecursionError):
        return {}
    names = [name for name in PHASES if name in stamps]
    if not names or any(not earlier <= later for earlier, later in itertools.pairwise(times)):
        return {}
    return dict(zip((*names, "end of the tool"), (b - a for a, b in itertools.pairwise(times)), strict=True))


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
