"""Forms of functions and callers: static methods, optional outputs, tracers and arguments that are not tensors."""

from typing import Any

import pytest
import torch
from apply_samples import data_set, new_solution, new_trace
from fib_apply import ApplyConfig, apply, enable_apply

pytestmark = pytest.mark.usefixtures("without_probes")

SOURCE = "def run(x, y):\n    y.copy_(2 * x)\n"


@pytest.fixture
def traces():
    return data_set(new_trace("fast", m=3), solutions=[new_solution("fast", content=SOURCE)])


def double_or_negative(x: Any, y: Any = None) -> Any:
    """The fallback, whose results are distinguishable."""
    found = -x
    return found if y is None else y.copy_(found)


X = torch.ones(3, 4)


@pytest.mark.usefixtures("guards")
@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_static_and_class_methods_may_be_decorated_from_outside(kind, traces):
    def scale(*owner_and_x: Any) -> Any:
        return -owner_and_x[-1]

    def static(x: Any) -> Any:
        return scale(x)

    def of_class(cls: type, x: Any) -> Any:
        assert isinstance(cls, type)
        return scale(x)

    class Layer:
        scale = apply("scale")(kind(static if kind is staticmethod else of_class))

    assert Layer().scale(X)[0, 0] == Layer.scale(X)[0, 0] == -1
    with enable_apply(traces):
        for _ in range(3):
            assert Layer().scale(X)[0, 0] == Layer.scale(X)[0, 0] == 2
        assert Layer().scale(X[:1])[0, 0] == -1


@pytest.mark.usefixtures("guards")
@pytest.mark.parametrize("config", [ApplyConfig(), ApplyConfig(on_error="fallback"), ApplyConfig(shadow_ratio=1.0)])
def test_a_function_with_optional_outputs_returns_them(config, traces):
    """Else callers get None where a solution serves them, and a tensor from the fallback."""
    scale = apply("scale")(double_or_negative)
    with enable_apply(traces, config, stats=True) as runtime:
        for rows in (3, 3, 3, 1):
            output = torch.empty(rows, 4)
            assert scale(X[:rows], output) is output
            assert scale(X[:rows], y=output) is output
        assert scale(X).shape == (3, 4)
        hits = sum(runtime.stats()["scale"].hits.values())
    assert hits == (7 if not config.shadow_ratio else 1)  # the two differ, and the solution is quarantined


@pytest.mark.usefixtures("guards")
@pytest.mark.parametrize("name", ["scale", lambda *args: "scale"], ids=["name", "resolver"])
@pytest.mark.parametrize("function", [lambda x: -x, lambda *args: -args[0]], ids=["one", "variadic"])
def test_a_function_that_is_pickled_by_value_is_routed_where_it_is_loaded(name, function, traces):
    """As Ray does with functions of ``__main__``."""
    cloudpickle = pytest.importorskip("ray.cloudpickle", reason="needs Ray")
    scale = apply(name)(function)
    with enable_apply(traces):
        assert scale(X)[0, 0] == 2
        copy = cloudpickle.loads(cloudpickle.dumps(scale))
        assert [float(copy(X)[0, 0]) for _ in range(2)] == [2, 2]
    assert copy(X)[0, 0] == scale(X)[0, 0] == -1


class Hostile:
    """An object that can be asked for nothing."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")

    def __bool__(self) -> bool:
        raise RuntimeError("asked for its truth")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.usefixtures("guards")
def test_objects_that_raise_reach_the_function(traces):
    @apply("scale")
    def scale(x: Any, y: Any = None) -> Any:
        return "fallback"

    with enable_apply(traces):
        for _ in range(2):
            assert scale(Hostile()) == scale(X, Hostile()) == scale(Hostile(), X) == "fallback"
            scale(X)


def test_shadow_names_a_fallback_that_returns_no_tensor(traces, caplog):
    @apply("scale")
    def scale(x: Any) -> Any:
        x.mul_(2)  # a function that writes to its input does not compute the definition

    with enable_apply(traces, ApplyConfig(shadow_ratio=1.0)):
        assert scale(X.clone()) is None
        assert scale(X.clone()) is None
    assert "y: the fallback returned NoneType, not a tensor" in caplog.text


@pytest.mark.usefixtures("guards")
def test_calls_in_place_take_the_slow_path_once(traces):
    @apply("scale")
    def scale(x: Any, y: Any) -> None:
        y.copy_(-x)

    with enable_apply(traces) as runtime:
        scale(X, torch.empty(3, 4))
        variant = runtime.dispatcher("scale").slow_path.variants()[1]
        memory, output = torch.ones(3, 4), torch.empty(3, 4)
        for expected in (-1, 1, -1):
            scale(memory, memory)
            assert memory[0, 0] == expected
        assert variant.find((memory, memory))[1] is None
        for _ in range(2):
            scale(X, output)
            assert output[0, 0] == 2
            shifted = torch.ones(4, 4)
            scale(shifted[:3], shifted[1:])
            assert shifted[3, 0] == -1
