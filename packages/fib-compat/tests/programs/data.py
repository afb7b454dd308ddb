"""Writes a data set with files of one record each, opens it, and reads it back."""

import sys
from pathlib import Path

from flashinfer_bench import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Definition,
    RandomInput,
    Solution,
    SourceFile,
    SupportedLanguages,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)
from flashinfer_bench.data import load_json_file, load_jsonl_file, save_json_file, save_jsonl_file

root = Path(sys.argv[1])
reference = "import torch\n\ndef run(x, weight):\n    return torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)\n"
definition = Definition(
    name="rmsnorm_h64",
    op_type="rmsnorm",
    axes={"batch": AxisVar(description="rows"), "hidden": AxisConst(value=64)},
    inputs={
        "x": TensorSpec(shape=["batch", "hidden"], dtype="float32"),
        "weight": TensorSpec(shape=["hidden"], dtype="float32"),
    },
    outputs={"y": TensorSpec(shape=["batch", "hidden"], dtype="float32")},
    reference=reference,
    constraints=["hidden == 64"],
)
source = "def run(x, weight):\n    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight\n"
spec = BuildSpec(language=SupportedLanguages.PYTHON, target_hardware=["cpu"], entry_point="main.py::run")
spec = spec.model_copy(update={"destination_passing_style": False})
sources = [SourceFile(path="main.py", content=source)]
solution = Solution(name="plain", definition="rmsnorm_h64", author="ada", spec=spec, sources=sources)
inputs = {"x": RandomInput(), "weight": RandomInput()}
workloads = [Workload(axes={"batch": size}, inputs=inputs, uuid=f"b{size}") for size in (1, 8)]
traces = [Trace(definition=definition.name, workload=workload) for workload in workloads]

save_json_file(definition, root / "definitions" / "rmsnorm" / "rmsnorm_h64.json")
save_json_file(solution, root / "solutions" / "ada" / "rmsnorm" / "rmsnorm_h64" / "plain.json")
save_jsonl_file(traces, root / "workloads" / "rmsnorm" / "rmsnorm_h64.jsonl")
assert load_json_file(Definition, root / "definitions" / "rmsnorm" / "rmsnorm_h64.json") == definition
assert load_jsonl_file(Trace, root / "workloads" / "rmsnorm" / "rmsnorm_h64.jsonl") == traces
assert Definition.model_validate_json(definition.model_dump_json()) == definition
trace_set = TraceSet.from_path(str(root))
assert trace_set.get_solution("plain").get_entry_symbol() == "run"
assert definition.var_axes == ["batch"] and definition.const_axes == {"hidden": 64}
print(len(trace_set.workloads["rmsnorm_h64"]), "workloads")
