"""Jobs of `call`: the inputs of a workload, written into a sandbox, and the outputs read from it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
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
from .call import INPUTS, OUTPUTS, Job
from .run import Sandbox

COMMAND = (sys.executable, "-P", "-m", "fib_agents.sandboxed.call")
_SEED = 0
Values = Mapping[str, torch.Tensor | int | float | bool | None]


def make_values(
    workspace: Workspace, definition: Definition, workload: Workload, distribution: str = "normal"
) -> Values:
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
    return [*COMMAND, "call", str(sandbox.path / "job.json")]


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
    return [*COMMAND, "build", call[-1], *command]


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
