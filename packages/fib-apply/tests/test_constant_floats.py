"""Kernels whose float arguments are constants. Code is generated and compiled for a GPU; without one, nothing runs."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from fib_apply.routing.constant_floats import TracedKernel, with_constants

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("triton_target")

SOURCE = """
import torch
import triton
import triton.language as tl

@triton.jit
def scaled(values, factor):
    return values * factor

@triton.jit
def highest(x, bias, y, n, factor, BLOCK: tl.constexpr, offset=0.5):
    at = tl.arange(0, BLOCK)
    peak = tl.full((BLOCK,), -float("inf"), tl.float32)
    if bias is not None:
        peak += tl.load(bias + at)
    for row in range(0, n):
        values = tl.load(x + row * BLOCK + at)
        peak = tl.maximum(peak, scaled(values.to(tl.float32), factor) + offset)
    tl.store(y + at, peak * factor)

@triton.jit
def halves(x, y, factor, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * factor)

def run(x, factor):
    y = torch.empty(x.shape[1], dtype=torch.float32, device=x.device)
    highest[(1,)](x, None, y, x.shape[0], factor, BLOCK=x.shape[1], num_warps=2)
    return y

def run_halves(x, factor):
    y = torch.empty_like(x)
    halves[(1,)](x, y, factor, BLOCK=16)
    return y
"""
NEUTRAL = ("arith.constant", "tt.splat", "tt.func", "tt.return")


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """A function that imports a module of a source."""

    def imported(source: str, name: str = "solution_with_floats") -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return imported


def traced(function: Callable[..., Any], *inputs: Any) -> Any:
    """A graph of a call with fake CUDA tensors of these shapes and types."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        return make_fx(function)(
            *(torch.empty_strided((16, 16), (16, 1), dtype=dtype, device="cuda") for dtype in inputs)
        )


def inductor_code(module: Any) -> str:
    """The Python module that Inductor writes for a traced graph."""
    from torch._inductor import scheduler
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._inductor.virtualized import V
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    values = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    hopper = DeviceProperties(
        type="cuda", index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32,
    )  # fmt: skip
    properties = SimpleNamespace(**hopper._asdict(), name="H100", total_memory=1 << 36, gcnArchName="")
    with ExitStack() as stack:
        for target, name, value in (
            (scheduler, "has_triton", lambda *_: True),
            (DeviceProperties, "create", classmethod(lambda *_: hopper)),
            (torch.cuda, "get_device_properties", lambda *_: properties),
            (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
            (torch.cuda, "current_device", lambda: 0),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        graph = GraphLowering(module, example_inputs=values, shape_env=ShapeEnv())
        handlers = (V.set_graph_handler(graph), V.set_fake_mode(values[0].fake_mode), V.set_real_inputs(values))
        for handler in (*handlers, V.set_debug_handler(DebugContext())):
            stack.enter_context(handler)
        graph.run(*values)
        found: Any = graph.codegen()[0]
    return str(getattr(found, "value", found))


def ttir(function: Any, signature: dict[str, str], constants: dict[str, Any]) -> str:
    """Triton's first code of a kernel for a GPU."""
    from triton.backends.compiler import GPUTarget

    places = {(function.arg_names.index(name),): value for name, value in constants.items()}
    source = triton.compiler.ASTSource(function, signature=signature, constexprs=places)
    text: str = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"]
    return text


def operations(text: str) -> Counter[str]:
    """Counts of operations with their types, without functions, constants and their copies."""
    found = re.findall(r"((?:arith|tt|scf|math)\.\w+)(?: .*: (.*?)(?: loc.*)?$)?", text, re.MULTILINE)
    return Counter(f"{name} {kind}" for name, kind in found if name not in NEUTRAL)


def launched(code: str, imported: Callable[..., ModuleType]) -> tuple[Any, dict[str, str], dict[str, Any]]:
    """The kernel that Inductor's code launches first, its signature and its constants."""
    found = re.search(r"async_compile\.triton\('(\w+)', '''(.*?)'''", code, re.DOTALL)
    assert found is not None
    name, source = found.groups()
    written = re.search(r"triton_meta=(.*),\n", source)
    assert written is not None
    meta = eval(written[1], {"DeviceProperties": dict})
    head = "import triton\nimport triton.language as tl\n"
    module = imported(head + source[source.index("@triton.jit") :], "written_by_inductor")
    return getattr(module, name), meta["signature"], meta["constants"]


class TestInductor:
    def test_a_float_is_a_constant_of_the_kernel_and_compiles(self, imported: Callable[..., ModuleType]) -> None:
        module = imported(SOURCE)
        plain = {"x": "*fp32", "bias": "constexpr", "y": "*fp32", "n": "i32", "factor": "fp32", "BLOCK": "constexpr"}
        wanted = ttir(module.highest, {**plain, "offset": "fp32"}, {"bias": None, "BLOCK": 16})
        module.highest = TracedKernel(module.highest)  # type: ignore[attr-defined]
        code = inductor_code(traced(lambda x: module.run(x, 0.3), torch.float32))
        kernel, signature, constants = launched(code, imported)
        assert kernel.fn.__name__ == "highest_with_constants"
        assert "fp64" not in signature.values()
        assert (constants["factor"], constants["offset"]) == (0.3, 0.5)
        found = ttir(kernel, signature, constants)
        assert operations(found) == operations(wanted)
        assert "f64" not in found

    def test_what_triton_passes_as_float32_stays_float32_beside_smaller_types(
        self, imported: Callable[..., ModuleType]
    ) -> None:
        # A constant of Triton would take the type of the tensor, and round differently.
        module = imported(SOURCE)
        signature = {"x": "*bf16", "y": "*bf16", "factor": "fp32", "BLOCK": "constexpr"}
        wanted = ttir(module.halves, signature, {"BLOCK": 16})
        made = with_constants(module.halves, frozenset({"factor"}))
        found = ttir(made, {**signature, "factor": "constexpr"}, {"factor": 0.3, "BLOCK": 16})
        assert operations(found) == operations(wanted)
        literal = ttir(module.halves, {**signature, "factor": "constexpr"}, {"factor": 0.3, "BLOCK": 16})
        assert operations(literal) != operations(wanted)


class TestLaunches:
    def kernels(self, imported: Callable[..., ModuleType], calls: Sequence[str]) -> list[Any]:
        """The kernels that a graph of these calls launches."""
        from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

        module = imported(SOURCE)
        module.halves = TracedKernel(module.halves)  # type: ignore[attr-defined]
        graph = traced(lambda x: [eval(call, {**vars(module), "x": x}) for call in calls], torch.float32).graph
        launches = [node for node in graph.nodes if "kernel_idx" in node.kwargs]
        made: list[Any] = [kernel_side_table.get_kernel(node.kwargs["kernel_idx"]) for node in launches]
        return [kernel.fn if hasattr(kernel, "configs") else kernel for kernel in made]

    def test_one_kernel_serves_all_values(self, imported: Callable[..., ModuleType]) -> None:
        one, other = self.kernels(imported, ["run_halves(x, 0.3)", "run_halves(x, 0.4)"])
        assert one is other

    def test_floats_that_are_no_literals_and_integers_are_passed_as_they_are(
        self, imported: Callable[..., ModuleType]
    ) -> None:
        calls = [
            "run_halves(x, float('inf'))",
            "run_halves(x, float('nan'))",
            "run_halves(x, 1e300)",
            "run_halves(x, 2)",
        ]
        assert {kernel.fn.__name__ for kernel in self.kernels(imported, calls)} == {"halves"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnGPU:
    @pytest.mark.parametrize("name", ["run", "run_halves"])
    def test_a_compiled_graph_computes_what_the_solution_does(
        self, imported: Callable[..., ModuleType], name: str
    ) -> None:
        module = imported(SOURCE)
        is_half = name == "run_halves"  # it writes 16 values
        x = torch.randn(1 if is_half else 16, 16, device="cuda", dtype=torch.bfloat16 if is_half else torch.float32)
        wanted = getattr(module, name)(x, 0.3)
        for kernel in ("highest", "halves"):
            setattr(module, kernel, TracedKernel(getattr(module, kernel)))

        @torch.library.triton_op(f"fib_apply_test::{name}", mutates_args={})
        def operator(x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = getattr(module, name)(x, 0.3)
            return made

        compiled: Any = torch.compile(operator, fullgraph=True)
        assert torch.equal(compiled(x), wanted)
