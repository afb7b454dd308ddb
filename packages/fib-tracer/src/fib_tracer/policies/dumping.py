"""Input dump policies: which of a kept call's inputs are stored with their values.

Scalars are stored in any case, for a workload without its scale or its offset is another one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from fib_schema import Definition

Choose: TypeAlias = Callable[[Mapping[str, Any]], Iterable[str]]


class InputDumpPolicy(ABC):
    """Chooses the inputs of a call whose values are stored."""

    @abstractmethod
    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """The names of the inputs to store.

        Args:
            inputs: By name; their values must not be looked at, for they may lie on a device.
        """

    def may_dump(self, definition: Definition) -> bool:
        """Whether calls of a definition can have stored tensors at all; True unless that is sure."""
        del definition
        return True

    def always_dumped(self, definition: Definition) -> list[str] | None:
        """The inputs that `dump` chooses of any call of a definition; None if that depends on the call."""
        del definition
        return None


class DumpAll(InputDumpPolicy):
    """All tensors: exact replay, at the cost of their size."""

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """All of them."""
        return list(inputs)

    def always_dumped(self, definition: Definition) -> list[str]:
        """All of them."""
        return list(definition.inputs)


class DumpNone(InputDumpPolicy):
    """No tensor: sizes alone matter."""

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """None of them."""
        del inputs
        return ()

    def may_dump(self, definition: Definition) -> bool:
        """No."""
        del definition
        return False

    def always_dumped(self, definition: Definition) -> list[str]:
        """None of them."""
        del definition
        return []


class DumpInt(InputDumpPolicy):
    """Integer and boolean tensors: offsets, indices and masks decide on a kernel's work, other values seldom do."""

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """Those whose dtype is an integer's or bool."""
        return [name for name, value in inputs.items() if _is_integer_tensor(value)]

    def may_dump(self, definition: Definition) -> bool:
        """Whether the definition has such inputs."""
        return bool(self.always_dumped(definition))

    def always_dumped(self, definition: Definition) -> list[str]:
        """Those that the definition declares so."""
        return [n for n, s in definition.inputs.items() if s.shape is not None and (s.is_integer or s.dtype == "bool")]


class DumpNamed(InputDumpPolicy):
    """Inputs by name, and those that other policies choose.

    Args:
        names: Of inputs; those that a definition does not have are passed over.
        others: Whose choices are added.
    """

    def __init__(self, names: Sequence[str], others: Sequence[InputDumpPolicy] = ()) -> None:
        self.names = tuple(names)
        self.others = tuple(others)

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """In the order of the inputs."""
        chosen = {*self.names, *(name for other in self.others for name in other.dump(inputs))}
        return [name for name in inputs if name in chosen]

    def may_dump(self, definition: Definition) -> bool:
        """Whether one of them is a tensor."""
        tensors = {name for name, spec in definition.inputs.items() if spec.shape is not None}
        return bool(tensors & set(self.names)) or any(other.may_dump(definition) for other in self.others)

    def always_dumped(self, definition: Definition) -> list[str] | None:
        """In the order of the inputs, if the other policies always choose the same."""
        chosen = set(self.names)
        for other in self.others:
            if (names := other.always_dumped(definition)) is None:
                return None
            chosen.update(names)
        return [name for name in definition.inputs if name in chosen]


class DumpChosen(InputDumpPolicy):
    """What a function chooses of each call."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """Whatever the function returns."""
        return self._choose(inputs)


def _is_integer_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
