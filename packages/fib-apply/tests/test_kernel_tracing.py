"""Traces of Triton solutions, with fake tensors on the CPU. Nothing is launched, so no GPU is needed."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fib_apply.routing.kernel_tracing import KernelGraph, NotInlined, TensorMeta, trace_kernels
from fib_compile import Runnable, RunnableMetadata
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("triton_target")

HEAD = "import math\nimport torch\nimport triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def twice(value):
    return value + value

@triton.jit
def rows(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=0.0)
    tl.store(y + row * n + at, twice(values), mask=at < n)
"""
LAUNCH = "rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))"
SCALE = Definition(
    "scale",
    "elementwise",
    {"M": AxisVar(), "N": AxisConst(value=4)},
    {"x": TensorSpec(["M", "N"], "float32"), "factor": TensorSpec(None, "float32", optional=True)},
    {"y": TensorSpec(["M", "N"], "float32")},
    "def run(x, factor):\n    return 2 * x\n",
)
X = TensorMeta((3, 4), (4, 1), torch.float32, torch.device("cpu"))
_numbers = itertools.count()


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], ModuleType]:
    """A function that imports a solution's source."""

    def load(source: str) -> ModuleType:
        name = f"fib_test_kernels_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def trace(load: Callable[[str], ModuleType]) -> Callable[..., KernelGraph]:
    """A function that traces a source."""

    def trace(source: str, *, x: TensorMeta = X, factor: float | None = None, is_dps: bool = True) -> KernelGraph:
        metadata = RunnableMetadata("triton", "scale", "rows", is_dps, SCALE)
        return trace_kernels(Runnable(load(source).run, metadata), (x, factor))

    return trace


def targets(graph: KernelGraph) -> list[str]:
    return [str(node.target) for node in graph.module.graph.nodes if node.op == "call_function"]


class TestTraced:
    def test_allocations_and_launches(self, trace: Callable[..., KernelGraph]) -> None:
        graph = trace(KERNEL + f"def run(x, factor, y):\n    {LAUNCH}\n")
        assert targets(graph) == ["aten.empty.memory_format", "triton_kernel_wrapper_mutation"]

    def test_value_returning_solutions(self, trace: Callable[..., KernelGraph]) -> None:
        source = KERNEL + f"def run(x, factor):\n    y = torch.zeros_like(x)\n    {LAUNCH}\n    return y\n"
        assert targets(trace(source, is_dps=False)) == ["aten.zeros_like.default", "triton_kernel_wrapper_mutation"]

    def test_launches_of_other_functions_and_read_only_tables(self, trace: Callable[..., KernelGraph]) -> None:
        source = f"OPTIONS = {{'num_warps': [2, 4]}}\ndef launch(x, y, warps=3):\n    {LAUNCH[:-1]}, num_warps=warps)\n"
        body = "def run(x, factor, y):\n    launch(x, y, warps=OPTIONS['num_warps'][0])\n    launch(x, y)\n"
        assert len(targets(trace(KERNEL + source + body))) == 3

    def test_scalars_and_sizes_are_constants_of_the_digest(self, trace: Callable[..., KernelGraph]) -> None:
        source = KERNEL + f"def run(x, factor, y):\n    {LAUNCH}\n"
        graph = trace(source)
        five = TensorMeta((5, 4), (4, 1), torch.float32, torch.device("cpu"))
        other = [trace(source, x=five), trace(source, factor=2.0), trace(source.replace("value + value", "value * 3"))]
        assert trace(source).digest == graph.digest
        assert len({graph.digest, *(one.digest for one in other)}) == 4

    def test_the_module_of_the_solution_is_unchanged(self, load: Callable[[str], ModuleType]) -> None:
        module = load("TABLE = {}\n" + KERNEL + f"def run(x, factor, y):\n    TABLE['x'] = 1\n    {LAUNCH}\n")
        before = dict(vars(module))
        trace_kernels(Runnable(module.run, RunnableMetadata("triton", "scale", "rows", True, SCALE)), (X, None))
        assert vars(module) == before
        assert module.TABLE == {}

    @pytest.mark.skipif(torch.cuda.is_available(), reason="the trace is of tensors on the CPU")
    def test_a_kernel_that_torch_cannot_analyze(
        self, trace: Callable[..., KernelGraph], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(triton.runtime.driver, "_active", None)
        with pytest.raises(NotInlined, match="kernel 'rows' writes to an input, as far as torch can tell"):
            trace(KERNEL + f"def run(x, factor, y):\n    {LAUNCH}\n")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "W = torch.zeros(4)\ndef run(x, factor, y):\n    W.zero_()\n    LAUNCH",
            "'W' is a Tensor, which may",
        ),
        ("class A: pass\ndef run(x, factor, y):\n    A.y = y\n    LAUNCH", "'A' is a type, which may keep state"),
        ("n = 0\ndef run(x, factor, y):\n    global n\n    n += 1\n    LAUNCH", "'run' changes the global 'n'"),
        ("def run(x, factor, y):\n    import json\n    LAUNCH", "'run' imports 'json' when it is called"),
        ("def run(x, factor, y, *, made={}):\n    made[1] = torch.cuda.Event()\n    LAUNCH", "'run' uses CUDA streams"),
        ("def run(x, factor, y):\n    if x.data_ptr() % 16: return\n    LAUNCH", "'run' reads addresses"),
        ("def run(x, factor, y):\n    if x.sum().item() > 0:\n        LAUNCH", "tracing it raised DataDependentOutput"),
        ("def run(x, factor, y):\n    LAUNCH\n    y.add_(1)", "it calls aten.add_.Tensor beside its kernels"),
        ("def run(x, factor, y):\n    y.copy_(x)", "it launches no kernel"),
        ("def run(x, factor, y):\n    x.zero_()\n    LAUNCH", "aten::zero_ writes to an input"),
        ("def run(x, factor, y):\n    LAUNCH\n    rows[(3,)](y, x.T, 4, BLOCK=4)", "kernel 'rows' writes to an input"),
        (
            "rows = triton.autotune([triton.Config({}, num_warps=2)], key=['n'])(rows)\n"
            "def run(x, factor, y):\n    LAUNCH",
            "kernel 'rows' is an Autotuner, which decides at each launch how to run",
        ),
        (
            "rows.add_pre_run_hook(print)\ndef run(x, factor, y):\n    LAUNCH",
            "kernel 'rows' has hooks that run before each launch",
        ),
    ],
)
def test_other_solutions_have_a_reason(trace: Callable[..., KernelGraph], source: str, reason: str) -> None:
    with pytest.raises(NotInlined) as error:
        trace(KERNEL + source.replace("LAUNCH", LAUNCH))
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return x", "a result shares memory with an input"),
        ("return y.T.contiguous().T", "a result is torch.float32 with strides"),
        ("return y.view(torch.int32)", "a result is torch.int32"),
        ("return None", "it does not return a tensor for each output"),
    ],
)
def test_results_must_be_as_defined(trace: Callable[..., KernelGraph], body: str, reason: str) -> None:
    source = f"def run(x, factor):\n    y = torch.empty_like(x)\n    {LAUNCH}\n    {body}\n"
    with pytest.raises(NotInlined) as error:
        trace(KERNEL + source, is_dps=False)
    assert reason in str(error.value)
