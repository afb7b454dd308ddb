"""Overhead of the adapters per call on the CPU, in nanoseconds, for empty functions with FlashInfer's signatures.

The original and the solution both return an existing tensor. All variants are measured alternately in one process; a
result is the minimum of many rounds, minus that of the unpatched call.

usage: python bench_adapters.py [--rounds 60] [--json FILE]
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

import fib_integrations  # noqa: E402 found there
import flashinfer_stand_ins  # noqa: E402 found there
import wrapt  # noqa: E402 found there
from fib_apply import ApplyRuntime, disable_apply, enable_apply, set_apply_hook  # noqa: E402 found there
from fib_schema import BuildSpec, Definition, Solution, SourceFile  # noqa: E402 found there
from flashinfer_stand_ins import behaviour  # noqa: E402 found there
from flashinfer_stand_ins.examples import EXAMPLES, data_set, decode_wrapper, passed  # noqa: E402 found there

_CALLS = 2_000
LIMITS_NS = {
    "rmsnorm, nothing enabled": 200.0,
    "decode run, nothing enabled": 200.0,
    "rmsnorm, hit": 1500.0,
    "decode run, hit": 3000.0,
}
"""The limits of the added time."""
Calls = Mapping[str, Callable[[], Any]]
State = tuple[Callable[[], Any], tuple[str, ...]]
"""A context, and the calls to measure in it."""


def _empty_solution(definition: Definition, *, is_passing: bool) -> Solution:
    """A solution that returns the same tensors each time, or writes nothing."""
    names = (*definition.inputs, *(definition.outputs if is_passing else ()))
    results = "None" if is_passing else "_results"
    shapes = ", ".join(f"torch.zeros({n + 1})" for n in range(len(definition.outputs)))
    results_source = f"({shapes},)" if len(definition.outputs) > 1 else shapes
    source = f"import torch\n\n_results = {results_source}\n\n\ndef run({', '.join(names)}):\n    return {results}\n"
    spec = BuildSpec("python", ["cpu"], "main.py::run", destination_passing_style=is_passing)
    return Solution(f"empty_{definition.name}", definition.name, "bench", spec, [SourceFile("main.py", source)])


def _empty_stand_ins() -> None:
    """Replace the computations of the stand-ins by nothing."""
    result = torch.zeros(1)
    behaviour.rmsnorm = lambda a: result
    behaviour.Paged.attend = lambda self, a: result


def _calls(fi: Any) -> Calls:
    """Calls as an engine makes them."""
    x, w = torch.zeros(8, 8, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.bfloat16)
    wrapper = decode_wrapper(fi, 1)
    q = torch.zeros(3, 4, 8, dtype=torch.bfloat16)
    cache = (torch.zeros(8, 1, 2, 8, dtype=torch.bfloat16), torch.zeros(8, 1, 2, 8, dtype=torch.bfloat16))
    out = torch.zeros_like(q)
    return {
        "rmsnorm": lambda: fi.norm.rmsnorm(x, w, 1e-6),
        "decode run": lambda: wrapper.run(q, cache),
        "decode run with out": lambda: wrapper.run(q, cache, out=out),
        "rmsnorm, unsupported": lambda: fi.norm.rmsnorm(x, w, 1e-3),
    }


def _min_ns(call: Callable[[], Any]) -> float:
    start = time.perf_counter_ns()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter_ns() - start) / _CALLS


def _measure(states: Mapping[str, State], fi: Any, rounds: int) -> dict[tuple[str, str], float]:
    """The minimum time of each call in each state, alternating between states."""
    found: dict[tuple[str, str], float] = {}
    for _ in range(rounds):
        for state, (enter, names) in states.items():
            with enter():
                calls = _calls(fi)
                for name in names:
                    calls[name]()
                    found[name, state] = min(found.get((name, state), float("inf")), _min_ns(calls[name]))
    return found


@contextmanager
def _unpatched() -> Iterator[None]:
    fib_integrations.uninstall_flashinfer_integrations()
    yield


@contextmanager
def installed() -> Iterator[None]:
    """A state with patched functions, and nothing enabled."""
    fib_integrations.install_flashinfer_integrations()
    yield


@contextmanager
def serving(runtime: ApplyRuntime) -> Iterator[None]:
    """A state in which a runtime is enabled."""
    fib_integrations.install_flashinfer_integrations()
    with runtime:
        yield
    disable_apply()


@contextmanager
def _listened() -> Iterator[None]:
    fib_integrations.install_flashinfer_integrations()
    set_apply_hook(lambda name, inputs: None)
    yield
    set_apply_hook(None)


def _runtime(fi: Any, definition: Definition, *, is_passing: bool) -> ApplyRuntime:
    """A runtime that chooses an empty solution for the calls."""
    seen: dict[str, Any] = {}
    fib_integrations.install_flashinfer_integrations()
    set_apply_hook(lambda name, inputs: seen.update({name: dict(inputs)}))
    for call in _calls(fi).values():
        call()
    set_apply_hook(None)
    solution = _empty_solution(definition, is_passing=is_passing)
    traces = (passed(solution, definition, seen[definition.name]),)
    with enable_apply(data_set(definition, traces, (solution,))) as runtime:
        pass
    return runtime


def _wrapper_overhead() -> dict[str, float]:
    """The time that wrapt's wrapper and a closure add to a call that they forward."""

    def original(input: Any, weight: Any, eps: float = 1e-6, out: Any = None, enable_pdl: Any = None) -> Any:
        return input

    @wrapt.decorator
    def passing_on(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    def closure(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    forms = {"plain": original, "wrapt": passing_on(original), "closure": functools.wraps(original)(closure)}
    times = {name: min(_min_ns(lambda f=f: f(1, 2, eps=1e-5)) for _ in range(30)) for name, f in forms.items()}  # type: ignore[misc]
    return {f"a wrapper, {name}": times[name] - times["plain"] for name in ("wrapt", "closure")}


def measure(rounds: int) -> dict[str, float]:
    """The time added to each call, in nanoseconds."""
    fi = importlib.import_module("flashinfer")
    _empty_stand_ins()
    definitions = {example.definition.name: example.definition for example in EXAMPLES}
    norm, decode = definitions["rmsnorm_h8"], definitions["gqa_paged_decode_h4_kv2_d8_ps1"]
    names = tuple(_calls(fi))
    states: dict[str, State] = {
        "plain": (_unpatched, names),
        "nothing enabled": (installed, names),
        "a listener": (_listened, names),
    }
    for definition, is_passing, served in (
        (norm, False, ("rmsnorm", "rmsnorm, unsupported")),
        (decode, False, ("decode run",)),
        (decode, True, ("decode run with out",)),
    ):
        runtime = _runtime(fi, definition, is_passing=is_passing)
        states[f"hit {served[0]}"] = functools.partial(serving, runtime), served
    times = _measure(states, fi, rounds)
    return {**_added(times), **_wrapper_overhead()}


def _added(times: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """The differences from the plain calls."""
    label = {state: "hit" if state.startswith("hit") else state for _, state in times}
    return {
        f"{name}, {label[state]}": value - times[name, "plain"]
        for (name, state), value in times.items()
        if state != "plain"
    }


def main() -> int:
    """Print the table; the exit code is 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(flashinfer_stand_ins.write(Path(folder), flashinfer_stand_ins.VERSIONS[0])))
        found = measure(options.rounds)
    print("| call | added, ns | limit |\n| --- | --- | --- |")
    for name, value in found.items():
        print(f"| {name} | {value:.0f} | {LIMITS_NS.get(name, '')} |")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(any(found[name] > limit for name, limit in LIMITS_NS.items()))


if __name__ == "__main__":
    sys.exit(main())
