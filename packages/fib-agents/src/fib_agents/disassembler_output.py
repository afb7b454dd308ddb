"""Parsers of ``cuobjdump``, ``nvdisasm`` and ``objdump``. The texts are untrusted: names in them are the solution's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import attrs

from .results import untrusted

_RESOURCE_FUNCTION = re.compile(r"^\s*Function (?P<name>\S+):\s*$")
_RESOURCES = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")
_SASS_FUNCTION = re.compile(r"^\s*(?:Function : (?P<dump>\S+)|\.text\.(?P<raw>[^\s:]+):)\s*$")
_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?(?P<op>[A-Z][A-Z0-9_]*)")
_ARCHITECTURE = re.compile(r"(?:arch = |\.target\s+|EF_CUDA_SM)(?:sm_)?(\d+[af]?)")
_NATIVE_FUNCTION = re.compile(r"^[0-9a-f]{8,} <(?P<name>.+)>:\s*$")
_NATIVE = re.compile(r"^\s+[0-9a-f]+:\t(?P<op>[a-z][\w.]*)")
_LIBRARY = re.compile(
    r"\b(tvm::|std::|__gnu_cxx)|<(_init|_fini|_start|(de)?register_tm|frame_dummy|__do_global|_GLOBAL__)|@plt|\.cold>"
)
_SPILLS = ("STL", "LDL")
_MAX_LINES = 200_000
_MAX_NAME = 300
_MAX_OPCODES = 40


@attrs.frozen
class Function:
    """A function of the machine code."""

    name: str = untrusted()
    registers: int | None = None
    shared_bytes: int | None = None
    """Static shared memory of a block."""
    stack_bytes: int | None = None
    local_bytes: int | None = None
    """Local memory of a thread, where registers spill to."""
    instructions: int = 0
    spills: int = 0
    """Instructions that load from or store to local memory."""
    opcodes: tuple[tuple[str, int], ...] = untrusted(default=())
    """Opcodes with the number of their uses, the most frequent first."""


def parse_functions(resources: str, code: str) -> tuple[Function, ...]:
    """The functions of a device library.

    Args:
        resources: The output of ``cuobjdump --dump-resource-usage``.
        code: That of ``cuobjdump --dump-sass`` or ``nvdisasm``.
    """
    counts = _count(code, _SASS_FUNCTION, _SASS)
    usage = dict(_resources(resources))
    found = []
    for name in dict.fromkeys((*usage, *counts)):
        used, opcodes = usage.get(name, {}), counts.get(name, Counter())
        found.append(
            Function(
                name=name[:_MAX_NAME],
                registers=used.get("REG"),
                shared_bytes=used.get("SHARED"),
                stack_bytes=used.get("STACK"),
                local_bytes=used.get("LOCAL"),
                instructions=opcodes.total(),
                spills=sum(opcodes[op] for op in _SPILLS),
                opcodes=tuple(opcodes.most_common(_MAX_OPCODES)),
            )
        )
    return tuple(found)


def own_native_code(code: str) -> str:
    """The output of ``objdump --disassemble`` without functions of the bindings and the C++ library."""
    blocks = re.split(r"(?m)^(?=[0-9a-f]{8,} <)", code)
    return "".join(block for block in blocks[1:] if not _LIBRARY.search(block.partition("\n")[0]))


def parse_native(code: str) -> tuple[Function, ...]:
    """The functions of a host library, by ``objdump --disassemble``; the largest first."""
    counts = _count(code, _NATIVE_FUNCTION, _NATIVE)
    functions = [
        Function(name=name[:_MAX_NAME], instructions=ops.total(), opcodes=tuple(ops.most_common(_MAX_OPCODES)))
        for name, ops in counts.items()
    ]
    return tuple(sorted(functions, key=lambda one: -one.instructions))


def architecture_of(text: str) -> str | None:
    """The architecture that a dump or PTX names, such as ``sm_90``."""
    match = _ARCHITECTURE.search(text)
    return None if match is None else f"sm_{match[1]}"


def _resources(text: str) -> Iterator[tuple[str, dict[str, int]]]:
    name = None
    for line in text.splitlines()[:_MAX_LINES]:
        if match := _RESOURCE_FUNCTION.match(line):
            name = match["name"]
        elif name is not None and (found := _RESOURCES.findall(line)):
            yield name, {key: int(value[:9]) for key, value in found}
            name = None


def _count(text: str, head: re.Pattern[str], instruction: re.Pattern[str]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    current: Counter[str] | None = None
    for line in text.splitlines()[:_MAX_LINES]:
        if match := head.match(line):
            name = next(group for group in match.groups() if group is not None)
            current = counts.setdefault(name, Counter())
        elif current is not None and (match := instruction.match(line)):
            current[match["op"]] += 1
    return counts
