"""The healthy data set that each kind of damage starts from: definitions ``keeper`` and ``victim``, CPU only.

``keeper`` is never damaged: every command must still process it. Records are plain JSON, so that damage is an edit
of text or of a mapping, and nothing here depends on the code under attack.
"""

import json
import struct

DEFINITION = "definitions/activation/victim.json"
SOLUTION = "solutions/me/activation/victim/victim_py.json"
WORKLOADS = "workloads/activation/victim.jsonl"
TRACES = "traces/me/activation/victim.jsonl"
BLOB = "blob/workloads/activation/victim/victim-2.safetensors"
ALL_PARTS = (DEFINITION, SOLUTION, WORKLOADS, TRACES)
HARDWARE = "NVIDIA H200"
_CPP = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void Relu(tvm::ffi::TensorView x, double s, tvm::ffi::TensorView y) {
  const float* from = static_cast<float*>(x.data_ptr());
  float* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) to[i] = from[i] * s;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Relu);
"""


def definition(name):
    """A definition of two inputs, a vector and a scalar."""
    vector = {"shape": ["n"], "dtype": "float32"}
    return {
        "name": name,
        "op_type": "activation",
        "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": 4}},
        "inputs": {"x": vector, "s": {"shape": None, "dtype": "float32"}},
        "outputs": {"y": vector},
        "constraints": ["n < 1000000"],
        "reference": "def run(x, s):\n    return x * s\n",
    }


def solution(name, of, language="python"):
    file, code = ("main.py", "def run(x, s):\n    return x * s\n") if language == "python" else ("main.cpp", _CPP)
    return {
        "name": name,
        "definition": of,
        "author": "me",
        "spec": {
            "language": language,
            "target_hardware": ["cpu", "NVIDIA H200"],
            "entry_point": f"{file}::run",
            "dependencies": [],
            "destination_passing_style": language != "python",
        },
        "sources": [{"path": file, "content": code}],
    }


def workload(of, uuid, *, has_blob=False):
    """A workload trace of 16 elements, generated or from the blob."""
    x = {"type": "safetensors", "path": BLOB, "tensor_key": "x"} if has_blob else {"type": "random"}
    return {
        "definition": of,
        "workload": {"uuid": uuid, "axes": {"n": 16}, "inputs": {"x": x, "s": {"type": "scalar", "value": 2.0}}},
    }


def trace(of, uuid, hardware, latency_ms=0.01, *, has_blob=False):
    """A passing trace of the definition's Python solution."""
    timing = {"method": "linked", "samples": 80, "calls_per_sample": 2, "interval_ms": [0.0099, 0.0101], "spread": 0.1}
    return workload(of, uuid, has_blob=has_blob) | {
        "solution": f"{of}_py",
        "evaluation": {
            "status": "PASSED",
            "environment": {"hardware": hardware, "libs": {"torch": "2.11.0"}},
            "timestamp": "2026-11-22T10:00:00+00:00",
            "log": "",
            "correctness": {"max_relative_error": 0.0, "max_absolute_error": 0.0},
            "performance": {
                "latency_ms": latency_ms,
                "reference_latency_ms": 0.02,
                "speedup_factor": 0.02 / latency_ms,
                "extra": {"timing": timing, "reference_timing": timing, "baseline_timing": None},
            },
            "extra": {"where": {"host": "h", "device": "cuda:0", "device_id": "GPU-1"}, "trials": ["normal"]},
        },
    }


def safetensors(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_healthy(root):
    """Write the set below `root`, a folder that does not exist."""
    for name in ("keeper", "victim"):
        _write_json(root / "definitions/activation" / f"{name}.json", definition(name))
        _write_json(root / "solutions/me/activation" / name / f"{name}_py.json", solution(f"{name}_py", name))
        stored = {f"{name}-1": False} | ({"victim-2": True} if name == "victim" else {})
        workloads = [workload(name, uuid, has_blob=has_blob) for uuid, has_blob in stored.items()]
        _write_lines(root / f"workloads/activation/{name}.jsonl", workloads)
        traces = [trace(name, i, on, has_blob=stored[i]) for i in stored for on in (HARDWARE, "cpu")]
        if name == "keeper":
            traces.append(trace(name, "keeper-1", HARDWARE, 0.015) | {"solution": "keeper_cpp"})
        _write_lines(root / f"traces/me/activation/{name}.jsonl", traces)
    _write_json(root / "solutions/me/activation/keeper/keeper_cpp.json", solution("keeper_cpp", "keeper", "cpp"))
    blob = root / BLOB
    blob.parent.mkdir(parents=True)
    blob.write_bytes(healthy_blob())


def healthy_blob():
    return safetensors({"x": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}, bytes(64))


def _write_json(path, record):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2))


def _write_lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
