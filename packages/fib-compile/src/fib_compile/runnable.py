"""Runnable. A built solution that can be called in both styles, whatever style it is written in.

A value-returning solution returns its outputs; a destination-passing one (DPS) writes into buffers that are passed
behind its inputs. Conversions are prepared once, so that a call has no overhead for the other style.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from fib_schema import Definition

from ._calling import check_returned, copy_results, unpack_results, unpack_single, value_returning


@attrs.frozen
class RunnableMetadata:
    """Origin of a runnable, and the definition that it implements."""

    build_type: str
    """The builder's name: a language that is Python or embedded in it, ``tvm_ffi``, ``torch``, or a third party's."""
    definition_name: str
    solution_name: str
    destination_passing_style: bool = True
    """Whether the callable takes its outputs as arguments behind the inputs."""
    definition: Definition | None = None
    """Needed for calls by keyword and for calls in the other style."""
    misc: Mapping[str, Any] = attrs.field(factory=dict)
    """Data of the builder; the keys vary by builder."""


class Runnable:
    """A built solution.

    Args:
        callable: The function. It takes the definition's inputs by position and in order, followed by the outputs if it
            is destination-passing.
        metadata: How it was built.
        cleaner: Releases the resources of the build; called once.
        setup: The solution's ``setup`` function, if it exports one; takes the inputs.
    """

    __slots__ = ("_cleaner", "_outputs", "_value_returning", "callable", "function", "is_cleaned", "metadata", "setup")

    callable: Callable[..., Any]
    """The function that `__call__` calls; calling it directly saves 50 ns."""
    function: Callable[..., Any]
    """The solution's own function, whose results are not unpacked."""
    metadata: RunnableMetadata
    setup: Callable[..., Any] | None
    is_cleaned: bool
    """Whether `cleanup` was called."""

    def __init__(
        self,
        callable: Callable[..., Any],
        metadata: RunnableMetadata,
        cleaner: Callable[[], None] | None = None,
        *,
        setup: Callable[..., Any] | None = None,
    ) -> None:
        definition = metadata.definition
        self.callable = callable if metadata.destination_passing_style else unpack_single(callable)
        self.metadata = metadata
        self.setup = setup
        self.is_cleaned = False
        self._cleaner = cleaner
        self.function = callable
        self._value_returning: Callable[..., Any] | None = None  # generated at the first call, because it imports torch
        self._outputs = frozenset(definition.outputs) if definition else frozenset()

    def __repr__(self) -> str:
        meta = self.metadata
        return f"<Runnable {meta.solution_name!r} of {meta.definition_name!r}, built by {meta.build_type}>"

    def __call__(self, *args: Any) -> Any:
        """Call the solution in its own style.

        Of a value-returning solution, a tuple or list of one element is unpacked. Everything else is returned as it
        is: a dict, several results, an empty tuple.
        """
        return self.callable(*args)

    def call_kwargs(self, **kwargs: Any) -> Any:
        """Call by the definition's names.

        With outputs among the names the call is destination-passing, otherwise value-returning, whatever the
        solution's own style is. Optional inputs may be left out.

        Raises:
            ValueError: The metadata holds no definition.
            TypeError: A name is unknown or missing.
        """
        definition = self._definition()
        args = definition.merge_kwargs_to_args((), kwargs)
        if self._outputs.isdisjoint(kwargs):
            return self.call_value_returning(*args)
        return self.call_destination_passing(*args)

    def call_destination_passing(self, *args: Any) -> None:
        """Call with the inputs followed by the buffers that receive the outputs.

        Raises:
            ValueError: A result does not have its buffer's shape, or the metadata holds no definition
                and the solution returns values.
            TypeError: The number of arguments or results is wrong, a result has another dtype, or a destination-passing
                solution returned something other than its outputs.
        """
        if self.metadata.destination_passing_style:
            returned = self.callable(*args)
            if returned is not None:
                definition = self.metadata.definition
                outputs = args if definition is None else args[len(definition.inputs) :]
                check_returned(returned, outputs, name=self.metadata.definition_name)
            return
        definition = self._definition()
        count = len(definition.inputs)
        if len(args) != count + len(definition.outputs):
            names = ", ".join((*definition.inputs, *definition.outputs))
            raise TypeError(f"{definition.name} takes ({names}) in this style, got {len(args)} arguments")
        copy_results(self.callable(*args[:count]), args[count:], definition)

    def call_value_returning(self, *args: Any) -> Any:
        """Call with the inputs and return the outputs: one as it is, several as a tuple, none as None.

        Results that a solution returns by name are put in order. The outputs of a destination-passing solution are
        allocated from the definition, on the device of the first tensor among the inputs.

        Raises:
            ValueError: The metadata holds no definition; an axis has no value or two (`AxisError`).
            TypeError: The number of arguments or results is wrong, a name is missing among the results, or a
                destination-passing solution returned something other than its outputs.
        """
        if self._value_returning is None:
            self._value_returning = self._make_value_returning()
        return self._value_returning(*args)

    def plan(self, *inputs: Any) -> Runnable:
        """Run the solution's ``setup`` and bind its results as keyword arguments.

        ``setup`` takes the inputs of a call. Its results may depend only on shapes, integer tensors and scalars; calls
        of the planned runnable must have inputs that agree in these. Without ``setup`` the runnable itself is returned.

        Raises:
            TypeError: ``setup`` returned no dict with string keys.
        """
        if self.setup is None:
            return self
        prepared = self.setup(*inputs)
        if not isinstance(prepared, dict) or not all(isinstance(key, str) for key in prepared):
            name = self.metadata.solution_name
            raise TypeError(f"setup of {name!r} must return a dict of arguments for the entry point, got {prepared!r}")
        return Runnable(functools.partial(self.function, **prepared), self.metadata)

    def cleanup(self) -> None:
        """Release the resources of the build; further calls do nothing."""
        self.is_cleaned = True
        cleaner, self._cleaner = self._cleaner, None
        if cleaner is not None:
            cleaner()

    def _make_value_returning(self) -> Callable[..., Any]:
        if self.metadata.destination_passing_style:
            return value_returning(self.callable, self._definition())
        return unpack_results(self.function, self.metadata.definition)

    def _definition(self) -> Definition:
        if self.metadata.definition is None:
            problem = "the metadata holds no definition, which calls by keyword or in the other style need"
            raise ValueError(f"runnable {self.metadata.solution_name!r}: {problem}")
        return self.metadata.definition
