"""Keys: the properties of a call that selection depends on.

A key holds the sizes of the definition's variable axes, features that a key builder may add, and the strides of inputs
that are not contiguous, which the router adds to the keys of all builders. The key builders
here read only shapes; one that reads values (e.g. an average sequence length) runs at each call. Sizes are read by
generated code, in a tenth of the time of the definition's own method.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any, ClassVar, TypeAlias

import attrs
from fib_schema import AxisConst, Definition, Workload
from fib_schema.strides import Strides

from .events import logger

Axes: TypeAlias = tuple[tuple[str, int], ...]
"""Sizes of axes by name, sorted."""


class _SortedItems(tuple[tuple[str, Any], ...]):
    """Items that are sorted by name and have no other keys than strings."""

    __slots__ = ()


_NO_ITEMS = _SortedItems()


def _sorted_items(value: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    if type(value) is _SortedItems:
        return value
    pairs = value.items() if isinstance(value, Mapping) else value
    return tuple(sorted((str(name), item) for name, item in pairs))


_LAYOUT = "layout"
"""The feature that names the strides of inputs that are not contiguous: a solution was verified with these."""
_PADDED = "padded"
"""The feature that names the axis of padded indices; see `fib_schema.padded_indices`."""


@attrs.frozen(cache_hash=True)
class ApplyKey:
    """Sizes of axes, and features; independent of their order."""

    axes: Axes = attrs.field(default=(), converter=_sorted_items)
    feats: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=_sorted_items)

    @property
    def encode(self) -> str:
        """The key as text that sorts and compares like the key."""
        return json.dumps([self.axes, self.feats], separators=(",", ":"))

    @classmethod
    def from_encoded(cls, text: str) -> ApplyKey:
        """Decode a text made by `encode`.

        Raises:
            ValueError: The text is not an encoded key.
        """
        try:
            axes, feats = json.loads(text)
            return cls([(name, int(size)) for name, size in axes], [(name, value) for name, value in feats])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{text!r:.200} is not an encoded key: {error}") from error

    @classmethod
    def of_axes(cls, axes: Axes) -> ApplyKey:
        """The key of sizes that are sorted by the names of their axes, made in a third of the time."""
        return cls(_SortedItems(axes), _NO_ITEMS)

    def without_axes(self, names: Container[str]) -> ApplyKey:
        """The key without the sizes of some axes."""
        if not names:
            return self
        return ApplyKey(_SortedItems([pair for pair in self.axes if pair[0] not in names]), _SortedItems(self.feats))

    def with_layout(self, strides: Mapping[str, Strides]) -> ApplyKey:
        """The key with the strides of inputs that are not contiguous; the key itself if there are none."""
        if not strides:
            return self
        text = "; ".join(f"{name} {list(values)}" for name, values in strides.items())
        return ApplyKey(self.axes, (*self.feats, (_LAYOUT, text)))

    def with_padding(self, axis: str) -> ApplyKey:
        """The key of calls with padded indices of an axis. Its size, that of a buffer, selects no ranking."""
        return ApplyKey(self.axes, (*self.feats, (_PADDED, axis)))

    @property
    def padded_axis(self) -> str | None:
        """The axis of padded indices; None for other calls."""
        return next((axis for name, axis in self.feats if name == _PADDED), None)

    @property
    def recorded(self) -> ApplyKey:
        """The key under which it is recorded: that of padded indices has no size of these."""
        return self if self.padded_axis is None else self.without_axes({self.padded_axis})

    @property
    def is_exact(self) -> bool:
        """Whether all inputs are contiguous and not padded, as those of most workloads are."""
        return not any(name in (_LAYOUT, _PADDED) for name, _ in self.feats)

    @property
    def absent(self) -> str | None:
        """The optional inputs that are absent; None if all are given."""
        return next((names for name, names in self.feats if name == _ABSENT), None)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in (*self.axes, *self.feats)) or "no variable axes"


_CALL_METHODS = {"features", "build_from_args", "build_from_runtime"}
_ABSENT = "without"
"""The feature that names absent optional inputs: a solution was verified with or without them."""


class ApplyKeyBuilder(ABC):
    """Makes the keys of the calls and workloads of one definition."""

    is_by_shape: ClassVar[bool] = False
    """Whether the shapes of the inputs determine the key, so that it is built once for each combination of them."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition

    def __init_subclass__(cls, **options: Any) -> None:
        """Assume that a subclass with its own keys of calls reads values, unless it sets `is_by_shape`."""
        super().__init_subclass__(**options)
        if _CALL_METHODS & vars(cls).keys() and "is_by_shape" not in vars(cls):
            cls.is_by_shape = False

    @abstractmethod
    def build_from_args(self, args: Sequence[Any]) -> ApplyKey:
        """The key of a call.

        Args:
            args: The definition's inputs, in order.

        Raises:
            AxisError: The shapes do not match the definition.
        """

    @abstractmethod
    def build_from_workload(self, workload: Workload) -> ApplyKey:
        """The key of a recorded workload."""

    def build_from_runtime(self, runtime_kwargs: Mapping[str, Any]) -> ApplyKey:
        """The key of a call with inputs by name."""
        return self.build_from_args([runtime_kwargs.get(name) for name in self.definition.inputs])

    @abstractmethod
    def features(self, args: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
        """The features of a call; must be cheap."""


class AxesOnlyKeyBuilder(ApplyKeyBuilder):
    """Keys of axes and absent optional inputs.

    A subclass with its own `features` must make the keys of workloads with the same features.
    """

    is_by_shape = True

    @cached_property
    def _read_axes(self) -> Callable[[Sequence[Any]], dict[str, int]]:
        return compile_axis_reader(self.definition)

    @cached_property
    def _optional(self) -> tuple[str, ...]:
        return tuple(name for name, spec in self.definition.inputs.items() if spec.optional)

    def build_from_args(self, args: Sequence[Any]) -> ApplyKey:
        """The key of a call."""
        axes = self._read_axes(args)
        given = {name for name, value in zip(self.definition.inputs, args, strict=True) if value is not None}
        return ApplyKey(axes, (*self.features(args), *self._absent(given)))

    def build_from_workload(self, workload: Workload) -> ApplyKey:
        """The key of a recorded workload."""
        var_axes = set(self.definition.var_axes)
        axes = {axis: size for axis, size in workload.axes.items() if axis in var_axes}
        return ApplyKey(axes, self._absent(workload.inputs))

    def _absent(self, given: Container[str]) -> tuple[tuple[str, str], ...]:
        """The feature of absent optional inputs; empty if all are given."""
        names = [name for name in self._optional if name not in given]
        return ((_ABSENT, ",".join(names)),) if names else ()

    def features(self, args: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
        """No features."""
        del args
        return ()


_METHODS_OF_KEYS = ("build_from_args", "features", "_absent")


def makes_keys_of_axes(builder: ApplyKeyBuilder) -> bool:
    """Whether the key of a call with all inputs is `ApplyKey.of_axes`: the builder changes no method of this module."""
    if not isinstance(builder, AxesOnlyKeyBuilder):
        return False
    return all(getattr(type(builder), name) is getattr(AxesOnlyKeyBuilder, name) for name in _METHODS_OF_KEYS) and (
        vars(builder).keys().isdisjoint(_METHODS_OF_KEYS)
    )


GEMMKeyBuilder = GQAKeyBuilder = MLAKeyBuilder = AxesOnlyKeyBuilder
"""Names of flashinfer-bench: keys of ``gemm``, ``gqa`` and ``mla`` have no features of their own."""


class ApplyKeyFactory:
    """Key builders by op_type; `AxesOnlyKeyBuilder` for all others."""

    _builders: ClassVar[dict[str, type[ApplyKeyBuilder]]] = {}

    @classmethod
    def register(cls, op_type: str, builder: object) -> None:
        """Register a key builder for an op_type, for runtimes that are enabled from now on.

        Raises:
            TypeError: It is not a subclass of `ApplyKeyBuilder`.
        """
        if not (isinstance(builder, type) and issubclass(builder, ApplyKeyBuilder)):
            raise TypeError(f"a key builder for {op_type!r} must be a subclass of ApplyKeyBuilder, got {builder!r}")
        if "features" in vars(builder) and "build_from_workload" not in vars(builder):
            logger.warning(
                "%s adds features to keys of calls, but not of workloads, so none match; define build_from_workload",
                builder.__qualname__,
            )
        cls._builders = {**cls._builders, op_type: builder}

    @classmethod
    def registered(cls) -> Mapping[str, type[ApplyKeyBuilder]]:
        """All registered key builders by op_type."""
        return dict(cls._builders)

    @classmethod
    def for_type(cls, op_type: str) -> type[ApplyKeyBuilder]:
        """The key builder of an op_type, or of its family: that of ``gqa`` also serves ``gqa_paged``."""
        if op_type in cls._builders:
            return cls._builders[op_type]
        return cls._builders.get(op_type.partition("_")[0], AxesOnlyKeyBuilder)

    @classmethod
    def specialize(cls, definition: Definition) -> ApplyKeyBuilder:
        """The key builder of a definition."""
        return cls.for_type(definition.op_type)(definition)


# -- size readers -------------------------------------------------------------------------------------

SizeReader: TypeAlias = Callable[..., "Axes | None"]
"""Takes a call's arguments. Returns the sizes of the variable axes; None if the call may be invalid."""
_Shapes: TypeAlias = Mapping[str, Sequence[str]]
"""The axes of tensors, by the name of a parameter in generated code."""


def compile_axis_reader(definition: Definition) -> Callable[[Sequence[Any]], dict[str, int]]:
    """A function that does what `Definition.get_axes_values_from_inputs` does.

    Calls that differ from the definition in rank or size are left to that method, which says what is wrong. So are
    all calls of a definition with an axis that only optional inputs have.
    """
    generic = definition.get_axes_values_from_inputs
    tensors = {f"a{i}": spec.shape for i, spec in enumerate(definition.inputs.values()) if spec.shape is not None}
    optional = {f"a{i}" for i, spec in enumerate(definition.inputs.values()) if spec.optional}
    required = {name: shape for name, shape in tensors.items() if name not in optional}
    sizes = _sizes(definition, required)
    if any(axis not in sizes for shape in tensors.values() for axis in shape):
        return generic
    ordered = {**required, **tensors}  # required inputs first: they state the sizes
    axes = ", ".join(f"{axis!r}: {sizes[axis]}" for axis in definition.var_axes if axis in sizes)
    lines = [*_size_lines(ordered, sizes, optional), f"    return {{{axes}}}"]
    read = _compile(definition, [f"a{index}" for index in range(len(definition.inputs))], lines, {})

    def read_axes(inputs: Sequence[Any]) -> dict[str, int]:
        try:
            found = read(*inputs)
        except (AttributeError, TypeError, ValueError):
            found = None
        return generic(inputs) if found is None else found

    return read_axes


def compile_size_reader(
    definition: Definition, constraint_problem: Callable[[Mapping[str, int]], str | None], *, has_outputs: bool
) -> SizeReader | None:
    """Compile the size reader of a definition; None if inputs do not determine all sizes.

    It checks what a guard that ignores sizes does not: contiguous tensors, sizes that agree, constraints, and outputs
    that overlap with no other argument. All optional inputs must be given.
    """
    inputs = {f"a{index}": spec.shape for index, spec in enumerate(definition.inputs.values())}
    outputs = {f"b{index}": spec.shape for index, spec in enumerate(definition.outputs.values())} if has_outputs else {}
    tensors = {name: shape for name, shape in {**inputs, **outputs}.items() if shape is not None}
    sizes = _sizes(definition, {name: shape for name, shape in inputs.items() if shape is not None})
    is_determined = all(axis in sizes for shape in tensors.values() for axis in shape)
    if not is_determined or not outputs.keys() <= tensors.keys():
        return None
    conditions = [f"{name}.is_contiguous()" for name in tensors]
    conditions += _overlap_conditions([name for name in inputs if name in tensors], list(outputs))
    axes = [axis for axis in sorted(definition.var_axes) if axis in sizes]
    lines = [
        *_size_lines(tensors, sizes),
        f"    if not ({' and '.join(conditions)}):\n        return None",
        f"    axes = ({''.join(f'({axis!r}, {sizes[axis]}), ' for axis in axes)})",
    ]
    if definition.constraints:
        lines.append("    if constraint_problem({**const_axes, **dict(axes)}) is not None:\n        return None")
    scope = {"constraint_problem": constraint_problem, "const_axes": definition.const_axes}
    return _compile(definition, [*inputs, *outputs], [*lines, "    return axes"], scope)


def _compile(
    definition: Definition, parameters: Sequence[str], lines: Sequence[str], scope: dict[str, Any]
) -> Callable[..., Any]:
    source = "\n".join([f"def read({', '.join(parameters)}):", *lines])
    exec(compile(source, f"<fib_apply sizes of {definition.name}>", "exec"), scope)  # noqa: S102 made of our own names
    read: Callable[..., Any] = scope["read"]
    return read


def _sizes(definition: Definition, tensors: _Shapes) -> dict[str, str]:
    """The expression of each axis: its value, or the variable of the first dimension that has it."""
    sizes = {axis: str(spec.value) for axis, spec in definition.axes.items() if isinstance(spec, AxisConst)}
    for name, shape in tensors.items():
        for dim, axis in enumerate(shape):
            sizes.setdefault(axis, f"{name}_{dim}")
    return sizes


def _size_lines(tensors: _Shapes, sizes: Mapping[str, str], optional: Container[str] = ()) -> Iterator[str]:
    """Lines that read the sizes of all dimensions, and return None where a constant or another tensor differs."""
    for name, shape in tensors.items():
        indent = "    "
        if name in optional:
            yield f"    if {name} is not None:"
            indent = "        "
        found = [f"{name}_{dim}" for dim in range(len(shape))]
        yield f"{indent}[{', '.join(found)}] = {name}.shape"
        different = [f"{size} != {sizes[axis]}" for axis, size in zip(shape, found, strict=True) if sizes[axis] != size]
        if different:
            yield f"{indent}if {' or '.join(different)}:\n{indent}    return None"


def _overlap_conditions(inputs: list[str], outputs: list[str]) -> Iterator[str]:
    """Conditions of outputs in memory of their own. Contiguous tensors take as many bytes as their elements."""
    if outputs:
        for name in (*inputs, *outputs):
            yield f"((p_{name} := {name}.data_ptr()) + (n_{name} := {name}.nbytes)) >= 0"
    for a, b in (*((other, output) for output in outputs for other in inputs), *combinations(outputs, 2)):
        yield f"(p_{a} >= p_{b} + n_{b} or p_{b} >= p_{a} + n_{a})"
