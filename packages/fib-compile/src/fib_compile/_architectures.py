"""CUDA architectures. Which ones to compile for, and which devices run what was compiled."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from functools import cache

from fib_schema.hardware import architectures_of

from .errors import BuildProblem

ARCH_VARIABLE = "FIB_CUDA_ARCH_LIST"
_ARCH = re.compile(r"([1-9][0-9]?)\.([0-9])([af]?)(\+PTX)?")
_ARCHITECTURE_SPECIFIC = frozenset({"9.0", "10.0", "10.3", "11.0", "12.0", "12.1"})
"""nvcc offers their architecture-specific instructions only under names that end in ``a``."""


class InvalidArch(BuildProblem):
    """A malformed architecture list, or no known architecture."""


def architectures(target_hardware: Iterable[str]) -> tuple[str, ...]:
    """The architectures to compile for, such as ``("9.0a",)``.

    ``FIB_CUDA_ARCH_LIST`` has priority, then the devices of this machine, then a solution's target hardware.

    Raises:
        InvalidArch: The list is malformed, or none of the three names an architecture.
    """
    if wanted := os.environ.get(ARCH_VARIABLE):
        return parse_architectures(wanted)
    if found := _device_architectures():
        return found
    named = {arch for name in target_hardware for arch in architectures_of(name)}
    known = {_with_specific_instructions(arch) for arch in named if _ARCH.fullmatch(arch)}
    if known:
        return tuple(sorted(known))
    raise InvalidArch(
        f"no CUDA architecture is known: there is no device, and target_hardware names none; set {ARCH_VARIABLE}, "
        f"for example {ARCH_VARIABLE}=9.0a"
    )


def parse_architectures(text: str) -> tuple[str, ...]:
    """Parse a list such as ``8.0 9.0a 12.0+PTX``; spaces, commas and semicolons separate.

    Raises:
        InvalidArch: An entry is not an architecture.
    """
    entries = [entry for entry in re.split(r"[\s,;]+", text) if entry]
    for entry in entries:
        if not _ARCH.fullmatch(entry):
            raise InvalidArch(f"{ARCH_VARIABLE}: {entry!r} is not an architecture; write '9.0a', '8.0' or '8.0+PTX'")
    return tuple(sorted(set(entries)))


def runs_on(compiled: Iterable[str], wanted: Iterable[str]) -> bool:
    """Whether code that was compiled for some architectures runs on all wanted ones."""
    have = list(compiled)
    return all(any(_runs_on(one, other) for one in have) for other in wanted)


def gencode_flags(architectures: Iterable[str]) -> tuple[str, ...]:
    """The flags of nvcc for architectures."""
    flags = []
    for entry in architectures:
        number = entry.removesuffix("+PTX").replace(".", "")
        code = f"[sm_{number},compute_{number}]" if entry.endswith("+PTX") else f"sm_{number}"
        flags.append(f"-gencode=arch=compute_{number},code={code}")
    return tuple(flags)


def _runs_on(compiled: str, wanted: str) -> bool:
    have, want = _ARCH.fullmatch(compiled), _ARCH.fullmatch(wanted)
    if compiled == wanted or have is None or want is None:
        return compiled == wanted
    if have[3] == "a":  # runs on this architecture only
        return have.groups()[:3] == want.groups()[:3]
    older = (int(have[1]), int(have[2])) <= (int(want[1]), int(want[2]))
    return older and (have[1] == want[1] or have[4] is not None)


@cache
def _device_architectures() -> tuple[str, ...]:
    """Read from nvidia-smi, which initialises no CUDA in this process."""
    if not shutil.which("nvidia-smi"):
        return ()
    import subprocess

    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired as error:
        problem = f"nvidia-smi did not answer within 30 s; set {ARCH_VARIABLE}, for example {ARCH_VARIABLE}=9.0a"
        raise InvalidArch(problem) from error
    numbers = {line.strip() for line in done.stdout.splitlines() if done.returncode == 0}
    return tuple(sorted(_with_specific_instructions(number) for number in numbers if _ARCH.fullmatch(number)))


def _with_specific_instructions(number: str) -> str:
    return f"{number}a" if number in _ARCHITECTURE_SPECIFIC else number
