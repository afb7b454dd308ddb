"""Comparison of solutions with their definitions' references, in a child process.

Triton solutions run in a child process, because Triton reads ``TRITON_INTERPRET`` only when it is imported. On the CPU
the child interprets them; on a GPU it also captures them in a CUDA graph. Outputs with an evaluator of their own
are judged by it, all others by `TOLERANCE`.
"""

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch
from fib_bench import ResolvedEvalConfig, make_inputs
from fib_bench.evaluators import evaluator_for
from fib_bench.evaluators.protocol import Case as InputSet
from fib_bench.evaluators.protocol import Observation
from fib_compile import BuilderRegistry
from fib_schema import AxisConst, RandomInput, ScalarInput, Workload
from fib_schema.padded_indices import padded_indices_of
from public_data_set import public_set
from solution_table import entry_of

TOLERANCE = 1e-2
SIZES = {
    "batch_size": 3,
    "len_indptr": 4,
    "num_kv_indices": 8,
    "num_pages": 12,
    "num_tokens": 2,
    "total_kv": 30,
    "total_q": 6,
}
"""Tiny values for the variable axes of all attention definitions; together they satisfy the constraints."""
_OWN_EVALUATORS = ("state_space", "moe", "sampling")
_NAMES_IN_REFERENCES = {
    "hidden_size": "H",
    "intermediate_size": "I",
    "num_experts": "E|E_global",
    "num_local_experts": "E|E_local",
}
"""The constants of references that stand for an axis, beside the axis's own name."""
_DERIVED = {
    "gemm1_out_size": ("intermediate_size", 2.0),
    "num_hidden_blocks": ("hidden_size", 1 / 128),
    "num_intermediate_blocks": ("intermediate_size", 1 / 128),
    "num_gemm1_out_blocks": ("intermediate_size", 2 / 128),
}
Check = Callable[["Case"], None]


@attrs.frozen
class Case:
    solution: str
    definition: str
    axes: Mapping[str, int] = SIZES
    """Sizes of at least the definition's variable axes."""
    tensors: Mapping[str, Any] = attrs.field(factory=dict)
    """Values of some inputs, as nested lists or scalars."""
    constants: Mapping[str, int] = attrs.field(factory=dict)
    """Other values for constant axes of the definition."""
    absent: Sequence[str] = ()
    """Optional inputs that are left out."""
    seed: int = 0
    buffer: int = 0
    """The length of a buffer of page numbers that the solution gets, poisoned behind the total; 0 for none."""
    replays: Sequence[Mapping[str, Any]] = ()
    """Further offsets and lengths, written in place of the first ones before the same call, or graph, runs again."""
    is_packed: bool = False
    """Whether queries and caches are views of wider tensors, as engines pass them."""
    about: str = ""
    """The special trait, which tells cases of one definition apart."""

    def __str__(self):
        return "-".join(filter(None, (self.solution, self.definition, self.about)))


def children(device, cache):
    """A function that checks a case on ``cpu`` or a CUDA device."""
    return child_of(__file__, device, FIB_CACHE_PATH=str(cache), TRITON_INTERPRET=str(int(device == "cpu")))


def child_of(script, *words, **environment):
    """A function that has a script check a case in a child, and fails with the problem that it answers."""
    with subprocess.Popen(
        [sys.executable, script, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
    ) as process:

        def check(case):
            process.stdin.write(json.dumps(attrs.asdict(case)) + "\n")
            process.stdin.flush()
            if problem := json.loads(process.stdout.readline() or '"the child ended"'):
                pytest.fail(problem, pytrace=False)

        yield check


def answer(check):
    """Check each task on standard input, a line of JSON, and print the problem, or an empty string, as JSON."""
    for line in sys.stdin:
        try:
            check(json.loads(line))
            problem = ""
        except Exception:  # noqa: BLE001 - the test shows it
            problem = traceback.format_exc()
        print(json.dumps(problem), flush=True)


# -- in the child process -------------------------------------------------------------------


def reduced(definition, constants):
    """A definition with other constant axes, in its reference too."""
    axes, reference = dict(definition.axes), definition.reference
    values = {**constants}
    for name, (base, factor) in _DERIVED.items():
        if name in axes and base in constants:
            values[name] = round(constants[base] * factor)
    for name, value in values.items():
        old = definition.const_axes[name]
        names = "|".join(filter(None, (name, _NAMES_IN_REFERENCES.get(name))))
        reference = re.sub(rf"\b({names}) (==?) {old}\b", rf"\1 \2 {value}", reference)
        axes[name] = AxisConst(value)
    return attrs.evolve(definition, axes=axes, reference=reference)


def _check(case, device):
    """Compare with the reference; on a GPU also from a CUDA graph; replays have other integers."""
    definition = reduced(public_set().definitions[case.definition], case.constants)
    registry = BuilderRegistry.get_instance()
    runnable = registry.build(definition, entry_of(case.solution).solution(definition, device_name(device)))
    reference = registry.build_reference(definition)
    inputs = _inputs(case, definition, device)
    given = _padded(definition, inputs, case.buffer)
    if case.is_packed:
        given = {name: _packed(name, value) for name, value in given.items()}
    arguments = list(given.values())

    def expect():
        results = reference.call_value_returning(*inputs.values())
        return dict(zip(definition.outputs, results if isinstance(results, tuple) else (results,), strict=True))

    wanted = expect()
    buffers = {name: _poisoned(tensor) for name, tensor in wanted.items()}
    compare = _comparison(definition, inputs, wanted, expect)
    call = lambda: runnable.call_destination_passing(*arguments, *buffers.values())  # noqa: E731
    compare(buffers, call)
    if device != "cpu":
        graph = _captured(runnable, arguments, buffers)
        call = graph.replay
        for buffer in buffers.values():
            buffer.copy_(_poisoned(buffer))
        compare(buffers, call)
    for tensors in case.replays:
        inputs = _with_integers(definition, inputs, tensors)
        for target, value in zip(arguments, _padded(definition, inputs, case.buffer).values(), strict=True):
            if isinstance(target, torch.Tensor) and not target.is_floating_point():
                target.copy_(value)
        for buffer in buffers.values():
            buffer.copy_(_poisoned(buffer))
        _comparison(definition, inputs, expect(), expect)(buffers, call)


def _padded(definition, inputs, length):
    """The inputs with page numbers in a longer buffer, whose rest holds numbers that are no pages."""
    padded = padded_indices_of(definition)
    if not length or padded is None:
        return dict(inputs)
    buffers = {}
    for name in padded.inputs:
        buffers[name] = torch.full((length,), torch.iinfo(inputs[name].dtype).max, dtype=inputs[name].dtype)
        buffers[name] = buffers[name].to(inputs[name].device)
        buffers[name][: len(inputs[name])] = inputs[name]
    return {**inputs, **buffers}


def _packed(name, value):
    """Queries as the first heads of wider rows, and caches as the second half of wider heads; the rest is NaN."""
    if name == "q":
        rows, heads, dim = value.shape
        view = value.new_full((rows, heads + 3, dim), torch.nan)[:, :heads]
    elif name in ("k_cache", "v_cache"):
        *sizes, dim = value.shape
        view = value.new_full((*sizes, 2 * dim), torch.nan)[..., dim:]
    else:
        return value
    return view.copy_(value)


def _with_integers(definition, inputs, tensors):
    """The inputs with other offsets and lengths, and page numbers for as many pages."""
    others = {name: torch.tensor(values, dtype=inputs[name].dtype) for name, values in tensors.items()}
    padded = padded_indices_of(definition)
    assert padded is not None, "only definitions with padded indices are replayed"
    cache = next(value for name, value in inputs.items() if name.endswith("_cache"))
    pages = torch.arange(int(others[padded.offsets][-1])).flip(0) % len(cache)
    others |= {name: pages.to(inputs[name].dtype) for name in padded.inputs}
    device = inputs[padded.offsets].device
    return {**inputs, **{name: value.to(device) for name, value in others.items()}}


def device_name(device):
    """Hardware that a solution is stated to support."""
    return "cpu" if device == "cpu" else torch.cuda.get_device_name(device)


def _poisoned(tensor):
    return torch.full_like(tensor, torch.nan if tensor.is_floating_point() else -1)


def _inputs(case, definition, device):
    axes = {axis: case.axes[axis] for axis in definition.var_axes}
    scalars = {name: ScalarInput(value) for name, value in case.tensors.items() if not isinstance(value, list)}
    sources = {name: scalars.get(name, RandomInput()) for name in definition.inputs if name not in case.absent}
    inputs = make_inputs(definition, Workload(axes, sources, "tiny"), seed=case.seed, synthesize_missing=True)
    for name, values in case.tensors.items():
        if isinstance(values, list):
            inputs[name] = torch.tensor(values, dtype=getattr(torch, str(definition.inputs[name].dtype)))
    if isinstance(slots := inputs.get("sparse_indices"), torch.Tensor):  # an empty row, and one with gaps
        slots[0] = -1
        slots[1, 5:2000:3] = -1
        slots[1, -1] = 0
    return {n: value.to(device) if isinstance(value, torch.Tensor) else value for n, value in inputs.items()}


def _captured(runnable, arguments, buffers):
    """A CUDA graph of a call; its capture fails if the call synchronises."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        runnable.call_destination_passing(*arguments, *buffers.values())
    return graph


def _comparison(definition, inputs, wanted, again):
    """A function that calls a solution, as often as it takes, and compares what lies in its buffers."""
    for name, tensor in wanted.items():
        assert not tensor.isnan().any(), f"the reference's {name} holds NaN: the workload is invalid"
    config = ResolvedEvalConfig()
    evaluator = evaluator_for(definition, config)
    if evaluator.name not in _OWN_EVALUATORS:
        return lambda buffers, call: _compare_elements(buffers, wanted, call)
    config = evaluator.settings(config)
    input_set = InputSet(definition=definition, inputs=inputs, expected=wanted, config=config, again=again)
    check = evaluator.check(input_set)

    def compare(buffers, call):
        observations = []
        for _ in range(max(check.trials, 1)):
            call()
            assert (problems := check.compare(buffers, wanted).problems) == (), problems
            observations.append(Observation(check, {name: buffer.clone() for name, buffer in buffers.items()}))
        if check.trials:
            assert (problems := evaluator.judge_together(observations).problems) == (), problems

    return compare


def _compare_elements(buffers, wanted, call):
    call()
    for name, reference in wanted.items():
        torch.testing.assert_close(
            buffers[name], reference, atol=TOLERANCE, rtol=TOLERANCE, msg=lambda text, name=name: f"{name}: {text}"
        )


if __name__ == "__main__":
    answer(lambda task: _check(Case(**task), sys.argv[1]))
