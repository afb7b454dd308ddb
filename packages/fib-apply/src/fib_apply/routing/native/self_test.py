"""Self-test of guards: they must accept a call that equals the first one, and reject each of a set of other calls.

The same samples try torch's guards (see `guards`) and the native ones, and the table of the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def find_tensor_problem(compile_: Callable[..., Callable[..., Any]]) -> str | None:
    """Error of guards that check tensors and torch's modes; None if none was found."""
    return _tensor_problem(compile_, ignores_sizes=False) or _tensor_problem(compile_, ignores_sizes=True)


def _tensor_problem(compile_: Callable[..., Callable[..., Any]], *, ignores_sizes: bool) -> str | None:
    a, b = torch.zeros(2, 3), torch.zeros(3)
    guard = compile_([a, b], ignores_sizes=ignores_sizes)
    if not guard(torch.ones(2, 3), b):
        return "an equal call is rejected"
    if guard(b, b):
        return "a tensor that is passed twice is accepted"
    for other in (a[:1], torch.zeros(2, 4), a.T.contiguous().T):
        if bool(guard(other, b)) != ignores_sizes:
            return f"sizes are {'' if ignores_sizes else 'not '}compared"
    others = [a.double(), a.unsqueeze(0), a.to("meta"), a.clone().requires_grad_()]
    others += [torch.nn.Parameter(a, requires_grad=False), a.to_sparse()]
    for other in others:
        if guard(other, b):
            return f"a {type(other).__name__} {other.dtype} {list(other.shape)} {other.layout} is accepted"
    accepted: list[bool] = []

    def call(x: torch.Tensor) -> torch.Tensor:
        accepted.append(bool(guard(x, b)))
        return x

    torch.vmap(call)(torch.zeros(2, 2, 3))
    with torch.autocast("cpu"):
        call(a)
    return "a call is accepted in a mode of torch" if any(accepted) else None


def find_problem(native: Any) -> str | None:
    """Error of the native module; None if none was found. Settings of the process are changed for a moment."""

    def compile_(
        args: Sequence[Any],
        outputs: int = 0,
        alignment: int = 1,
        *,
        ignores_sizes: bool = False,
        compares_numbers: bool = False,
    ) -> Callable[..., Any]:
        checked = outputs, alignment, False, compares_numbers, False, False, ignores_sizes
        made: Callable[..., Any] = native.make_guard(tuple(args), *checked)
        return made

    return find_tensor_problem(compile_) or next(_other_problems(native, compile_), None)


def _other_problems(native: Any, compile_: Callable[..., Callable[..., Any]]) -> Iterator[str]:
    a, b = torch.zeros(2, 3), torch.zeros(3)
    scalars = compile_([a, None, 1, 1.0])
    if not scalars(a, None, 2, 2.0) or scalars(a, 1, 2, 2.0) or scalars(a, None, True, 2.0) or scalars(a, None, 2):
        yield "the types of other arguments are not compared"
    for number, other in ((2, 3), (0.5, 0.25), (True, False), (1 << 70, 1 << 71)):
        guard = compile_([a, number], compares_numbers=True)
        if not guard(a, type(number)(number)) or guard(a, other):
            yield "numbers are not compared"
    memory = torch.zeros(64)
    offset = (-memory.data_ptr() % 16) // 4
    aligned, shifted = memory[offset : offset + 8], memory[offset + 1 : offset + 9]
    if not compile_([aligned], 0, 16)(aligned) or compile_([aligned], 0, 16)(shifted):
        yield "alignment is not compared"
    with_output = compile_([memory[:8], memory[8:16]], 1)
    if not with_output(memory[:8], memory[8:16]) or with_output(memory[:8], memory[4:12]):
        yield "an output that overlaps an input is accepted"
    packed = memory[:32].view(4, 8)[:, :4]
    if not compile_([packed, memory[32:]], 1)(packed, memory[32:]) or compile_([packed, memory[32:36]], 1)(
        packed, memory[24:28]
    ):
        yield "an output that lies between the rows of an input is accepted"
    if compile_([packed])(packed.contiguous()) or compile_([packed.contiguous()])(packed):
        yield "strides are not compared"
    if compile_([a, b])(torch._to_functional_tensor(a), b):  # noqa: SLF001 torch has no public name for it
        yield "a functional tensor is accepted"
    guard = compile_([a, b])
    with TorchFunctionMode():
        if guard(a, b):
            yield "a call is accepted in a torch function mode"
    table = native.Table()
    entries = [(compile_([torch.zeros(size)]), size, int) for size in range(1, 40)]
    if table(a) is not native.MISS or not all(map(table.install, entries)):
        yield "a table takes no entries"
    if [table(torch.zeros(size)) for size in range(1, 40)] != [*range(1, 40)] or table(
        torch.zeros(40)
    ) is not native.MISS:
        yield "a table finds other entries than it holds"
    table.clear()
    if table(torch.zeros(1)) is not native.MISS:
        yield "a cleared table has entries"
    with torch.device("cpu"):
        if not compile_([a])(a):
            yield "a default device is taken for a mode"
    guard, default = compile_([a]), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        if guard(a):
            yield "the default dtype is not compared"
    finally:
        torch.set_default_dtype(default)
