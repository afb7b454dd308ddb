"""Keys: the properties of a call that selection depends on.

A key holds the sizes of the definition's variable axes, features that a key builder may add, and the strides of inputs
that are not contiguous, which the router adds to the keys of all builders. The key builders
here read only shapes; one that reads values (e.g. an average sequence length) runs at each call.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import attrs
from fib_schema import Definition, Workload
from fib_schema.strides import Strides

from .log import logger
from .sizes import Axes, compile_axis_reader


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

    @property
    def has_layout(self) -> bool:
        """Whether an input is not contiguous."""
        return any(name == _LAYOUT for name, _ in self.feats)

    def with_padding(self, axis: str) -> ApplyKey:
        """The key of calls with padded indices of an axis. Its size, that of a buffer, selects no ranking."""
        return ApplyKey(self.axes, (*self.feats, (_PADDED, axis)))

    @property
    def padded_axis(self) -> str | None:
        """The axis of padded indices; None for other calls."""
        return next((axis for name, axis in self.feats if name == _PADDED), None)

    @property
    def is_exact(self) -> bool:
        """Whether all inputs are contiguous and not padded, as those of most workloads are."""
        return not self.has_layout and self.padded_axis is None

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


class GEMMKeyBuilder(AxesOnlyKeyBuilder):
    """Keys of ``gemm``: M is the only variable axis."""


class GQAKeyBuilder(AxesOnlyKeyBuilder):
    """Keys of ``gqa`` and its variants: batch size, number of pages, total sequence length."""


class MLAKeyBuilder(AxesOnlyKeyBuilder):
    """Keys of ``mla`` and its variants: batch size, number of pages, total sequence length."""


class ApplyKeyFactory:
    """Key builders by op_type; `AxesOnlyKeyBuilder` for all others."""

    _builders: ClassVar[dict[str, type[ApplyKeyBuilder]]] = {
        "gemm": GEMMKeyBuilder,
        "gqa": GQAKeyBuilder,
        "mla": MLAKeyBuilder,
    }

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
