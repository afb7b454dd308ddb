"""Native guards and tables: they decide as compiled Python guards do, and leak nothing."""

import contextlib
import gc
import os
import resource
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from inspect import Parameter
from itertools import pairwise
from typing import Any

import attrs
import pytest
import torch
from apply_samples import data_set, new_solution, new_trace
from fib_apply import apply, enable_apply
from fib_apply.routing.call_variant import CallVariant
from fib_apply.routing.codegen import map_parameters
from fib_apply.routing.guards import GuardOptions, compile_python_guard, make_native_guard
from fib_apply.routing.native import module
from fib_apply.routing.validation import call_strides, has_nested
from fib_apply.runtime import ApplyRuntime, rebind_call_sites
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

H = 6
DEFINITION = Definition(
    "scores",
    "test",
    axes={"b": AxisVar(), "p": AxisVar(), "h": AxisConst(H)},
    inputs={
        "q": TensorSpec(("b", "h"), "float32"),
        "k": TensorSpec(("p", "h"), "float32"),
        "mask": TensorSpec(("b", "p"), "bool", optional=True),
        "scale": TensorSpec(None, "float32"),
    },
    outputs={"out": TensorSpec(("b", "p"), "float32")},
    reference="def run(q, k, mask, scale):\n    return q @ k.T\n",
)
VALID = (torch.zeros(2, H), torch.zeros(2, H), torch.zeros(2, 2, dtype=torch.bool), 0.5)
SOLUTION = "import torch\ndef run(q, k, mask, scale):\n    return torch.ones(q.shape[0], k.shape[0])\n"


class Marked(torch.Tensor):
    pass


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def unaligned(tensor):
    memory = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
    return memory[1:].view(tensor.shape)


def freed(tensor):
    other = tensor.clone()
    other.untyped_storage().resize_(0)
    return other


CHANGES = [
    lambda t: t,
    lambda t: t.clone(),
    lambda t: t.double(),
    lambda t: t.unsqueeze(0),
    lambda t: t[0],
    lambda t: torch.cat([t, t]),
    lambda t: t.T.contiguous().T,
    lambda t: torch.cat([t, t], -1)[:, ::2],
    lambda t: t[:1].expand(t.shape),
    lambda t: t.to("meta"),
    lambda t: t.to_sparse(),
    lambda t: t.to_sparse_csr(),
    lambda t: t.as_subclass(Marked),
    lambda t: torch.nn.Parameter(t, requires_grad=False),
    lambda t: torch.nn.Parameter(t.clone()),
    lambda t: t.clone().requires_grad_(),
    lambda t: t.clone().requires_grad_() * 1,
    torch._to_functional_tensor,
    lambda t: torch.nested.nested_tensor([t, t]),
    torch._neg_view,
    lambda t: torch._efficientzerotensor(t.shape),
    lambda t: t.numpy(),
    lambda t: t.tolist(),
    lambda t: t.new_zeros(0, H),
    unaligned,
    freed,
    lambda t: None,
    lambda t: 1.0,
    lambda t: "text",
]


@contextlib.contextmanager
def function_mode_below_a_default_device():
    with FunctionMode(), torch.device("cpu"):
        yield


@contextlib.contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


CONTEXTS = [
    nullcontext,
    nullcontext,
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu"),
    FunctionMode,
    DispatchMode,
    function_mode_below_a_default_device,
    lambda: torch.device("cpu"),
    lambda: default_dtype(torch.float64),
    lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    torch._C.DisableTorchFunction,
    torch._C.DisableTorchFunctionSubclass,
]


def new_data_set():
    solution = new_solution("constant", content=SOLUTION, definition="scores", passing=False)
    sizes = [{"b": b, "p": p} for b in (1, 2) for p in (1, 2)]
    traces = [new_trace("constant", axes=axes, inputs=DEFINITION.inputs, definition="scores") for axes in sizes]
    return data_set(*traces, solutions=[solution], definition=DEFINITION)


@attrs.frozen
class Routes:
    """Two routes of one definition: with Python guards and with native ones."""

    python: Callable[..., Any]
    native: Callable[..., Any]


@pytest.fixture(scope="module")
def routes(native_module):
    made = []
    names = (*DEFINITION.inputs, "out")
    defaults = {"out": None}
    parameters = [
        Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, default=defaults.get(n, Parameter.empty)) for n in names
    ]
    for loaded in (None, native_module):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module._state, "guards", loaded)
            runtime = ApplyRuntime(new_data_set())
            dispatcher = runtime.dispatcher("scores")
            mapped = map_parameters(DEFINITION, parameters)
            route = dispatcher.route("scores", mapped, lambda *args: "fallback")
            assert outcome(route, [*VALID, None]) == "fallback"  # it is being built
            assert runtime.wait_until_built(300)
            made.append(route)
    return Routes(*made)


def outcome(route, args):
    result = route(*args)
    return "fallback" if isinstance(result, str) else "solution"


@st.composite
def calls(draw):
    """Arguments of a call, valid or not, and the context of the call."""
    b, p = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    mask = torch.zeros(b, p, dtype=torch.bool) if draw(st.booleans()) else None
    out = torch.zeros(b, p) if draw(st.booleans()) else None
    args = [torch.zeros(b, H), torch.zeros(p, H), mask, 0.5, out]
    if draw(st.booleans()):
        place = draw(st.sampled_from([0, 1, 4]))
        change = draw(st.sampled_from(CHANGES))
        with contextlib.suppress(RuntimeError, TypeError, AttributeError, IndexError):
            args[place] = change(args[place])
    if draw(st.integers(0, 9)) == 0:
        args[3] = draw(st.sampled_from([1, True, None, "text", torch.zeros(())]))
    if draw(st.integers(0, 9)) == 0:
        args[1] = args[0]
    if draw(st.integers(0, 9)) == 0:
        args[4] = args[0]
    if isinstance(args[4], torch.Tensor) and not args[4].is_nested and args[4].layout is torch.strided:
        args[4] = None if args[4].numel() and not args[4].data_ptr() else args[4]  # freed, and would be written
    return args, draw(st.sampled_from(CONTEXTS))


@pytest.mark.filterwarnings("ignore")
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=80)
@given(sequence=st.lists(calls(), min_size=1, max_size=6))
def test_both_routes_decide_the_same(routes, sequence):
    """Each call is made three times: on the slow path, and through what it has cached, if anything."""
    for args, context in [*sequence, *sequence]:
        with context():
            found = [(outcome(routes.python, args), outcome(routes.native, args)) for _ in range(2)]
        assert all(python == native for python, native in found)


GUARD_OPTIONS = st.builds(
    GuardOptions,
    outputs=st.integers(0, 1),
    is_aligned=st.booleans(),
    has_grad=st.booleans(),
    compares_numbers=st.booleans(),
    ignores_sizes=st.booleans(),
).filter(lambda options: not (options.outputs and options.ignores_sizes))
INTEGERS = st.sampled_from([-16, -1, 0, 1, 2, 16, 17, 32, 2**31 - 1, 2**31, 2**62])


@pytest.mark.filterwarnings("ignore")
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=100)
@given(first=calls(), second=calls(), options=GUARD_OPTIONS, value=INTEGERS, other=INTEGERS)
def test_both_guards_decide_the_same(native_module, first, second, options, value, other):
    """A native guard rejects all that a Python guard rejects; it may be stricter where torch's state differs."""
    args, changed = [*first[0][:4], value], [*second[0][:4], other]
    if options.outputs:
        outputs = [torch.zeros(2, 2) if call[0][4] is None else call[0][4] for call in (first, second)]
        if any(outputs[0] is arg for arg in args):
            return  # it overlaps an input, and the validator rejects it
        args, changed = [*args, outputs[0]], [*changed, outputs[1]]
    native = make_native_guard(native_module, args, options)
    if native is None or not all(isinstance(args[place], torch.Tensor) for place in (0, 1)):
        return
    python = compile_python_guard(args, options)
    for tried in (args, changed):
        with second[1]():
            is_accepted = native(*tried)
            if any(isinstance(arg, torch.Tensor) and arg.is_nested for arg in tried):
                assert not is_accepted  # guards of torch would end the process
            elif is_accepted:
                assert python(*tried)
        if not any(isinstance(arg, torch.Tensor) and arg.is_nested for arg in tried):
            assert bool(native(*tried)) == bool(python(*tried))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_native", [False, True])
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
@given(sequence=st.lists(calls(), min_size=2, max_size=6))
def test_sizes_are_only_read_of_calls_that_the_validator_accepts(native_module, is_native, sequence):
    """The same holds after any valid call and in any mode."""
    for is_passing in (False, True):
        variant = CallVariant(DEFINITION, is_destination_passing=is_passing, is_cached=True)
        if is_native:
            variant.use_native_table(native_module)
        for found, context in sequence:
            args = found if is_passing else found[:4]
            if not is_native and has_nested(args):
                continue  # the resolver rejects it before
            with context():
                known, rejection = variant.known_call(args), variant.validator.rejection(args)
                if rejection is None:
                    variant.remember_call(args)
            if known is not None:
                assert rejection is None
                assert call_strides(DEFINITION, args) == {}
                assert known == (("b", args[0].shape[0]), ("p", args[1].shape[0]))


def with_tangent(q):
    return forward_ad.make_dual(q, torch.ones(2, H))


@pytest.mark.filterwarnings("ignore")  # of torch
@pytest.mark.parametrize(
    ("context", "change"),
    [(forward_ad.dual_level, with_tangent), (lambda: default_dtype(torch.bfloat16), lambda q: q)],
    ids=["tangent", "default dtype"],
)
def test_calls_with_tangents_or_another_default_dtype_are_rejected(routes, context, change):
    """A tensor that a solution makes without naming a dtype would have another one than in the benchmark."""
    args = [*VALID, None]
    for route in (routes.python, routes.native):
        assert [outcome(route, args) for _ in range(2)] == ["solution"] * 2
        with context():
            assert [outcome(route, [change(args[0]), *args[1:]]) for _ in range(2)] == ["fallback"] * 2
        assert outcome(route, args) == "solution"


def under_transforms(call, q):
    torch.vmap(call)(torch.zeros(3, 2, H))
    torch.func.jvp(call, (q,), (q,))
    torch.func.functionalize(call)(q)


@pytest.mark.filterwarnings("ignore")  # of torch
def test_tensors_without_memory_of_their_own_are_rejected():
    leaked = []

    def leak(tensor):
        leaked.append(tensor)
        return tensor * 1

    q = VALID[0]
    under_transforms(leak, q)
    validator = CallVariant(DEFINITION, is_destination_passing=False, is_cached=True).validator
    assert validator.rejection(VALID) is None
    for tensor in (*leaked, torch._efficientzerotensor((2, H)), q.to_mkldnn(), q.to_sparse()):
        rejection = validator.rejection((tensor, *VALID[1:]))
        assert "not a plain strided tensor" in str(rejection)


@pytest.mark.filterwarnings("ignore")
def test_transforms_and_tracers_are_rejected(routes):
    seen = []

    def call(q):
        seen.append([outcome(route, [q, *VALID[1:], None]) for route in (routes.python, routes.native)])
        return q + 1

    q = VALID[0]
    call(q)
    under_transforms(call, q)
    torch.jit.trace(call, (q,), check_trace=False)
    assert seen == [["solution"] * 2, *[["fallback"] * 2] * 4]


def guard_of(native, *args):
    return native.make_guard(args, 0, 1, False, False, False, False)


class TestTable:
    def test_entries_of_equal_sizes_are_all_found(self, native_module):
        table = native_module.Table()
        samples = [torch.zeros(4, dtype=dtype) for dtype in (torch.float32, torch.int32, torch.bool)]
        for index, sample in enumerate(samples):
            assert table.install((guard_of(native_module, sample), index, int))
        assert [table(sample) for sample in samples * 2] == [0, 1, 2] * 2
        assert table.find(samples[1])[1] == 1
        assert table.find(torch.zeros(5)) is None

    def test_the_number_of_entries_is_bounded(self, native_module):
        table = native_module.Table()
        for size in range(20_000):
            assert table.install((guard_of(native_module, torch.empty(size, device="meta")), size, int))
            assert len(table) <= 8192
        assert table(torch.empty(19_999, device="meta")) == 19_999
        assert table(torch.empty(0, device="meta")) is native_module.MISS

    def test_the_number_of_entries_of_equal_sizes_is_bounded(self, native_module):
        table, sample = native_module.Table(), torch.zeros(4)
        for index in range(100):
            table.install((guard_of(native_module, sample), index, int))
        assert len(table) == 16
        assert table(sample) in range(84, 100)

    def test_guards_of_another_kind_are_not_installed(self, native_module):
        table = native_module.Table()
        assert not table.install((lambda *_: True, None, int))
        for wrong in ((), (1, 2), [1, 2, 3], None):
            with pytest.raises(TypeError):
                table.install(wrong)
        assert len(table) == 0

    def test_a_cleared_table_frees_its_entries_and_may_be_changed_by_them(self, native_module):
        table = native_module.Table()

        class Kernel:
            def __del__(self):
                freed.append(len(table))
                table.install((guard_of(native_module, torch.zeros(2)), "new", int))

        freed = []
        for size in (3, 4, 5):
            table.install((guard_of(native_module, torch.zeros(size)), Kernel(), int))
        table(torch.zeros(5))
        table.clear()
        assert len(freed) == 3
        assert table(torch.zeros(2)) == "new"
        assert table(torch.zeros(5)) is native_module.MISS

    def test_a_table_may_be_cleared_while_it_asks_whether_a_graph_is_captured(self, native_module):
        table, sample = native_module.Table(), torch.zeros(3)
        answers = [True, False, ValueError("asked"), False]

        def is_capturing():
            answer = answers.pop(0)
            if not answers:
                table.clear()
                gc.collect()
            if isinstance(answer, Exception):
                raise answer
            return bool(answer)

        native_module.configure(DeviceContext, is_capturing)
        try:
            guard = native_module.make_guard((sample,), 0, 1, False, False, True, False)
            table.install((guard, "kernel", int))
            del guard
            assert table(sample) is native_module.MISS
            assert table(sample) == "kernel"
            with pytest.raises(ValueError, match="asked"):
                table(sample)
            assert table(sample) is native_module.MISS
        finally:
            native_module.configure(DeviceContext, torch.cuda.is_current_stream_capturing)

    def test_a_table_in_a_cycle_is_collected(self, native_module):
        class Kernel:
            pass

        table, kernel = native_module.Table(), Kernel()
        kernel.table = table
        table.install((guard_of(native_module, torch.zeros(1)), kernel, int))
        gone = weakref.ref(kernel)
        del table, kernel
        gc.collect()
        assert gone() is None


@pytest.fixture
def scores():
    @apply("scores")
    def scores(q, k, mask, scale, out=None):
        del k, mask, scale, out
        return "fallback" if q is not None else None

    return scores


@pytest.mark.usefixtures("native_guards")
class TestRoute:
    ARGS = VALID

    @pytest.mark.slow
    @pytest.mark.parametrize("stats", [False, True])
    def test_a_million_calls_leak_nothing(self, scores, stats):
        calls = int(os.environ.get("FIB_APPLY_LEAK_CALLS", "200000"))
        q, k, *others = self.ARGS
        unknown = torch.zeros(2, H, dtype=torch.float64)
        with enable_apply(new_data_set(), stats=stats) as runtime:
            for _ in range(2000):
                scores(q, k, *others), scores(unknown, k, *others)
            objects = [q, k, None, 0.5, unknown, scores(q, k, *others)]
            rounds = []
            for _ in range(5):
                gc.collect()  # garbage of other tests holds references to None, which a later collection would release
                pages = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 32 // 100  # KiB; 32 bytes a call count
                rounds.append([pages, sys.getallocatedblocks(), *map(sys.getrefcount, objects)])
                for _ in range(calls // 10):
                    scores(q, k, *others)
                    scores(unknown, k, *others)
            changes = [[abs(b - a) for a, b in zip(*pair, strict=True)] for pair in pairwise(rounds)]
            assert max(map(min, zip(*changes, strict=True))) < calls // 500  # a leak shows in every round
            if stats:
                assert runtime.stats()["scores"].calls == 2 * 2000 + 1 + calls // 10 * 10

    def test_threads_call_while_entries_come_and_go(self, scores):
        def call_of(b):
            return torch.zeros(b, H), self.ARGS[1], torch.zeros(b, 2, dtype=torch.bool), 0.5

        wrong = []
        ends = threading.Event()

        def call(b):
            args = call_of(b)
            while not ends.is_set():
                result = scores(*args)
                if isinstance(result, str) != (b == 3):
                    wrong.append(result)

        threads = [threading.Thread(target=call, args=(b,)) for b in (1, 2, 3, 1)]
        with enable_apply(new_data_set()) as runtime:
            for b in (1, 2):
                scores(*call_of(b))
            dispatcher = runtime.dispatcher("scores")
            for thread in threads:
                thread.start()
            for _ in range(300):
                for variant in dispatcher.slow_path.variants():
                    variant.invalidate()
            ends.set()
            for thread in threads:
                thread.join()
        assert wrong == []

    def test_a_route_with_python_guards_is_replaced_when_native_guards_are_ready(
        self, scores, native_module, monkeypatch
    ):
        monkeypatch.setattr(module._state, "guards", None)
        with enable_apply(new_data_set()) as runtime:
            assert [isinstance(scores(*self.ARGS), str) for _ in range(3)] == [False] * 3
            old = vars(scores)["__fib_call_site__"]._targets["_fib_route"]
            dispatcher = runtime.dispatcher("scores")
            variant = dispatcher.slow_path.variants()[0]
            python_table = variant.table
            assert not variant.is_native
            monkeypatch.setattr(module._state, "guards", native_module)
            rebind_call_sites()
            assert [isinstance(scores(*self.ARGS), str) for _ in range(3)] == [False] * 3
            assert len(variant.table) == 1
            assert python_table.find(*self.ARGS) is None
            assert not isinstance(old(*self.ARGS, None), str)  # calls that hold the old route
            dispatcher.quarantine("constant", "a test")
            assert old(*self.ARGS, None) == scores(*self.ARGS) == "fallback"
