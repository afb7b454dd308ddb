"""Compilation of solutions for a GPU that is not there, in a child process.

A solution is called with fake tensors, which have shapes and dtypes but no values: whatever waits for the device to
read a value fails. The tensors are on the CPU, because torch without CUDA cannot copy or index others. Each launch of
a Triton kernel is compiled for `TARGET` with the specialization that it would have there, and not executed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import attrs
import torch
from fib_bench.inputs.makers import tensor_dtype
from public_data_set import SIZES, public_set
from solution_cases import answer, ask
from solution_table import FOLDER, TableEntry, entry_of
from torch._subclasses.fake_tensor import FakeTensorMode

TARGET = ("cuda", 90, 32)
SHARED_BYTES = 227 << 10
"""Shared memory of a thread block on a device of compute capability 9.0."""
LARGE = {name: size * 512 for name, size in SIZES.items() if "len_" not in name} | {
    "len_indptr": 3 * 512 + 1,
    "len_cu_seqlens": 3 * 512 + 1,
    "max_seq_len": 1 << 15,
    "num_kv_heads": 8,
    "num_qo_heads": 64,
    "seq_len": 2048,
}
"""Sizes at which solutions choose other tiles than for `SIZES`."""


@attrs.frozen
class AheadCase:
    """A solution, a definition that it implements, and whether its sizes are `LARGE`."""

    solution: str
    definition: str
    is_large: bool

    def __str__(self) -> str:
        return f"{self.solution}-{self.definition}-{'large' if self.is_large else 'small'}"


class Ahead:
    """A child that compiles.

    Args:
        cache: Folder for compiled kernels.
    """

    def __init__(self, cache: Path) -> None:
        environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "TRITON_INTERPRET": "0"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def __call__(self, case: AheadCase) -> None:
        """Compile a case, and fail with what is wrong with it."""
        assert self._process.stdin
        assert self._process.stdout
        ask(self._process.stdin, self._process.stdout, attrs.asdict(case))

    @classmethod
    def children(cls, cache: Path) -> Iterator[Ahead]:
        """A child that ends with the test module."""
        ahead = cls(cache)
        with ahead._process:
            yield ahead


# -- in the child process -------------------------------------------------------------------


class _AbsentGpu:
    """Triton's driver of a device that kernels are compiled for."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*TARGET)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def _compile_instead_of_launching() -> None:
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction, MockTensor

    driver.set_active(_AbsentGpu())
    run = JITFunction.run

    def stand_in(value: object) -> object:
        return MockTensor(value.dtype) if isinstance(value, torch.Tensor) else value

    def compile_only(self: Any, *args: object, grid: object, warmup: bool, **options: object) -> object:
        options = {name: stand_in(value) for name, value in options.items()}
        options |= {"INTERPRETED": False} if "INTERPRETED" in options else {}
        kernel = run(self, *map(stand_in, args), grid=grid, warmup=True, **options)
        assert kernel.asm["cubin"], f"{self.__name__} was not compiled"
        assert kernel.metadata.shared <= SHARED_BYTES, f"{self.__name__} needs {kernel.metadata.shared} bytes"
        return kernel

    JITFunction.run = compile_only


def _refuse_copy(self: torch.Tensor, *args: object) -> NoReturn:
    raise AssertionError("a solution copies a tensor to the host")


@cache
def _fake_mode() -> FakeTensorMode:
    """One for all cases, because a solution may keep a tensor from call to call."""
    return FakeTensorMode()


@cache
def _module(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(file).stem, FOLDER / file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _check(case: AheadCase) -> None:
    entry, definition = entry_of(case.solution), public_set().definitions[case.definition]
    sizes = LARGE if case.is_large else SIZES
    axes = {axis: sizes[axis] for axis in definition.var_axes}
    with _fake_mode():
        inputs = _fakes(definition.inputs, definition.get_input_shapes(axes))
        wanted = _fakes(definition.outputs, definition.get_output_shapes(axes))
        found = _call(entry, inputs, wanted)
    described = [[(tuple(t.shape), t.dtype, t.device.type) for t in tensors] for tensors in (found, wanted)]
    assert described[0] == described[1]


def _fakes(specs: Mapping[str, Any], shapes: Any) -> list[Any]:
    return [
        (0 if spec.is_integer else 1.0) if shape is None else torch.empty(shape, dtype=tensor_dtype(spec))
        for spec, shape in zip(specs.values(), shapes, strict=True)
    ]


def _call(entry: TableEntry, inputs: list[Any], outputs: list[Any]) -> list[Any]:
    """Call the entry point; returns the outputs."""
    run = getattr(_module(entry.file), entry.entry_point.partition("::")[2])
    if entry.destination_passing_style:
        assert run(*inputs, *outputs) is None
        return outputs
    returned = run(*inputs)
    return list(returned) if isinstance(returned, tuple) else [returned]


def main() -> None:
    """Answer tasks."""
    torch.Tensor.cpu = torch.Tensor.numpy = _refuse_copy  # type: ignore[method-assign, assignment]
    _compile_instead_of_launching()
    answer(lambda task: _check(AheadCase(**task)))


if __name__ == "__main__":
    main()
