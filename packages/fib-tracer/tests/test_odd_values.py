"""Tests with unusual values: stored values are those of the call, and no value makes the call fail."""

import math

import numpy as np
import pytest
import torch
from fib_apply import apply
from fib_schema import AxisConst, AxisVar, Definition, ScalarInput, TensorSpec, TraceSet
from fib_tracer import TracingConfig, enable_tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from .conftest import tensors, workloads

EVERYTHING = TracingConfig("dump_all")
ONES = torch.ones(2, 8)
NUMBERS = Definition(
    "numbers",
    "scale",
    axes={"M": AxisVar()},
    inputs={
        "x": TensorSpec(("M",), "float32"),
        "i": TensorSpec(None, "int32"),
        "s": TensorSpec(None, "float32"),
        "b": TensorSpec(None, "bool"),
    },
    outputs={"y": TensorSpec(("M",), "float32")},
    reference="def run(x, i, s, b):\n    return x\n",
)


class ModelWeightParameter(torch.nn.Parameter):
    """A parameter as vLLM makes them."""

    __module__ = "vllm.model_executor.parameter"


def dropped(runtime, name="silu_h8"):
    return dict(runtime.stats()[name].dropped)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 8, dtype=torch.complex64).conj().imag,
        torch.randn(8, 4).T,
        torch.randn(4, 16)[::2, 1::2],
        torch.empty(0, 8),
        torch.randn(2, 8, requires_grad=True),
        torch.nn.Parameter(torch.randn(2, 8)),
        ModelWeightParameter(torch.randn(2, 8), requires_grad=False),
        torch.full((1, 8), math.nan),
    ],
    ids=["negated", "transposed", "strided", "empty", "with gradient", "parameter", "of vLLM", "nan"],
)
def test_tensors_are_stored_with_the_values_of_the_call(root, silu, x):
    with enable_tracing(root, EVERYTHING):
        silu(x)
    (workload,) = workloads(root, "silu_h8")
    assert torch.equal(tensors(root, workload)["x"].nan_to_num(7.0), x.detach().nan_to_num(7.0))


def test_tensors_of_inference_and_autocast_are_stored(root, silu):
    with enable_tracing(root, EVERYTHING):
        with torch.inference_mode():
            silu(torch.full((1, 8), 2.0))
        with torch.autocast("cpu"):
            silu(torch.full((1, 8), 3.0))
        with torch.device("meta"):  # where new tensors are made by default
            silu(ONES)
    assert [float(tensors(root, w)["x"][0, 0]) for w in workloads(root, "silu_h8")] == [2.0, 3.0, 1.0]


class Subclass(torch.Tensor):
    """A tensor subclass."""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("config", [EVERYTHING, TracingConfig("dump_none")])
@pytest.mark.parametrize(
    "make",
    [
        lambda: ONES.to("meta"),
        ONES.to_sparse,
        lambda: torch._to_functional_tensor(ONES),
        lambda: torch.quantize_per_tensor(ONES, 0.1, 0, torch.quint8),
        lambda: ONES.as_subclass(Subclass),
        lambda: torch.nested.nested_tensor([ONES]),
        lambda: np.ones((2, 8), np.float32),
    ],
    ids=["meta", "sparse", "functional", "quantised", "subclass", "nested", "numpy"],
)
def test_tensors_without_plain_elements_are_counted_and_not_stored(root, config, make):
    odd = make()
    with enable_tracing(root, config) as runtime:
        assert apply("silu_h8")(lambda x: x)(odd) is odd
    assert sum(dropped(runtime).values()) == 1
    assert workloads(root, "silu_h8") == []


class Shapeless:
    """Raises when it is asked for its shape."""

    @property
    def shape(self):
        raise ValueError("none of anybody's business")


def test_errors_of_odd_objects_do_not_reach_the_engine(root):
    with enable_tracing(root, EVERYTHING) as runtime:
        assert isinstance(apply("silu_h8")(lambda x: x)(Shapeless()), Shapeless)
    assert dropped(runtime) == {"does not fit the definition": 1}


class Counting(TorchDispatchMode):
    """Sees every operation."""

    def __init__(self):
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def under_modes(function):
    torch.vmap(function)(torch.ones(3, 2, 8))
    torch.func.grad(lambda x: function(x).sum())(ONES)
    torch.func.functionalize(function)(ONES)
    torch.func.jvp(function, (ONES,), (ONES,))
    with FakeTensorMode():
        function(torch.ones(2, 8))
    graph = make_fx(function)(ONES)
    assert "clone" not in graph.code
    with Counting() as mode:
        function(ONES)
    assert mode.seen == ["aten.mul.Tensor"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_torch_modes_and_transforms_do_not_see_the_copies(root):
    """Calls under transforms and modes of torch are counted and not recorded."""
    with enable_tracing(root, EVERYTHING) as runtime:
        under_modes(apply("silu_h8")(lambda x: x * 2))
    assert dropped(runtime) == {"under a mode or a transform of torch": 7}
    assert workloads(root, "silu_h8") == []


@pytest.fixture
def numbers(root):
    """A routed function of a tensor, a whole number, a number and a truth."""
    TraceSet.from_path(root).add_definitions([NUMBERS])

    @apply("numbers")
    def numbers(x, i, s, b):
        return x

    return numbers


def recorded(root):
    found = [tuple(w.inputs[name] for name in "isb") for w in workloads(root, "numbers")]
    return [tuple(spec.value for spec in specs if isinstance(spec, ScalarInput)) for specs in found]


def test_equal_numbers_of_any_type_are_one_workload(root, numbers):
    x = torch.ones(3)
    with enable_tracing(root, EVERYTHING) as runtime:
        numbers(x, 1, 2.0, True)
        numbers(x, 1.0, 2, 1)
        numbers(x, True, np.float32(2), np.bool_(1))
        numbers(x, np.int64(1), np.float64(2), np.array(1))
        numbers(x, torch.tensor(1), torch.tensor([2], dtype=torch.int32), torch.tensor(1.0))
    assert recorded(root) == [(1, 2.0, True)]
    assert [type(value) for value in recorded(root)[0]] == [int, float, bool]
    assert (runtime.stats()["numbers"].stored, runtime.stats()["numbers"].equal) == (1, 4)


@pytest.mark.parametrize("s", [math.inf, -math.inf, -0.0, 1e308, 5e-324, 2**70])
def test_extreme_numbers_round_trip(root, numbers, s):
    with enable_tracing(root, EVERYTHING) as runtime:
        numbers(torch.ones(3), -(2**31), s, False)
    ((_, found, _),) = recorded(root)
    assert found == s
    assert str(found)[0] == str(s)[0]  # the sign of zero
    assert runtime.budget.reserved_bytes == 0


def test_an_unwritable_number_does_not_affect_others(root, numbers):
    with enable_tracing(root, EVERYTHING) as runtime:
        for s in (1.0, 10**400, 10**5000, 2.0):
            numbers(torch.ones(3), 1, s, False)
    assert [s for _, s, _ in recorded(root)] == [1.0, 2.0]
    assert dropped(runtime, "numbers") == {"errors": 2}
    assert runtime.budget.reserved_bytes == 0


@pytest.mark.parametrize("s", ["1", None, 1j, torch.tensor(1j), torch.ones(2), torch.ones((), device="meta"), [1.0]])
def test_other_values_than_numbers_are_counted_and_not_stored(root, numbers, s):
    with enable_tracing(root, TracingConfig("dump_none")) as runtime:
        numbers(torch.ones(3), 1, s, True)
    assert dropped(runtime, "numbers") == {"does not fit the definition": 1}
    assert runtime.budget.reserved_bytes == 0


def test_a_number_in_a_tensor_is_read_at_each_call(root, numbers):
    """The same tensor may have another value at the next call, so it is not part of the key."""
    s = torch.tensor(1.0)
    with enable_tracing(root, TracingConfig("dump_none")):
        for value in (1.0, 2.0, 1.0):
            s.fill_(value)
            numbers(torch.ones(3), 1, s, True)
    assert [s for _, s, _ in recorded(root)] == [1.0, 2.0]


def routed(root, inputs, axes):
    """A function of the inputs of a new definition."""
    names = ", ".join(inputs)
    outputs = {"y": TensorSpec(("C",), "float32")}
    definition = Definition("other", "other", {"C": AxisConst(2), **axes}, inputs, outputs, f"def run({names}): ...\n")
    TraceSet.from_path(root).add_definitions([definition])
    scope = {}
    exec(f"def function({names}): return 1", scope)
    return apply("other")(scope["function"])


@pytest.mark.parametrize("config", [EVERYTHING, TracingConfig("dump_none"), None])
@pytest.mark.parametrize(
    ("inputs", "axes", "calls", "kept"),
    [
        ({}, {}, [(), ()], 1),
        ({"s": TensorSpec(None, "float32")}, {}, [(1.0,), (1.0,), (2.0,)], 2),
        ({"x": TensorSpec((), "float32")}, {}, [(torch.ones(()),)], 1),
        ({"x": TensorSpec(("C",), "float32")}, {}, [(torch.ones(2),), (torch.ones(2),)], 1),
        ({"x": TensorSpec(("M",), "float32", optional=True)}, {}, [(None,), (torch.ones(0),)], None),
    ],
    ids=["no inputs", "no tensors", "no dimensions", "no variable axes", "nothing but an option"],
)
def test_definitions_of_every_form_are_traced(root, config, inputs, axes, calls, kept):
    if kept is None:
        axes, kept = {"M": AxisConst(0)}, 2
    function = routed(root, inputs, axes)
    with enable_tracing(root, config) as runtime:
        for arguments in calls:
            assert function(*arguments) == 1
    assert len(workloads(root, "other")) == kept
    assert [kind for kind in runtime.error_counts() if kind.startswith("other")] == []
