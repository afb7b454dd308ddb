"""Prepared calls: one call on one slot inside a worker, with its arguments and the collection of its results.

Results are brought into the slot right after a call has returned, outside the clock, with no wait
in between: what is written later is not in them. A destination-passing function gets buffers of the
worker's own for the same reason. Results that defer work to their reader (a view that negates, a view of an
input, a container that computes its items) are copied inside the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from fib_compile import Runnable
from fib_schema import Definition

from ..timing.cuda import CannotCapture
from ..transport.arenas import tensor_in
from ..transport.messages import Argument, Layout, TensorSlot, WrongOutput

_MAX_TEXT = 16_000
_GUARD, _GUARD_BYTES = 0xA5, 512

# originals, taken before any solution is loaded
_Tensor = torch.Tensor
_copy: Any = torch.Tensor.copy_
_detach: Any = torch.Tensor.detach
_clone: Any = torch.Tensor.clone
_view: Any = torch.Tensor.view
_address: Any = torch.Tensor.data_ptr
_clock_ns = time.perf_counter_ns


class WrongOutputError(Exception):
    """The returned value does not fit the definition."""

    def __init__(self, aspect: str, problem: str) -> None:
        super().__init__(problem)
        self.reply = WrongOutput(aspect, problem[:_MAX_TEXT])


class PreparedCall:
    """One call with its arguments bound: all that is left to do is to invoke it.

    Args:
        function: The built function.
        definition: What it computes.
        layout: Where the tensors lie.
        inputs: ``[bytes]``, the slot's inputs.
        outputs: ``[bytes]``, the slot's outputs.
    """

    def __init__(
        self, function: Runnable, definition: Definition, layout: Layout, inputs: torch.Tensor, outputs: torch.Tensor
    ) -> None:
        self._function = function
        self._arguments = [_argument(slot, inputs) for slot in layout.inputs]
        slots = zip(definition.outputs, layout.outputs, strict=True)
        self._buffers = {name: tensor_in(outputs, slot) for name, slot in slots}
        self._memory = inputs.untyped_storage().data_ptr()
        self._is_dps = function.metadata.destination_passing_style
        self._guarded = [_guarded(buffer) for buffer in self._buffers.values()] if self._is_dps else []
        self._own = [inner for _, inner in self._guarded]
        self._bound = bound = (*self._arguments, *self._own)
        self._kept: list[Any] = []  # the outputs of the last timed call, alive until the next one
        self.defers_work = False
        """Whether collected results deferred work to their reader."""
        self.invoke: Callable[[], Any] = lambda: function(*bound)  # without `self`: a cycle would keep the slot mapped

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The output buffers in the slot."""
        return list(self._buffers.values())

    def set_up(self) -> float:
        """Run the solution's ``setup`` and pass its result to all later calls; returns the nanoseconds."""
        before = _clock_ns()
        planned = self._function.plan(*self._arguments)
        taken = _clock_ns() - before
        bound = self._bound
        self.invoke = lambda: planned(*bound)
        return float(taken)

    def prepare(self) -> None:
        """Poison the outputs as those in the slot are."""
        for own, buffer in zip(self._own, self._buffers.values(), strict=False):
            _copy(_raw(own), _raw(buffer))

    def collect(self, result: Any) -> None:
        """Copy the result of a call into the output buffers.

        Raises:
            WrongOutputError: It does not fit the definition.
        """
        values = self._own if self._is_dps else _in_order(list(self._buffers), result)
        self._check_guards()
        for (name, buffer), value in zip(self._buffers.items(), values, strict=True):
            _check(name, value, buffer)
            self.defers_work |= not self._is_dps and (type(result) not in _PLAIN or self._defers_work(value))
            _store(value, buffer)

    def _check_guards(self) -> None:
        """Refuse a call that has written beside its outputs, as a kernel without a mask for its tail does.

        Raises:
            WrongOutputError: It has.
        """
        for name, (whole, own) in zip(self._buffers, self._guarded, strict=False):
            for side, guard in (("before", whole[:_GUARD_BYTES]), ("behind", whole[_GUARD_BYTES + own.nbytes :])):
                if not bool((guard == _GUARD).all()):
                    raise WrongOutputError("bounds", f"the call has written {side} output {name!r}, out of its bounds")

    def whole_outputs(self, result: Any) -> list[torch.Tensor]:
        """The outputs as dense tensors that share no memory with inputs; others are copied, inside a capture.

        Raises:
            WrongOutputError: They do not fit the definition.
            CannotCapture: An output is a number, which a device does not write.
        """
        values = self._own if self._is_dps else _in_order(list(self._buffers), result)
        found = []
        for (name, buffer), value in zip(self._buffers.items(), values, strict=True):
            _check(name, value, buffer)
            if type(value) is not _Tensor:
                raise CannotCapture(f"output {name!r} is a number")
            plain = _detach(value)
            is_dense = plain.is_contiguous() and not plain.is_neg() and not plain.is_conj()
            is_plain = is_dense and not self._defers_work(plain) and type(result) in _PLAIN
            found.append(plain if is_plain else _clone(plain, memory_format=torch.contiguous_format))
        return found

    @property
    def own_outputs(self) -> list[torch.Tensor]:
        """The buffers that a destination-passing function writes to; none for another function."""
        return self._own

    def addresses_of(self, result: Any) -> list[int] | None:
        """Addresses of the outputs of a call that a clock waits for; None where they lie in `own_outputs`.

        The values are checked by the judge, who compares what is copied from there.

        Raises:
            WrongOutputError: They do not fit the definition.
        """
        if self._is_dps:
            return None
        self._kept = self._whole(result) or self._as_buffers(result)
        return [_address(value) for value in self._kept]

    def _whole(self, result: Any) -> list[Any]:
        """The outputs where they are; none if one of them has to be copied."""
        if self.defers_work or type(result) not in _PLAIN:
            return []
        values = [result] if type(result) is _Tensor else _in_order(list(self._buffers), result)
        for value, buffer in zip(values, self._buffers.values(), strict=True):
            if type(value) is not _Tensor or not value.is_contiguous() or value.nbytes != buffer.nbytes:
                return []
        return values

    def _as_buffers(self, result: Any) -> list[Any]:
        """The outputs as they are stored in the slot, in buffers of their own: numbers, views, and other layouts."""
        found = []
        values = _in_order(list(self._buffers), result)
        for (name, buffer), value in zip(self._buffers.items(), values, strict=True):
            _check(name, value, buffer)
            found.append(torch.empty_like(buffer))
            _store(value, found[-1])
        return found

    def _defers_work(self, value: Any) -> bool:
        """Whether a value is a view that negates when it is read, a view of the inputs, or one of repeated elements."""
        if type(value) is not _Tensor:
            return False
        is_view = value.untyped_storage().data_ptr() == self._memory and value.numel()
        return (
            value.is_neg()
            or bool(is_view)
            or any(not stride and size > 1 for stride, size in zip(value.stride(), value.shape, strict=True))
        )


_PLAIN = frozenset({_Tensor, tuple, list, dict, int, float, bool, type(None)})
"""Types that can be unpacked without running code of the solution."""


def _guarded(buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory with a guard before and behind an output, and the output in it."""
    size = buffer.nbytes
    whole = torch.full((size + 2 * _GUARD_BYTES,), _GUARD, dtype=torch.uint8, device=buffer.device)
    return whole, whole[_GUARD_BYTES : _GUARD_BYTES + size].view(buffer.dtype).view(buffer.shape)


def _in_order(names: Sequence[str], result: Any) -> list[Any]:
    """The outputs in the definition's order.

    Raises:
        WrongOutputError: There are more or fewer, or they have other names.
    """
    if isinstance(result, Mapping):
        if result.keys() != set(names):
            problem = f"returned a dict of {sorted(map(str, result))}, expected {sorted(names)}"
            raise WrongOutputError("kind", problem)
        return [result[name] for name in names]
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(values) != len(names) or (not names and result is not None):
        problem = f"returned {len(values)} values, expected {len(names)}: {', '.join(names)}"
        raise WrongOutputError("kind", problem)
    return values


def _argument(slot: Argument, memory: torch.Tensor) -> Any:
    return tensor_in(memory, slot) if isinstance(slot, TensorSlot) else slot


def _check(name: str, value: Any, buffer: torch.Tensor) -> None:
    """Refuse values that are not plain tensors of the right shape, dtype and device."""
    if buffer.ndim == 0 and type(value) in (int, float, bool):
        return
    if type(value) is not _Tensor:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise WrongOutputError("kind", f"output {name!r} is a {kind}, expected a torch.Tensor")
    if value.layout is not torch.strided:
        raise WrongOutputError("kind", f"output {name!r} has the layout {value.layout}, expected a dense tensor")
    if torch._is_functional_tensor(value):  # noqa: SLF001 no public name
        raise WrongOutputError("lazy", f"output {name!r} is a functional tensor, which has no memory of its own")
    if value.shape != buffer.shape:
        found, wanted = tuple(value.shape), tuple(buffer.shape)
        raise WrongOutputError("shape", f"output {name!r} has shape {found}, expected {wanted}")
    if value.dtype != buffer.dtype:
        raise WrongOutputError("dtype", f"output {name!r} has dtype {value.dtype}, expected {buffer.dtype}")
    if value.device != buffer.device:
        raise WrongOutputError("kind", f"output {name!r} is on {value.device}, expected {buffer.device}")
    own = value.__dict__
    if type(own) is not dict or any(type(attribute) is not str for attribute in own):
        raise WrongOutputError("lazy", f"output {name!r} has attributes whose names run code when they are looked up")
    hiding = [attribute for attribute in own if hasattr(_Tensor, attribute)]
    if hiding:
        raise WrongOutputError("lazy", f"output {name!r} has its own {', '.join(hiding)} in place of a tensor's")


def _store(value: Any, buffer: torch.Tensor) -> None:
    if type(value) is _Tensor:
        _copy(_raw(buffer), _raw(_detach(value)))
    else:
        buffer.fill_(value)


def _raw(tensor: torch.Tensor) -> Any:
    """The tensor, a boolean one as bytes: a copy makes 1 of all other bytes than 0, and so of poison."""
    return _view(tensor, torch.uint8) if tensor.dtype is torch.bool else tensor
