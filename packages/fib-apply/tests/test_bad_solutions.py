"""Solutions that passed elsewhere and go wrong in an engine: the caller gets the function's result."""

import math
import sys
import types
import uuid

import apply_samples as samples
import attrs
import pytest
import torch
from apply_samples import SCALE, data_set, new_solution, new_trace, scale, write_set
from fib_apply import ApplyConfig, apply, capture_phase, enable_apply
from fib_apply.routing.slow_path import SlowPath
from fib_schema import AxisVar, ScalarInput, TensorSpec

pytestmark = pytest.mark.usefixtures("without_probes")

FALLBACK = ApplyConfig(on_error="fallback")


def set_of(content):
    return samples.set_of(f"import torch\n{content}", passing=False)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("(2 * x)[:1]", "y has torch.float32 [1, 4] on cpu instead of torch.float32 [2, 4]"),
        ("(2 * x).double()", "y has torch.float64"),
        ("torch.empty_like(x, device='meta')", "on meta instead of"),
        ("'text'", "y is a str"),
        ("(2 * x).to_sparse()", "y is a Tensor of another kind"),
        ("torch._neg_view(-2 * x)", "y is a Tensor of another kind"),
        ("(x, x)", ""),
        ("None", ""),
        ("()", ""),
        ("{'y': None}", ""),
    ],
)
def test_a_first_result_that_does_not_fit_the_definition_is_an_error(expression, said):
    x = torch.ones(2, 4)
    with enable_apply(set_of(f"def run(x):\n    return {expression}\n"), FALLBACK) as runtime:
        assert torch.equal(scale(x), 2 * x)
        assert said in runtime.left_out()["fast"]
    with enable_apply(set_of(f"def run(x):\n    return {expression}\n")), pytest.raises((TypeError, ValueError)):
        scale(x)


def test_an_axis_of_outputs_alone_is_not_compared():
    definition = attrs.evolve(
        SCALE,
        axes={**SCALE.axes, "K": AxisVar()},
        outputs={"y": TensorSpec(["K", "N"], "float32")},
        constraints=["K == M - 1"],
    )
    solution = new_solution("fast", content="def run(x):\n    return 3 * x[1:]\n", passing=False)
    trace = new_trace("fast", axes={"M": 2, "K": 1})

    @apply("scale")
    def scale(x):
        return 2 * x[1:]

    config = ApplyConfig(on_miss_policy="use_def_best")
    with enable_apply(data_set(trace, solutions=[solution], definition=definition), config) as runtime:
        assert torch.equal(scale(torch.ones(2, 4)), torch.full((1, 4), 3.0))
        assert runtime.left_out() == {}


@pytest.mark.parametrize("shadow_ratio", [0.0, 1.0])
@pytest.mark.parametrize(
    "line",
    ["return x.mul_(2)", "x.numpy()[:] *= 2; return x", "x.mul_(2); return 'text'", "x.mul_(2); raise ValueError"],
)
def test_what_a_solution_writes_to_its_inputs_is_undone(line, shadow_ratio):
    source = f"def run(x):\n    {line}\n"
    with enable_apply(set_of(source), ApplyConfig(on_error="fallback", shadow_ratio=shadow_ratio)) as runtime:
        for _ in range(2):
            x = torch.tensor([[1.0, 2.0, 3.0, math.nan]] * 2)
            assert torch.equal(scale(x)[:, :3], torch.tensor([[2.0, 4.0, 6.0]] * 2))
            assert torch.equal(x[:, :3], torch.tensor([[1.0, 2.0, 3.0]] * 2))
        assert "fast" in runtime.left_out()


@pytest.mark.parametrize("on_error", ["raise", "fallback"])
@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("(2 * x).t().contiguous().t()", "not contiguous"),
        ("(2 * x).requires_grad_()", "with a gradient"),
        ("torch.nn.Parameter(2 * x)", "of a subclass"),
        ("in_inference_mode(x)", "of inference mode"),
        ("buffer.copy_(2 * x)", "memory that it keeps"),
        ("buffer.copy_(2 * x)[:]", "memory that it keeps"),
        ("x.mul_(2).mul_(0.5).mul_(2)", "writes to its inputs"),
        ("x[:]", "memory that it keeps, or that of an input"),
    ],
)
def test_results_in_another_form_are_copied_and_the_solution_left_out(expression, said, on_error):
    helpers = "buffer = torch.empty(2, 4)\n@torch.inference_mode()\ndef in_inference_mode(x):\n    return 2 * x\n"
    with enable_apply(
        set_of(f"{helpers}def run(x):\n    return {expression}\n"), ApplyConfig(on_error=on_error)
    ) as runtime:
        inputs = [torch.zeros(2, 4) if expression == "x[:]" else torch.full((2, 4), 1.0 + i) for i in range(3)]
        results = [scale(x) for x in inputs]
        for x, result in zip(inputs, results, strict=True):
            assert torch.equal(result, 2 * x)
            assert (type(result), result.stride(), result.requires_grad) == (torch.Tensor, (4, 1), False)
            assert not result.is_inference()
            assert result.data_ptr() != x.data_ptr()
        assert said in runtime.left_out()["fast"]


@pytest.mark.parametrize(
    "line",
    [
        "return (2 * x).double()",
        "return (2 * x)[:1]",
        "return 'text'",
        "return x.mul_(2)",
        "return buffer.copy_(2 * x)",
    ],
)
def test_the_first_run_of_a_plan_is_watched(line):
    helpers = "buffer = torch.empty(2, 4)\ndef setup(x):\n    return {}\n"
    with enable_apply(set_of(f"{helpers}def run(x):\n    {line}\n"), FALLBACK) as runtime:
        plan = runtime.plan("scale", torch.ones(2, 4), fallback=lambda x: 2 * x)
        for factor in (1.0, 3.0):
            x = torch.full((2, 4), factor)
            assert torch.equal(plan(x), torch.full((2, 4), 2 * factor))
            assert torch.equal(x, torch.full((2, 4), factor))
        assert "fast" in runtime.left_out()


def test_runs_of_a_sound_plan_are_watched_once(monkeypatch):
    watched = []
    monkeypatch.setattr(SlowPath, "run_watched", lambda self, *call: watched.append(call) or (call[1](*call[2]), True))
    with enable_apply(set_of("def setup(x):\n    return {}\ndef run(x):\n    return 3 * x\n")) as runtime:
        for _ in range(2):
            plan = runtime.plan("scale", torch.ones(2, 4), fallback=lambda x: 2 * x)
            assert [float(plan(torch.ones(2, 4))[0, 0]) for _ in range(2)] == [3.0, 3.0]
    assert len(watched) == 1


@pytest.mark.parametrize("line", ["return 2 * x", "return (2 * x).view(8).view(2, 4)", "return (2 * x,)"])
def test_results_that_nobody_keeps_leave_no_solution_out(line):
    with enable_apply(set_of(f"def run(x):\n    {line}\n")) as runtime:
        x = torch.ones(2, 4)
        assert all(torch.equal(scale(x), 2 * x) for _ in range(3))
        assert runtime.left_out() == {}


def test_an_exception_without_a_text_leaves_its_solution_out():
    source = "class Odd(Exception):\n    __str__ = None\ndef run(x):\n    raise Odd\n"
    with enable_apply(set_of(source), FALLBACK) as runtime:
        assert torch.equal(scale(torch.ones(2, 4)), torch.full((2, 4), 2.0))
        assert runtime.left_out() == {"fast": "it raised Odd"}


NUMBERS = [(2.0,), (3.0,), (0.0,), (-2.0,), (math.inf,), (math.nan,), (1e30,), (2.0000001,), (2,)]


@pytest.mark.usefixtures("guards")
@pytest.mark.parametrize(
    ("stated", "extra", "config", "served"),
    [
        (2.0, None, {}, {2.0, 2.0000001}),
        (2, None, {}, {2.0, 2.0000001}),
        (2.0, None, {"on_miss_policy": "use_def_best"}, {2.0, 2.0000001}),
        (2.0, {"other_scalars": {"factor": 1.25}}, {}, {number for (number,) in NUMBERS[:-1]}),
    ],
)
def test_numbers_that_no_trace_covers_are_left_to_the_function(stated, extra, config, served):
    """The benchmark states in a trace which numbers it has changed in a call."""
    definition = attrs.evolve(SCALE, inputs={**SCALE.inputs, "factor": TensorSpec(None, "float32")})
    trace = new_trace("fast", m=1 if config else 2, extra=extra)
    inputs = {**trace.workload.inputs, "factor": ScalarInput(stated)}
    trace = attrs.evolve(trace, workload=attrs.evolve(trace.workload, inputs=inputs))
    solution = new_solution("fast", content="def run(x, factor):\n    return x * 5\n", passing=False)
    scale = apply("scale")(lambda x, factor: x * factor)
    x = torch.ones(2, 4)
    with enable_apply(data_set(trace, solutions=[solution], definition=definition), ApplyConfig(**config)):
        for _ in range(3):
            for (number,) in NUMBERS:
                expected = 5.0 if type(number) is float and number in served else x[0, 0] * number
                assert torch.equal(scale(x, number)[0].nan_to_num(), (x[0] * expected).nan_to_num())


@pytest.mark.usefixtures("guards")
@pytest.mark.parametrize("is_recorded", [True, False])
def test_an_input_must_be_absent_where_it_is_in_the_trace(is_recorded):
    definition = attrs.evolve(SCALE, inputs={**SCALE.inputs, "bias": TensorSpec(["N"], "float32", optional=True)})
    solution = new_solution("fast", content="def run(x, bias=None):\n    return 3 * x\n", passing=False)
    inputs = ("x", "bias") if is_recorded else ("x",)
    found = data_set(new_trace("fast", m=1, inputs=inputs), solutions=[solution], definition=definition)
    scale = apply("scale")(lambda x, bias=None: 2 * x)
    x, bias = torch.ones(2, 4), torch.ones(4)
    with enable_apply(found, ApplyConfig(on_miss_policy="use_def_best")):
        served = [float(scale(x, given)[0, 0]) == 3.0 for given in (bias, None) * 3]
        assert served == [is_recorded, not is_recorded] * 3


@pytest.mark.parametrize("on_error", ["raise", "fallback"])
def test_a_solution_that_calls_the_function_it_replaces_is_left_out(on_error, monkeypatch):
    engine = types.ModuleType("engine_of_a_test")
    engine.scale = scale
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    source = f"import {engine.__name__} as engine\ndef run(x):\n    return engine.scale(x)\n"
    x = torch.ones(2, 4)
    with enable_apply(set_of(source), ApplyConfig(on_error=on_error)) as runtime:
        assert torch.equal(scale(x), 2 * x)
        assert torch.equal(scale(x), 2 * x)
        assert runtime.left_out() == {"fast": "it calls the function that it replaces"}


def test_a_lack_of_memory_for_a_moment_leaves_no_solution_out():
    source = (
        "calls = []\ndef run(x):\n    calls.append(1)\n    if len(calls) == 2:\n"
        "        raise torch.OutOfMemoryError('CUDA out of memory')\n    return 2 * x\n"
    )
    x = torch.ones(2, 4)
    with enable_apply(set_of(source), FALLBACK, stats=True) as runtime:
        assert all(torch.equal(scale(x), 2 * x) for _ in range(4))
        assert (runtime.left_out(), runtime.stats()["scale"].errors) == ({}, {"fast": 1})


def test_an_error_that_the_function_raises_too_leaves_no_solution_out():
    @apply("scale")
    def scale(x):
        raise OverflowError("int too big")

    with enable_apply(set_of("def run(x):\n    raise OverflowError('int too big')\n"), FALLBACK) as runtime:
        with pytest.raises(OverflowError):
            scale(torch.ones(2, 4))
        assert runtime.left_out() == {}


def test_a_file_that_was_missing_is_found_when_the_set_is_loaded_again(tmp_path):
    solution = new_solution("fast", content=f"# {uuid.uuid4()}\ndef run(x):\n    return 3 * x\n", passing=False)
    write_set(tmp_path / "set", new_trace("fast", m=2), solutions=[solution])
    (file,) = (tmp_path / "set").rglob("fast.json")
    text, x = file.read_text(), torch.ones(2, 4)
    with enable_apply(tmp_path / "set", ApplyConfig(aot_ratio=0.0)) as runtime:
        file.unlink()
        assert torch.equal(scale(x), 2 * x)
        assert "cannot be read" in runtime.left_out()["fast"]
        file.write_text(text)
        runtime.reload()
        scale(x)
        assert runtime.wait_until_built(math.inf)
        assert torch.equal(scale(x), 3 * x)


@pytest.mark.parametrize("seconds", [math.inf, 1e12])
def test_a_wait_may_be_endless(seconds):
    with enable_apply(set_of("def run(x):\n    return 2 * x\n"), ApplyConfig(aot_ratio=0.0)) as runtime:
        with capture_phase(seconds):
            scale(torch.ones(2, 4))
        assert runtime.wait_until_built(seconds)
