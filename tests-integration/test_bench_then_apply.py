"""From a benchmark to a model: solutions of public definitions are benchmarked, chosen, and serve two layers."""

import attrs
import pytest
import torch
from fib_apply import ApplyConfig, ApplyRuntime, apply
from fib_bench import Benchmark, BenchmarkConfig
from fib_compile.device import hardware_from_device, is_cuda_available
from fib_schema import RandomInput, SourceFile, Trace, TraceSet, Workload
from public_data_set import narrowed, needs_data_set, public_set
from solution_table import entries_for, entry_of

pytestmark = [needs_data_set, pytest.mark.slow]
NORM, GEMM = "fused_add_rmsnorm_h4096", "gemm_n4096_k4096"
ROWS = (1, 16)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def benchmarked(request, tmp_path_factory):
    """A device, and a data set with traces of all solutions of both definitions on it."""
    device = request.param
    if device != "cpu" and not is_cuda_available():
        pytest.skip("needs a CUDA device")
    data_set = TraceSet.from_path(tmp_path_factory.mktemp("data-set"))
    for name in (NORM, GEMM):
        definition = narrowed(public_set().definitions[name])
        data_set.add_definitions([definition])
        hardware = hardware_from_device(device)
        data_set.add_solutions([entry.solution(definition, hardware) for entry in entries_for(name, device=device[:4])])
        inputs = {name: RandomInput() for name in definition.inputs}
        axis = next(iter(definition.var_axes))
        data_set.add_traces([Trace(name, Workload({axis: rows}, inputs, f"{name}-{rows}")) for rows in ROWS])
    config = BenchmarkConfig(device=device, measure_seconds=0.05, num_trials=1, cpu_processes=1, profile_baseline=False)
    with Benchmark(data_set, config) as running:
        result = running.run()
    assert [str(problem) for problem in (*result.skipped, *result.failures)] == []
    assert {str(trace.evaluation and trace.evaluation.status) for trace in result.traces} == {"PASSED"}
    return device, TraceSet.from_path(data_set.root)


def make_layer():
    """Two operators of a model, which serve themselves where no solution does."""

    @apply(NORM)
    def norm(hidden_states, residual, weight):
        return torch.nn.functional.rms_norm(hidden_states + residual, weight.shape, weight, eps=1e-5)

    @apply(GEMM)
    def gemm(A, B):
        return torch.nn.functional.linear(A, B)

    return lambda hidden, residual, weight, matrix: gemm(norm(hidden, residual, weight).to(matrix.dtype), matrix)


def tensors_of(definitions, rows, device):
    hidden, inner = definitions[NORM].const_axes["hidden_size"], definitions[GEMM].const_axes["N"]
    generator = torch.Generator(device).manual_seed(rows)

    def normal(*shape, dtype):
        return torch.randn(shape, device=device, generator=generator).to(dtype)

    wide = [normal(*shape, dtype=torch.bfloat16) for shape in ((rows, hidden), (rows, hidden), (hidden,))]
    return (*wide, normal(inner, hidden, dtype=torch.float16) / hidden**0.5)


def until_ready(layer, runtime, *tensors):
    """Call until all that is chosen is built and has run once."""
    for _ in range(4):
        layer(*tensors)
        assert runtime.wait_until_built(300)


def hits_of(runtime):
    return {name: sum(found.hits.values()) for name, found in runtime.stats().items()}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("mode", ["eager", "compiled", "captured"])
def test_a_model_computes_the_same_with_chosen_solutions(mode, rows, benchmarked):
    device, data_set = benchmarked
    if mode == "captured" and device == "cpu":
        pytest.skip("there are no CUDA graphs on the CPU")
    layer = make_layer()
    tensors = tensors_of(dict(data_set.definitions), rows, device)
    wanted = layer(*tensors).clone()
    torch._dynamo.reset()
    with ApplyRuntime(data_set.root, ApplyConfig(require_speedup=False), stats=True) as runtime:
        until_ready(layer, runtime, *tensors)
        before = hits_of(runtime)
        found = results_in(mode, layer, tensors)
        after = hits_of(runtime)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    if mode != "compiled":  # compiled code keeps the functions themselves
        assert all(after[name] > before[name] for name in (NORM, GEMM))


def results_in(mode, layer, tensors):
    if mode != "captured":
        called = torch.compile(layer, backend="aot_eager") if mode == "compiled" else layer
        return called(*tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = layer(*tensors)
    results.zero_()
    graph.replay()
    return results


@pytest.mark.gpu
@pytest.mark.parametrize("moment", ["built", "first run"])
def test_graphs_can_be_captured_meanwhile(moment, benchmarked, tmp_path):
    """Capture in global mode while a thread builds a solution that no cache knows, and while it first runs it."""
    device, data_set = benchmarked
    if device == "cpu":
        pytest.skip("there are no CUDA graphs on the CPU")
    layer, tensors = make_layer(), tensors_of(dict(data_set.definitions), 16, device)
    wanted = layer(*tensors).clone()
    with ApplyRuntime(unseen(data_set, tmp_path), ApplyConfig(require_speedup=False), stats=True) as runtime:
        layer(*tensors)  # asks for the solution to be built
        if moment == "first run":
            assert runtime.wait_until_built(300)
            layer(*tensors)  # asks for it to be run
        is_busy = not runtime.wait_until_built(0)
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):  # no `torch.cuda.graph`: the thread would finish during its garbage collection
            graph.capture_begin(capture_error_mode="global")
            results = [layer(*tensors)]
            while not runtime.wait_until_built(0.02):
                results.append(layer(*tensors))
            results.append(layer(*tensors))
            graph.capture_end()
        captured = hits_of(runtime)[NORM]
        graph.replay()
        until_ready(layer, runtime, *tensors)
        assert (is_busy, runtime.left_out()) == (True, {})
        assert hits_of(runtime)[NORM] > captured
    for found in results:
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


def unseen(data_set, root):
    """A data set whose one solution, in Triton, is known by its trace but differs in its kernel's name."""
    definition = data_set.definitions[NORM]
    known = entry_of("fused_add_rmsnorm_triton.py").solution(definition, hardware_from_device("cuda:0"))
    sources = [SourceFile(file.path, file.content.replace("rmsnorm_rows", "unseen_rows")) for file in known.sources]
    fresh = attrs.evolve(known, name="unseen", sources=tuple(sources))
    made = TraceSet.from_path(root)
    made.add_definitions([definition])
    made.add_solutions([fresh])
    for trace in data_set.traces[NORM]:
        if trace.solution == known.name and trace.evaluation is not None:
            extra = {"solution_hash": fresh.hash()}
            evaluation = attrs.evolve(trace.evaluation, extra=extra)
            made.add_traces([attrs.evolve(trace, solution=fresh.name, evaluation=evaluation)])
    return root
