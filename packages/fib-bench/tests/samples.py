import os
import re

from fib_bench import ResolvedEvalConfig
from fib_bench.evaluators import Case, evaluator_for
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
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)

GOOD = "def run(x):\n    return x * 2\n"
DOUBLE = Definition(
    "double",
    "elementwise",
    axes={"n": AxisVar()},
    inputs={"x": TensorSpec(("n",), "float32")},
    outputs={"y": TensorSpec(("n",), "float32")},
    reference=GOOD,
)
"""``y = 2 x`` on ``[n]`` float32."""
INPUT_SETS, SLOTS = 7, 16
UNTIMED_CALLS = INPUT_SETS + 2 * (5 + SLOTS)
"""With the settings of `evaluate`: one on each input set; in each of two phases five and a pass."""
FORGES = """
import os, msgspec
def forge(message):
    body = msgspec.msgpack.encode(message)
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.write(int(name), len(body).to_bytes(4, "little") + body)
        except OSError:
            pass
"""


def make_definition(inputs, outputs, reference, *, op_type="elementwise", constraints=(), name="made", constants=None):
    """Make a definition from short words: ``make_definition({"x": "float32[n,4]", "s": "float32"}, ...)``.

    ``float32`` alone is a scalar, ``float32[]`` a tensor of no dimension, ``?`` means optional.
    """
    tensors = [{name: _spec(text) for name, text in group.items()} for group in (inputs, outputs)]
    names = {axis for group in tensors for tensor in group.values() for axis in tensor.shape or ()}
    fixed = {axis: int(axis[1:]) for axis in names if re.fullmatch(r"c\d+", axis)} | dict(constants or {})
    axes = {axis: AxisConst(fixed[axis]) if axis in fixed else AxisVar() for axis in sorted(names | set(fixed))}
    return Definition(name, op_type, axes, *tensors, reference, constraints=constraints)


def _spec(text):
    match = re.fullmatch(r"(\w+)(\[(.*)\])?(\?)?", text)
    assert match is not None, text
    axes = None if match[2] is None else tuple(part for part in match[3].split(",") if part)
    shape = None if axes is None else tuple(f"c{axis}" if axis.isdigit() else axis for axis in axes)
    return TensorSpec(shape, match[1], optional=match[4] is not None)


def make_workload(definition, axes, uuid="w", **inputs):
    """Make a workload whose inputs are random unless given."""
    given = {n: RandomInput() for n in definition.inputs if n not in inputs}
    sources = given | {n: source for n, source in inputs.items() if source is not None}
    return Workload(dict(axes), {n: sources[n] for n in definition.inputs if n in sources}, uuid)


def make_solution(code, *, name="solution", definition="double", dps=False, language="python", hardware=("cpu",)):
    """Make a solution from one file."""
    file = "k.cpp" if language == "cpp" else "k.py"
    spec = BuildSpec(language, tuple(hardware), f"{file}::run", destination_passing_style=dps)
    return Solution(name, definition, "tests", spec, (SourceFile(file, code),))


def make_result(
    solution,
    workload,
    latency_ms=None,
    *,
    definition="double",
    axes=None,
    status="RUNTIME_ERROR",
    log="boom",
    hardware="cpu",
    reference_ms=1.0,
    speedup=None,
    flags=(),
    performance_extra=None,
    timestamp="2026-01-01",
):
    """A trace for reports: which passed if it has a latency, with the fields of this harness only if they are given."""
    performance = None
    if latency_ms is not None:
        ratio = speedup if speedup is not None else reference_ms / latency_ms if latency_ms else 0.0
        performance = Performance(latency_ms, reference_ms, ratio, performance_extra)
    evaluation = Evaluation(
        "PASSED" if performance else status,
        Environment(hardware, {"torch": "2.13.0"}),
        timestamp,
        "" if performance else log,
        Correctness() if performance or status == "INCORRECT_NUMERICAL" else None,
        performance,
        {"flags": list(flags)} if flags else None,
    )
    return Trace(definition, Workload(axes or {"n": 4}, {"x": RandomInput()}, workload), solution, evaluation)


def timing_of(evaluation):
    """The fields of a trace about the timing of an evaluation that passed."""
    assert evaluation.performance is not None, evaluation.log
    return evaluation.performance.extra["timing"]


def trace_set_of(*traces):
    """The traces, by the names of their definitions."""
    groups = {}
    for trace in traces:
        groups.setdefault(trace.definition, []).append(trace)
    return TraceSet(traces=groups)


def judged(definition, inputs, code):
    """The problems that a definition's evaluator finds in what a code returns, on inputs in order."""
    evaluator = evaluator_for(definition, ResolvedEvalConfig())
    expected = outputs_of(definition.reference, definition, inputs)
    config = evaluator.settings(ResolvedEvalConfig())
    check = evaluator.check(Case(definition=definition, inputs=inputs, expected=expected, config=config))
    return check.compare(outputs_of(code, definition, inputs), expected).problems


def outputs_of(code, definition, inputs):
    names = {}
    exec(code, names)
    found = names["run"](*inputs.values())
    return dict(zip(definition.outputs, found if isinstance(found, tuple) else (found,), strict=True))


def in_a_child(action):
    """The result of an action in a process of its own, as text."""
    read_end, write_end = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(write_end, str(action()).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as answer:
        return answer.read().decode()
