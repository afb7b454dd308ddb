"""Host reads: all that crosses between the host and the device in a call, recorded so that the call can be captured.

A call that reads from the device (``.item()``, ``.cpu()``, ``nonzero``) or sends data of the host to it cannot be
captured into a CUDA graph. So it is made once and what crosses is recorded, in order; the capture is given the same
again. Work of the device stays in the capture: where only a size is read (``nonzero``, boolean indexing, ``unique``),
the capture has an equivalent operation of the recorded size. Waits do nothing during both.

A replay has the recorded values whatever the inputs are. Whether its outputs are right is for the judge to decide.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import attrs
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..timing.handshake.native import CannotCapture

_aten: Any = torch.ops.aten
_C: Any = torch._C  # noqa: SLF001 no public name
_MOST_BYTES = 16 << 20  # in a call: more would be work that is done elsewhere
OTHERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent), "<frozen")
"""Beginnings of the names of files that are not a solution's."""
_HOST = torch.device("cpu")
_wait_for: Any = getattr(torch.cuda.Stream, "synchronize", None)  # the original, without a device None


@attrs.frozen(eq=False)
class Crossing:
    """A value that an operation of a call has brought to the host or to the device."""

    operation: str
    where: str
    """The line of the solution."""
    value: Any
    """A number, a tensor or sizes."""
    given: torch.Tensor | None = None
    """The host's copy of data that were sent to the device; None if it has read from there."""

    def __str__(self) -> str:
        return f"{self.where} ({self.operation})"


@attrs.define(eq=False)
class Recording:
    """All that crosses in a call, in order."""

    crossings: list[Crossing] = attrs.field(factory=list)
    waits: list[str] = attrs.field(factory=list)
    """Lines that wait for the device."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Lines that read from the device, each once."""
        return tuple(dict.fromkeys(str(crossing) for crossing in self.crossings if crossing.given is None))


def _split_masks(indices: Sequence[torch.Tensor | None], counts: Sequence[int]) -> list[torch.Tensor | None]:
    """Indices in which numbers of elements stand in place of boolean masks."""
    waiting, found = list(counts), list[torch.Tensor | None]()
    for index in indices:
        if index is not None and _is_mask(index):
            found += torch.nonzero_static(index, size=waiting.pop(0)).unbind(1)
        else:
            found.append(index)
    return found


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _group(ordered: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Distinct neighbours of a sequence of `count` groups, the group of each element, and their sizes."""
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    begins = torch.nonzero_static(is_first, size=count)[:, 0]
    sizes = torch.diff(begins, append=torch.full_like(begins[:1], len(ordered)))
    return ordered[begins], is_first.cumsum(0) - 1, sizes


def _unique(counts: Sequence[int], tensor: torch.Tensor, *_: object, **__: object) -> Any:
    ordered, order = tensor.reshape(-1).sort()
    values, groups, sizes = _group(ordered, counts[0])
    return values, torch.empty_like(groups).scatter_(0, order, groups).view(tensor.shape), sizes


def _unique_consecutive(counts: Sequence[int], tensor: torch.Tensor, *_: object, **__: object) -> Any:
    values, groups, sizes = _group(tensor.reshape(-1), counts[0])
    return values, groups.view(tensor.shape), sizes


def _masked_select(counts: Sequence[int], tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    tensor, mask = torch.broadcast_tensors(tensor, mask)  # type: ignore[no-untyped-call]
    return tensor.reshape(-1)[torch.nonzero_static(mask.reshape(-1), size=counts[0])[:, 0]]


def _indexed(
    function: Any, counts: Sequence[int], tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], *more: object
) -> Any:
    return function(tensor, _split_masks(indices, counts), *more)


def _bincount(
    counts: Sequence[int], tensor: torch.Tensor, weights: torch.Tensor | None = None, *_: object, **__: object
) -> torch.Tensor:
    added = torch.ones_like(tensor) if weights is None else weights
    return torch.zeros(counts[0], dtype=added.dtype, device=tensor.device).scatter_add_(0, tensor.long(), added)


def _length(result: Any, *_: object) -> list[int]:
    return [len(result[0] if isinstance(result, tuple) else result)]


def _mask_counts(_: Any, __: torch.Tensor, indices: Sequence[torch.Tensor | None], *___: object) -> list[int]:
    return [int(torch.count_nonzero(index)) for index in indices if index is not None and _is_mask(index)]


_REPEAT = _aten.repeat_interleave.Tensor
_PUTS = (_aten.index_put_.default, _aten.index_put.default, _aten._index_put_impl_.default)
_SIZED: Mapping[Any, tuple[Callable[..., list[int]], Callable[..., Any]]] = MappingProxyType(
    {
        _aten.nonzero.default: (_length, lambda counts, tensor: torch.nonzero_static(tensor, size=counts[0])),
        _aten.masked_select.default: (_length, _masked_select),
        _aten._unique2.default: (_length, _unique),  # noqa: SLF001
        _aten.unique_consecutive.default: (_length, _unique_consecutive),
        _REPEAT: (_length, lambda counts, repeats, **_: _REPEAT(repeats, output_size=counts[0])),
        _aten.bincount.default: (_length, _bincount),
        **{function: (_mask_counts, partial(_indexed, function)) for function in (_aten.index.Tensor, *_PUTS)},
    }
)
"""For each operation what gives its sizes, of its result and arguments, and what does the same work with them."""
_NAMES = MappingProxyType({
    "_local_scalar_dense": ".item()", "_to_copy": ".to()", "copy_": ".copy_()", "_unique2": "unique",
    "index": "boolean indexing", "index_put_": "boolean indexing", "_index_put_impl_": "boolean indexing",
})  # fmt: skip


class _Crossings(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what crosses, or gives it again."""

    def __init__(self, device: torch.device, recording: Recording, *, is_given: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._recording, self._is_given = device, recording, is_given
        self.taken, self._bytes = 0, 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Functions of torch.compile run compiled: else torch skips them now and in all later calls."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler, which takes seconds in each worker."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        target = self._target(func, args, kwargs)
        if self._is_on_host(args):
            return self._send(func, args, kwargs) if target == self._device.type else func(*args, **kwargs)
        if func in _SIZED and self._reads_size(func, args, kwargs):
            return self._read_size(func, args, kwargs)
        if func in (_aten._local_scalar_dense.default, _aten.equal.default):  # noqa: SLF001
            return self._read(func, args, kwargs, lambda value: value)
        if target not in (None, self._device.type):
            return self._read(func, args, kwargs, torch.clone)
        return func(*args, **kwargs)

    def _is_on_host(self, args: Sequence[Any]) -> bool:
        """Whether the operand is on the host, also the source of a copy."""
        operands = [each for each in args[:2] if isinstance(each, torch.Tensor)]
        return bool(operands) and operands[-1].device.type != self._device.type

    @staticmethod
    def _target(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """The type of the device that an operation copies to; None for another operation."""
        if func is _aten.copy_.default:
            return str(args[0].device.type)
        is_copy = func is _aten._to_copy.default and kwargs.get("device") is not None  # noqa: SLF001
        return torch.device(kwargs["device"]).type if is_copy else None

    @staticmethod
    def _reads_size(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        if func is _REPEAT:
            return kwargs.get("output_size") is None
        if func is not _aten.index.Tensor and func not in _PUTS:
            return True
        return any(map(_is_mask, args[1])) and not (func in _PUTS and _is_fill(args[1], args[2]))

    def _read(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], copy: Callable[[Any], Any]) -> Any:
        is_copy = func is _aten.copy_.default
        if self._is_given:
            value = copy(self._take(func).value)
            if func is _aten.equal.default:
                torch.eq(*args).all()  # the work of the device
            return args[0].copy_(value) if is_copy else value
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and self._device.type == "cuda":
            # A copy into pinned memory, or one that nobody waits for, may still be under way.
            _wait_for(torch.cuda.current_stream(self._device))
        self._keep(func, copy(result))
        return result

    def _send(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        is_copy = func is _aten.copy_.default
        source = args[1] if is_copy else args[0]
        if self._is_given:
            crossing = self._take(func)
            if crossing.given is None or not _are_equal(crossing.given, source):
                raise CannotCapture(f"the host sends other data each time in {crossing}")
            return args[0].copy_(crossing.value) if is_copy else crossing.value.clone()
        result = func(*args, **kwargs)
        self._keep(func, result.clone(), source.clone())
        return result

    def _read_size(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        counts, work = _SIZED[func]
        if self._is_given:
            return work(self._take(func).value, *args, **kwargs)
        result = func(*args, **kwargs)
        self._keep(func, counts(result, *args))
        return result

    def _keep(self, func: Any, value: Any, given: torch.Tensor | None = None) -> None:
        crossing = Crossing(_name(func), solution_line(), value, given)
        self._bytes += value.nbytes if isinstance(value, torch.Tensor) else 8
        if self._bytes > _MOST_BYTES:
            raise CannotCapture(f"over {_MOST_BYTES >> 20} MiB cross between host and device, at last in {crossing}")
        self._recording.crossings.append(crossing)

    def _take(self, func: Any) -> Crossing:
        """The next crossing; `CannotCapture` if the call goes another way than when it was recorded."""
        crossings = self._recording.crossings
        if self.taken == len(crossings) or crossings[self.taken].operation != _name(func):
            problem = f"{solution_line()} ({_name(func)}) is not what the call has done before on the same inputs"
            raise CannotCapture(problem)
        self.taken += 1
        return crossings[self.taken - 1]


_frames: Any = _C._dynamo.eval_frame  # noqa: SLF001
_SKIP = _frames._FrameExecStrategy(*[_frames._FrameAction.SKIP] * 2)  # noqa: SLF001
_frames.set_code_exec_strategy(_Crossings.__torch_dispatch__.__code__, _SKIP)  # torch.compile would compile the mode


def _is_fill(indices: Sequence[torch.Tensor | None], value: torch.Tensor) -> bool:
    """Whether a number is assigned by one mask, which torch does without counting."""
    is_number = value.numel() == 1 and value.device == _HOST
    return is_number and sum(index is not None for index in indices) == 1


def _name(func: Any) -> str:
    name = str(func.overloadpacket.__name__)
    return _NAMES.get(name, name)


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors of the host have the same bytes."""
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and bool(torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)))


def solution_line() -> str:
    """File and line of the innermost frame that is neither torch's nor of this package."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename.startswith(OTHERS):
        frame = frame.f_back
    return "its code" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def record(call: Callable[[], object], device: torch.device) -> Recording:
    """Make a call and record what crosses."""
    recording = Recording()

    def wait(original: Callable[..., object], *args: object) -> object:
        recording.waits.append(f"{solution_line()} (synchronize)")
        return original(*args)

    with _waiting(wait), _through_host(), _Crossings(device, recording, is_given=False):
        call()
    return recording


@contextmanager
def given(recording: Recording, device: torch.device) -> Iterator[None]:
    """Give what was recorded to a call that is captured; waits do nothing."""
    with _waiting(lambda *_: None):
        if not recording.crossings:
            yield  # operations are not looked at, so that none is different
            return
        with _through_host(), _Crossings(device, recording, is_given=True) as crossings:
            yield
            if left := recording.crossings[crossings.taken :]:
                raise CannotCapture(f"{left[0]} is not done again on the same inputs")


def _waiting(wait: Callable[..., object]) -> AbstractContextManager[None]:
    """Call `wait` with the original for each wait for a device, a stream or an event."""
    owners = [(_C, "_cuda_synchronize"), (torch.cuda.Stream, "synchronize"), (torch.cuda.Event, "synchronize")]
    present = [(owner, name) for owner, name in owners if hasattr(owner, name)]
    return replaced({(owner, name): _method(wait, getattr(owner, name)) for owner, name in present})


def _method(wait: Callable[..., object], original: Callable[..., object]) -> Callable[..., object]:
    return lambda *args: wait(original, *args)


def _through_host() -> AbstractContextManager[None]:
    """Have tensors that are made of Python's numbers reach a device by a copy, which modes see."""

    def made(make: Callable[..., torch.Tensor], data: object, *args: object, **kwargs: Any) -> torch.Tensor:
        device = kwargs.pop("device", None)
        if isinstance(data, torch.Tensor) or device is None:
            return make(data, *args, **kwargs, **({} if device is None else {"device": device}))
        return make(data, *args, device=_HOST, **kwargs).to(device)

    makers = (torch.tensor, torch.as_tensor)
    return replaced({(torch, make.__name__): partial(made, make) for make in makers})


@contextmanager
def replaced(attributes: Mapping[tuple[Any, str], object]) -> Iterator[None]:
    """Give attributes of owners other values during a block."""
    before = {(owner, name): getattr(owner, name) for owner, name in attributes}
    for (owner, name), value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)
