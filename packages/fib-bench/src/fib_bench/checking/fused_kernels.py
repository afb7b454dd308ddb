"""Kernels of fused comparisons: their arguments, and what they take.

`comparison.cu` reads each element once, and writes what the judge reads: of a comparison the row that `Statistics`
unpacks, of an output its extent, of a known wrong answer four counts. One more launch fills counts with zeros before.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from importlib import resources

import attrs
import torch

from .element_statistics import Extent, Rule, Statistics
from .elements import element_count, flat, is_float4, to_double
from .rows import row_width

THREADS = 256
"""Threads of a block."""
_PER_BLOCK = 8 * THREADS
"""The fewest elements of a block, if there are several blocks."""
_MAX_BLOCKS = 1024
_WORDS = 8
"""Numbers of a block's statistics."""
_COUNTS = 4
u32, u64, f64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_double

TENSOR, FINITE_OF_TENSOR, SCALED = range(3)
"""Wrong answers: a tensor; a tensor, with expected elements where it is not finite; the scaled expected output."""

_FLOAT8, _FLOAT4 = 4, 5
_KINDS = {
    "float64": 0, "float32": 1, "float16": 2, "bfloat16": 3,
    "float8_e4m3fn": _FLOAT8, "float8_e5m2": _FLOAT8, "float4_e2m1fn_x2": _FLOAT4,
    "int64": 6, "int32": 7, "int16": 8, "int8": 9, "uint8": 10, "bool": 10,
}  # fmt: skip
KINDS = {getattr(torch, name): kind for name, kind in _KINDS.items() if hasattr(torch, name)}
"""The dtypes that the kernels take, with their numbers there; older versions of torch lack some."""


class Job(ctypes.Structure):
    """The argument of each kernel."""

    _fields_ = (
        ("found", u64), ("expected", u64), ("found_values", u64), ("expected_values", u64),
        ("count", u64), ("per_block", u64), ("width", u64), ("rows", u64),
        ("atol", f64), ("rtol", f64), ("limit", f64), ("row_share", f64), ("factor", f64),
        ("finished", u64), ("wrong_in_row", u64), ("undefined_in_row", u64), ("partials", u64), ("result", u64),
        ("found_kind", u32), ("expected_kind", u32), ("answer", u32), ("padding", u32),
    )  # fmt: skip


Launch = Callable[[str, int, Job], None]
"""Launches the kernel of a name with a number of blocks; does not wait for it."""


@attrs.frozen(eq=False)
class Kernels:
    """The kernels, loaded for one device. None of their methods synchronizes it, but for `extent`."""

    launch: Launch

    def statistics(
        self, found: torch.Tensor, expected: torch.Tensor, rule: Rule, *, has_undefined: bool
    ) -> torch.Tensor:
        """One row that `Statistics` unpacks, for all elements and rows of an output.

        Args:
            found: What a function gave.
            expected: What it should have given, of the same shape and dtype.
            rule: The limits of errors; atol is not negative.
            has_undefined: Whether some expected elements are NaN.
        """
        if found.dtype != expected.dtype:
            raise ValueError(f"cannot compare {found.dtype} with {expected.dtype}")
        return self._judge("fib_compare", Statistics.WIDTH, found, expected, rule, has_undefined=has_undefined)

    def count(
        self,
        answer: torch.Tensor | float,
        expected: torch.Tensor,
        rule: Rule,
        *,
        has_undefined: bool,
        keeps_infinite: bool = False,
    ) -> torch.Tensor:
        """Count elements of a wrong answer that differ, are wrong, exceed the limit, and rows with too many wrong ones.

        Args:
            answer: Of as many elements as are expected, or what expected elements are multiplied by.
            expected: The expected output. Elements that are not finite are right in every answer.
            rule: The limits of errors; atol is not negative.
            has_undefined: Whether some expected elements are NaN.
            keeps_infinite: Whether elements of the answer that are not finite are right as well.
        """
        kind = SCALED if isinstance(answer, float) else FINITE_OF_TENSOR if keeps_infinite else TENSOR
        factor, found = (answer, expected) if isinstance(answer, float) else (0.0, answer)
        options = Job(answer=kind, factor=factor)
        return self._judge("fib_probe", _COUNTS, found, expected, rule, has_undefined=has_undefined, job=options)

    def extent(self, expected: torch.Tensor) -> Extent:
        """Measure an expected output; synchronizes the device once."""
        result = torch.zeros(3, dtype=torch.int64, device=expected.device)
        job, items = Job(result=result.data_ptr()), flat(expected)
        self._run("fib_extent", job, items, items)
        bits, undefined, infinite = result.tolist()
        (largest,) = struct.unpack("d", struct.pack("q", bits))
        return Extent(element_count(expected), undefined, infinite, largest)

    def _judge(
        self,
        kernel: str,
        words: int,
        found: torch.Tensor,
        expected: torch.Tensor,
        rule: Rule,
        *,
        has_undefined: bool,
        job: Job | None = None,
    ) -> torch.Tensor:
        if (element_count(found), found.device) != (element_count(expected), expected.device):
            raise ValueError(
                f"cannot compare {found.shape} on {found.device} with {expected.shape} on {expected.device}"
            )
        job = job or Job()
        width = max(row_width(expected), 1)
        rows = element_count(expected) // width
        undefined_rows = rows if has_undefined else 0
        blocks, _ = blocks_of(element_count(expected))
        scratch = torch.zeros(
            words + 1 + rows + undefined_rows + blocks * _WORDS, dtype=torch.int64, device=expected.device
        )
        job.width, job.rows = width, rows
        job.atol, job.rtol, job.limit, job.row_share = rule.atol, rule.rtol, rule.limit, rule.row_share
        job.result = scratch.data_ptr()
        job.finished = job.result + 8 * words
        job.wrong_in_row = job.finished + 8
        job.undefined_in_row = job.wrong_in_row + 8 * rows if has_undefined else 0
        job.partials = job.wrong_in_row + 8 * (rows + undefined_rows)
        self._run(kernel, job, flat(found), flat(expected))
        return scratch[:words]

    def _run(self, kernel: str, job: Job, found: torch.Tensor, expected: torch.Tensor) -> None:
        job.count = element_count(expected)
        blocks, job.per_block = blocks_of(job.count)
        job.found, job.expected = found.data_ptr(), expected.data_ptr()
        job.found_kind, job.expected_kind = KINDS[found.dtype], KINDS[expected.dtype]
        job.found_values, job.expected_values = _values_address(found), _values_address(expected)
        self.launch(kernel, blocks, job)


def source() -> str:
    """The text of the kernels."""
    return resources.files(__package__).joinpath("comparison.cu").read_text("utf-8")


def blocks_of(count: int) -> tuple[int, int]:
    """The number of blocks for so many elements, at least one, and the elements of each but the last."""
    per_block = max(_PER_BLOCK, -(-count // (_MAX_BLOCKS * THREADS)) * THREADS)
    return -(-count // per_block), per_block


def _values_address(tensor: torch.Tensor) -> int:
    is_small = KINDS[tensor.dtype] in (_FLOAT8, _FLOAT4)
    return small_float_values(tensor.dtype, tensor.device).data_ptr() if is_small else 0


@cache  # copying them to a device waits for that
def small_float_values(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The values of floats of 8 or 4 bits by their bits, in float64."""
    items = torch.arange(256, dtype=torch.uint8)
    values = to_double(items.view(dtype))
    if is_float4(items.view(dtype)):
        values = values[:32:2]  # the low halves of the first 16 bytes
    return values.contiguous().to(device)
