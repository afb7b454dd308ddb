"""Agreement of linked latencies with CUPTI, for functions of one kernel.

A function is evaluated first, without CUPTI. Then this file runs as a process of its own: it composes the same linked
pass with the code that workers use, launches it with CUPTI's kernel activity enabled, and states how long the kernels
of the calls took: links, flushes and digests are left out by their names.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from fib_bench.timing.linked import native
from fib_bench.transport.messages import ComposePass, LinkedInput, TensorSlot
from fib_bench.transport.slots import layout_of
from fib_bench.worker.calls import PreparedCall
from fib_bench.worker.passes import Passes
from fib_compile import BuilderRegistry
from fib_schema import Definition, RandomInput, Solution, Trace, Workload, format_json, parse_json
from gpu_report import Budget, latency_us, plain, status_of, timing_of
from gpu_sections import uncertainty_text
from gpu_session import Bench, plan_of

_PASSES, _MAX_CALLS, _MAX_BYTES = 8, 32, 4 << 30
_PASS_SECONDS, _GRACE_SECONDS = 10.0, 30.0
_ABSOLUTE_US, _RELATIVE = 0.1, 0.01
_OURS = "fib_"
"""Beginnings of the names of kernels of a pass that do not belong to a call."""
_BFLOAT16 = "bfloat16"


@attrs.frozen
class _Function:
    """A function of one kernel."""

    name: str
    definition: Definition
    solution: Solution
    axes: dict[str, int]

    @property
    def workload(self) -> Workload:
        """One workload with random inputs."""
        inputs = {name: RandomInput() for name in self.definition.inputs}
        return Workload(self.axes, inputs, f"cupti-{self.solution.name}")

    def to_plain(self) -> dict[str, Any]:
        """For the other process."""
        about = {"name": self.name, "axes": self.axes}
        return about | {key: json.loads(format_json(getattr(self, key))) for key in ("definition", "solution")}


# -- the section ---------------------------------------------------------------------------------


def cupti(bench: Bench) -> None:
    """Compare the latencies of one-kernel functions with what CUPTI records in the same passes."""
    functions = list(_functions(bench))
    budget = Budget(bench.budget_seconds)
    session = bench.session(budget.share(0.6), profile_baseline=False)
    found = {
        str(trace.solution): trace
        for trace in session.run([plan_of(f.definition, [f.solution], [f.workload]) for f in functions])
    }
    traces = {f.name: found[f.solution.name] for f in functions if f.solution.name in found}
    bench.note(session)
    bench.report.numbers["linked"] = [plain(trace) for trace in traces.values()]
    timed = [f for f in functions if f.name in traces and traces[f.name].is_successful()]
    for name, trace in traces.items():
        if not trace.is_successful():
            bench.report.say(f"- {name}: {status_of(trace)}")
    bench.report.say(f"{len(timed)} of {len(functions)} functions were timed.")
    bench.report.say()
    if not bench.is_cuda:
        bench.report.say("CUPTI needs a CUDA device: nothing to compare with.")
        return
    recorded = _recorded(bench, timed, budget)
    bench.report.numbers["cupti"] = recorded
    _print(bench, timed, traces, recorded)


def _functions(bench: Bench) -> list[_Function]:
    if not bench.is_cuda:
        return [_copy(bench, 4096)]
    found = []
    for name, (definition, _) in bench.collect("rmsnorm_h4096").items():
        solution = bench.from_file("rmsnorm_triton.py", definition)
        (axis,) = definition.var_axes
        for rows in (1, 16, 64, 256, 1024, 8192):
            found.append(_Function(f"{name}, Triton, {rows} rows", definition, solution, {axis: rows}))
    found += [_copy(bench, elements) for elements in (1 << 15, 1 << 21, 1 << 25, 1 << 28)]
    for name, (definition, _) in bench.collect("gemm_n4096_k4096").items():
        source = "import torch\n\n\ndef run(A, B, C):\n    torch.mm(A, B.t(), out=C)\n"
        solution = bench.solution("cublas", definition, "cublas.py", source, returns=False)
        (axis,) = definition.var_axes
        for rows in (64, 2048, 8192):
            found.append(_Function(f"{name}, torch.mm, {rows} rows", definition, solution, {axis: rows}))
    return [attrs.evolve(f, solution=attrs.evolve(f.solution, name=f"cupti_{i}")) for i, f in enumerate(found)]


def _copy(bench: Bench, elements: int) -> _Function:
    fields = {"dtype": _BFLOAT16, "shape": ["n"]}
    plain_definition = {
        "name": "multiply",
        "op_type": "elementwise",
        "axes": {"n": {"type": "var"}},
        "inputs": {"x": fields},
        "outputs": {"y": fields},
        "reference": "def run(x):\n    return x * 2\n",
    }
    definition = parse_json(json.dumps(plain_definition), Definition)
    source = "import torch\n\n\ndef run(x, y):\n    torch.mul(x, 2.0, out=y)\n"
    solution = bench.solution("multiply_torch", definition, "multiply.py", source, returns=False)
    return _Function(f"torch.mul, {elements * 2 >> 10} KiB", definition, solution, {"n": elements})


def _recorded(bench: Bench, functions: Sequence[_Function], budget: Budget) -> dict[str, Any]:
    """Fields of the report of the other process, by name."""
    with tempfile.TemporaryDirectory() as folder:
        job, result = Path(folder, "job.json"), Path(folder, "result.json")
        seconds = max(budget.left, 20.0)
        about = {"device": bench.device, "seconds": seconds, "functions": [f.to_plain() for f in functions]}
        job.write_text(json.dumps(about), "utf-8")
        command = [sys.executable, str(Path(__file__)), str(job), str(result)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + _GRACE_SECONDS)
            problem = run.stderr[-2000:] if run.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"it took more than {seconds + _GRACE_SECONDS:.0f} s"
        if problem:
            bench.report.say(f"- the process with CUPTI failed: {problem}")
        return dict(json.loads(result.read_text("utf-8"))) if result.exists() else {}


def _print(bench: Bench, functions: Sequence[_Function], traces: dict[str, Trace], recorded: dict[str, Any]) -> None:
    rows, good = [], 0
    for function in functions:
        trace, found = traces[function.name], recorded.get(function.name, {"problem": "the budget was spent"})
        timing, ours = timing_of(trace), latency_us(trace)
        shown = (function.name, timing["method"], f"{ours:.3f}", uncertainty_text(trace))
        if "problem" in found:
            rows.append((*shown, "-", "-", "-", found["problem"][:200]))
            continue
        theirs = found["kernel_us"]
        is_near = abs(ours - theirs) <= max(_ABSOLUTE_US, _RELATIVE * theirs)
        good += is_near
        off = f"{ours - theirs:+.3f} us, {ours / theirs - 1:+.2%}"
        rows.append((*shown, f"{theirs:.3f}", off, "yes" if is_near else "**no**", found["remark"]))
    header = (
        "function", "method", "linked us", "stated uncertainty us", "CUPTI us", "difference", "within 0.1 us or 1 %",
        "CUPTI's passes",
    )  # fmt: skip
    bench.report.table("Linked latencies and CUPTI's kernel times in the same passes", header, rows)
    compared = sum("problem" not in recorded.get(function.name, {"problem": ""}) for function in functions)
    bench.report.say(f"{good} of {compared} compared functions within 0.1 us or 1 %.")


# -- the process with CUPTI ----------------------------------------------------------------------


class _Recorder:
    """CUPTI's records of kernels."""

    def __init__(self) -> None:
        from cupti import cupti as api

        self._api = api
        self._kernels: list[tuple[str, float]] = []
        api.activity_register_callbacks(lambda: (8 << 20, 0), self._take)
        api.activity_enable(api.ActivityKind.CONCURRENT_KERNEL)

    def _take(self, activities: Sequence[Any]) -> None:
        for activity in activities:
            if activity.kind == self._api.ActivityKind.CONCURRENT_KERNEL:
                self._kernels.append((str(activity.name), float(activity.end - activity.start)))

    def take(self) -> list[tuple[str, float]]:
        """Names and nanoseconds of the kernels since the last call."""
        torch.cuda.synchronize()
        self._api.activity_flush_all(1)
        found, self._kernels = self._kernels, []
        return found


class _LinkedPass:
    """A linked pass of one function in this process.

    Args:
        function: What to call.
        device: A CUDA device.
    """

    def __init__(self, function: _Function, device: torch.device) -> None:
        definition, axes = function.definition, function.axes
        runnable = BuilderRegistry.get_instance().build(definition, function.solution)
        values = _random_inputs(definition, axes, device)
        layout = layout_of(definition, axes, values)
        self.calls = max(2, min(_MAX_CALLS, _MAX_BYTES // layout.size_bytes))
        inputs = torch.empty(self.calls + 2, layout.input_bytes, dtype=torch.uint8, device=device)
        outputs = torch.empty(self.calls, layout.output_bytes, dtype=torch.uint8, device=device)
        for memory in inputs:
            layout.pack(values, memory)
        for name, tensor in layout.input_tensors(inputs[-1]).items():
            tensor.copy_(values[name].flip(0))
        calls = [PreparedCall(runnable, definition, layout.message, inputs[i], outputs[i]) for i in range(self.calls)]
        for _ in range(3):
            calls[0].collect(calls[0].invoke())
        torch.cuda.synchronize()
        self._module = native.open_native(device, makes_passes=True)
        descriptor = os.memfd_create("fib-mailbox", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, native.MAILBOX_BYTES)
        self._page = mmap.mmap(descriptor, native.MAILBOX_BYTES)
        self._mailbox = native.Mailbox.from_buffer(self._page)
        places = [place if isinstance(place, TensorSlot) else None for place in layout.message.inputs]
        self._passes = Passes(
            self._module, device, calls, [call.outputs for call in calls], inputs[: self.calls], places,
            inputs[self.calls :], descriptor,
        )  # fmt: skip
        linked = tuple(
            LinkedInput(position, value.nbytes, native.ELEMENT, value.itemsize, value.shape[-1])
            for position, value in enumerate(values.values())
        )
        self.nodes = self._passes.compose(ComposePass(native.SOLUTION, self.calls, 0, linked)).nodes
        self._launched = 0

    def run(self) -> None:
        """Make one pass."""
        torch.cuda.synchronize()
        self._launched += 1
        address = ctypes.addressof(self._mailbox)
        self._passes.launch(0)
        if not self._module.wait_armed(address, self._launched, _PASS_SECONDS):
            raise RuntimeError("a launched pass did not start on the device")
        nonce = [secrets.randbits(64) for _ in range(4)]
        if not self._module.time_pass(address, self._launched, nonce, _PASS_SECONDS):
            raise RuntimeError("a pass sent no digest")
        self._module.finish()

    def close(self) -> None:
        """Destroy the pass."""
        self._passes.close()


def _random_inputs(definition: Definition, axes: dict[str, int], device: torch.device) -> dict[str, torch.Tensor]:
    shapes = definition.get_input_shapes(axes)
    found = {}
    for (name, spec), shape in zip(definition.inputs.items(), shapes, strict=True):
        assert shape is not None
        found[name] = torch.randn(shape, device=device).to(getattr(torch, spec.dtype))
    return found


def _record(function: _Function, device: torch.device, recorder: _Recorder) -> dict[str, Any]:
    """The mean kernel time of a call in passes, the median over passes."""
    made = _LinkedPass(function, device)
    try:
        made.run()
        recorder.take()
        means, numbers, names = [], set(), set()
        for _ in range(_PASSES):
            made.run()
            kernels = [(name, taken) for name, taken in recorder.take() if not name.startswith(_OURS)]
            numbers.add(len(kernels))
            names |= {name for name, _ in kernels}
            if len(kernels) == made.calls:
                means.append(statistics.fmean(taken for _, taken in kernels))
    finally:
        made.close()
    if not means:
        return {"problem": f"{sorted(numbers)} kernels in passes of {made.calls} calls: {sorted(names)}"}
    remark = f"{len(means)} passes of {made.calls} calls"
    return {"kernel_us": statistics.median(means) / 1e3, "means_us": [m / 1e3 for m in means], "remark": remark}


def main() -> None:
    """Read a job, record its functions, and write the result."""
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    budget, device = Budget(job["seconds"]), torch.device(job["device"])
    recorder = _Recorder()  # before the first graph: CUPTI looks at graphs when they are made
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    found: dict[str, Any] = {}
    for item in job["functions"]:
        if budget.is_spent:
            break
        definition = parse_json(json.dumps(item["definition"]), Definition)
        solution = parse_json(json.dumps(item["solution"]), Solution)
        try:
            found[item["name"]] = _record(_Function(item["name"], definition, solution, item["axes"]), device, recorder)
        except Exception as error:  # noqa: BLE001 the other functions are compared all the same
            found[item["name"]] = {"problem": f"{type(error).__name__}: {error}"}
        torch.cuda.empty_cache()
        Path(sys.argv[2]).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
