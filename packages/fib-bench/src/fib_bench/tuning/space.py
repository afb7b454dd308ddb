"""Spaces of configurations, and a solution with each of them.

A *place* is an expression in a solution's sources that a configuration replaces: the value of a constant that a space
file names, or the list of ``triton.Config`` of an autotuned kernel, which then has one element, so that Triton measures
nothing. Python sources are read and never run: what `_Reader` cannot evaluate needs a space file.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
from fib_schema import FibError, Solution, SourceFile, evaluate_constraint
from fib_schema.settings import InvalidSetting, SettingsFile
from fib_schema.syntax import parse_source

MAX_CONFIGURATIONS = 2_000
"""All of them are evaluated: a search that samples a space makes another table each time."""
_MAX_PRODUCT = 1_000_000
_MAX_LENGTH, _MAX_NAME = 10_000, 120
_OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg"})
"""Arguments of ``triton.Config`` beside the parameters of the kernel."""
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = MappingProxyType(
    {
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
        ast.Gt: operator.gt, ast.GtE: operator.ge, ast.USub: operator.neg, ast.Not: operator.not_,
    }
)  # fmt: skip
_COMPILED = (
    r"""^[ \t]*\#[ \t]*define[ \t]+{0}[ \t]+(\S+)|\bconstexpr\b[^;{{}}()=]*\b{0}\s*[={{]\s*([^;{{}}]+?)\s*[;}}]"""
)

Scalar = int | float | bool


@attrs.frozen
class SpaceError(FibError, ValueError):
    """A solution or a space file that no configurations can be made of."""

    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@attrs.frozen
class Place:
    """An expression in a source file that configurations replace."""

    path: str
    begin: int
    end: int
    """Offsets in characters."""
    names: tuple[str, ...]
    """The parameters that are written there."""
    config: str = ""
    """The name of ``triton.Config`` in this source; empty for a constant."""

    def text(self, parameters: Mapping[str, Scalar]) -> str:
        """The expression for these parameters."""
        if self.config:
            options = "".join(f", {name}={value!r}" for name, value in parameters.items() if name in _OPTIONS)
            own = {name: value for name, value in parameters.items() if name not in _OPTIONS}
            return f"[{self.config}({own!r}{options})]"
        value = parameters[self.names[0]]
        return repr(value) if self.path.endswith(".py") else str(value).lower()


@attrs.frozen
class Space:
    """The configurations of a solution."""

    solution: Solution
    places: tuple[Place, ...]
    configurations: tuple[Mapping[str, Scalar], ...]

    def solution_of(self, parameters: Mapping[str, Scalar]) -> Solution:
        """The solution with a configuration, named by it; `SpaceError` if a parameter is missing or has no place."""
        known = {name for place in self.places for name in place.names}
        needed = {place.names[0] for place in self.places if not place.config}
        if wrong := sorted(parameters.keys() - known - _OPTIONS) or sorted(needed - parameters.keys()):
            raise SpaceError(self.solution.name, f"no place or no value for {', '.join(wrong)}")
        contents = {source.path: source.content for source in self.solution.sources}
        for place in sorted(self.places, key=lambda place: place.begin, reverse=True):
            content = contents[place.path]
            contents[place.path] = content[: place.begin] + place.text(parameters) + content[place.end :]
        sources = tuple(SourceFile(path, content) for path, content in contents.items())
        name = "_".join([self.solution.name, *(f"{name}={value}" for name, value in parameters.items())])
        return attrs.evolve(self.solution, name=name[:_MAX_NAME], sources=sources).with_unique_name()


def make_space(solution: Solution, file: Path | None) -> Space:
    """The space that a file states, or that of the autotuned kernels of a solution; `SpaceError` if there is none."""
    return _of_kernel(solution) if file is None else _of_file(solution, file)


def _of_kernel(solution: Solution) -> Space:
    found = [pair for source in solution.sources for pair in _autotuned(source) if len(pair[1]) > 1]
    if len(found) != 1:
        text = f"has {len(found)} autotuned kernels with several configurations, and one is tuned at a time"
        raise SpaceError(solution.name, f"{text}; or state constants and their values in a file (--space)")
    ((place, configurations),) = found
    return Space(solution, (place,), _bounded(solution.name, configurations))


def _of_file(solution: Solution, file: Path) -> Space:
    stated = _read(file)
    places = tuple(_constant(solution, name) for name in stated.parameters)
    if not places or math.prod(map(len, stated.parameters.values())) > _MAX_PRODUCT:
        raise SpaceError(str(file), f"no values, or over {_MAX_PRODUCT} combinations of them; leave values out")
    every = (dict(zip(stated.parameters, each, strict=True)) for each in itertools.product(*stated.parameters.values()))
    allowed = [each for each in every if all(evaluate_constraint(text, each) for text in stated.constraints)]
    return Space(solution, places, _bounded(str(file), allowed))


def _bounded(where: str, configurations: Sequence[Mapping[str, Scalar]]) -> tuple[Mapping[str, Scalar], ...]:
    if not 0 < len(configurations) <= MAX_CONFIGURATIONS:
        text = f"{len(configurations)} configurations are left; 1 to {MAX_CONFIGURATIONS} can be evaluated"
        raise SpaceError(where, text)
    return tuple(configurations)


def _has_numbers(_: object, attribute: attrs.Attribute[Any], value: Mapping[str, tuple[Any, ...]]) -> None:
    if not all(each and all(isinstance(number, Scalar) for number in each) for each in value.values()):
        raise InvalidSetting(attribute.name, value, "a list of numbers for each constant, such as {BLOCK: [16, 32]}")


@attrs.frozen
class _Stated:
    """The content of a space file: values of constants, and constraints as in definitions."""

    parameters: Mapping[str, tuple[Any, ...]] = attrs.field(factory=dict, validator=_has_numbers)
    constraints: tuple[str, ...] = ()


def _read(path: Path) -> _Stated:
    file = SettingsFile.load(path)
    stated: _Stated = file.read(_Stated)
    file.check()
    return stated


def _constant(solution: Solution, name: str) -> Place:
    found = [place for source in solution.sources for place in _constants(source, name)]
    if len(found) != 1:
        text = f"{name} is assigned {len(found)} times; once is needed: {name} = 1, #define {name} 1 or constexpr"
        raise SpaceError(solution.name, text)
    return found[0]


def _constants(source: SourceFile, name: str) -> Iterator[Place]:
    if not source.path.endswith(".py"):
        pattern = re.compile(_COMPILED.format(re.escape(name)), re.MULTILINE)
        for match in pattern.finditer(source.content):
            yield Place(source.path, *match.span(1 if match[1] is not None else 2), (name,))
        return
    for assigned, value in _assignments(parse_source(source.content)):
        if assigned == name:
            yield Place(source.path, *_span(source.content, value), (name,))


def _assignments(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node.value) for target in targets if isinstance(target, ast.Name))


def _span(content: str, node: ast.expr) -> tuple[int, int]:
    """The offsets of a node in characters; `ast` counts the bytes of a line."""
    lines = content.splitlines(keepends=True)

    def offset(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    return offset(node.lineno, node.col_offset), offset(node.end_lineno or 0, node.end_col_offset or 0)


def _autotuned(source: SourceFile) -> Iterator[tuple[Place, list[dict[str, Scalar]]]]:
    if not source.path.endswith(".py"):
        return
    module = parse_source(source.content)
    for kernel in [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]:
        for call in [node for node in kernel.decorator_list if isinstance(node, ast.Call)]:
            if ast.unparse(call.func).endswith("autotune"):
                given = [word.value for word in call.keywords if word.arg == "configs"] or call.args
                configs = _Reader(source.path, module).configs(given[0])
                names = tuple(dict.fromkeys(name for config in configs for name in config))
                yield Place(source.path, *_span(source.content, given[0]), names, _config_name(module)), configs


def _config_name(module: ast.Module) -> str:
    calls = (ast.unparse(node.func) for node in ast.walk(module) if isinstance(node, ast.Call))
    return next((name for name in calls if name.endswith("Config")), "triton.Config")


class _Reader:
    """Evaluates the expressions that lists of configurations are written with, and no others."""

    def __init__(self, path: str, module: ast.Module) -> None:
        self._path = path
        self._functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
        self._assigned = dict(_assignments(module))

    def configs(self, node: ast.expr) -> list[dict[str, Scalar]]:
        """The parameters of each configuration of a list."""
        found = self._value(node, {})
        if not isinstance(found, list) or not found or not all(isinstance(each, dict) for each in found):
            raise self._error(node)
        return found

    def _value(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in scope:
                return scope[name]
            case ast.Name(id=name) if name in self._assigned:
                return self._value(self._assigned[name], {})
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self._value(part, scope) for part in parts]
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {self._value(k, scope): self._value(v, scope) for k, v in zip(keys, values, strict=True) if k}
            case ast.ListComp(elt=part, generators=loops):
                inner = itertools.islice(self._scopes(loops, scope), _MAX_LENGTH)
                return [self._value(part, each) for each in inner]
            case ast.IfExp(test=test, body=body, orelse=other):
                return self._value(body if self._value(test, scope) else other, scope)
            case ast.BoolOp(op=op, values=parts):
                return (all if isinstance(op, ast.And) else any)(self._value(part, scope) for part in parts)
            case ast.UnaryOp(op=op, operand=part):
                return self._computed(node, op, self._value(part, scope))
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._computed(node, op, self._value(left, scope), self._value(right, scope))
            case ast.Call():
                return self._called(node, scope)
        raise self._error(node)

    def _computed(self, node: ast.expr, op: ast.AST, *values: Any) -> Any:
        are_numbers = all(isinstance(value, int | float) and abs(value) < 2**53 for value in values)
        if type(op) not in _OPERATORS or not are_numbers:
            raise self._error(node)
        try:
            return _OPERATORS[type(op)](*values)
        except ArithmeticError as error:
            raise self._error(node) from error

    def _called(self, node: ast.Call, scope: Mapping[str, Any]) -> Any:
        name = ast.unparse(node.func)
        values = [self._value(part, scope) for part in node.args]
        named = {str(word.arg): self._value(word.value, scope) for word in node.keywords}
        match name.rpartition(".")[2], values:
            case "Config", [dict(own)]:
                options = {option: value for option, value in named.items() if option in _OPTIONS and value is not None}
                return {**own, **options}
            case "range", [*bounds] if all(isinstance(bound, int) for bound in bounds):
                return list(itertools.islice(range(*bounds), _MAX_LENGTH))
            case "product", [*lists] if not named and all(isinstance(each, list) for each in lists):
                return [list(each) for each in itertools.islice(itertools.product(*lists), _MAX_LENGTH)]
        if name in self._functions and not values and not named:
            match [part for part in self._functions[name].body if not isinstance(part, ast.Expr)]:
                case [ast.Return(value=ast.expr() as returned)]:
                    return self._value(returned, {})
        raise self._error(node)

    def _scopes(self, loops: Sequence[ast.comprehension], scope: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if not loops:
            yield scope
            return
        for item in self._value(loops[0].iter, scope):
            inner = {**scope, **self._bound(loops[0].target, item)}
            if all(self._value(test, inner) for test in loops[0].ifs):
                yield from self._scopes(loops[1:], inner)

    def _bound(self, target: ast.expr, item: Any) -> dict[str, Any]:
        match target:
            case ast.Name(id=name):
                return {name: item}
            case ast.Tuple(elts=parts) if isinstance(item, list) and len(parts) == len(item):
                return {
                    name: v
                    for part, each in zip(parts, item, strict=True)
                    for name, v in self._bound(part, each).items()
                }
        raise self._error(target)

    def _error(self, node: ast.expr) -> SpaceError:
        text = ast.unparse(node)[:80]
        return SpaceError(f"{self._path}:{node.lineno}", f"cannot read {text!r}; state the space in a file (--space)")
