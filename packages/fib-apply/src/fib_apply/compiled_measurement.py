"""Measurement of `CompiledTimes`: compiles a call both ways in a child process, and times them interleaved.

The child reads one `CompiledJob` from its input and writes one line of JSON for each key to its output.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from fib_schema import (
    Correctness,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    RandomInput,
    ScalarInput,
    Solution,
    SupportedLanguages,
    Trace,
    TraceSet,
    Workload,
    format_json,
    parse_json,
)

from .compiled_times import CALLS, HOST, REPLAYS, CompiledTimes
from .config import ApplyConfig
from .configuration import CONFIG_VARIABLE
from .environment import ENABLE_PREFIX
from .key import ApplyKey

_ROUNDS, _MIN_ROUNDS = 31, 7
_SAMPLE_SECONDS, _MAX_SECONDS = 0.002, 5.0
"""Of one sample, and of all samples of a way of measuring; slow calls get fewer rounds."""
_MAX_CALLS, _IN_GRAPH = 1000, 10
_MAX_QUEUED = 20
"""Calls per sample of host time: a device queues about a thousand launches, then the host waits."""
_READY_SECONDS = 120.0
_SCALAR = 0.5
_FUSIBLE = frozenset({"float64", "float32", "float16", "bfloat16"})
"""Types to which the operation before the call can be applied."""
_MAX_QUOTED = 300
_PR_SET_PDEATHSIG = 1


@attrs.frozen
class CompiledJob:
    """A solution to measure at some keys."""

    definition: Definition
    solution: Solution
    keys: Sequence[ApplyKey]
    hardware: str
    device: str
    values: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """Values of inputs that are not synthesized, by encoded key: numbers and nested lists."""
    baseline: Solution | None = None
    """The solution that represents the engine's own function, which is compiled; None means the reference."""

    def to_json(self) -> bytes:
        """The job as the child reads it."""
        records = {"definition": format_json(self.definition), "solution": format_json(self.solution)}
        keys = [key.encode for key in self.keys]
        where = {"hardware": self.hardware, "device": self.device}
        values = {key: dict(one) for key, one in self.values.items()}
        baseline = None if self.baseline is None else format_json(self.baseline)
        plain = {**records, "keys": keys, **where, "values": values, "baseline": baseline}
        return json.dumps(plain).encode()

    @classmethod
    def from_json(cls, text: bytes) -> CompiledJob:
        """The job that `to_json` wrote."""
        plain = json.loads(text)
        definition = parse_json(plain["definition"], Definition)
        solution = parse_json(plain["solution"], Solution)
        baseline = None if plain["baseline"] is None else parse_json(plain["baseline"], Solution)
        keys = tuple(map(ApplyKey.from_encoded, plain["keys"]))
        return cls(definition, solution, keys, plain["hardware"], plain["device"], plain["values"], baseline)


def measure(job: CompiledJob, timeout_seconds: float) -> dict[ApplyKey, CompiledTimes | str]:
    """Measure in a child process.

    Args:
        job: What to measure.
        timeout_seconds: After it the child is killed; what it has measured by then counts.

    Returns:
        The times of each key, or the reason why there are none.
    """
    paths = os.pathsep.join(str(path) or os.curdir for path in sys.path)
    # The child makes its own runtime; listeners would keep its calls opaque.
    kept = {n: v for n, v in os.environ.items() if not n.startswith(ENABLE_PREFIX) and n != CONFIG_VARIABLE}
    environment = {**kept, "PYTHONPATH": paths}
    command = [sys.executable, "-P", "-m", __name__, str(os.getpid())]
    problem = f"it was not measured within {timeout_seconds:.0f} s"
    # No pipe: a process that a solution forked would keep it open.
    results = os.memfd_create("fib-apply-compiled", os.MFD_CLOEXEC)
    with open(results, "rb") as file:  # noqa: PTH123 - a descriptor
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=results, start_new_session=True, env=environment
            )
        except OSError as error:
            return dict.fromkeys(job.keys, f"its process was not started: {error}")
        with process:
            try:
                process.communicate(job.to_json(), max(0.0, timeout_seconds))
                problem = f"its process ended with status {process.returncode}"
            except subprocess.TimeoutExpired:
                pass
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what the solution left behind
        file.seek(0)
        output = file.read()
    found = dict(zip(job.keys, _parse_lines(job.solution.name, output), strict=False))
    return {key: found.get(key, problem) for key in job.keys}


def _parse_lines(solution: str, output: bytes) -> Iterator[CompiledTimes | str]:
    for line in output.split(b"\n")[:-1]:  # the last is incomplete or empty
        plain = json.loads(line)
        if isinstance(plain, str):
            yield plain
        else:
            yield CompiledTimes(solution, plain["is_inlined"], {way: tuple(p) for way, p in plain["pairs_us"].items()})


# -- in the child ------------------------------------------------------------------------------------


def main() -> None:
    """Do the job of the input. The argument is the parent's process id."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # it died before the call
        os._exit(1)
    results = os.dup(1)
    os.dup2(2, 1)  # what solutions print
    job = CompiledJob.from_json(sys.stdin.buffer.read())
    for line in _measured_lines(job):
        os.write(results, line.encode() + b"\n")
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads of solutions


def _measured_lines(job: CompiledJob) -> Iterator[str]:
    for key in job.keys:
        try:
            times = measure_in_process(job, key)
            yield json.dumps({"is_inlined": times.is_inlined, "pairs_us": dict(times.pairs_us)})
        except Exception as error:  # noqa: BLE001 - of the solution, the reference or the compiler
            text = " ".join(f"{type(error).__name__}: {error}".split())
            yield json.dumps(text[:_MAX_QUOTED])


def measure_in_process(job: CompiledJob, key: ApplyKey) -> CompiledTimes:
    """Compile and time calls of one key in this process.

    Raises:
        RuntimeError: The solution does not serve compiled calls.
    """
    import torch

    from .api import apply, enable_apply
    from .routing.codegen import compile_function

    torch.compiler.reset()
    definition = job.definition
    inputs = _make_inputs(definition, key, job.device, job.values.get(key.encode, {}))
    reference = _own_function(job)
    config = ApplyConfig(require_speedup=False)  # measured whatever its traces say
    with torch.no_grad(), enable_apply(_data_set(job, key), config, stats=True) as runtime:
        routed = apply(definition.name)(reference)
        _until_served(partial(routed, *inputs), runtime, definition.name)
        graphs = {}
        for name, function in {"routed": routed, "compiled": reference}.items():
            around = compile_function(_around_source(definition), "around", {"function": function})
            graphs[name] = partial(torch.compile(around, dynamic=False), *inputs)
        before = _hits(runtime, definition.name)
        graphs["routed"]()
        found = runtime.dispatcher(definition.name)
        policy = None if found is None else found.inlining
        if policy is None or _hits(runtime, definition.name) == before:
            raise RuntimeError(f"no graph holds it: {'; '.join(policy.lines()) if policy else 'nothing is routed'}")
        pairs = {CALLS: _interleaved(graphs, job.device)}
        if job.device != "cpu":
            pairs[HOST] = _interleaved(graphs, job.device, is_host_time=True)
            replays = {name: _captured(graph) for name, graph in graphs.items()}
            routed_us, compiled_us = _interleaved(replays, job.device)
            pairs[REPLAYS] = (routed_us / _IN_GRAPH, compiled_us / _IN_GRAPH)
        return CompiledTimes(job.solution.name, policy.is_any_inlined, pairs)


def _own_function(job: CompiledJob) -> Callable[..., Any]:
    """The function that is routed, and compiled in comparison: the baseline's or the reference.

    Raises:
        RuntimeError: torch cannot compile the baseline.
    """
    from fib_compile import BuilderRegistry

    from .routing.codegen import compile_function

    if job.baseline is None:
        return compile_function(job.definition.reference, "run", {})
    is_plain = job.baseline.spec.language == SupportedLanguages.PYTHON
    if not is_plain or job.baseline.spec.destination_passing_style:
        raise RuntimeError(f"the baseline {job.baseline.name} is not a Python function that returns its results")
    names = ", ".join(job.definition.inputs)
    scope = {"baseline": BuilderRegistry.get_instance().build(job.definition, job.baseline).function}
    return compile_function(f"def run({names}):\n    return baseline({names})\n", "run", scope)


def _make_inputs(definition: Definition, key: ApplyKey, device: str, values: Mapping[str, Any]) -> list[Any]:
    """The given values, and random floats for all other inputs; of these, optional ones are left out."""
    import torch
    from fib_compile.device import torch_dtype

    inputs: list[Any] = []
    shapes = definition.get_input_shapes(dict(key.axes))
    for (name, spec), shape in zip(definition.inputs.items(), shapes, strict=True):
        if name in values:
            given = values[name]
            inputs.append(given if shape is None else torch.tensor(given, dtype=torch_dtype(spec.dtype), device=device))
        elif spec.optional:
            inputs.append(None)
        elif shape is None:
            inputs.append(_SCALAR)
        else:
            inputs.append(torch.randn(shape, device=device).to(torch_dtype(spec.dtype)))
    return inputs


def _data_set(job: CompiledJob, key: ApplyKey) -> TraceSet:
    """A data set in which the solution is the fastest for a key."""
    definition, solution = job.definition, job.solution
    values = job.values.get(key.encode, {})
    given = {
        name: ScalarInput(values.get(name, _SCALAR)) if spec.is_scalar else RandomInput()
        for name, spec in definition.inputs.items()
        if name in values or not spec.optional
    }
    performance = Performance(1.0, 2.0, 2.0, {"timing": {"graph_safe": True}})
    evaluation = Evaluation(
        EvaluationStatus.PASSED,
        Environment(job.hardware),
        "2026-01-01T00:00:00",
        correctness=Correctness(),
        performance=performance,
    )
    trace = Trace(definition.name, Workload(dict(key.axes), given, "compiled"), solution.name, evaluation)
    name = definition.name
    return TraceSet(None, {name: definition}, {name: [solution]}, {}, {name: [trace]})


def _until_served(call: Callable[[], Any], runtime: Any, definition: str) -> None:
    """Call until the solution serves twice: the first run may be made in another process."""
    for _ in range(4):
        before = _hits(runtime, definition)
        call()
        call()
        if _hits(runtime, definition) == before + 2:
            return
        runtime.wait_until_built(_READY_SECONDS)
    left_out = "; ".join(runtime.left_out().values()) or "it is not ready"
    raise RuntimeError(f"the fallback serves its calls: {left_out}")


def _hits(runtime: Any, definition: str) -> int:
    found = runtime.stats().get(definition)
    return 0 if found is None else sum(found.hits.values())


def _around_source(definition: Definition) -> str:
    """A function with operations before and after the call that a compiler can fuse."""
    names = ", ".join(definition.inputs)
    first = next(
        (
            n
            for n, spec in definition.inputs.items()
            if spec.dtype in _FUSIBLE and not spec.is_scalar and not spec.optional
        ),
        None,
    )
    before = [] if first is None else [f"    {first} = {first} + 1"]
    count = len(definition.outputs)
    results = "result * 2" if count == 1 else ", ".join(f"result[{index}] * 2" for index in range(count))
    lines = [f"def around({names}):", *before, f"    result = function({names})", f"    return {results}"]
    return "\n".join(lines) + "\n"


def _captured(function: Callable[[], Any]) -> Callable[[], Any]:
    """The replay of a CUDA graph of some calls."""
    import torch

    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_IN_GRAPH):
            function()
    return graph.replay  # a method, so that the graph lives on


def _interleaved(
    functions: Mapping[str, Callable[[], Any]], device: str, *, is_host_time: bool = False
) -> tuple[float, float]:
    """Medians of ``routed`` and ``compiled`` in microseconds; samples are taken in alternating order.

    Args:
        functions: What is timed, by these names.
        device: On which it runs.
        is_host_time: Whether a sample ends when the last call has returned, before the device is done.
    """

    def sample(function: Callable[[], Any], calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            function()
        made = time.perf_counter()
        _wait_for(device)
        return ((made if is_host_time else time.perf_counter()) - began) / calls

    for function in functions.values():
        sample(function, 1)  # compiles it
    one = max(sample(function, 3) for function in functions.values())
    limit = _MAX_QUEUED if is_host_time else _MAX_CALLS
    calls = min(limit, max(1, int(_SAMPLE_SECONDS / max(one, 1e-9))))
    rounds = max(_MIN_ROUNDS, min(_ROUNDS, int(_MAX_SECONDS / (2 * calls * one))))
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for index in range(rounds + 2):
        for name in list(functions) if index % 2 else reversed(list(functions)):
            seconds = sample(functions[name], calls)
            if index >= 2:  # the first ones warm up
                samples[name].append(seconds)
    return statistics.median(samples["routed"]) * 1e6, statistics.median(samples["compiled"]) * 1e6


def _wait_for(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
