"""Compilers. Their identity: a digest of what they report, and of the content of their programs.

A report has the target, the options, the search paths and the predefined macros, in the environment in which the
compiler is going to run. The programs are those that it names, a wrapper's script with the programs that it starts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import attrs
from fib_schema import get_fib_cache_path
from fib_schema.files import atomic_write
from fib_schema.private_files import private_folder, read_private

from ._cache import digest
from ._elf import is_elf
from ._inputs import InputFile, are_current
from .builder import CACHE_FOLDER
from .compiler_environment import compiler_environment
from .errors import BuildProblem

COMPILERS = "compilers"
"""The folder below the cache that holds what compilers reported."""
_REPORT = ("-v", "-E", "-dM", "-x", "c++", "/dev/null")
_NVCC_REPORT = ("--dryrun", "--keep", "-c", "-x", "cu", "/dev/null", "-o", "probe.o")
_NVCC_PROGRAMS = ("cicc", "cudafe++", "fatbinary", "nvlink", "ptxas")
_NOT_IDENTIFYING = ("COLLECT_GCC=", "#$ PATH=", "#$ LD_LIBRARY_PATH=")
"""Lines of a report that tell places only."""
_COMPILER_MARKS = (b"COLLECT_GCC_OPTIONS", b"-cc1as", b"NVCC_APPEND_FLAGS")
_MAX_SCRIPT_BYTES = 2**20
_TIMEOUT_SECONDS = 60
_WORD = re.compile(r"[^\s\"'`;|&()<>=,:]+")
_RECORD_VERSION = 2


class MissingTool(BuildProblem):
    """A compiler or dependency that this machine lacks; the cache may still hold the library."""


@attrs.frozen
class Compiler:
    """A compiler that was found."""

    command: tuple[str, ...]
    version: str
    identity: str
    """A digest: two compilers with the same one make the same library."""
    headers: tuple[str, ...] = ()
    """The folders that it searches for headers, in order."""
    files: tuple[InputFile, ...] = ()
    """Its programs; while they are unchanged, so is the rest."""

    def __str__(self) -> str:
        return f"{shlex.join(self.command)}: {self.version}"

    @property
    def flags(self) -> tuple[str, ...]:
        """The options in the command."""
        return flags_of(self.command)

    @property
    def own_headers(self) -> tuple[str, ...]:
        """Folders of headers that belong to the compiler, unless a user named them."""
        custom = custom_folders(self.flags)
        return tuple(
            folder
            for folder in self.headers
            if folder not in custom and re.search(r"/c\+\+/|/lib\w*/(gcc|clang)/", f"{folder}/")
        )


def flags_of(command: Sequence[str]) -> tuple[str, ...]:
    """The words of a command from the first option on."""
    first = next((index for index, word in enumerate(command) if word.startswith(("-", "@"))), len(command))
    return tuple(command[first:])


def custom_folders(flags: Iterable[str]) -> tuple[str, ...]:
    """Folders for headers that a user added with variables or options."""
    values = [os.environ.get(name, "") for name in ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH")]
    for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
        flags = (*flags, *shlex.split(os.environ.get(name, "")))
    words = [*flags, ""]
    for word, following in pairwise(words):
        if match := re.fullmatch(r"(?:-I|-isystem|-iquote|-idirafter)=?(.*)", word):
            values.append(match[1] or following)
    folders = (_absolute(folder) for value in values for folder in value.split(":") if folder)
    return tuple(dict.fromkeys(folders))


def custom_library_folders(flags: Iterable[str]) -> tuple[str, ...]:
    """Folders for libraries that a user added with variables or options."""
    values = [*os.environ.get("LIBRARY_PATH", "").split(":"), *(flag[2:] for flag in flags if flag.startswith("-L"))]
    return tuple(dict.fromkeys(_absolute(folder) for folder in values if folder))


# -- identity ------------------------------------------------------------------------------------


def identify(command: Sequence[str], driver: str, *, is_nvcc: bool = False) -> Compiler:
    """Identify a compiler.

    What a compiler reported is stored while its programs are unchanged. A program that is not known to be a compiler
    may start any other one: it is asked each time.

    Args:
        command: Its command line.
        driver: The path of the first word.
        is_nvcc: Whether it is nvcc.

    Raises:
        MissingTool: It cannot be run.
    """
    question = digest((*command, os.path.realpath(driver), *_described_environment()))
    known = _asked.get(question) or _stored(question)
    if known is not None and are_current(known.files):
        _asked[question] = known
        return known
    try:
        compiler = _ask(tuple(command), driver, is_nvcc=is_nvcc)
    except (OSError, subprocess.SubprocessError) as error:
        shown = getattr(error, "stderr", None) or error
        raise MissingTool(f"{shlex.join(command)} cannot be run: {str(shown).strip()[-300:]}; reinstall it") from error
    if _is_compiler(driver) and not any(word.startswith("@") for word in command):
        _asked[question] = compiler
        _store(question, compiler)
    return compiler


_asked: dict[str, Compiler] = {}


def _described_environment() -> list[str]:
    """The variables that decide what a known compiler reports; each worker has folders of its own in the others."""
    variables = sorted(compiler_environment().items())
    return [f"{name}={value}" for name, value in variables if name not in ("HOME", "TMPDIR")]


def _ask(command: tuple[str, ...], driver: str, *, is_nvcc: bool) -> Compiler:
    report = _run([*command, *(_NVCC_REPORT if is_nvcc else _REPORT)])
    told = report.stderr + report.stdout
    lines = [line for line in told.splitlines() if not line.startswith(_NOT_IDENTIFYING)]
    paths = {*_programs(command, driver), *_named_in(report.stderr)}
    paths |= set(_nvcc_programs(told)) if is_nvcc else set(_assembler_and_linker(command))
    files = tuple(InputFile.of(path) for path in sorted({os.path.realpath(path) for path in paths}))
    identity = digest((*command[1:], *lines, *sorted({file.sha256 for file in files})))
    version = " ".join(_run([*command, "--version"]).stdout.split()).partition(" ")[2]  # without the program's name
    return Compiler(command, version, identity, _header_folders(told), files)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
        timeout=_TIMEOUT_SECONDS,
        env=compiler_environment(),
        stdin=subprocess.DEVNULL,
        cwd="/",
    )


def _programs(command: Sequence[str], driver: str) -> Iterator[str]:
    """The programs of a command line, the scripts among them with those that they name."""
    yield from _with_scripts(driver, set())
    for word in command[1:]:
        path = word.removeprefix("@")
        if "/" in path and Path(path).is_file():
            yield path
        elif not word.startswith(("-", "@")) and (found := shutil.which(word)):
            yield from _with_scripts(found, set())


def _with_scripts(path: str, seen: set[str]) -> Iterator[str]:
    if path in seen:
        return
    seen.add(path)
    yield path
    with open(path, "rb") as file:  # noqa: PTH123 - may be a link that is replaced: its content matters
        data = file.read(_MAX_SCRIPT_BYTES)
    if is_elf(data):
        return
    for word in sorted(set(_WORD.findall(data.decode("utf-8", "replace")))):
        found = shutil.which(word)
        if found and (word.startswith("/") or not is_elf(_head(found))):
            yield from _with_scripts(found, seen)


def _named_in(report: str) -> Iterator[str]:
    for word in set(_WORD.findall(report)):
        if word.startswith("/") and Path(word).is_file() and not word.startswith("/dev/"):
            yield word


def _assembler_and_linker(command: Sequence[str]) -> Iterator[str]:
    for name in ("as", "ld"):
        told = _run([*command, f"-print-prog-name={name}"]).stdout.strip()
        if found := shutil.which(told):
            yield from _with_scripts(found, set())


def _nvcc_programs(report: str) -> Iterator[str]:
    search = next((line.partition("=")[2] for line in report.splitlines() if line.startswith("#$ PATH=")), "")
    for name in _NVCC_PROGRAMS:
        if found := shutil.which(name, path=search):
            yield from (found, *(str(path) for path in Path(found).parent.glob("nvcc.profile")))


def _header_folders(report: str) -> tuple[str, ...]:
    lines = report.splitlines()
    folders = [
        _absolute(path) for line in lines if "INCLUDES=" in line for path in re.findall(r'"(?:-I)?(/[^"]+)"', line)
    ]
    if "End of search list." in lines:
        first = next(index for index, line in enumerate(lines) if line.startswith("#include <...>"))
        folders += [_absolute(line.strip()) for line in lines[first + 1 : lines.index("End of search list.")]]
    return tuple(dict.fromkeys(folders))


def _absolute(path: str) -> str:
    return os.path.normpath(Path(path).absolute())


def _is_compiler(path: str) -> bool:
    """Whether a program is a compiler itself, and not one that starts another."""
    data = Path(path).read_bytes()
    return is_elf(data) and any(mark in data for mark in _COMPILER_MARKS)


def _head(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read(4)


# -- what compilers reported, on disk ------------------------------------------------------------


def _stored(question: str) -> Compiler | None:
    try:
        data = json.loads(read_private(get_fib_cache_path() / CACHE_FOLDER / COMPILERS / question))
        if data["format"] != _RECORD_VERSION:
            return None
        files = tuple(map(InputFile._make, data["files"]))
        command, headers = (tuple(map(str, data[name])) for name in ("command", "headers"))
        return Compiler(command, str(data["version"]), str(data["identity"]), headers, files)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(question: str, compiler: Compiler) -> None:
    data = {"format": _RECORD_VERSION, **attrs.asdict(compiler, recurse=False)}
    try:
        folder = private_folder(private_folder(get_fib_cache_path() / CACHE_FOLDER) / COMPILERS)
        atomic_write(folder / question, json.dumps(data).encode(), mode=0o600)
    except OSError:
        return  # the build itself reports that the cache cannot be written
