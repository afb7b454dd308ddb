"""Solution: one implementation of a definition, with its sources and how to build them.

Source: the schema of the public flashinfer-trace data set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import attrs

from . import _record
from ._record import NO_FIELDS, FrozenDict, Record


def framed(parts: Iterable[str | bytes]) -> bytes:
    """Join parts so that no two different sequences give the same bytes."""
    frames = bytearray()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        frames += len(data).to_bytes(8, "little")
        frames += data
    return bytes(frames)


class SupportedLanguages(StrEnum):
    """Languages of solutions."""

    PYTHON = "python"
    TRITON = "triton"
    CPP = "cpp"
    CUDA = "cuda"
    TILELANG = "tilelang"
    CUTE_DSL = "cute_dsl"
    CUTILE = "cutile"
    HELION = "helion"
    CUTLASS = "cutlass"
    """CUDA with the headers of CUTLASS."""

    @property
    def is_compiled(self) -> bool:
        """Whether compilers of C++ and CUDA make a library of it ahead of time."""
        return self in _COMPILED

    @property
    def is_embedded(self) -> bool:
        """Whether it is embedded in Python and compiles a kernel when that is first called."""
        return not self.is_compiled and self is not SupportedLanguages.PYTHON


_COMPILED = frozenset({SupportedLanguages.CPP, SupportedLanguages.CUDA, SupportedLanguages.CUTLASS})


class SupportedBindings(StrEnum):
    """Bindings of native solutions to Python."""

    TVM_FFI = "tvm-ffi"
    TORCH = "torch"


def _language(value: object) -> SupportedLanguages:
    return _record.member_of(SupportedLanguages, "language", value)


def _binding(value: object) -> SupportedBindings | None:
    return None if value is None else _record.member_of(SupportedBindings, "binding", value)


def _relative_path(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    _record.check_text(record, attribute.name, value)
    if problem := _record.relative_path_problem(value):
        raise _record.fail(record, attribute.name, f"{problem}; sources stay below their folder")


def _entry_point(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    _record.check_text(record, attribute.name, value)
    path, separator, symbol = value.partition("::")
    if not (path and separator and symbol) or "::" in symbol:
        problem = f"{value!r} is not of the form 'file::symbol', such as 'kernel.py::run'"
        raise _record.fail(record, attribute.name, problem)


@attrs.frozen
class SourceFile(Record):
    """One source file: a relative path and its text."""

    path: str = attrs.field(validator=_relative_path)
    """Relative path, with ``/``."""
    content: str = attrs.field(repr=False)
    """Text of the file."""


@attrs.frozen
class CompileOptions(Record):
    """Compiler flags that a solution requests; its builder decides which are allowed."""

    cflags: tuple[str, ...] = attrs.field(default=(), converter=_record.to_tuple)
    """For the C++ compiler."""
    cuda_cflags: tuple[str, ...] = attrs.field(default=(), converter=_record.to_tuple)
    """For nvcc."""
    ldflags: tuple[str, ...] = attrs.field(default=(), converter=_record.to_tuple)
    """For the linker."""


@attrs.frozen
class BuildSpec(Record):
    """Instructions for building and calling a solution."""

    language: SupportedLanguages = attrs.field(converter=_language)
    """Language of the entry file."""
    target_hardware: tuple[str, ...] = attrs.field(converter=_record.to_tuple)
    """Devices it is made for, as `torch.cuda.get_device_name` says it, or ``cpu``."""
    entry_point: str = attrs.field(validator=_entry_point)
    """``FILE::FUNCTION``, such as ``kernel.py::run``."""
    dependencies: tuple[str, ...] = attrs.field(default=(), converter=_record.to_tuple)
    """Libraries that a build needs, such as ``cublas``."""
    destination_passing_style: bool = True
    """Whether outputs are arguments (DPS) or return values."""
    binding: SupportedBindings | None = attrs.field(default=None, converter=_binding)
    """Binding of a compiled solution to Python; None means the builder's default, TVM-FFI."""
    compile_options: CompileOptions | None = None
    """Flags of compilers."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.target_hardware:
            raise _record.fail(self, "target_hardware", "is empty; name at least one device")


@attrs.frozen
class Solution(Record):
    """One implementation of a definition.

    Raises:
        InvalidField: A field is of the wrong kind, there are no sources, two have the same path
            or one is the folder of another, or the entry file is not among them.
    """

    name: str = attrs.field(validator=_record.name)
    """Unique in a data set."""
    definition: str = attrs.field(validator=_record.name)
    """Name of the definition that it implements."""
    author: str = attrs.field(validator=_record.name)
    """Person, team or model that wrote it."""
    spec: BuildSpec
    """Language, entry point and calling style."""
    sources: tuple[SourceFile, ...] = attrs.field(converter=_record.to_tuple, repr=False)
    """Files, the entry file among them."""
    description: str | None = attrs.field(default=None, repr=False)
    """Text for readers."""
    extra: FrozenDict[str, Any] = attrs.field(default=NO_FIELDS, converter=_record.to_mapping)
    """Fields beyond the public format."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.sources:
            raise _record.fail(self, "sources", "is empty; a solution has at least one source file")
        seen: set[str] = set()
        for index, source in enumerate(self.sources):
            if source.path.casefold() in seen:
                raise _record.fail(self, f"sources[{index}].path", f"{source.path!r} occurs twice")
            seen.add(source.path.casefold())
        self._check_folders(seen)
        if self.get_entry_path() not in {source.path for source in self.sources}:
            have = ", ".join(source.path for source in self.sources)
            problem = f"{self.get_entry_path()!r} is not among the sources ({have})"
            raise _record.fail(self, "spec.entry_point", problem)

    def _check_folders(self, paths: set[str]) -> None:
        for path in paths:
            parts = path.split("/")
            for depth in range(1, len(parts)):
                if (folder := "/".join(parts[:depth])) in paths:
                    raise _record.fail(self, "sources", f"{folder!r} is a file and the folder of {path!r}")

    def get_entry_path(self) -> str:
        """The path of the entry file, from ``spec.entry_point``."""
        return self.spec.entry_point.partition("::")[0]

    def get_entry_symbol(self) -> str:
        """The name of the entry function, from ``spec.entry_point``."""
        return self.spec.entry_point.partition("::")[2]

    def get_entry_source(self) -> SourceFile:
        """The entry file."""
        path = self.get_entry_path()
        return next(source for source in self.sources if source.path == path)

    def hash(self) -> str:
        """A hash (64 hexadecimal digits) of everything that changes what the solution does.

        The definition, language, entry point, binding, passing style, target hardware,
        dependencies, compile options, and every path and content; not the name, the author and the description.
        Fields that this version does not know count too, for they may change behaviour.
        """
        import hashlib

        spec = self.spec
        options = spec.compile_options or CompileOptions()
        parts = [
            self.definition,
            spec.language,
            spec.entry_point,
            spec.binding or "",
            "dps" if spec.destination_passing_style else "value",
            framed(sorted(spec.target_hardware)),
            framed(sorted(spec.dependencies)),
            framed(framed(flags) for flags in (options.cflags, options.cuda_cflags, options.ldflags)),
            _canonical(options.unknown_fields),
            _canonical(spec.unknown_fields),
            framed(part for s in sorted(self.sources, key=lambda source: source.path) for part in (s.path, s.content)),
        ]
        return hashlib.sha256(framed(parts)).hexdigest()

    def with_unique_name(self) -> Solution:
        """A copy whose name ends in ``_`` and the first 8 digits of the hash."""
        return attrs.evolve(self, name=f"{self.name}_{self.hash()[:8]}")


def _canonical(fields: FrozenDict[str, Any]) -> str:
    """Text that is the same for equal fields in any order."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))
