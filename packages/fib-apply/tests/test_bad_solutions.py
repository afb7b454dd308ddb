"""Solutions that passed elsewhere and go wrong in an engine: the caller gets the function's result."""

from __future__ import annotations

import math
import sys
import types
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from apply_samples import SCALE, data_set, new_solution, new_trace, write_set
from fib_apply import ApplyConfig, apply, capture_phase, enable_apply
from fib_schema import AxisVar, TensorSpec, TraceSet

pytestmark = pytest.mark.usefixtures("without_probes")

FALLBACK = ApplyConfig(on_error="fallback")
Function = Callable[..., Any]


@pytest.fixture(name="scale")
def scale_fixture() -> Function:
    @apply("scale")
    def scale(x: Any) -> Any:
        return 2 * x

    return scale


def set_of(content: str) -> TraceSet:
    text = f"import torch\n{content}"
    return data_set(new_trace("fast", m=2), solutions=[new_solution("fast", content=text, passing=False)])


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("(2 * x)[:1]", "y has torch.float32 [1, 4] on cpu instead of torch.float32 [2, 4]"),
        ("(2 * x).double()", "y has torch.float64"),
        ("torch.empty_like(x, device='meta')", "on meta instead of"),
        ("'text'", "y is a str"),
        ("(x, x)", ""),
    ],
)
def test_a_first_result_that_does_not_fit_the_definition_is_an_error(
    expression: str, said: str, scale: Function
) -> None:
    x = torch.ones(2, 4)
    with enable_apply(set_of(f"def run(x):\n    return {expression}\n"), FALLBACK) as runtime:
        assert torch.equal(scale(x), 2 * x)
        assert said in runtime.left_out()["fast"]
    with enable_apply(set_of(f"def run(x):\n    return {expression}\n")), pytest.raises((TypeError, ValueError)):
        scale(x)


def test_an_axis_of_outputs_alone_is_not_compared() -> None:
    definition = attrs.evolve(
        SCALE,
        axes={**SCALE.axes, "K": AxisVar()},
        outputs={"y": TensorSpec(["K", "N"], "float32")},
        constraints=["K == M - 1"],
    )
    solution = new_solution("fast", content="def run(x):\n    return 3 * x[1:]\n", passing=False)
    trace = new_trace("fast", axes={"M": 2, "K": 1})

    @apply("scale")
    def scale(x: Any) -> Any:
        return 2 * x[1:]

    config = ApplyConfig(on_miss_policy="use_def_best")
    with enable_apply(data_set(trace, solutions=[solution], definition=definition), config) as runtime:
        assert torch.equal(scale(torch.ones(2, 4)), torch.full((1, 4), 3.0))
        assert runtime.left_out() == {}


@pytest.mark.parametrize("shadow_ratio", [0.0, 1.0])
def test_a_solution_that_writes_to_its_inputs_is_left_out_after_one_call(shadow_ratio: float, scale: Function) -> None:
    source = "def run(x):\n    return x.mul_(2)\n"
    with enable_apply(set_of(source), ApplyConfig(on_error="fallback", shadow_ratio=shadow_ratio)) as runtime:
        for _ in range(2):
            assert torch.equal(scale(torch.ones(2, 4)), torch.full((2, 4), 2.0))
        assert runtime.left_out() == {"fast": "it writes to its inputs"}


@pytest.mark.parametrize("on_error", ["raise", "fallback"])
def test_a_solution_that_calls_the_function_it_replaces_is_left_out(
    on_error: str, monkeypatch: pytest.MonkeyPatch, scale: Function
) -> None:
    engine: Any = types.ModuleType("engine_of_a_test")
    engine.scale = scale
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    source = f"import {engine.__name__} as engine\ndef run(x):\n    return engine.scale(x)\n"
    x = torch.ones(2, 4)
    with enable_apply(set_of(source), ApplyConfig(on_error=on_error)) as runtime:
        assert torch.equal(scale(x), 2 * x)
        assert torch.equal(scale(x), 2 * x)
        assert runtime.left_out() == {"fast": "it calls the function that it replaces"}


def test_a_lack_of_memory_for_a_moment_leaves_no_solution_out(scale: Function) -> None:
    source = (
        "calls = []\ndef run(x):\n    calls.append(1)\n    if len(calls) == 2:\n"
        "        raise torch.OutOfMemoryError('CUDA out of memory')\n    return 2 * x\n"
    )
    x = torch.ones(2, 4)
    with enable_apply(set_of(source), FALLBACK, stats=True) as runtime:
        assert all(torch.equal(scale(x), 2 * x) for _ in range(4))
        assert (runtime.left_out(), runtime.stats()["scale"].errors) == ({}, {"fast": 1})


def test_an_error_that_the_function_raises_too_leaves_no_solution_out() -> None:
    @apply("scale")
    def scale(x: Any) -> Any:
        raise OverflowError("int too big")

    with enable_apply(set_of("def run(x):\n    raise OverflowError('int too big')\n"), FALLBACK) as runtime:
        with pytest.raises(OverflowError):
            scale(torch.ones(2, 4))
        assert runtime.left_out() == {}


def test_a_file_that_was_missing_is_found_when_the_set_is_loaded_again(tmp_path: Path, scale: Function) -> None:
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
def test_a_wait_may_be_endless(seconds: float, scale: Function) -> None:
    with enable_apply(set_of("def run(x):\n    return 2 * x\n"), ApplyConfig(aot_ratio=0.0)) as runtime:
        with capture_phase(seconds):
            scale(torch.ones(2, 4))
        assert runtime.wait_until_built(seconds)
