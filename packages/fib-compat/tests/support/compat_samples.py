"""Records of a small data set, made as a program of the old package makes them: one RMS norm, on the CPU."""

from flashinfer_bench.data import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    RandomInput,
    Solution,
    SourceFile,
    SupportedLanguages,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
    save_json_file,
    save_jsonl_file,
)

NAME = "rmsnorm_h64"
REFERENCE = "import torch\n\ndef run(x, weight):\n    return torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)\n"
PLAIN = "def run(x, weight):\n    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight\n"
MARKED = "def run(x, weight):\n    return x * 0 + 7\n"
"""A solution whose result shows that it was called."""


def definition(name=NAME, op_type="rmsnorm", **changes):
    fields = {
        "name": name,
        "op_type": op_type,
        "axes": {"batch": AxisVar(), "hidden": AxisConst(value=64)},
        "inputs": {
            "x": TensorSpec(shape=["batch", "hidden"], dtype="float32"),
            "weight": TensorSpec(shape=["hidden"], dtype="float32"),
        },
        "outputs": {"y": TensorSpec(shape=["batch", "hidden"], dtype="float32")},
        "reference": REFERENCE,
    }
    return Definition(**{**fields, **changes})


def solution(name="plain", content=PLAIN, author="ada", definition=NAME, hardware="cpu"):
    spec = BuildSpec(
        language=SupportedLanguages.PYTHON,
        target_hardware=[hardware],
        entry_point="main.py::run",
        destination_passing_style=False,
    )
    sources = [SourceFile(path="main.py", content=content)]
    return Solution(name=name, definition=definition, author=author, spec=spec, sources=sources)


def workload(batch=4, uuid=None):
    inputs = {"x": RandomInput(), "weight": RandomInput()}
    return Workload(axes={"batch": batch}, inputs=inputs, uuid=uuid or f"b{batch}")


def workload_trace(batch=4, definition=NAME):
    return Trace(definition=definition, workload=workload(batch))


def evaluation(status="PASSED", speedup=2.0, latency=1.0):
    passed = status == "PASSED"
    return Evaluation(
        status=EvaluationStatus(status),
        environment=Environment(hardware="cpu"),
        timestamp="2026-04-01T12:00:00",
        correctness=Correctness() if passed else None,
        performance=(
            Performance(latency_ms=latency, reference_latency_ms=latency * speedup, speedup_factor=speedup)
            if passed
            else None
        ),
    )


def trace(solution="plain", batch=4, **measured):
    return Trace(definition=NAME, workload=workload(batch), solution=solution, evaluation=evaluation(**measured))


def trace_set(root=None, **contents):
    """One definition, the solution `plain` and two workloads, in memory."""
    fields = {
        "definitions": {NAME: definition()},
        "solutions": {NAME: [solution()]},
        "workloads": {NAME: [workload_trace(4), workload_trace(8)]},
        "traces": {},
    }
    return TraceSet(root=root, **{**fields, **contents})


def write(root, *, solutions=None, traces=()):
    """Write the same data set to a folder."""
    save_json_file(definition(), root / "definitions" / "rmsnorm" / f"{NAME}.json")
    for each in (solution(),) if solutions is None else solutions:
        save_json_file(each, root / "solutions" / each.author / "rmsnorm" / NAME / f"{each.name}.json")
    save_jsonl_file([workload_trace(4), workload_trace(8)], root / "workloads" / "rmsnorm" / f"{NAME}.jsonl")
    if traces:
        save_jsonl_file(list(traces), root / "traces" / "ada" / "rmsnorm" / f"{NAME}.jsonl")
    return root
