"""Processes that load a solution inside the sandbox: one call, a build before it, a dump of machine code.

``call JOB`` calls a solution once; the profiler is switched on for the last call only (``cudaProfilerStart``), after
builds, JIT compilation and warm-up. ``build JOB`` builds a solution of a compiled language. ``dump JOB PROGRAMS`` runs
disassemblers, because the parsers of binaries get files that strangers have made.

A profiler may write below ``/proc``, for the reason that `SandboxPolicy` states, and its log. The call may do neither,
so that the process that the profiler starts confines its own files before it loads the solution.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs

INPUTS, OUTPUTS = "inputs.safetensors", "outputs.safetensors"
RESOURCES, CODE, PTX = "resources.txt", "code.txt", "ptx.txt"
MAX_DUMP_BYTES = 8 << 20
"""Limit of each text; the rest is left out."""
FILL = 0xC3
"""The bytes of outputs before a call."""
DEFERRED = "FIB_AGENTS_DEFERRED_FILES"
"""The variable that hands the settings from the supervisor to the process that loads the solution."""
_DUMP_SECONDS = 60


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

    @classmethod
    def load(cls, path: Path) -> Job:
        """The job in a file."""
        return cls(**json.loads(path.read_bytes()))


def call(path: Path) -> None:
    """Build, warm up, call once, and save the outputs if the job says so."""
    job = Job.load(path)
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
    registry = BuilderRegistry.get_instance()
    function = registry.build_reference(definition) if solution is None else registry.build(definition, solution)
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
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    function.call_destination_passing(*values, *outputs)
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
    if job.saves_outputs:
        named = zip(definition.outputs, outputs, strict=True)
        save_file({name: tensor.contiguous().cpu() for name, tensor in named}, path.with_name(OUTPUTS))


def _outputs(definition: Any, job: Job) -> list[Any]:
    """Buffers whose bytes show where nothing was written."""
    import torch
    from fib_compile.device import torch_dtype

    found = []
    for spec, shape in zip(definition.outputs.values(), definition.get_output_shapes(job.axes), strict=True):
        tensor = torch.empty(shape or (), dtype=torch_dtype(spec.dtype), device=job.device)
        if tensor.numel():
            tensor.view(-1).view(torch.uint8).fill_(FILL)
        found.append(tensor)
    return found


# -- builds ----------------------------------------------------------------------------------------


def build(path: Path) -> None:
    """Build the solution of a job."""
    job = Job.load(path)
    if job.confines_files:
        confine_own_files()
    _compile(job)


def _compile(job: Job) -> bool:
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


# -- machine code ----------------------------------------------------------------------------------


def dump(path: Path, programs: dict[str, str]) -> None:
    """Build, or call once so that kernels are compiled; then write the texts of disassemblers beside the job."""
    if not _compile(Job.load(path)):
        call(path)
    cache = Path(os.environ["FIB_CACHE_PATH"])
    texts: dict[str, list[str]] = {RESOURCES: [], CODE: [], PTX: []}
    for file in sorted(cache.rglob("*.cubin")) or sorted(cache.rglob("*.so")):
        texts[RESOURCES].append(_output(programs["cuobjdump"], "--dump-resource-usage", str(file)))
        if file.suffix == ".cubin":
            texts[CODE].append(_output(programs["nvdisasm"], str(file)))
        else:
            texts[CODE].append(_output(programs["cuobjdump"], "--dump-sass", str(file)))
            texts[PTX].append(_output(programs["cuobjdump"], "--dump-ptx", str(file)))
    texts[PTX] += [file.read_text("utf-8", "replace") for file in sorted(cache.rglob("*.ptx"))]
    for name, parts in texts.items():
        path.with_name(name).write_bytes("\n".join(parts).encode()[:MAX_DUMP_BYTES])


def _output(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, timeout=_DUMP_SECONDS, check=False)
    text = ended.stdout[:MAX_DUMP_BYTES].decode("utf-8", "replace")
    if not ended.returncode:
        return text
    return f"{text}\n{command[0]}: exit status {ended.returncode}: {ended.stderr[:500].decode('utf-8', 'replace')}\n"


# -- files of a process below a profiler -----------------------------------------------------------


@attrs.frozen(kw_only=True)
class Deferred:
    """Settings of the confinement."""

    device: str
    folder: str
    is_enclosed: bool
    device_files: tuple[str, ...]
    """The device files of CUDA, which the process cannot list."""


def confine_own_files() -> None:
    """Confine the files of this process as the variable says.

    Raises:
        RuntimeError: There is no such variable: whatever started this process has dropped it.
        OSError: The system refuses.
    """
    from fib_bench.sandbox.model import SandboxPaths, SandboxPolicy
    from fib_bench.sandbox.policy import confine_files, limit_from_environment

    text = os.environ.get(DEFERRED)
    if text is None:
        raise RuntimeError(f"{DEFERRED} is not set, so the files of this process cannot be confined")
    found = Deferred(**json.loads(text))
    # The data set stays hidden, because this process cannot lift the restriction of its profiler.
    policy = SandboxPolicy(found.device, limit=limit_from_environment(), is_alone=True, local_sockets=True)
    devices = tuple(map(Path, found.device_files))
    paths = SandboxPaths(policy, Path(found.folder), Path(os.environ["FIB_CACHE_PATH"]), device_files=devices)
    confine_files(paths, is_enclosed=found.is_enclosed)


def main() -> None:
    """Run one of the three."""
    verb, path, *rest = sys.argv[1:]
    if verb == "build":
        build(Path(path))
    elif verb == "dump":
        dump(Path(path), json.loads(rest[0]))
    else:
        call(Path(path))


if __name__ == "__main__":
    main()
