"""A decorated function under torch.compile: one opaque operator while a runtime is enabled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fib_apply import apply, disable_apply, enable_apply
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)
from torch.fx.experimental.proxy_tensor import make_fx


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    disable_apply()
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
    spec = BuildSpec("python", ("cpu",), "main.py::run", destination_passing_style=False)
    source = SourceFile("main.py", "def run(x, y):\n    return x + y + 1\n")
    solution = Solution("plus_one", "add", "tester", spec, (source,))
    evaluation = Evaluation(
        EvaluationStatus.PASSED,
        Environment("cpu"),
        "2026-01-01T00:00:00Z",
        correctness=Correctness(),
        performance=Performance(0.1, 1.0, 10.0),
    )
    workloads = [Workload({"m": m}, {"x": RandomInput(), "y": RandomInput()}, f"w{m}") for m in sizes]
    traces = [Trace("add", workload, "plus_one", evaluation) for workload in workloads]
    return TraceSet(None, {"add": d}, {"add": [solution]}, {}, {"add": traces})


def block(add: Any) -> Any:
    def model(x: Any, y: Any) -> Any:
        return add(x * 2, y) * 3

    return model


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_call_is_one_operator_that_routes_when_the_graph_runs(backend: str) -> None:
    @apply("add")
    def add(x: Any, y: Any) -> Any:
        return x + y

    x, y = torch.randn(2, 4), torch.randn(2, 4)
    compiled = torch.compile(block(add), fullgraph=True, backend=backend)
    with enable_apply(data_set(2)), torch.no_grad():
        assert torch.allclose(compiled(x, y), (2 * x + y + 1) * 3)
        assert torch.allclose(compiled(x, y), (2 * x + y + 1) * 3)
        assert torch.allclose(add(x, y), x + y + 1)
    with torch.no_grad():
        assert torch.allclose(compiled(x, y), (2 * x + y) * 3)


def test_enabling_later_takes_effect_when_the_function_is_compiled_again() -> None:
    @apply("add")
    def add(x: Any, y: Any) -> Any:
        return x + y

    x, y = torch.randn(2, 4), torch.randn(2, 4)
    compiled = torch.compile(block(add), fullgraph=True, backend="eager")
    with torch.no_grad():
        assert torch.allclose(compiled(x, y), (2 * x + y) * 3)
        with enable_apply(data_set(2)):
            assert torch.allclose(compiled(x, y), (2 * x + y + 1) * 3)


def test_sizes_that_are_not_recorded_are_served_by_the_function_within_the_graph() -> None:
    @apply("add")
    def add(x: Any, y: Any) -> Any:
        return x + y

    compiled = torch.compile(block(add), fullgraph=True, backend="eager", dynamic=True)
    with enable_apply(data_set(2, 3)), torch.no_grad():
        for m, extra in ((2, 1), (3, 1), (5, 0)):
            x, y = torch.randn(m, 4), torch.randn(m, 4)
            assert torch.allclose(compiled(x, y), (2 * x + y + extra) * 3)


def test_gradients_are_those_of_the_function() -> None:
    @apply("add")
    def add(x: Any, y: Any) -> Any:
        return x + y

    x, y = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
    compiled = torch.compile(block(add), fullgraph=True, backend="aot_eager")
    with enable_apply(data_set(2)):
        compiled(x, y).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2, 4), 6.0))


def test_a_function_with_a_resolver_is_traced_into() -> None:
    @apply(lambda x, y: "add")
    def add(x: Any, y: Any) -> Any:
        return x + y

    x, y = torch.randn(2, 4), torch.randn(2, 4)
    compiled = torch.compile(block(add), fullgraph=True, backend="eager")
    with enable_apply(data_set(2)), torch.no_grad():
        assert torch.allclose(compiled(x, y), (2 * x + y) * 3)


@pytest.mark.parametrize("is_called_before", [False, True])
def test_tracing_with_symbolic_sizes_sees_the_fallback(*, is_called_before: bool) -> None:
    """As vLLM does when it lowers its operators: fake tensors, and no Dynamo."""

    @apply("add")
    def add(x: Any, y: Any) -> Any:
        return x + y

    x, y = torch.randn(2, 4), torch.randn(2, 4)
    with enable_apply(data_set(2)) as runtime, torch.no_grad():
        runtime.wait_until_built(60)
        if is_called_before:
            assert torch.equal(add(x, y), x + y + 1)
        graph = make_fx(add, tracing_mode="symbolic")(x, y)
        assert torch.equal(add(x, y), x + y + 1)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [torch.ops.aten.add.Tensor]
    assert not graph.shape_env.guards
    longer = torch.randn(7, 4)
    assert torch.equal(graph(longer, longer), 2 * longer)
