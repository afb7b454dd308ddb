"""A decorated function in compiled, transformed, traced and exported code: it keeps the original."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import apply_samples as samples
import pytest
import torch
from apply_samples import new_solution, new_trace
from fib_apply import apply, enable_apply, set_apply_hook
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec, TraceSet
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.usefixtures("without_probes")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def data_set(*sizes: int) -> TraceSet:
    """A solution that adds 1 to the sum of two inputs, which the reference does not."""
    d = Definition(
        "add",
        "elementwise",
        axes={"m": AxisVar(), "n": AxisConst(4)},
        inputs={"x": TensorSpec(("m", "n"), "float32"), "y": TensorSpec(("m", "n"), "float32")},
        outputs={"z": TensorSpec(("m", "n"), "float32")},
        reference="def run(x, y):\n    return x + y\n",
    )
    content = "def run(x, y):\n    return x + y + 1\n"
    solution = new_solution("plus_one", content=content, definition="add", passing=False)
    traces = [new_trace("plus_one", axes={"m": m}, inputs="xy", definition="add") for m in sizes]
    return samples.data_set(*traces, solutions=[solution], definition=d)


@apply("add")
def add(x: Any, y: Any) -> Any:
    """Routed by name."""
    return x + y


@apply("add")
def add_tensors(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Routed by name, with types that torch's scripts know."""
    return x + y


@apply(lambda x, y: "add")
def add_by_resolver(x: Any, y: Any) -> Any:
    """Routed by a resolver."""
    return x + y


@apply("add")
def add_variadic(*args: Any) -> Any:
    """Routed by positions."""
    return args[0] + args[1]


@apply("add")
def add_into(x: Any, y: Any, z: Any = None) -> Any:
    """Routed with optional outputs."""
    if z is None:
        return x + y
    z.copy_(x + y)
    return z


@pytest.fixture
def _routed():
    """Routing is enabled, and eager calls of two rows are served by the solution."""
    with enable_apply(data_set(2)) as runtime:
        assert runtime.wait_until_built(300)
        x = torch.randn(2, 4)
        assert torch.equal(add(x, x), 2 * x + 1)
        yield
        assert torch.equal(add(x, x), 2 * x + 1)


@pytest.mark.usefixtures("_routed")
@pytest.mark.parametrize("function", [add, add_by_resolver, add_variadic, add_into])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_keeps_the_original_in_one_graph(function, backend):
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    compiled = torch.compile(lambda x, y: function(x * 2, y) * 3, fullgraph=True, backend=backend)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(compiled(x, y), (2 * x + y) * 3)


@pytest.mark.usefixtures("_routed")
def test_outputs_that_are_passed_are_written_by_the_original():
    x, z = torch.randn(2, 4), torch.zeros(2, 4)
    compiled = torch.compile(lambda x, z: add_into(x, x, z), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert compiled(x, z) is z
    assert torch.equal(z, 2 * x)


def test_enabling_and_disabling_retrace_at_most_once():
    graphs = CompileCounterWithBackend("eager")
    compiled = torch.compile(add, fullgraph=True, backend=graphs)
    x = torch.randn(2, 4)
    for _ in range(3):
        with torch.no_grad():
            assert torch.equal(compiled(x, x), 2 * x)
            with enable_apply(data_set(2)):
                assert torch.equal(compiled(x, x), 2 * x)
    assert graphs.frame_count <= 2


def test_listeners_see_eager_calls_only():
    calls: list[Any] = []
    set_apply_hook(lambda definition, arguments: calls.append(arguments))
    x = torch.randn(2, 4)
    compiled = torch.compile(add, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, x), 2 * x)
    assert len(calls) == 0
    add(x, x)
    assert len(calls) == 1


@pytest.mark.usefixtures("_routed")
def test_gradients_are_those_of_the_function():
    x, y = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
    torch.compile(lambda x: add(x * 2, y) * 3, fullgraph=True, backend="aot_eager")(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 4), 6.0))


@pytest.mark.usefixtures("_routed")
@pytest.mark.parametrize("is_compiled", [False, True])
def test_function_transforms_see_the_function(*, is_compiled):
    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, backend="aot_eager") if is_compiled else function

    x = torch.randn(2, 4)
    gradient = wrapped(torch.func.grad(lambda v: add(v, v).sum()))
    assert torch.equal(gradient(x), torch.full((2, 4), 2.0))
    batch = torch.randn(3, 2, 4, requires_grad=True)
    found = wrapped(torch.vmap(lambda v: add(v, v)))(batch)
    assert torch.equal(found, 2 * batch)
    found.sum().backward()
    assert torch.equal(batch.grad, torch.full((3, 2, 4), 2.0))


class Block(torch.nn.Module):
    """A module with one routed call."""

    def forward(self, x: Any) -> Any:
        return add(x, x) * 3


@pytest.mark.usefixtures("_routed")
@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_hold_the_function(*, strict, tmp_path):
    x = torch.randn(2, 4)
    with torch.no_grad():
        program = torch.export.export(Block(), (x,), strict=strict)
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert targets == {"aten.add.Tensor", "aten.mul.Tensor"}
    torch.export.save(program, tmp_path / "program.pt2")
    assert torch.equal(torch.export.load(tmp_path / "program.pt2").module()(x), 6 * x)


@pytest.mark.usefixtures("_routed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_of_torchs_tracer_hold_the_function():
    x, other = torch.randn(2, 4), torch.randn(2, 4)
    with torch.no_grad():
        traced = torch.jit.trace(Block(), (x,), check_trace=False)
    assert torch.equal(traced(other), 6 * other)


@pytest.mark.usefixtures("_routed")
def test_tracing_with_symbolic_sizes_sees_the_function():
    """As vLLM does when it lowers its operators: fake tensors, and no Dynamo."""
    x = torch.randn(2, 4)
    with torch.no_grad():
        graph = make_fx(add, tracing_mode="symbolic")(x, x)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [torch.ops.aten.add.Tensor]
    assert not graph.shape_env.guards
    longer = torch.randn(7, 4)
    assert torch.equal(graph(longer, longer), 2 * longer)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("_routed")
def test_a_script_holds_the_function():
    x = torch.randn(2, 4)
    assert torch.equal(torch.jit.script(add_tensors)(x, x), 2 * x)


def test_the_attribute_is_the_one_that_torch_uses():
    """`torch.compile` marks its own results so; Dynamo traces the attribute's value."""
    from fib_apply.routing.call_sites import TRACED_INSTEAD

    assert getattr(torch.compile(lambda x: x, backend="eager"), TRACED_INSTEAD, None) is not None


@pytest.mark.slow
def test_a_routed_process_does_not_import_dynamo():
    """Importing it takes seconds, in which an engine stalls."""
    program = (
        "import sys, torch\n"
        "from fib_apply import add_listener, apply\n"
        "listener = type('Listener', (), {'bind': lambda *_: lambda *values: None})()\n"
        "add_listener(listener)\n"
        "apply('add')(lambda x, y: x + y)(torch.ones(2), torch.ones(2))\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
