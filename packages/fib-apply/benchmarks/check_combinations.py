"""Calls in every combination of transformation, context, function form and layout, against the plain function.

Each call gets new random values. A routed function must give the results and gradients of the function that it
replaces, whatever torch does around it; its solution computes the same values in another way. Prints the wrong calls,
and how many calls a solution served, so that a route that serves nothing is not taken for a right one.

usage: python check_combinations.py [--calls 10000]
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import logging
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from fib_apply import ApplyConfig, apply, enable_apply
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Performance,
    RandomInput,
    ScalarInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

_WIDTH, _ROWS = 4, (0, 1, 3)
_NAME = "affine"
Function = Callable[..., Any]


# -- the routed function and its data set -------------------------------------------------------------


def plain(x: Any, scale: Any, total: Any = None, half: Any = None) -> Any:
    """Two outputs, returned or passed."""
    results = x * scale + x, (x * scale) / 2
    if total is None:
        return results
    total.copy_(results[0])
    half.copy_(results[1])
    return total, half


def data_set() -> TraceSet:
    """A solution that counts its calls; it was measured with a scale of 2, and verified with another one."""
    rows = TensorSpec(("rows", "width"), "float32")
    definition = Definition(
        _NAME,
        "elementwise",
        {"rows": AxisVar(), "width": AxisConst(_WIDTH)},
        {"x": rows, "scale": TensorSpec(None, "float32")},
        {"total": rows, "half": rows},
        "def run(x, scale):\n    return x * scale + x, (x * scale) / 2\n",
    )
    source = (
        "import sys\n\ndef run(x, scale):\n    sys.modules['__main__'].__dict__.setdefault('SERVED', []).append(1)\n"
        "    product = x.mul(scale)\n    return product.add(x), product.div(2)\n"
    )
    spec = BuildSpec("python", ("cpu",), "main.py::run", destination_passing_style=False)
    solution = Solution("product", _NAME, "check", spec, (SourceFile("main.py", source),))
    environment = Environment("cpu")
    passed = Evaluation(
        "PASSED",
        environment,
        "2026-01-01T00:00:00Z",
        correctness=Correctness(),
        performance=Performance(0.1, 1.0, 10.0),
        extra={"other_scalars": {"scale": 1.25}},
    )
    inputs = {"x": RandomInput(), "scale": ScalarInput(2.0)}
    traces = tuple(
        Trace(_NAME, Workload({"rows": rows}, inputs, f"w{rows}"), solution.name, passed) for rows in _ROWS if rows
    )
    return TraceSet(None, {_NAME: definition}, {_NAME: (solution,)}, {}, {_NAME: traces})


def _variadic(*args: Any) -> Any:
    return plain(*args)


# -- the dimensions -----------------------------------------------------------------------------------

_FORMS: dict[str, Callable[[], Function]] = {
    "by name": lambda: apply(_NAME)(plain),
    "by resolver": lambda: apply(lambda *args: _NAME)(plain),
    "variadic": lambda: apply(_NAME)(_variadic),
    "of a routed function": lambda: apply(_NAME)(_with_parameters(apply(_NAME)(plain))),
}
"""Functions that are routed."""


def _with_parameters(function: Function) -> Function:
    return lambda x, scale, total=None, half=None: function(x, scale, total, half)


def _returned(function: Function, x: Any, scale: float) -> Any:
    return function(x, scale)


def _passed(function: Function, x: Any, scale: float) -> Any:
    outputs = torch.full_like(x, 7.0), torch.full_like(x, 7.0)
    function(x, scale, *outputs)
    return outputs


def _in_place(function: Function, x: Any, scale: float) -> Any:
    first, half = x.clone(), torch.full_like(x, 7.0)
    function(first, scale, first, half)
    return first, half


_STYLES = {"returned": _returned, "passed": _passed, "in place": _in_place}
"""Ways to get the outputs."""

_LAYOUTS: dict[str, Callable[[int], Any]] = {
    "contiguous": lambda rows: torch.randn(rows, _WIDTH),
    "transposed": lambda rows: torch.randn(_WIDTH, rows).t(),
    "every second column": lambda rows: torch.randn(rows, 2 * _WIDTH)[:, ::2],
    "expanded": lambda rows: torch.randn(1, _WIDTH).expand(rows, _WIDTH),
    "float64": lambda rows: torch.randn(rows, _WIDTH, dtype=torch.float64),
    "another width": lambda rows: torch.randn(rows, _WIDTH + 1),
    "conjugated": lambda rows: torch.randn(rows, _WIDTH, dtype=torch.complex64).conj().imag,
}
_SCALES = (2.0, 0.0, -1.5, float("inf"), float("nan"), 1e30)


@contextlib.contextmanager
def _nested_runtime() -> Iterator[None]:
    with enable_apply(data_set(), ApplyConfig(on_miss_policy="use_def_best")):
        yield


_CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no grad": torch.no_grad,
    "grad": nullcontext,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "nested runtime": _nested_runtime,
}


def _in_thread(call: Function, x: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call(x)))
    thread.start()
    thread.join()
    return found[0]


def _gradient(call: Function, x: Any) -> Any:
    leaf = x.clone().requires_grad_()
    with torch.enable_grad():
        total = sum(each.sum() for each in call(leaf))
        return torch.autograd.grad(total, leaf)


def _second_gradient(call: Function, x: Any) -> Any:
    leaf = x.clone().requires_grad_()
    with torch.enable_grad():
        (first,) = torch.autograd.grad(sum((each**2).sum() for each in call(leaf)), leaf, create_graph=True)
        return torch.autograd.grad((first**2).sum(), leaf)


def _checkpointed(call: Function, x: Any) -> Any:
    return _gradient(lambda leaf: checkpoint(call, leaf, use_reentrant=False), x)


def _sum(call: Function) -> Function:
    return lambda x: sum(each.sum() for each in call(x))


def _fake(call: Function, x: Any) -> Any:
    with FakeTensorMode() as mode:
        return tuple((each.shape, each.stride(), each.dtype) for each in call(mode.from_tensor(x)))


def _traced(call: Function, x: Any) -> Any:
    return torch.jit.trace(call, (x,), check_trace=False)(x + 1)


class _Module(torch.nn.Module):
    def __init__(self, call: Function) -> None:
        super().__init__()
        self._call = call

    def forward(self, x: Any) -> Any:
        return self._call(x)


def _compiled(call: Function, x: Any, *, fullgraph: bool) -> Any:
    torch.compiler.reset()
    return torch.compile(call, backend="aot_eager", fullgraph=fullgraph)(x)


_TRANSFORMATIONS: dict[str, Callable[[Function, Any], Any]] = {
    "eager": lambda call, x: [call(x) for _ in range(3)],
    "deep copy": lambda call, x: copy.deepcopy(_Module(call))(x),
    "thread": _in_thread,
    "autograd": _gradient,
    "autograd, twice": _second_gradient,
    "checkpoint": _checkpointed,
    "func.grad": lambda call, x: torch.func.grad(_sum(call))(x),
    "func.vjp": lambda call, x: torch.func.vjp(_sum(call), x)[1](torch.ones(())),
    "func.jvp": lambda call, x: torch.func.jvp(call, (x,), (torch.ones_like(x),)),
    "func.jacrev": lambda call, x: torch.func.jacrev(_sum(call))(x),
    "func.hessian": lambda call, x: torch.func.hessian(_sum(call))(x),
    "func.vmap": lambda call, x: torch.func.vmap(call)(torch.stack([x, x + 1])),
    "functionalize": lambda call, x: torch.func.functionalize(call)(x),
    "fake tensors": _fake,
    "make_fx": lambda call, x: make_fx(call)(x)(x + 1),
    "make_fx, symbolic": lambda call, x: make_fx(call, tracing_mode="symbolic")(x)(x + 1),
    "jit.trace": _traced,
    "export": lambda call, x: torch.export.export(_Module(call), (x,), strict=False).module()(x),
    "compile": lambda call, x: _compiled(call, x, fullgraph=False),
    "compile, full graph": lambda call, x: _compiled(call, x, fullgraph=True),
}
_SLOW = {"export", "compile", "compile, full graph", "jit.trace", "make_fx", "make_fx, symbolic"}
"""Each takes tens of milliseconds a call; one call in so many of `_RARITY` is made of them."""
_RARITY = 40


# -- calls --------------------------------------------------------------------------------------------


def outcome(transformation: Function, call: Function, x: Any) -> Any:
    """The result, or the type of the exception: torch refuses some combinations."""
    try:
        return transformation(call, x)
    except Exception as error:  # noqa: BLE001 the plain function must raise the same
        return type(error)


def are_equal(found: Any, wanted: Any) -> bool:
    """Whether two results are equal in type, dtype, shape and, up to rounding, in values."""
    if isinstance(wanted, tuple | list) and not isinstance(wanted, torch.Size):
        return (
            isinstance(found, tuple | list)
            and len(found) == len(wanted)
            and all(are_equal(*pair) for pair in zip(found, wanted, strict=True))
        )
    if not isinstance(wanted, torch.Tensor):
        return bool(found == wanted)
    is_like = isinstance(found, torch.Tensor) and (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    return is_like and torch.allclose(found, wanted, equal_nan=True)


def combinations(calls: int) -> Iterator[tuple[str, str, str, str, str, int, float]]:
    """Combinations in an order that repeats, until there are enough."""
    made, seen = 0, Counter[str]()
    table = list(itertools.product(_TRANSFORMATIONS, _CONTEXTS, _FORMS, _STYLES, _LAYOUTS, _ROWS, _SCALES))
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0)).tolist()
    for place in itertools.cycle(order):
        found = table[place]
        seen[found[0]] += 1
        if found[0] in _SLOW and seen[found[0]] % _RARITY:
            continue
        yield found
        made += 1
        if made == calls:
            return


def check(calls: int) -> tuple[list[str], int]:
    """The wrong calls, and how many calls of the solution there were."""
    torch.manual_seed(0)
    functions, wrong = {name: make() for name, make in _FORMS.items()}, []
    served: list[int] = sys.modules["__main__"].__dict__.setdefault("SERVED", [])
    with enable_apply(data_set()) as runtime:
        runtime.wait_until_built(300)
        for function in functions.values():
            for rows in _ROWS:
                function(torch.randn(rows, _WIDTH), 2.0)
        runtime.wait_until_built(300)
        for names in combinations(calls):
            transformation, context, form, style, layout, rows, scale = names
            run, x, get = _TRANSFORMATIONS[transformation], _LAYOUTS[layout](rows), _STYLES[style]
            with _CONTEXTS[context]():
                found = outcome(run, lambda values: get(functions[form], values, scale), x)  # noqa: B023 called here
                wanted = outcome(run, lambda values: get(plain, values, scale), x)  # noqa: B023
            if not are_equal(found, wanted):
                wrong.append(f"{names}: {found} instead of {wanted}")
    return wrong, len(served)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    calls = parser.parse_args().calls
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    wrong, served = check(calls)
    print("\n".join(wrong[:20]))
    print(f"torch {torch.__version__}: {calls:,} calls, {served:,} runs of the solution, {len(wrong)} wrong")
    sys.exit(1 if wrong or not served else 0)


if __name__ == "__main__":
    main()
