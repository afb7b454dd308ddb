"""Settings in YAML files: one strict reader, from a file to attrs classes.

`SettingsFile.load` parses a file, `SettingsFile.read` makes an object of a settings class from one of its mappings, and
`SettingsFile.check` raises one error with all problems of the file, each with its line and the keys that lead to it.
cattrs converts by the types of the fields (scalars, enumerations, tuples, mappings, attrs classes) without guesses: "1"
is no number and 1 is no text. The converter and the validator of each field run beside that; a validator raises
`InvalidSetting`. PyYAML is imported when a file is read: a package that reads settings depends on it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from .errors import FibError, InvalidField, Keys, UnknownName, located_errors
from .files import read_regular

if TYPE_CHECKING:
    import yaml
    from cattrs import Converter

T = TypeVar("T")
MAX_FILE_BYTES = 1 << 20
_SHOWN = 80
_NOTED = object()
"""Stands for a value without a meaning, whose problem is noted."""
_KINDS: Mapping[type, str] = MappingProxyType(
    {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
)
# YAML 1.1, which PyYAML reads, requires a point and a sign: https://github.com/yaml/pyyaml/issues/173
_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")


@attrs.frozen
class InvalidSetting(FibError, ValueError):
    """A setting has a value that is not allowed."""

    name: str
    value: object
    wanted: str

    def __str__(self) -> str:
        return f"{self.name}: got {self.value!r}, expected {self.wanted}"

    @property
    def problem(self) -> str:
        """The message without the name; a long value is shortened."""
        shown = repr(self.value)
        return f"got {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}, expected {self.wanted}"


@attrs.frozen
class ConfigProblem:
    """One thing that is wrong in a file of settings."""

    line: int | None
    """Counted from 1; None if no line is to blame."""
    path: str
    """The keys that lead to it, joined by points; empty for the file as a whole."""
    message: str
    """The finding and the remedy."""


@attrs.frozen
class InvalidConfigFile(FibError, ValueError):
    """A file of settings that is not valid; holds all of its problems."""

    path: str
    problems: tuple[ConfigProblem, ...]

    def __str__(self) -> str:
        text = "the configuration is not valid:"
        for problem in self.problems:
            place = self.path if problem.line is None else f"{self.path}:{problem.line}"
            text += f"\n  {place}: {problem.path + ': ' if problem.path else ''}{problem.message}"
        return text


@attrs.define
class SettingsFile:
    """The content of a file of settings, and the problems found in it so far."""

    path: str
    content: Any = attrs.field(factory=dict)
    """Plain objects: mappings with texts as keys, lists, and scalars."""
    problems: list[ConfigProblem] = attrs.field(factory=list)
    lines: dict[Keys, int] = attrs.field(factory=dict)
    """The line of each value, counted from 1."""

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_bytes: int = MAX_FILE_BYTES) -> SettingsFile:
        """Parse a file. What is no usable YAML is noted as a problem, for `check`.

        Raises:
            OSError: It cannot be read, is too large, or is not a regular file.
        """
        return cls.parse(read_regular(path, max_bytes), os.fspath(path))

    @classmethod
    def parse(cls, data: bytes, path: str) -> SettingsFile:
        """Parse YAML; `path` is its name in errors."""
        import yaml

        file = cls(path)
        try:
            if (root := yaml.compose(data, _loader())) is not None:
                file.content = file._plain(root, ())
        except yaml.MarkedYAMLError as error:
            line = None if error.problem_mark is None else error.problem_mark.line + 1
            file.problems.append(ConfigProblem(line, "", f"not valid YAML: {error.problem}; correct the syntax"))
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as characters that YAML does not allow
            text = " ".join(str(error).split())
            file.problems.append(ConfigProblem(None, "", f"not valid YAML: {text[:200]}; save it as UTF-8 text"))
        return file

    def _plain(self, node: yaml.Node, keys: Keys) -> Any:
        """The plain objects of a node; the line of each is kept."""
        import yaml

        self.lines.setdefault(keys, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            items = {key: self._plain(value, (*keys, key)) for key, value in self._items(node, keys)}
            return {key: value for key, value in items.items() if value is not _NOTED}
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, (*keys, index)) for index, item in enumerate(node.value)]
        loader = _loader()("")
        try:
            return loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:  # such as a date in month 13
            problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
            self.note(f"not a plain value: {problem}; write a number, a text or a list", *keys)
            return _NOTED
        finally:
            loader.dispose()

    def _items(self, node: yaml.MappingNode, keys: Keys) -> Iterator[tuple[str, yaml.Node]]:
        import yaml

        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.note("keys must be names", *keys)
            elif key.value in seen:
                line = key.start_mark.line + 1
                self.problems.append(ConfigProblem(line, _joined((*keys, key.value)), "given twice; remove one"))
            else:
                seen.add(key.value)
                self.lines[*keys, key.value] = key.start_mark.line + 1
                yield key.value, value

    def note(self, message: str, *keys: str | int) -> None:
        """Add a problem of a value, with the line of the nearest key that the file has."""
        line = next((self.lines[keys[:n]] for n in range(len(keys), -1, -1) if keys[:n] in self.lines), None)
        self.problems.append(ConfigProblem(line, _joined(keys), message))

    def check(self) -> None:
        """Reject the file if it has problems.

        Raises:
            InvalidConfigFile: Holds the first of each value, in the order of the file.
        """
        if self.problems:
            first = {(problem.line, problem.path): problem for problem in reversed(self.problems)}
            places = {_joined(keys): place for place, keys in enumerate(self.lines)}
            order = sorted(first.values(), key=lambda found: (found.line or 0, places.get(found.path, len(places))))
            raise InvalidConfigFile(self.path, tuple(order))

    def value(self, *keys: str | int) -> Any:
        """The plain value below some keys; None if the file does not have it."""
        found = self.content
        for key in keys:
            try:
                found = found[key]
            except (LookupError, TypeError):
                return None
        return found

    def names(self, *keys: str | int) -> tuple[str, ...]:
        """The keys of the mapping below some keys; a value that is no mapping is noted as a problem."""
        value = self.value(*keys)
        if isinstance(value, Mapping):
            return tuple(value)
        if value is not None:
            self.note(InvalidSetting("", value, "a mapping of names to values").problem, *keys)
        return ()

    def read(self, cls: type[T], *keys: str | int, base: T | None = None) -> T:
        """An object of an attrs class, whose fields have defaults, from the mapping below some keys, or the whole file.

        `base`, else the class, has what is not given there. It is returned if there are problems, which are noted.
        """
        base = cls() if base is None else base
        value = self.value(*keys)
        try:
            made = _converter().structure(value, cls)
            return attrs.evolve(base, **{name: getattr(made, name) for name in value or ()})  # type: ignore[misc]
        except (FibError, BaseExceptionGroup) as error:
            for place, inner in located_errors(error, keys):
                self._note_error(inner, place)
            return base

    def _note_error(self, error: BaseException, keys: Keys) -> None:
        """Note the problem of an error of cattrs."""
        from cattrs import ForbiddenExtraKeysError

        if isinstance(error, ForbiddenExtraKeysError):
            known = tuple(field.name for field in attrs.fields(error.cl))
            for key in error.extra_fields:
                self.note(str(UnknownName("setting", key, known)), *keys, key)
        elif isinstance(error, InvalidSetting):
            is_field = (*keys, error.name) in self.lines  # the object as a whole was checked
            self.note(error.problem, *keys, *((error.name,) if is_field else ()))
        elif isinstance(error, InvalidField):
            self.note(error.problem, *keys)
        elif isinstance(error, KeyError) and keys not in self.lines:
            self.note("is missing", *keys)
        elif isinstance(error, FibError | ValueError | TypeError):
            self.note(str(error), *keys)
        else:
            raise error


@functools.cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads 1e-3 as a number."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    return Loader


@functools.cache
def _converter() -> Converter:
    """A converter that guesses nothing; its errors are groups with one exception per value."""
    from cattrs import Converter, cols

    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    for kind in _KINDS:
        converter.register_structure_hook(kind, _scalar)

    def mapping(kind: Any, own: Converter) -> Callable[..., Any]:
        return _checked(Mapping, "a mapping", cols.mapping_structure_factory(kind, own), dict)

    def sequence(kind: Any, own: Converter) -> Callable[..., Any]:
        return _checked(list, "a list", cols.homogenous_tuple_structure_factory(kind, own), list)

    converter.register_structure_hook_factory(cols.is_mapping, mapping)
    converter.register_structure_hook_factory(lambda kind: getattr(kind, "__origin__", None) is tuple, sequence)
    converter.register_structure_hook_factory(attrs.has, _class_hook)
    return converter


def _scalar(value: Any, kind: type[Any]) -> Any:
    """The value itself, or the member of an enumeration of texts or numbers."""
    if issubclass(kind, Enum):
        members = {member.value: member for member in kind}
        if value not in members:
            raise InvalidSetting("", value, "one of " + ", ".join(map(repr, members)))
        return members[value]
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return value
    raise InvalidSetting("", value, _KINDS[kind])


def _checked(plain: type, wanted: str, hook: Callable[..., Any], empty: Callable[[], Any]) -> Callable[..., Any]:
    """A hook that takes plain objects of one kind; a key without a value stands for an empty one."""

    def structure(value: Any, kind: Any) -> Any:
        if value is not None and not isinstance(value, plain):
            raise InvalidSetting("", value, wanted)
        return hook(empty() if value is None else value, kind)

    return structure


def _class_hook(cls: type[Any], converter: Converter) -> Callable[..., Any]:
    """The hook of a settings class: fields are checked one by one, so that no problem hides another."""
    from cattrs.gen import make_dict_structure_fn, override

    attrs.resolve_types(cls)
    fields: Any = {a.name: override(struct_hook=_field_hook(a, converter)) for a in attrs.fields(cls)}
    made = make_dict_structure_fn(cls, converter, **fields)
    return _checked(Mapping, "a mapping of settings to values", made, dict)


def _field_hook(attribute: attrs.Attribute[Any], converter: Converter) -> Callable[..., Any]:
    def structure(value: Any, kind: Any) -> Any:
        convert: Any = attribute.converter or functools.partial(converter.structure, cl=kind)
        value = convert(value)
        if attribute.validator is not None:
            attribute.validator(None, attribute, value)
        return value

    return structure


def _joined(keys: Sequence[str | int]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
