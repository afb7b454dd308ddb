from __future__ import annotations

import functools
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import torch
import torch._dynamo
from fib_apply.errors import CannotRoute
from fib_apply.routing import custom_operator, operator_schema
from fib_apply.routing.compile_shim import CompileShim, make_compile_shim
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec, format_json
from torch._dynamo.testing import CompileCounterWithBackend

GEMM = Definition(
    name="gemm-n4.k8",
    op_type="gemm",
    axes={"M": AxisVar(), "N": AxisConst(value=4), "K": AxisConst(value=8)},
    inputs={"A": TensorSpec(["M", "K"], "float32"), "B": TensorSpec(["N", "K"], "float32")},
    outputs={"C": TensorSpec(["M", "N"], "float32")},
    reference="def run(A, B):\n    return A @ B.T\n",
)
NORM = Definition(
    name="norm",
    op_type="norm",
    axes={"M": AxisVar(), "H": AxisVar()},
    inputs={
        "x": TensorSpec(["M", "H"], "float32"),
        "bias": TensorSpec(["H"], "float32", optional=True),
        "scale": TensorSpec(None, "float32"),
        "times": TensorSpec(None, "int32"),
        "negate": TensorSpec(None, "bool", optional=True),
    },
    outputs={"y": TensorSpec(["M", "H"], "float32"), "sums": TensorSpec(["M"], "float32")},
    reference="def run(x, bias, scale, times, negate):\n    return x, x.sum(1)\n",
)


def gemm(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return A @ B.T


def gemm_into(A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> None:
    C.copy_(A @ B.T)


def norm(
    scale: float, x: torch.Tensor, times: int = 2, *, negate: bool | None = None, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * scale * times + (0 if bias is None else bias)
    y = -y if negate else y
    return y, y.sum(1)


SHAPES = {
    gemm: ("A, B", "A, B"),
    gemm_into: ("A, B, C", "A, B, C"),
    norm: ("scale, x, times=2, *, negate=None, bias=None", "scale, x, times, negate=negate, bias=bias"),
}


@attrs.define
class Decorated:
    """A function with its wrapper, as the decorator makes them, and calls counted."""

    function: Callable[..., Any]
    namespace: dict[str, Any]
    routed: int = 0

    @property
    def wrapper(self) -> Any:
        return self.namespace["wrapper"]

    def shim(self, definition: Definition, **options: Any) -> CompileShim:
        return make_compile_shim(self.wrapper, definition, function=self.function, **options)

    def enable(self, shim: CompileShim) -> None:
        def dispatcher(*args: Any, **kwargs: Any) -> Any:
            self.routed += 1
            return self.function(*args, **kwargs)

        shim.attach(dispatcher)
        self.namespace["_route"] = dispatcher

    def disable(self) -> None:
        self.namespace["_route"] = self.function


def decorated(function: Callable[..., Any], shape: tuple[str, str] | None = None) -> Decorated:
    takes, passes = shape or SHAPES[function]
    namespace: dict[str, Any] = {"_route": function}
    exec(f"def wrapper({takes}):\n    return _route({passes})\n", namespace)
    return Decorated(function, namespace)


def enabled(function: Callable[..., Any], definition: Definition, shape: tuple[str, str] | None = None) -> Decorated:
    made = decorated(function, shape)
    made.enable(made.shim(definition))
    return made


class Graphs(CompileCounterWithBackend):
    """Counts compiled graphs and the operators of fib-apply in them."""

    @property
    def operators(self) -> list[str]:
        targets = [str(node.target) for node in self.graphs[-1].graph.nodes if node.op == "call_function"]
        return [target for target in targets if target.startswith(operator_schema.NAMESPACE)]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs() -> Graphs:
    return Graphs("aot_eager")


def compiled(function: Callable[..., Any], graphs: Graphs, **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend=graphs, fullgraph=True, **options)


def gemm_inputs(rows: int = 3, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 8, **options), torch.randn(4, 8)


class TestCalls:
    def test_a_call_is_one_operator(self, graphs: Graphs) -> None:
        made = enabled(gemm, GEMM)
        run = compiled(lambda A, B: made.wrapper(A, B) + 1, graphs)
        A, B = gemm_inputs()
        assert torch.equal(run(A, B), A @ B.T + 1)
        assert len(graphs.operators) == graphs.frame_count == made.routed == 1

    def test_the_decorated_function_itself_can_be_compiled(self, graphs: Graphs) -> None:
        made = enabled(gemm, GEMM)
        A, B = gemm_inputs()
        assert torch.equal(compiled(made.wrapper, graphs)(A, B), A @ B.T)
        assert len(graphs.operators) == made.routed == 1

    def test_a_destination_is_written(self, graphs: Graphs) -> None:
        made = enabled(gemm_into, GEMM)

        def run(A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
            made.wrapper(A, B, C=C)
            return C + 1

        A, B = gemm_inputs()
        C = torch.zeros(3, 4)
        assert torch.equal(compiled(run, graphs)(A, B, C), A @ B.T + 1)
        assert torch.equal(C, A @ B.T)
        assert len(graphs.operators) == made.routed == 1

    def test_two_outputs_scalars_and_options_in_another_order(self, graphs: Graphs) -> None:
        made = enabled(norm, NORM)
        x, bias = torch.randn(3, 5), torch.randn(5)
        calls = [
            lambda: made.wrapper(0.5, x),
            lambda: made.wrapper(x=x, scale=0.5, times=3, bias=bias),
            lambda: made.wrapper(0.5, x, 1, negate=True, bias=None),
            lambda: made.wrapper(0.5, x, negate=False, bias=bias),
        ]
        for call in calls:
            wanted, made.routed = call(), 0
            got = compiled(call, graphs)()
            assert type(got) is tuple
            torch.testing.assert_close(got, wanted)
            assert len(graphs.operators) == made.routed == 1

    def test_parameters_may_have_other_names(self, graphs: Graphs) -> None:
        def matmul(weight: torch.Tensor, /, x: torch.Tensor) -> torch.Tensor:
            return x @ weight.T

        made = decorated(matmul, ("weight, /, x", "weight, x"))
        made.enable(made.shim(GEMM, arguments={"A": "x", "B": "weight"}))
        A, B = gemm_inputs()
        assert torch.equal(compiled(made.wrapper, graphs)(B, x=A), A @ B.T)
        assert len(graphs.operators) == made.routed == 1

    @pytest.mark.parametrize("default", [None, 1, 1.5, "tanh", False, torch.float32])
    def test_extra_parameters_must_have_their_defaults(self, graphs: Graphs, default: object) -> None:
        def padded(A: torch.Tensor, B: torch.Tensor, extra: Any = default) -> torch.Tensor:
            return A @ B.T if extra is default or extra == default else A @ B.T + 1

        made = decorated(padded, ("A, B, extra=None", "A, B, extra"))
        made.wrapper.__defaults__ = (default,)
        made.enable(made.shim(GEMM))
        A, B = gemm_inputs()
        assert torch.equal(compiled(lambda: made.wrapper(A, B), graphs)(), A @ B.T)
        assert len(graphs.operators) == made.routed == 1
        assert torch.equal(compiled(lambda: made.wrapper(A, B, "other"), graphs)(), A @ B.T + 1)
        assert graphs.operators == []

    def test_two_functions_of_one_definition_have_two_operators(self, graphs: Graphs) -> None:
        one, other = enabled(gemm, GEMM), enabled(gemm, GEMM)
        A, B = gemm_inputs()
        compiled(lambda: one.wrapper(A, B) + other.wrapper(A, B), graphs)()
        assert len(set(graphs.operators)) == 2
        assert (one.routed, other.routed) == (1, 1)

    def test_eager_calls_never_execute_the_shim(self) -> None:
        made = enabled(gemm, GEMM)
        shim = made.shim(GEMM)
        operators = len(custom_operator._registered)
        made.wrapper(*gemm_inputs())
        assert (made.routed, len(custom_operator._registered)) == (1, operators)
        assert shim.traced is made.namespace["_route"]._torchdynamo_inline


class TestDynamicShapes:
    def test_one_graph_serves_all_batch_sizes(self, graphs: Graphs) -> None:
        made = enabled(gemm, GEMM)
        run = compiled(lambda A, B: made.wrapper(A, B).relu(), graphs, dynamic=True)
        for rows in (3, 5, 64):
            A, B = gemm_inputs(rows)
            assert torch.equal(run(A, B), (A @ B.T).relu())
        assert (graphs.frame_count, made.routed) == (1, 3)

    def test_a_dimension_can_be_marked(self, graphs: Graphs) -> None:
        made = enabled(gemm, GEMM)
        run = compiled(lambda A, B: made.wrapper(A, B) + 1, graphs)
        for rows in (3, 5):
            A, B = gemm_inputs(rows)
            torch._dynamo.mark_dynamic(A, 0)
            assert run(A, B).shape == (rows, 4)
        assert graphs.frame_count == 1

    def test_shared_axes_and_integers_stay_symbols(self, graphs: Graphs) -> None:
        made = enabled(norm, NORM)
        run = compiled(lambda x, b, n: made.wrapper(0.5, x, n, bias=b)[0] + 1, graphs, dynamic=True)
        for rows, columns, times in ((3, 5, 2), (7, 6, 3), (4, 9, 5)):
            x, bias = torch.randn(rows, columns), torch.randn(columns)
            torch.testing.assert_close(run(x, bias, times), norm(0.5, x, times, bias=bias)[0] + 1)
        assert (graphs.frame_count, made.routed) == (1, 3)


class TestEnabling:
    def test_enabling_after_tracing_takes_effect_at_the_next_call(self, graphs: Graphs) -> None:
        made = decorated(gemm)
        run = compiled(made.wrapper, graphs)
        inputs = gemm_inputs()
        run(*inputs)
        assert graphs.operators == []
        made.enable(made.shim(GEMM))
        run(*inputs)
        assert len(graphs.operators) == made.routed == 1

    def test_disabling_goes_back_to_the_function(self, graphs: Graphs) -> None:
        made = enabled(gemm, GEMM)
        run = compiled(made.wrapper, graphs)
        inputs = gemm_inputs()
        run(*inputs)
        made.disable()
        run(*inputs)
        assert graphs.operators == []
        assert made.routed == 1

    def test_enabling_again_and_new_dispatchers_reuse_the_graphs(self, graphs: Graphs) -> None:
        made = decorated(gemm)
        run = compiled(made.wrapper, graphs)
        inputs = gemm_inputs()
        operators = len(custom_operator._registered)
        for _ in range(20):
            made.enable(made.shim(GEMM))
            run(*inputs)
            made.disable()
            run(*inputs)
        assert (graphs.frame_count, made.routed) == (2, 20)
        assert len(custom_operator._registered) == operators + 1

    def test_a_graph_that_outlives_the_runtime_calls_the_function(self, graphs: Graphs) -> None:
        made = enabled(gemm, GEMM)
        A, B = gemm_inputs()
        compiled(made.wrapper, graphs)(A, B)
        graph = graphs.graphs[-1]
        made.disable()
        assert torch.equal(graph(A, B)[0], A @ B.T)
        assert made.routed == 1

    def test_a_wrapper_of_the_wrapper_has_another_operator(self) -> None:
        made = decorated(gemm)
        first = made.shim(GEMM)

        @functools.wraps(made.wrapper)
        def outer(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
            return made.wrapper(A, B) * 1

        assert make_compile_shim(outer, GEMM, function=gemm).operator != first.operator

    def test_the_same_definition_has_the_same_shim(self) -> None:
        made = decorated(gemm)
        first = made.shim(GEMM)
        assert made.shim(Definition(**{f.name: getattr(GEMM, f.name) for f in attrs.fields(Definition)})) is first
        other = attrs.evolve(GEMM, axes={**GEMM.axes, "N": AxisConst(value=5)})
        assert made.shim(other).operator != first.operator


class TestMismatchingCalls:
    @pytest.mark.parametrize(
        ("A", "B"),
        [
            (torch.randn(2, 3, 8), torch.randn(4, 8)),
            (torch.randn(3, 8), torch.randn(5, 8)),
            (torch.randn(3, 8, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)),
        ],
        ids=["rank", "constant axis", "dtype"],
    )
    def test_are_traced_into_the_function(self, graphs: Graphs, A: torch.Tensor, B: torch.Tensor) -> None:
        made = enabled(gemm, GEMM)
        torch.testing.assert_close(compiled(made.wrapper, graphs)(A, B), A @ B.T)
        assert graphs.operators == []
        assert made.routed == 0

    @pytest.mark.parametrize(
        ("scale", "bias"), [(2, None), (True, None), (0.5, torch.randn(1)), (torch.tensor(0.5), None)]
    )
    def test_scalars_of_another_type_and_shared_axes_that_differ(
        self, graphs: Graphs, scale: Any, bias: torch.Tensor | None
    ) -> None:
        made = enabled(norm, NORM)
        x = torch.randn(3, 5)
        got = compiled(lambda: made.wrapper(scale, x, bias=bias), graphs)()
        torch.testing.assert_close(got, norm(scale, x, bias=bias))
        assert graphs.operators == []

    def test_tensor_subclasses(self, graphs: Graphs) -> None:
        made = enabled(gemm, GEMM)
        parameter = torch.nn.Parameter(torch.randn(4, 8), requires_grad=False)
        compiled(made.wrapper, graphs)(gemm_inputs()[0], parameter)
        assert len(graphs.operators) == 1

    def test_autocast(self, graphs: Graphs) -> None:
        made = enabled(gemm, GEMM)
        run = compiled(made.wrapper, graphs)
        inputs = gemm_inputs()
        with torch.autocast("cpu", torch.bfloat16):
            assert run(*inputs).dtype is torch.bfloat16
        assert graphs.operators == []
        assert run(*inputs).dtype is torch.float32
        assert len(graphs.operators) == made.routed == 1

    def test_an_axis_of_an_optional_input_alone(self, graphs: Graphs) -> None:
        def pad(x: torch.Tensor, extra: torch.Tensor | None = None) -> torch.Tensor:
            return x if extra is None else extra.clone()

        x_or_e = Definition(
            "pad",
            "pad",
            axes={"M": AxisVar(), "E": AxisVar()},
            inputs={"x": TensorSpec(["M"], "float32"), "extra": TensorSpec(["E"], "float32", optional=True)},
            outputs={"y": TensorSpec(["E"], "float32")},
            reference="def run(x, extra):\n    return extra\n",
        )
        made = enabled(pad, x_or_e, ("x, extra=None", "x, extra"))
        run = compiled(made.wrapper, graphs)
        assert torch.equal(run(torch.ones(3), torch.zeros(4)), torch.zeros(4))
        assert len(graphs.operators) == 1
        assert torch.equal(run(torch.ones(3), None), torch.ones(3))
        assert graphs.operators == []


class TestGradients:
    def test_are_those_of_the_function(self, graphs: Graphs) -> None:
        made = enabled(gemm, GEMM)
        A, B = gemm_inputs(requires_grad=True)
        compiled(lambda A, B: made.wrapper(A, B).sum(), graphs)(A, B).backward()
        assert torch.equal(A.grad, B.sum(0).expand(3, 8))
        assert graphs.operators == []

    def test_reach_an_argument_that_is_a_result(self, graphs: Graphs) -> None:
        made = enabled(gemm, GEMM)
        A, B = gemm_inputs()
        weight = torch.ones(8, requires_grad=True)
        compiled(lambda A, B, w: made.wrapper(A * w, B).sum(), graphs)(A, B, weight).backward()
        torch.testing.assert_close(weight.grad, (A.sum(0) * B.sum(0)))

    def test_are_not_asked_for_without_grad_mode(self, graphs: Graphs) -> None:
        made = enabled(gemm, GEMM)
        run = compiled(made.wrapper, graphs)
        inputs = gemm_inputs(requires_grad=True)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert not run(*inputs).requires_grad
            assert len(graphs.operators) == 1
        assert run(*inputs).requires_grad
        assert graphs.operators == []


class TestResults:
    @pytest.mark.parametrize(
        "function",
        [lambda A: A, lambda A: A[:], lambda A: A.T.contiguous().T, lambda A: (A + 0,)],
        ids=["input", "view", "strides", "tuple"],
    )
    def test_are_made_contiguous_and_unaliased(self, graphs: Graphs, function: Callable[..., Any]) -> None:
        same = attrs.evolve(
            GEMM,
            axes={"M": AxisVar(), "K": AxisVar()},
            inputs={"A": GEMM.inputs["A"]},
            outputs={"C": TensorSpec(["M", "K"], "float32")},
        )
        made = enabled(function, same, ("A", "A"))
        A = torch.randn(3, 8)
        got = compiled(made.wrapper, graphs)(A)
        assert torch.equal(got, A)
        assert got.is_contiguous()
        assert got.untyped_storage().data_ptr() != A.untyped_storage().data_ptr()
        assert made.routed == 1

    def test_do_not_share_memory_with_each_other(self, graphs: Graphs) -> None:
        def halves(A: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple((A * 2).unbind(0)) if A.shape[0] == 2 else (A, A)

        axes = {"K": AxisVar(), "two": AxisConst(value=2)}
        row = TensorSpec(["K"], "float32")
        two = attrs.evolve(
            GEMM, axes=axes, inputs={"A": TensorSpec(["two", "K"], "float32")}, outputs={"C": row, "D": row}
        )
        made = enabled(halves, two, ("A", "A"))
        one, other = compiled(made.wrapper, graphs)(torch.ones(2, 3))
        assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()

    def test_other_than_those_of_the_definition_are_an_error(self, graphs: Graphs) -> None:
        made = enabled(lambda A, B: (A @ B.T).double(), GEMM, ("A, B", "A, B"))
        with pytest.raises(CannotRoute, match=r"must return torch.float32 \[3, 4\] on cpu, got torch.float64 \[3, 4\]"):
            compiled(made.wrapper, graphs)(*gemm_inputs())


class TestWithoutOperator:
    @pytest.mark.parametrize(
        ("function", "change", "reason"),
        [
            (lambda A: A, {}, "the function has no parameter for 'B'"),
            (lambda A, B, size: A, {}, "parameter 'size' is not in the definition and has no default"),
            (lambda A, B, *rest: A, {}, "the function has a variadic parameter: *rest"),
            (lambda A, extra=1, B=None, /: A, {}, "a positional-only parameter is not in the definition"),
            (
                gemm,
                {"axes": {**GEMM.axes, "X": AxisVar()}, "outputs": {"C": TensorSpec(["M", "X"], "float32")}},
                "no input has axis 'X'",
            ),
            (gemm, {"outputs": {"C": TensorSpec(None, "float32")}}, "outputs must be tensors"),
            (
                gemm,
                {"outputs": {"C": TensorSpec(["M"], "float4_e2m1")}},
                "elements of 'C' are packed, so that its shape differs from the definition",
            ),
            (
                gemm,
                {"inputs": {"A": TensorSpec(None, "float32"), "B": TensorSpec(["K"], "float32", optional=True)}},
                "no required input is a tensor",
            ),
        ],
    )
    def test_the_reason_is_stated(self, function: Callable[..., Any], change: dict[str, Any], reason: str) -> None:
        definition = attrs.evolve(GEMM, **change)
        assert make_compile_shim(gemm, definition, function=function) == CompileShim(function, None, reason)

    def test_calls_are_traced_into_the_function(self, graphs: Graphs) -> None:
        axes = {**GEMM.axes, "X": AxisVar()}
        made = enabled(gemm, attrs.evolve(GEMM, axes=axes, outputs={"C": TensorSpec(["M", "X"], "float32")}))
        A, B = gemm_inputs()
        assert torch.equal(compiled(made.wrapper, graphs)(A, B), A @ B.T)
        assert graphs.operators == []
        assert made.routed == 0

    def test_a_destination_needs_no_axis_of_an_input(self) -> None:
        axes = {**GEMM.axes, "X": AxisVar()}
        definition = attrs.evolve(GEMM, axes=axes, outputs={"C": TensorSpec(["M", "X"], "float32")})
        assert make_compile_shim(decorated(gemm_into).wrapper, definition, function=gemm_into).operator


class TestOperator:
    def test_overwriting_an_output_increments_its_version(self) -> None:
        """Autograd must notice that a saved tensor was overwritten."""
        made = enabled(gemm_into, GEMM)
        A, B = gemm_inputs()
        C = torch.zeros(A.shape[0], B.shape[0])
        shim = made.shim(GEMM)
        shim.traced(A, B, C)
        before = C._version
        getattr(torch.ops.fib_apply, str(shim.operator).rpartition("::")[2]).default(A, B, C)
        assert C._version > before
        assert torch.equal(C, A @ B.T)

    def test_an_uncompiled_operator_is_garbage_collected(self) -> None:
        made = enabled(gemm, GEMM)
        wrapper = weakref.ref(made.wrapper)
        del made
        gc.collect()
        assert wrapper() is None

    @pytest.mark.parametrize("name", ["gemm", "0", "__x", "a-b.c", "größe", "class", "x" * 200])
    def test_names_are_identifiers_whatever_the_definition_is_called(self, name: str) -> None:
        made = decorated(gemm)
        operator = made.shim(attrs.evolve(GEMM, name=name)).operator
        assert operator is not None
        assert operator.isascii()
        assert operator.isidentifier()
        assert not operator.startswith("_")

    def test_names_do_not_collide(self) -> None:
        made = decorated(gemm)
        names = [made.shim(attrs.evolve(GEMM, name=name)).operator for name in ("a.b", "a-b", "a_b")]
        assert len(set(names)) == 3

    def test_passes_torch_library_opcheck(self, graphs: Graphs) -> None:
        """Schema, fake tensors, dynamic shapes."""
        A, B = gemm_inputs()
        x, bias = torch.randn(3, 5), torch.randn(5)
        cases = [
            (enabled(gemm, GEMM), (A, B), (A, B)),
            (enabled(gemm_into, GEMM), (A, B, torch.zeros(3, 4)), (A, B, torch.zeros(3, 4))),
            (enabled(norm, NORM), (0.5, x), (x, bias, 0.5, 2, None)),
        ]
        for made, args, operands in cases:
            compiled(made.wrapper, graphs)(*args)
            operator = getattr(torch.ops.fib_apply, graphs.operators[0].split(".")[1])
            torch.library.opcheck(operator.default, operands)

    def test_exports(self) -> None:
        made = enabled(gemm, GEMM)

        class Model(torch.nn.Module):
            def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
                return made.wrapper(A, B) + 1

        exported = torch.export.export(Model(), gemm_inputs(), strict=True)
        assert "fib_apply" in str(exported.graph)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::DeprecationWarning:copyreg")
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_inductor_calls_it(self, dynamic: bool) -> None:
        value, into = enabled(gemm, GEMM), enabled(gemm_into, GEMM)

        def run(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
            C = torch.empty(A.shape[0], 4)
            into.wrapper(A + 1, B, C)
            return value.wrapper(A, B).relu() + C

        A, B = gemm_inputs()
        got = torch.compile(run, fullgraph=True, dynamic=dynamic)(A, B)
        torch.testing.assert_close(got, (A @ B.T).relu() + (A + 1) @ B.T)
        assert (value.routed, into.routed) == (1, 1)


def test_functions_are_marked_as_torch_does_it() -> None:
    def constant() -> bool:
        return True

    traced = make_compile_shim(decorated(gemm).wrapper, GEMM, function=gemm).traced
    assert (
        vars(torch.compiler.assume_constant_result(constant)).items()
        <= vars(traced.__globals__["_fib_register"]).items()
    )


def test_a_routed_process_does_not_import_dynamo() -> None:
    """It takes seconds, in which an engine's requests would stall."""
    program = (
        "import sys, torch, fib_apply\nfrom fib_schema import parse_json, Definition\n"
        "from fib_apply.routing.compile_shim import make_compile_shim\n"
        "def gemm(A, B): return A @ B.T\n"
        "before = 'torch._dynamo' in sys.modules\n"
        "make_compile_shim(gemm, parse_json(sys.stdin.read(), Definition), function=gemm)\n"
        "assert before or 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], input=format_json(GEMM), text=True, check=True, timeout=120)
