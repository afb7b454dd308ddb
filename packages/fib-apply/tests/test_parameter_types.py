"""Parameter types of engines: accepted by name, and only as long as they behave as plain parameters.

Like vLLM's module, this one does not postpone annotations.
"""

from typing import Any

import pytest
import torch
from apply_samples import data_set, new_solution, new_trace
from fib_apply import apply, enable_apply
from fib_apply.routing.validation import behaviour_problem, is_plain_type

pytestmark = pytest.mark.usefixtures("without_probes")

VLLM = "vllm.model_executor.parameter"


def named(cls: type, name: str = "ModelWeightParameter", module: str = VLLM) -> type:
    """A class under a name of an engine."""
    cls.__qualname__, cls.__module__ = name, module
    return cls


class Loaded(torch.nn.Parameter):
    """A parameter that knows how it is loaded."""

    def __new__(cls, data: torch.Tensor, **kwargs: Any) -> Any:
        del kwargs
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data: torch.Tensor, loader: Any = None) -> None:
        del data
        self._loader = loader

    @property
    def weight_loader(self) -> Any:
        return self._loader

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, {} if kwargs is None else kwargs)


def new_type(**attributes: Any) -> type:
    """A subclass with further attributes, under a name of vLLM."""
    return named(type("Made", (Loaded,), attributes))


def counting(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    print(func)
    return torch.Tensor.__torch_function__(func, types, args, kwargs)


class Doubling(torch.nn.Parameter):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found * 2 if args[1:] else found


def with_nested(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    def call() -> Any:
        return func(*args)

    return call()


class TestBehaviour:
    def test_plain_types_are_accepted(self):
        assert is_plain_type(torch.Tensor)
        assert is_plain_type(torch.nn.Parameter)
        assert is_plain_type(new_type())
        assert is_plain_type(named(type("Other", (Loaded,), {}), module="sglang.srt.layers.parameter"))

    def test_a_hook_that_changes_results_by_operators_is_not(self):
        assert not is_plain_type(named(Doubling))

    def test_a_class_whose_hook_is_replaced_is_looked_at_again(self):
        cls = new_type()
        assert is_plain_type(cls)
        cls.__torch_function__ = classmethod(counting)  # type: ignore[attr-defined] # of a tensor class
        assert not is_plain_type(cls)

    def test_other_names_are_not(self):
        for cls in (Loaded, torch.nn.Buffer, named(type("Other", (Loaded,), {}), "MyParameter")):
            assert behaviour_problem(cls) is None or not issubclass(cls, torch.nn.Parameter)
            assert not is_plain_type(cls)

    @pytest.mark.parametrize(
        ("attributes", "problem"),
        [
            ({"__torch_dispatch__": classmethod(counting)}, "Made defines __torch_dispatch__"),
            ({"__torch_function__": classmethod(counting)}, "__torch_function__, which does more than"),
            ({"__torch_function__": classmethod(with_nested)}, "__torch_function__, which does more than"),
            ({"__torch_function__": counting}, "__torch_function__, which does more than"),
            ({"stride": lambda self: (1,)}, "changes stride"),
            ({"shape": property(lambda self: ()), "__add__": None}, "changes __add__, shape"),
        ],
        ids=["dispatch", "function", "nested", "no class method", "method", "properties"],
    )
    def test_classes_that_change_a_behaviour_are_not(self, attributes, problem):
        made = type("Made", (Loaded,), attributes)
        assert problem in str(behaviour_problem(made))
        assert not is_plain_type(named(made))


def test_calls_with_parameters_of_engines_are_routed(guards):
    """Each type has a guard of its own; a class that changes a behaviour goes to the fallback."""
    fast = new_solution("fast", content="def run(x):\n    return x.detach() * 0 + 7\n", passing=False)
    plain, other = torch.ones(2, 4), new_type(stride=lambda self: (9, 9))
    values = plain, new_type()(plain), torch.nn.Parameter(plain, requires_grad=False), other(plain), plain

    @apply("scale")
    def scale(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(2, 4)

    with enable_apply(data_set(new_trace("fast", m=2), solutions=[fast]), stats=True) as runtime:
        for _ in range(3):
            assert [float(scale(value)[0, 0]) for value in values] == [7, 7, 7, 0, 7]
        stats = runtime.stats()["scale"]
    assert (sum(stats.hits.values()), dict(stats.misses)) == (12, {"tensor": 3})
