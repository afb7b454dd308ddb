"""Keys: what two calls must share for the same solution to serve both.

A key holds the values of the definition's variable axes, and features that a builder may add. The
builders here read shapes alone; one that reads values (an average sequence length, say) costs more,
for it runs at each call.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar

import attrs
from fib_schema import Definition, Workload

from .log import logger


def _sorted_items(value: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    return tuple(sorted((str(name), item) for name, item in pairs))


@attrs.frozen
class ApplyKey:
    """Sizes of axes, and features; equal for equal content in any order."""

    axes: tuple[tuple[str, int], ...] = attrs.field(default=(), converter=_sorted_items)
    feats: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=_sorted_items)

    @property
    def encode(self) -> str:
        """As text that sorts and compares like the key."""
        return json.dumps([self.axes, self.feats], separators=(",", ":"))

    @classmethod
    def from_encoded(cls, text: str) -> ApplyKey:
        """The key of a text that `encode` made.

        Raises:
            ValueError: It is no such text.
        """
        try:
            axes, feats = json.loads(text)
            return cls([(name, int(size)) for name, size in axes], [(name, value) for name, value in feats])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{text!r:.200} is no encoded key: {error}") from error

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in (*self.axes, *self.feats)) or "no variable axes"


_OF_CALLS = {"features", "build_from_args", "build_from_runtime"}
_ABSENT = "without"
"""The feature that names optional inputs which are not there: it takes part in what was verified."""


class ApplyKeyBuilder(ABC):
    """Makes the keys of one definition.

    Args:
        definition: Whose calls and workloads these are.
    """

    is_by_shape: ClassVar[bool] = False
    """Whether the inputs' shapes alone decide on the key: it is then built once for each combination of them."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition

    def __init_subclass__(cls, **options: Any) -> None:
        """What a subclass computes of a call may rest on values, unless it says that it does not."""
        super().__init_subclass__(**options)
        if _OF_CALLS & vars(cls).keys() and "is_by_shape" not in vars(cls):
            cls.is_by_shape = False

    @abstractmethod
    def build_from_args(self, args: Sequence[Any]) -> ApplyKey:
        """The key of a call.

        Args:
            args: The definition's inputs, in order.

        Raises:
            AxisError: The shapes do not fit the definition.
        """

    @abstractmethod
    def build_from_workload(self, workload: Workload) -> ApplyKey:
        """The key of a recorded workload."""

    def build_from_runtime(self, runtime_kwargs: Mapping[str, Any]) -> ApplyKey:
        """The key of a call, whose inputs are given by name."""
        return self.build_from_args([runtime_kwargs.get(name) for name in self.definition.inputs])

    @abstractmethod
    def features(self, args: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
        """What a key holds beside axes; must be cheap."""


class AxesOnlyKeyBuilder(ApplyKeyBuilder):
    """Keys of axes, and of which optional inputs are there.

    A subclass with `features` of its own makes the keys of workloads with the same ones.
    """

    is_by_shape = True

    def build_from_args(self, args: Sequence[Any]) -> ApplyKey:
        """The key of a call."""
        given = {name for name, value in zip(self.definition.inputs, args, strict=True) if value is not None}
        axes = self.definition.get_axes_values_from_inputs(args)
        return ApplyKey(axes, (*self.features(args), *self._absent(given)))

    def build_from_workload(self, workload: Workload) -> ApplyKey:
        """The key of a recorded workload."""
        var_axes = set(self.definition.var_axes)
        axes = {axis: size for axis, size in workload.axes.items() if axis in var_axes}
        return ApplyKey(axes, self._absent(workload.inputs))

    def _absent(self, given: Container[str]) -> tuple[tuple[str, str], ...]:
        """The feature that names optional inputs that are not given; none if all are."""
        names = [n for n, spec in self.definition.inputs.items() if spec.optional and n not in given]
        return ((_ABSENT, ",".join(names)),) if names else ()

    def features(self, args: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
        """Nothing."""
        del args
        return ()


class GEMMKeyBuilder(AxesOnlyKeyBuilder):
    """For ``gemm``: M is the only variable axis."""


class GQAKeyBuilder(AxesOnlyKeyBuilder):
    """For ``gqa`` and its kin: batch, pages and sequence lengths in total."""


class MLAKeyBuilder(AxesOnlyKeyBuilder):
    """For ``mla`` and its kin: batch, pages and sequence lengths in total."""


class ApplyKeyFactory:
    """Key builders by op_type; an op_type without one of its own has keys of axes alone."""

    _builders: ClassVar[dict[str, type[ApplyKeyBuilder]]] = {
        "gemm": GEMMKeyBuilder,
        "gqa": GQAKeyBuilder,
        "mla": MLAKeyBuilder,
    }

    @classmethod
    def register(cls, op_type: str, builder: object) -> None:
        """Use a builder for an op_type, in runtimes that are enabled from now on.

        Raises:
            TypeError: It is no class of key builders.
        """
        if not (isinstance(builder, type) and issubclass(builder, ApplyKeyBuilder)):
            raise TypeError(f"a key builder for {op_type!r} must be a subclass of ApplyKeyBuilder, got {builder!r}")
        if "features" in vars(builder) and "build_from_workload" not in vars(builder):
            logger.warning(
                "%s has features of calls and none of workloads, so that no key matches; define build_from_workload",
                builder.__qualname__,
            )
        cls._builders = {**cls._builders, op_type: builder}

    @classmethod
    def registered(cls) -> Mapping[str, type[ApplyKeyBuilder]]:
        """All builders by op_type."""
        return dict(cls._builders)

    @classmethod
    def for_type(cls, op_type: str) -> type[ApplyKeyBuilder]:
        """The builder of an op_type, or of its family: ``gqa`` serves ``gqa_paged`` too."""
        if op_type in cls._builders:
            return cls._builders[op_type]
        return cls._builders.get(op_type.partition("_")[0], AxesOnlyKeyBuilder)

    @classmethod
    def specialize(cls, definition: Definition) -> ApplyKeyBuilder:
        """The builder for a definition."""
        return cls.for_type(definition.op_type)(definition)
