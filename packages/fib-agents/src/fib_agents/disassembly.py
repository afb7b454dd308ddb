"""Tool `disassemble`: machine code of a solution with registers, shared memory, spills and occupancy."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping

import attrs

from .disassembler_output import Function, architecture_of, own_native_code, parse_functions, parse_native
from .errors import InvalidArguments, ToolFailed
from .marked_text import fenced, shorten
from .occupancy import occupancy
from .results import Result, untrusted
from .workspace import Code, Workspace, choose_workloads, read_solution

BLOCK_SIZES = (128, 256, 512, 1024)
_REMEDIES = {
    "cuobjdump": "install the CUDA toolkit (cuda-cuobjdump) and add its bin folder to PATH",
    "nvdisasm": "install the CUDA toolkit (cuda-nvdisasm) and add its bin folder to PATH",
    "objdump": "install binutils",
}
_DEVICE_LANGUAGES = ("cuda", "cutlass")
_ARCHITECTURE = re.compile(r"\d{1,2}\.\d[af]?")
_SHOWN_FUNCTIONS = 8
_SHOWN_CODE = 1500
_MAX_CODE = 100_000


@attrs.frozen
class Disassembly(Result):
    """The machine code of a solution."""

    definition: str
    solution: str
    architecture: str | None
    """Architecture of the device code, such as ``sm_90``; None for host code."""
    functions: tuple[Function, ...]
    occupancy: Mapping[str, Mapping[int, float]]
    """Share of resident warps, by function of device code and by threads of a block."""
    code: str = untrusted()
    """SASS or host assembly, the middle of long code left out."""
    ptx: str = untrusted()

    def lines(self) -> Iterator[str]:
        """A line for each function, then the beginning of the code."""
        yield f"{self.solution}: {self.architecture or 'host code'}, {len(self.functions)} functions"
        shown = self.functions[:_SHOWN_FUNCTIONS]
        yield from fenced("\n".join(map(self._line, shown)), "functions of the binary")
        if len(self.functions) > len(shown):
            yield f"and {len(self.functions) - len(shown)} functions more"
        yield from fenced(self.code, "disassembly", _SHOWN_CODE)

    def _line(self, function: Function) -> str:
        parts = [function.name[:80], f"{function.instructions} instructions"]
        if function.registers is not None:
            parts.append(f"{function.registers} registers")
            parts.append(f"{function.shared_bytes} B static shared, {function.stack_bytes} B stack")
            spilled = f"{function.spills} accesses to local memory (spills)" if function.spills else "no spills"
            parts.append(spilled)
        if sizes := self.occupancy.get(function.name):
            shares = ", ".join(f"{share:.0%} with {threads}" for threads, share in sizes.items())
            parts.append(f"occupancy by threads of a block: {shares}")
        parts.append("most frequent: " + ", ".join(f"{op} {count}" for op, count in function.opcodes[:6]))
        return "; ".join(parts)


def disassemble(
    workspace: Workspace, definition: str, solution: Code, *, architecture: str | None = None
) -> Disassembly:
    """Show machine code: registers, shared memory, spills, occupancy, SASS and PTX; host code for C++ on the CPU.

    Args:
        workspace: Where to work.
        definition: The name of the definition.
        solution: The files, such as {"kernel.cu": source}, or the name of a solution of the data set.
        architecture: Compile CUDA code for this one, such as 9.0a; needs no GPU. By default that of the device.

    Raises:
        ToolMissing: cuobjdump, nvdisasm or objdump is not installed.
        ToolFailed: The solution has no machine code, or does not build.
        UnknownName: There is no such definition or solution.
    """
    from .sandboxed.dump import CODE, MAX_BYTES, PTX, RESOURCES
    from .sandboxed.jobs import make_values, write_job
    from .sandboxed.run import Sandbox

    trace_set = workspace.open()
    found = trace_set.get_definition(definition)
    given = read_solution(workspace, trace_set, found, solution)
    (workload,) = choose_workloads(trace_set, found, None, 1)
    is_device_code = workspace.is_cuda or str(given.spec.language) in _DEVICE_LANGUAGES
    if architecture is not None and not _ARCHITECTURE.fullmatch(architecture):
        raise InvalidArguments("disassemble", (f"architecture {architecture!r}: write it as 9.0 or 9.0a",))
    programs = _programs("cuobjdump", "nvdisasm") if is_device_code else _programs("objdump")
    with Sandbox(workspace, given) as sandbox:
        values = make_values(workspace, found, workload, "normal")
        job = write_job(sandbox, workspace, found, given, workload, values)[-1]
        command = [sys.executable, "-P", "-m", "fib_agents.sandboxed.dump", job, json.dumps(programs)]
        variables = {} if architecture is None else {"FIB_CUDA_ARCH_LIST": architecture}
        ended = sandbox.run(command, timeout_seconds=2 * workspace.timeout_seconds, environment=variables)
        if ended.code != 0:
            problem = "was ended by the time limit" if ended.code is None else f"exited with status {ended.code}"
            raise ToolFailed(given.name, f"building or calling it {problem}", ended.output[-1500:])
        texts = {
            name: (sandbox.read(name, MAX_BYTES) or b"").decode("utf-8", "replace") for name in (RESOURCES, CODE, PTX)
        }
    if is_device_code:
        functions = parse_functions(texts[RESOURCES], texts[CODE])
        compiled_for = architecture_of(texts[CODE]) or architecture_of(texts[PTX])
    else:
        texts[CODE] = own_native_code(texts[CODE])
        functions, compiled_for = parse_native(texts[CODE]), None
    if not functions:
        raise ToolFailed(given.name, f"has no machine code of its own on {workspace.device}")
    return Disassembly(
        definition=definition,
        solution=given.name,
        architecture=compiled_for,
        functions=functions,
        occupancy={one.name: _occupancies(compiled_for, one) for one in functions} if compiled_for else {},
        code=shorten(texts[CODE], _MAX_CODE),
        ptx=shorten(texts[PTX], _MAX_CODE),
    )


def _programs(*names: str) -> dict[str, str]:
    """The paths of programs.

    Raises:
        ToolMissing: One is not installed.
    """
    from .sandboxed.run import find_program

    return {name: find_program(name, _REMEDIES[name]) for name in names}


def _occupancies(architecture: str, function: Function) -> dict[int, float]:
    if function.registers is None:
        return {}
    shares = {
        threads: occupancy(architecture, function.registers, function.shared_bytes or 0, threads)
        for threads in BLOCK_SIZES
    }
    return {threads: share for threads, share in shares.items() if share is not None}
