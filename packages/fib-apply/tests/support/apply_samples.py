from fib_apply import apply
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


def new_definition(name):
    """A definition with one variable axis."""
    return Definition(
        name,
        "elementwise",
        {"M": AxisVar(), "N": AxisConst(value=4)},
        {"x": TensorSpec(["M", "N"], "float32")},
        {"y": TensorSpec(["M", "N"], "float32")},
        "def run(x):\n    return 2 * x\n",
    )


@apply("scale")
def scale(x):
    """The engine's function, which serves where `SCALE` has no solution."""
    return 2 * x


SCALE = new_definition("scale")
THREE = "def run(x, y):\n    y.copy_(3 * x)\n"
"""The source of a solution of `SCALE` whose result tells it apart."""


def new_solution(name, language="python", content="x", author="ada", definition="scale", *, passing=True):
    """A solution; `passing` says whether outputs are passed to it."""
    binding = "torch" if language in {"cpp", "cuda"} else None
    spec = BuildSpec(language, ["cpu"], "main.py::run", binding=binding, destination_passing_style=passing)
    return Solution(name, definition, author, spec, [SourceFile("main.py", content)])


def loading(name, code=""):
    """A solution in Python that runs some code when it is imported, and its definition."""
    return SCALE, new_solution(name, content=f"# {name}\n{code}\ndef run(x):\n    return x\n", passing=False)


def new_trace(
    solution,
    latency=1.0,
    *,
    m=1,
    uuid=None,
    status="PASSED",
    hardware="cpu",
    timestamp="2026-01-01T00:00:00",
    timing=None,
    tolerance=None,
    errors=(0.0, 0.0),
    extra=None,
    definition="scale",
    reference=1000.0,
    performance=None,
    axes=None,
    inputs=("x",),
):
    """An evaluation; `errors` are the absolute and the relative one, `performance` is its `extra`."""
    passed = status == "PASSED"
    extra_fields = performance if timing is None else {"timing": timing, **(performance or {})}
    evaluation = Evaluation(
        status,
        Environment(hardware),
        timestamp,
        correctness=Correctness(errors[1], errors[0], tolerance) if passed else None,
        performance=Performance(latency, reference, 2.0, extra_fields) if passed else None,
        extra=extra,
    )
    sizes = {"M": m} if axes is None else axes
    name = uuid or "-".join(["w" + str(m)] if axes is None else map(str, ("w", *axes.values())))
    return Trace(definition, Workload(sizes, dict.fromkeys(inputs, RandomInput()), name), solution, evaluation)


def data_set(*traces, solutions=(), definition=SCALE):
    name = definition.name
    return TraceSet(None, {name: definition}, {name: tuple(solutions)}, {}, {name: traces})


def set_of(content=THREE, *, passing=True):
    """A solution that was verified for two rows."""
    return data_set(new_trace("fast", m=2), solutions=[new_solution("fast", content=content, passing=passing)])


def write_set(root, *traces, solutions=(), definitions=(SCALE,)):
    root.mkdir(exist_ok=True)
    made = TraceSet.from_path(root)
    made.add_definitions(definitions)
    made.add_solutions(solutions)
    made.add_traces(traces)
    return made
