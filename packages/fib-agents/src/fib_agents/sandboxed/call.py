"""One call of a solution inside the sandbox. Started with the path of a job, which `jobs` writes.

The profiler is switched on for the last call only (``cudaProfilerStart``), after builds, JIT compilation and warm-up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import attrs

from fib_agents.sandboxed.deferred import confine_own_files


@attrs.frozen(kw_only=True)
class Job:
    """The function that is called, and its inputs."""

    definition: str
    """The definition as JSON."""
    solution: str | None
    """The solution as JSON; None calls the reference."""
    axes: dict[str, int]
    device: str
    scalars: dict[str, Any]
    """The inputs that are not tensors; the others are in ``inputs.safetensors``."""
    warm_calls: int = 0
    saves_outputs: bool = False
    confines_files: bool = False
    """Whether the process confines its files itself, because a tool starts it."""


INPUTS, OUTPUTS, STAMPS = "inputs.safetensors", "outputs.safetensors", "stamps.json"
TOOL_BEGAN = "FIB_AGENTS_TOOL_BEGAN"
"""The variable with the time, by the monotonic clock, at which the tool took the place of the build."""


def main() -> None:
    """Build, warm up, call once, and save the outputs if the job says so."""
    path = Path(sys.argv[1])
    job = Job(**json.loads(path.read_bytes()))
    stamps = {"start of the tool": time.monotonic()}
    if TOOL_BEGAN in os.environ:
        stamps = {"sandbox and build": float(os.environ.pop(TOOL_BEGAN)), **stamps}
    if job.confines_files:
        confine_own_files()
    from fib_compile.builder import interpreter_environment, jit_environment
    from fib_schema import Definition, Solution, parse_json

    definition = parse_json(job.definition, Definition)
    solution = None if job.solution is None else parse_json(job.solution, Solution)
    if solution is not None:
        os.environ.update(jit_environment(solution))
        if job.device == "cpu":
            os.environ.update(interpreter_environment(solution))
    import torch
    from fib_compile import BuilderRegistry
    from safetensors.torch import load_file, save_file

    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    stamps["imports"] = time.monotonic()
    registry = BuilderRegistry.get_instance()
    function = registry.build_reference(definition) if solution is None else registry.build(definition, solution)
    stamps["load of the solution"] = time.monotonic()
    tensors = load_file(path.with_name(INPUTS))
    values = [tensors[name].to(job.device) if name in tensors else job.scalars[name] for name in definition.inputs]
    if function.setup is not None:
        function = function.plan(*values)
    outputs = _outputs(definition, job)
    for _ in range(job.warm_calls):
        function.call_destination_passing(*values, *outputs)
    is_cuda = job.device.startswith("cuda")
    if is_cuda:
        torch.cuda.synchronize()
    stamps["inputs and warm-up"] = time.monotonic()
    if is_cuda:
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    function.call_destination_passing(*values, *outputs)
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
    stamps["inspected call"] = time.monotonic()
    path.with_name(STAMPS).write_text(json.dumps(stamps))
    if job.saves_outputs:
        named = zip(definition.outputs, outputs, strict=True)
        save_file({name: tensor.contiguous().cpu() for name, tensor in named}, path.with_name(OUTPUTS))


def compile_solution(job: Job) -> bool:
    """Build a solution of a compiled language, which needs no device; returns whether it is one."""
    from fib_schema import Definition, Solution, parse_json

    if job.solution is None:
        return False
    solution = parse_json(job.solution, Solution)
    if not solution.spec.language.is_compiled:
        return False
    from fib_compile import BuilderRegistry

    BuilderRegistry.get_instance().build(parse_json(job.definition, Definition), solution)
    return True


def _outputs(definition: Any, job: Job) -> list[Any]:
    """Buffers whose bytes show where nothing was written."""
    import torch
    from fib_compile.device import torch_dtype

    found = []
    for spec, shape in zip(definition.outputs.values(), definition.get_output_shapes(job.axes), strict=True):
        tensor = torch.empty(shape or (), dtype=torch_dtype(spec.dtype), device=job.device)
        if tensor.numel():
            tensor.view(-1).view(torch.uint8).fill_(0xC3)
        found.append(tensor)
    return found


if __name__ == "__main__":
    main()
