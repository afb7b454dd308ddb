"""Input dump policies: which inputs of a kept call are stored with their values.

Scalars are always stored: a workload without its scale or its offset would be a different one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from fib_schema import Definition


class InputDumpPolicy(ABC):
    """Chooses the inputs of a call whose values are stored."""

    @abstractmethod
    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """The names of the inputs to store.

        Args:
            inputs: By name. Do not read their values, which may be on a device.
        """

    def always_dumped(self, definition: Definition) -> list[str] | None:
        """The inputs that `dump` returns for any call of a definition; None if that depends on the call.

        If these contain no tensor, equal sizes and scalars make equal workloads, and the tracer records one of each.
        """
        del definition
        return None


class DumpAll(InputDumpPolicy):
    """All tensors: exact replay, at the cost of their size."""

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """All inputs."""
        return list(inputs)

    def always_dumped(self, definition: Definition) -> list[str]:
        """All inputs."""
        return list(definition.inputs)


class DumpNone(InputDumpPolicy):
    """No tensor: only sizes matter."""

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """No input."""
        del inputs
        return ()

    def always_dumped(self, definition: Definition) -> list[str]:
        """No input."""
        del definition
        return []


class DumpInt(InputDumpPolicy):
    """Integer and boolean tensors: a kernel's work depends on offsets, indices and masks, seldom on other values."""

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """Tensors with an integer or boolean dtype."""
        return [name for name, value in inputs.items() if _is_integer_tensor(value)]

    def always_dumped(self, definition: Definition) -> list[str]:
        """Tensors that the definition declares so."""
        return [n for n, s in definition.inputs.items() if s.shape is not None and (s.is_integer or s.dtype == "bool")]


class DumpNamed(InputDumpPolicy):
    """Inputs by name, and those that other policies choose.

    Args:
        names: Of inputs; names that a definition does not have are ignored.
        others: Whose choices are added.
    """

    def __init__(self, names: Sequence[str], others: Sequence[InputDumpPolicy] = ()) -> None:
        self.names = tuple(names)
        self.others = tuple(others)

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """The chosen inputs, in the order of the inputs."""
        chosen = {*self.names, *(name for other in self.others for name in other.dump(inputs))}
        return [name for name in inputs if name in chosen]

    def always_dumped(self, definition: Definition) -> list[str] | None:
        """The chosen inputs, if the other policies always choose the same."""
        chosen = set(self.names)
        for other in self.others:
            if (names := other.always_dumped(definition)) is None:
                return None
            chosen.update(names)
        return [name for name in definition.inputs if name in chosen]


class DumpByFunction(InputDumpPolicy):
    """The inputs that a function chooses for each call."""

    def __init__(self, choose: Callable[[Mapping[str, Any]], Iterable[str]]) -> None:
        self._choose = choose

    def dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """Return value of the function."""
        return self._choose(inputs)


def _is_integer_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
