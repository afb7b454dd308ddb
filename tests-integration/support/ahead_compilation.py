"""Compilation of solutions for a GPU that is not there, in a child process.

A solution is called with fake tensors, which have shapes and dtypes but no values: whatever waits for the device to
read a value fails. The tensors are on the CPU, because torch without CUDA cannot copy or index others. Each launch of
a Triton kernel is compiled for `TARGET` with the specialization that it would have there, and not executed.
"""

import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import attrs
import torch
from fib_compile.device import torch_dtype
from public_data_set import SIZES, public_set
from solution_cases import answer, child_of
from solution_table import FOLDER, entry_of
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

    def __str__(self):
        return f"{self.solution}-{self.definition}-{'large' if self.is_large else 'small'}"


def children(cache):
    """A function that compiles a case in a child, which keeps compiled kernels in a folder."""
    return child_of(__file__, TRITON_CACHE_DIR=str(cache), TRITON_INTERPRET="0")


# -- in the child process -------------------------------------------------------------------


class _AbsentGpu:
    """Triton's driver of a device that kernels are compiled for."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*TARGET)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def _compile_instead_of_launching():
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction, MockTensor

    driver.set_active(_AbsentGpu())
    run = JITFunction.run

    def stand_in(value):
        return MockTensor(value.dtype) if isinstance(value, torch.Tensor) else value

    def compile_only(self, *args, grid, warmup, **options):
        options = {name: stand_in(value) for name, value in options.items()}
        options |= {"INTERPRETED": False} if "INTERPRETED" in options else {}
        kernel = run(self, *map(stand_in, args), grid=grid, warmup=True, **options)
        assert kernel.asm["cubin"], f"{self.__name__} was not compiled"
        assert kernel.metadata.shared <= SHARED_BYTES, f"{self.__name__} needs {kernel.metadata.shared} bytes"
        return kernel

    JITFunction.run = compile_only


def _refuse_copy(self, *args):
    raise AssertionError("a solution copies a tensor to the host")


@cache
def _fake_mode():
    """One for all cases, because a solution may keep a tensor from call to call."""
    return FakeTensorMode()


@cache
def _module(file):
    sys.path.append(str(FOLDER.parent))  # as modules of a package, which import others of it
    return import_module(f"{FOLDER.name}.{Path(file).stem}")


def _check(case):
    entry, definition = entry_of(case.solution), public_set().definitions[case.definition]
    sizes = LARGE if case.is_large else SIZES
    axes = {axis: sizes[axis] for axis in definition.var_axes}
    with _fake_mode():
        inputs = _fakes(definition.inputs, definition.get_input_shapes(axes))
        wanted = _fakes(definition.outputs, definition.get_output_shapes(axes))
        found = _call(entry, inputs, wanted)
    described = [[(tuple(t.shape), t.dtype, t.device.type) for t in tensors] for tensors in (found, wanted)]
    assert described[0] == described[1]


def _fakes(specs, shapes):
    return [
        (0 if spec.is_integer else 1.0) if shape is None else torch.empty(shape, dtype=torch_dtype(spec.dtype))
        for spec, shape in zip(specs.values(), shapes, strict=True)
    ]


def _call(entry, inputs, outputs):
    run = getattr(_module(entry.file), entry.entry_point.partition("::")[2])
    if entry.destination_passing_style:
        assert run(*inputs, *outputs) is None
        return outputs
    returned = run(*inputs)
    return list(returned) if isinstance(returned, tuple) else [returned]


def main():
    torch.Tensor.cpu = torch.Tensor.numpy = _refuse_copy
    _compile_instead_of_launching()
    answer(lambda task: _check(AheadCase(**task)))


if __name__ == "__main__":
    main()
