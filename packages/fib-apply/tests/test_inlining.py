"""Triton solutions in compiled graphs: which calls are inlined, and when graphs are traced again.

On the CPU graphs are captured and not run; the tests marked ``gpu`` run them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from fib_apply import ApplyConfig, ApplyKey, apply, enable_apply, hook
from fib_apply.compiled_times import CompiledTimes, CompiledTimesCache
from fib_apply.opaque_cost import OpaqueCost, save_opaque_cost
from fib_apply.routing import inlining, opaque_decision
from fib_apply.routing.opaque_decision import OpaqueDecision, decide_opaque
from fib_apply.routing.resolver import Resolver
from fib_apply.selection.rankings import Candidate
from fib_compile.device import hardware_from_device
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Definition,
    RandomInput,
    ScalarInput,
    Solution,
    SourceFile,
    TensorSpec,
    TraceSet,
)
from torch._dynamo.backends.common import aot_autograd

triton = pytest.importorskip("triton")

INLINED, OPAQUE = "triton_kernel_wrapper_functional", "fib_apply.scale"
SOURCE = """
import torch
import triton
import triton.language as tl

@triton.jit
def rows(x, y, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0) * n
    values = tl.load(x + start + at, mask=at < n, other=0.0)
    tl.store(y + start + at, values * FACTOR, mask=at < n)

def run(x, y):
    rows[(x.shape[0],)](x, y, x.shape[1], FACTOR=3, BLOCK=triton.next_power_of_2(x.shape[1]))
"""
RUN_TIME = SOURCE.replace("FACTOR: tl.constexpr", "FACTOR").replace("FACTOR=3", "FACTOR=3.0")
TUNED = SOURCE.replace("@triton.jit", "@triton.autotune([triton.Config({}, num_warps=2)], key=['n'])\n@triton.jit")
SCALE = Definition(
    "scale",
    "elementwise",
    {"M": AxisVar(), "N": AxisConst(value=4)},
    {"x": TensorSpec(["M", "N"], "float32")},
    {"y": TensorSpec(["M", "N"], "float32")},
    "def run(x):\n    return 2 * x\n",
)
INLINE = ApplyConfig()
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Captured:
    """A backend that keeps the graphs that AOTAutograd makes, and runs none of them."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []
        self.backend = aot_autograd(fw_compiler=self._keep)

    def _keep(self, module: Any, inputs: Any) -> Callable[..., Any]:
        del inputs
        self.graphs.append([str(node.target) for node in module.graph.nodes if node.op == "call_function"])
        results = [node.meta["val"] for node in module.graph.output_node().args[0]]
        return lambda *args: [torch.zeros([int(size) for size in value.shape]) for value in results]

    def count(self, name: str, graph: int = -1) -> int:
        """The number of calls of an operator in a graph."""
        return sum(target.startswith(name) for target in self.graphs[graph])


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def captured(triton_target: None, monkeypatch: pytest.MonkeyPatch) -> Captured:
    """Solutions count as run before: on the CPU, none can run."""
    del triton_target
    monkeypatch.setattr(Resolver, "ready_at", lambda *_: 0.0)
    return Captured()


@pytest.fixture
def data_set(new_trace: Any) -> Callable[..., TraceSet]:
    """A function that makes solutions of sources; each is the fastest at a size of its own, 2, 3 and so on."""

    def data_set(*sources: str, is_safe: bool = True, device: str = "cpu", is_fast_everywhere: bool = False) -> Any:
        hardware = hardware_from_device(device)
        spec = BuildSpec("triton", (hardware,), "main.py::run")
        solutions = [Solution(f"s{i}", "scale", "ada", spec, [SourceFile("main.py", s)]) for i, s in enumerate(sources)]
        sizes = range(2, 2 + len(sources))
        traces = [
            new_trace(f"s{i}", 1.0 + i, m=m, timing={"graph_safe": is_safe}, hardware=hardware)
            for m in sizes
            for i in range(len(sources))
            if is_fast_everywhere or m == i + 2
        ]
        return TraceSet(None, {"scale": SCALE}, {"scale": solutions}, {}, {"scale": traces})

    return data_set


def made() -> Any:
    """A decorated function. Its name is that of its operators."""

    @apply("scale")
    def scale(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    return scale


def compiled(function: Any, captured: Captured, **options: Any) -> Any:
    return torch.compile(function, fullgraph=True, backend=captured.backend, **options)


class TestGraphs:
    def test_launches_are_in_the_graph(self, captured: Captured, data_set: Any) -> None:
        scale = made()
        run = compiled(lambda x: scale(x + 1) * 2, captured)
        with enable_apply(data_set(SOURCE), INLINE, stats=True) as runtime:
            run(torch.ones(2, 4))
            run(torch.ones(2, 4))
            assert sum(runtime.stats()["scale"].hits.values()) == 1  # counted when it is traced
            assert "in compiled graphs:\n  M=2: the kernels of s0 are inlined" in runtime.explain("scale")
        assert captured.count(INLINED) == 1
        assert captured.count(OPAQUE) == 0
        assert len(captured.graphs) == 1

    def test_kernels_that_take_floats_are_inlined_as_constants(self, captured: Captured, data_set: Any) -> None:
        scale = made()
        with enable_apply(data_set(RUN_TIME), INLINE) as runtime:
            compiled(lambda x: scale(x + 1), captured)(torch.ones(2, 4))
            assert "M=2: the kernels of s0 are inlined" in runtime.explain("scale")
        assert captured.count(INLINED) == 1

    def test_two_sizes_in_one_graph_have_their_solutions(self, captured: Captured, data_set: Any) -> None:
        scale = made()
        run = compiled(lambda x, y: (scale(x), scale(y)), captured)
        with enable_apply(data_set(SOURCE, SOURCE.replace("FACTOR=3", "FACTOR=5")), INLINE) as runtime:
            run(torch.ones(2, 4), torch.ones(3, 4))
            lines = runtime.dispatcher("scale").inlining.lines()  # type: ignore[union-attr]
        assert captured.count(INLINED) == 2
        assert lines == ["M=2: the kernels of s0 are inlined", "M=3: the kernels of s1 are inlined"]

    def test_nothing_is_inlined_where_that_is_off(self, captured: Captured, data_set: Any) -> None:
        scale = made()
        with enable_apply(data_set(SOURCE), ApplyConfig(inline_compiled=False)) as runtime:
            compiled(scale, captured)(torch.ones(2, 4))
            assert "in compiled graphs" not in runtime.explain("scale")
        assert captured.count(OPAQUE) == 1

    def test_the_function_is_traced_where_no_solution_is_selected(self, captured: Captured, data_set: Any) -> None:
        scale = made()
        with enable_apply(data_set(SOURCE), INLINE) as runtime:
            compiled(lambda x: scale(x + 1), captured)(torch.ones(7, 4))
            assert "M=7: the function is compiled: no solution is selected" in runtime.explain("scale")
        assert captured.graphs == [["aten.add.Tensor", "aten.mul.Tensor"]]

    def test_the_function_is_traced_where_no_size_has_a_solution(self, captured: Captured, data_set: Any) -> None:
        scale = made()
        with enable_apply(data_set(), INLINE) as runtime:
            compiled(lambda x: scale(x + 1), captured, dynamic=True)(torch.ones(2, 4))
            reason = "the function is compiled: no solution is selected for any size"
            assert f"calls of other sizes: {reason}" in runtime.explain("scale")
        assert captured.graphs == [["aten.add.Tensor", "aten.mul.Tensor"]]

    def test_where_nothing_decomposes_it_the_operator_calls_the_function(
        self, captured: Captured, data_set: Any
    ) -> None:
        del captured
        modules = []

        def keep(module: Any, inputs: Any) -> Any:
            modules.append(module)
            return lambda *_: inputs

        scale, x = made(), torch.ones(2, 4)
        with enable_apply(data_set(SOURCE), INLINE):
            torch.compile(scale, fullgraph=True, backend=keep)(x)
        assert "_inlined_" in modules[0].code
        assert torch.equal(modules[0](x)[0], 2 * x)

    def test_exported_programs_hold_the_opaque_operator(self, captured: Captured, data_set: Any) -> None:
        del captured
        scale = made()

        class Model(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return scale(x) + 1

        with enable_apply(data_set(SOURCE), INLINE):
            exported = torch.export.export(Model(), (torch.ones(2, 4),), strict=True)
        assert "fib_apply.scale" in str(exported.graph)
        assert "_inlined_" not in str(exported.graph)

    def test_scalars_and_optional_inputs(self, captured: Captured, new_trace: Any) -> None:
        inputs = {
            "x": TensorSpec(["M", "N"], "float32"),
            "bias": TensorSpec(["N"], "float32", optional=True),
            "factor": TensorSpec(None, "float32"),
        }
        definition = attrs.evolve(SCALE, inputs=inputs, reference="def run(x, bias, factor):\n    return factor * x\n")
        source = SOURCE.replace("def run(x, y)", "def run(x, bias, factor, y)").replace("FACTOR=3", "FACTOR=factor")
        solution = Solution(
            "s0", "scale", "ada", BuildSpec("triton", ("cpu",), "main.py::run"), [SourceFile("main.py", source)]
        )
        trace = new_trace("s0", m=2, timing={"graph_safe": True})
        inputs = {"x": RandomInput(), "factor": ScalarInput(0.5)}
        trace = attrs.evolve(trace, workload=attrs.evolve(trace.workload, inputs=inputs))
        traces = TraceSet(None, {"scale": definition}, {"scale": (solution,)}, {}, {"scale": (trace,)})

        @apply("scale")
        def scale(x: torch.Tensor, factor: float, bias: torch.Tensor | None = None) -> torch.Tensor:
            return factor * x

        with enable_apply(traces, INLINE) as runtime:
            compiled(lambda x: scale(x, 0.5) + scale(x, 0.25), captured)(torch.ones(2, 4))
            assert "the kernels of s0 are inlined" in runtime.explain("scale")
        assert captured.count(INLINED) == 2


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
class TestOpaque:
    def check(
        self, captured: Captured, reason: str, traces: TraceSet, config: ApplyConfig = INLINE, **options: Any
    ) -> None:
        scale = made()
        with enable_apply(traces, config) as runtime:
            compiled(lambda x: scale(x + 1), captured, **options)(torch.ones(2, 4))
            assert f": an opaque operator: {reason}" in runtime.explain("scale")
        assert captured.count(INLINED) == 0
        assert captured.count(OPAQUE) == 1

    def test_dynamic_sizes(self, captured: Captured, data_set: Any) -> None:
        reason = "a size, stride or scalar is not a constant of the graph"
        self.check(captured, reason, data_set(SOURCE), dynamic=True)

    @pytest.mark.parametrize("factor", ["float('inf')", "1e300"])
    def test_floats_that_cannot_be_constants(self, captured: Captured, data_set: Any, factor: str) -> None:
        source = RUN_TIME.replace("3.0", factor)
        self.check(captured, "s0: kernel 'rows' takes the float 'FACTOR', which Inductor passes", data_set(source))

    def test_tuned_kernels(self, captured: Captured, data_set: Any) -> None:
        self.check(captured, "s0: kernel 'rows' is an Autotuner", data_set(TUNED))

    def test_solutions_that_may_not_be_captured(self, captured: Captured, data_set: Any) -> None:
        self.check(captured, "the traces of s0 do not state graph_safe", data_set(SOURCE, is_safe=False))

    def test_shadow_mode(self, captured: Captured, data_set: Any) -> None:
        config = attrs.evolve(INLINE, shadow_ratio=0.5)
        self.check(captured, "calls are compared with the fallback", data_set(SOURCE), config)

    def test_solutions_that_did_not_run(
        self, captured: Captured, data_set: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Resolver, "ready_at", lambda *_: None)
        self.check(captured, "s0 did not run before the call was traced", data_set(SOURCE))

    def test_solutions_that_became_ready_after_the_warm_up(
        self, captured: Captured, data_set: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Resolver, "ready_at", lambda *_: float("inf"))
        scale = made()
        with enable_apply(data_set(SOURCE), INLINE) as runtime:
            runtime.warm_up(60.0)
            compiled(scale, captured)(torch.ones(2, 4))
            assert "s0 became ready after the warm-up" in runtime.explain("scale")
        assert captured.count(OPAQUE) == 1

    def test_listeners(self, captured: Captured, data_set: Any) -> None:
        scale = made()
        hook.set_apply_hook(lambda *_: None)
        with enable_apply(data_set(SOURCE), INLINE) as runtime:
            compiled(scale, captured)(torch.ones(2, 4))
            assert "all calls: an opaque operator: listeners are notified of each call" in runtime.explain("scale")
        assert captured.count(OPAQUE) == 1

    def test_a_trace_that_takes_too_long(
        self, captured: Captured, data_set: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inlining, "_MAX_SECONDS", 0.0)
        is_over = threading.Event()
        monkeypatch.setattr(inlining.InliningPolicy, "_choose", lambda *_: is_over.wait())
        self.check(captured, "choosing failed, or took more than 0 s", data_set(SOURCE))
        is_over.set()

    def test_an_unexpected_error_is_logged_and_stated(
        self, captured: Captured, data_set: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(*_: Any) -> None:
            raise OSError("no memory")

        monkeypatch.setattr(inlining, "trace_kernels", broken)
        self.check(captured, "OSError: no memory", data_set(SOURCE))
        assert "scale: a traced call stays an opaque operator" in caplog.text


class TestLeftToTheCompiler:
    """Calls for which an opaque operator would make a graph slower than plain compiled code."""

    def check(
        self, captured: Captured, reason: str, traces: TraceSet, config: ApplyConfig = INLINE, **options: Any
    ) -> None:
        scale = made()
        with enable_apply(traces, config) as runtime:
            compiled(lambda x: scale(x + 1), captured, **options)(torch.ones(2, 4))
            assert f": the function is compiled: {reason}" in runtime.explain("scale")
        assert captured.graphs == [["aten.add.Tensor", "aten.mul.Tensor"]]

    def test_solutions_that_save_less_than_an_opaque_operator_costs(
        self, captured: Captured, data_set: Any, new_trace: Any
    ) -> None:
        traces = data_set(TUNED)
        fast = new_trace("s0", 0.010, m=2, reference=0.015, timing={"graph_safe": True})
        traces = TraceSet(None, traces.definitions, traces.solutions, {}, {"scale": [fast]})
        reason = (
            "s0 saves 5.0 us by its traces, needed are 10 us in any graph: an opaque operator adds 10 us "
            "(assumed, 8 us were measured on a CPU)"
        )
        self.check(
            captured, f"s0: kernel 'rows' is an Autotuner, which decides at each launch how to run; {reason}", traces
        )
        captured.graphs.clear()
        self.check(captured, reason, traces, dynamic=True)

    def test_solutions_that_a_graph_on_a_gpu_may_not_capture(
        self, captured: Captured, data_set: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decide = opaque_decision.capture_problem
        monkeypatch.setattr(opaque_decision, "capture_problem", lambda candidate, _: decide(candidate, "cuda:0"))
        reason = "the traces of s0 do not state graph_safe, and the graph may be captured"
        for options in ({}, {"dynamic": True}):
            captured.graphs.clear()
            self.check(captured, reason, data_set(SOURCE, is_safe=False), **options)

    def test_quarantined_solutions(self, captured: Captured, data_set: Any) -> None:
        scale = made()
        with enable_apply(data_set(SOURCE)) as runtime:
            runtime.dispatcher("scale").quarantine("s0", "it is wrong")  # type: ignore[union-attr]
            compiled(lambda x: scale(x + 1), captured)(torch.ones(2, 4))
            assert "the function is compiled: no selected solution is usable" in runtime.explain("scale")
        assert captured.count(OPAQUE) == 0

    def decide(self, saved_us: float, cost: OpaqueCost, **settings: bool) -> OpaqueDecision:
        candidate = Candidate("s0", 0.01, may_capture=True, fallback_ms=0.01 + saved_us / 1e3)
        return decide_opaque(candidate, "cuda:0", ApplyConfig(**settings), cost)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("saved_us", "is_worth_it"), [(103.6, False), (380.3, False), (863.0, False), (865.0, True)]
    )
    def test_an_operator_must_save_more_than_it_and_the_rest_of_a_layer_take_of_the_host(
        self, saved_us: float, is_worth_it: bool
    ) -> None:
        # The first two are attention of 1 and 16 rows in block-1-16-512-h100.md, where the operator made blocks slower.
        found = self.decide(saved_us, OpaqueCost.assumed("NVIDIA_H100"))
        assert found.is_worth_it is is_worth_it
        assert "an opaque operator adds 360 us, 100 us in a CUDA graph (assumed from measurements" in found.reason

    def test_a_measured_cost_is_the_one_that_counts(self) -> None:
        cost = OpaqueCost(50.0, 4.0, "measured on a host", is_measured=True)
        assert not self.decide(119.0, cost).is_worth_it
        assert self.decide(121.0, cost).is_worth_it
        assert "needed are 120 us in any graph: an opaque operator adds 50 us" in self.decide(121.0, cost).reason
        assert "(measured on a host)" in self.decide(119.0, cost).reason

    def test_only_device_time_counts_where_graphs_are_captured(self) -> None:
        cost = OpaqueCost(50.0, 4.0, "measured on a host", is_measured=True)
        found = self.decide(4.5, cost, captures_compiled=True)
        assert found.is_worth_it
        assert "needed are 4 us in a CUDA graph" in found.reason
        assert not self.decide(3.5, cost, captures_compiled=True).is_worth_it
        assert self.decide(103.6, OpaqueCost.assumed("NVIDIA_H100"), captures_compiled=True).is_worth_it

    def test_explain_states_a_measured_cost_and_its_source(
        self, captured: Captured, data_set: Any, new_trace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
        save_opaque_cost("cpu", 4.0, None)
        traces = data_set(TUNED)
        fast = new_trace("s0", 0.010, m=2, reference=0.015, timing={"graph_safe": True})
        traces = TraceSet(None, traces.definitions, traces.solutions, {}, {"scale": [fast]})
        scale = made()
        with enable_apply(traces, INLINE) as runtime:
            compiled(lambda x: scale(x + 1), captured)(torch.ones(2, 4))
            text = runtime.explain("scale")
        assert "M=2: an opaque operator: s0: kernel 'rows' is an Autotuner" in text
        assert (
            "s0 saves 5.0 us by its traces, needed are 4 us in any graph: an opaque operator adds 4 us (measured"
            in text
        )

    def test_solutions_of_any_speed_are_called_if_that_is_asked_for(self) -> None:
        candidate, cost = Candidate("s0", 0.01, may_capture=True, fallback_ms=0.01), OpaqueCost.assumed("NVIDIA_H100")
        any_speed = ApplyConfig(require_speedup=False)
        assert decide_opaque(candidate, "cuda:0", any_speed, cost).is_worth_it
        unsafe = attrs.evolve(candidate, may_capture=False)
        assert not decide_opaque(unsafe, "cuda:0", any_speed, cost).is_worth_it
        assert decide_opaque(unsafe, "cpu", any_speed, cost).is_worth_it


class TestMeasured:
    """Calls of which ``fib-apply warm`` has measured the solution in a compiled graph."""

    FASTER, SLOWER = {"calls": (9.0, 12.0)}, {"calls": (9.0, 12.0), "replays": (3.0, 2.0)}

    def note(
        self, captured: Captured, traces: TraceSet, times: CompiledTimes, config: ApplyConfig = INLINE, **stored: Any
    ) -> str:
        """The line of `explain` for a compiled call, after times were stored for it."""
        given = {"solution": traces.solutions["scale"][0], "key": ApplyKey({"M": 2}), "hardware": "cpu", **stored}
        CompiledTimesCache.in_folder().save(definition=traces.definitions["scale"], times=times, **given)
        scale = made()
        with enable_apply(traces, config) as runtime:
            compiled(lambda x: scale(x + 1), captured)(torch.ones(2, 4))
            lines = runtime.explain("scale").splitlines()
        return next(line.strip() for line in lines if line.startswith("  M=2: "))

    @pytest.fixture(autouse=True)
    def _own_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))

    def test_kernels_that_are_slower_than_fused_code_are_left_out(self, captured: Captured, data_set: Any) -> None:
        note = self.note(captured, data_set(SOURCE), CompiledTimes("s0", True, self.SLOWER))
        assert note == (
            "M=2: the function is compiled: s0 inlined was measured against compiled code: "
            "9.0 against 12.0 us (calls), 3.0 against 2.0 us (replays)"
        )
        assert captured.graphs == [["aten.add.Tensor", "aten.mul.Tensor"]]

    def test_kernels_that_are_faster_are_inlined(self, captured: Captured, data_set: Any) -> None:
        note = self.note(captured, data_set(SOURCE), CompiledTimes("s0", True, self.FASTER))
        assert note.startswith("M=2: the kernels of s0 are inlined: s0 inlined was measured")
        assert captured.count(INLINED) == 1

    def test_an_opaque_operator_that_is_slower_is_left_out(self, captured: Captured, data_set: Any) -> None:
        note = self.note(captured, data_set(TUNED), CompiledTimes("s0", False, self.SLOWER))
        assert "the function is compiled: s0: kernel 'rows' is an Autotuner" in note
        assert "s0 as an opaque operator was measured against compiled code" in note
        assert captured.count(OPAQUE) == 0

    def test_an_opaque_operator_that_is_faster_stays_whatever_its_traces_say(
        self, captured: Captured, data_set: Any, new_trace: Any
    ) -> None:
        traces = data_set(TUNED)
        slow = new_trace("s0", 0.010, m=2, reference=0.015, timing={"graph_safe": True})
        traces = TraceSet(None, traces.definitions, traces.solutions, {}, {"scale": [slow]})
        note = self.note(captured, traces, CompiledTimes("s0", False, self.FASTER))
        assert "an opaque operator: s0: kernel 'rows' is an Autotuner" in note
        assert "9.0 against 12.0 us (calls)" in note
        assert captured.count(OPAQUE) == 1

    def test_only_replays_count_where_graphs_are_captured(self, captured: Captured, data_set: Any) -> None:
        times = CompiledTimes("s0", True, {"calls": (12.0, 9.0), "replays": (2.0, 3.0)})
        config = attrs.evolve(INLINE, captures_compiled=True)
        assert "the kernels of s0 are inlined" in self.note(captured, data_set(SOURCE), times, config)
        captured.graphs.clear()
        torch._dynamo.reset()
        assert "the function is compiled" in self.note(captured, data_set(SOURCE), times)

    def test_a_measurement_of_another_kind_of_graph_does_not_count(self, captured: Captured, data_set: Any) -> None:
        note = self.note(captured, data_set(SOURCE), CompiledTimes("s0", False, self.SLOWER))
        assert note == "M=2: the kernels of s0 are inlined"

    @pytest.mark.parametrize("stored", [{"hardware": "NVIDIA_H200"}, {"key": ApplyKey({"M": 3})}])
    def test_a_measurement_of_something_else_does_not_count(
        self, captured: Captured, data_set: Any, stored: dict[str, Any]
    ) -> None:
        note = self.note(captured, data_set(SOURCE), CompiledTimes("s0", True, self.SLOWER), **stored)
        assert note == "M=2: the kernels of s0 are inlined"

    def test_a_measurement_of_an_earlier_kernel_does_not_count(self, captured: Captured, data_set: Any) -> None:
        earlier = data_set(SOURCE.replace("FACTOR=3", "FACTOR=5")).solutions["scale"][0]
        note = self.note(captured, data_set(SOURCE), CompiledTimes("s0", True, self.SLOWER), solution=earlier)
        assert note == "M=2: the kernels of s0 are inlined"

    def test_it_does_not_count_where_solutions_of_any_speed_are_asked_for(
        self, captured: Captured, data_set: Any
    ) -> None:
        config = ApplyConfig(require_speedup=False)
        note = self.note(captured, data_set(SOURCE), CompiledTimes("s0", True, self.SLOWER), config)
        assert note == "M=2: the kernels of s0 are inlined"

    def test_shadow_mode_keeps_the_operator_whatever_was_measured(self, captured: Captured, data_set: Any) -> None:
        config = attrs.evolve(INLINE, shadow_ratio=0.5)
        note = self.note(captured, data_set(TUNED), CompiledTimes("s0", False, self.SLOWER), config)
        assert note == "M=2: an opaque operator: calls are compared with the fallback"

    def test_what_may_not_be_captured_is_left_out_however_fast_it_is(
        self, captured: Captured, data_set: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decide = opaque_decision.capture_problem
        monkeypatch.setattr(opaque_decision, "capture_problem", lambda candidate, _: decide(candidate, "cuda:0"))
        note = self.note(captured, data_set(TUNED, is_safe=False), CompiledTimes("s0", False, self.FASTER))
        assert "the function is compiled: the traces of s0 do not state graph_safe" in note


class TestRetracing:
    def test_a_quarantined_solution_leaves_the_graph(self, captured: Captured, data_set: Any) -> None:
        scale = made()
        run = compiled(scale, captured)
        traces = data_set(SOURCE, SOURCE.replace("FACTOR=3", "FACTOR=5"), is_fast_everywhere=True)
        with enable_apply(traces, INLINE) as runtime:
            dispatcher = runtime.dispatcher("scale")
            assert dispatcher is not None
            run(torch.ones(2, 4))
            dispatcher.quarantine("s0", "it is wrong")
            assert runtime.wait_until_built(60)  # only the fastest was built ahead
            run(torch.ones(2, 4))
            assert captured.count(INLINED) == 1
            assert "M=2: the kernels of s1 are inlined" in runtime.explain("scale")
            dispatcher.quarantine("s1", "so is it")
            run(torch.ones(2, 4))
        assert captured.count(INLINED) == 0
        assert len(captured.graphs) == 3

    def test_a_quarantine_leaves_graphs_of_other_solutions(self, captured: Captured, data_set: Any) -> None:
        scale = made()
        run = compiled(scale, captured, dynamic=False)
        with enable_apply(data_set(SOURCE, SOURCE.replace("FACTOR=3", "FACTOR=5")), INLINE) as runtime:
            for _ in range(2):
                run(torch.ones(2, 4))
                run(torch.ones(3, 4))
                runtime.dispatcher("scale").quarantine("s0", "it is wrong")  # type: ignore[union-attr]
        assert len(captured.graphs) == 3

    def test_disabling_goes_back_to_the_function_and_enabling_reuses_the_graph(
        self, captured: Captured, data_set: Any
    ) -> None:
        scale = made()
        run = compiled(scale, captured)
        runtime = enable_apply(data_set(SOURCE), INLINE)
        for _ in range(12):  # torch compiles a function at most eight times
            with runtime:
                run(torch.ones(2, 4))
            run(torch.ones(2, 4))
        assert [captured.count(INLINED, 0), captured.count(INLINED, 1)] == [1, 0]
        assert len(captured.graphs) == 2

    def test_a_listener_makes_the_call_opaque(self, captured: Captured, data_set: Any) -> None:
        scale = made()
        run = compiled(scale, captured)
        with enable_apply(data_set(SOURCE), INLINE):
            run(torch.ones(2, 4))
            hook.set_apply_hook(lambda *_: None)
            run(torch.ones(2, 4))
        assert [captured.count(INLINED, 0), captured.count(OPAQUE, 1)] == [1, 1]


@pytest.mark.gpu
@needs_gpu
class TestOnGPU:
    @pytest.mark.parametrize("source", [SOURCE, RUN_TIME, TUNED])
    def test_results_are_those_of_the_solution(self, data_set: Any, source: str) -> None:
        scale = made()
        run = torch.compile(lambda x: scale(x + 1) * 2, fullgraph=True, dynamic=False)
        x = torch.ones(2, 4, device="cuda")
        with torch.no_grad(), enable_apply(data_set(source, device="cuda:0"), INLINE) as runtime:
            for _ in range(4):
                scale(x)
                assert runtime.wait_until_built(120)
            assert torch.equal(run(x), 12 * torch.ones_like(x))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = run(x)
            x.fill_(2)
            graph.replay()
            assert torch.equal(result, 18 * torch.ones_like(x))
            is_inlined = "are inlined" in runtime.explain("scale")
        assert is_inlined is (source is not TUNED)
        assert torch.equal(run(x), 12 * torch.ones_like(x))
