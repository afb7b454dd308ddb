"""First runs of solutions that compile when they are called: in a child process, never beside the engine's calls."""

import os
import threading
import time

import apply_samples as samples
import pytest
import torch
from apply_samples import new_solution, new_trace
from fib_apply import ApplyConfig, apply, capture_phase, enable_apply
from fib_apply.build_service import service
from fib_apply.build_service.recorded_call import RecordedCall, copied_bytes, make_inputs
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec

WIDTH, SIZES = 64, range(1, 4)
WORKSPACE = """import os, pathlib, threading, torch
space = torch.empty(64, 64)
def run(x, indices):
    with pathlib.Path({log!r}).open("a") as file:
        file.write(f"{{os.getpid()}}-{{threading.get_ident()}} {{x.shape[0]}} {{indices.tolist()}}\\n")
    part = space[: x.shape[0]]
    part.copy_(x)
    for _ in range(20):
        part.add_(1)
    return part - 20
"""


DEFINITION = Definition(
    "scale",
    "elementwise",
    axes={"m": AxisVar(), "n": AxisConst(WIDTH), "k": AxisConst(2)},
    inputs={"x": TensorSpec(("m", "n"), "float32"), "indices": TensorSpec(("k",), "int64")},
    outputs={"y": TensorSpec(("m", "n"), "float32")},
    reference="def run(x, indices):\n    return x.clone()\n",
)


def data_set(*sources, language="triton", calls_ms=()):
    """Solutions from the fastest to the slowest, recorded for all sizes; their call latencies may be given."""
    solutions, traces = [], []
    for place, source in enumerate(sources):
        name, timing = f"s{place}", {"graph_safe": True, **({"call_ms": calls_ms[place]} if calls_ms else {})}
        solutions.append(new_solution(name, language, source, passing=False))
        traces += [
            new_trace(name, 0.1 + place, axes={"m": m}, inputs=("x", "indices"), timing=timing, reference=10.0)
            for m in SIZES
        ]
    return samples.data_set(*traces, solutions=solutions, definition=DEFINITION)


@pytest.fixture(name="scale")
def scale_fixture():
    @apply("scale")
    def scale(x, indices):
        return x + 1000

    return scale


INDICES = torch.tensor([3, 5])


def runs(log):
    """The arguments of runs in this thread, and of those in other processes; there are none in other threads."""
    here, elsewhere = [], []
    for line in log.read_text().splitlines():
        place, _, arguments = line.partition(" ")
        process, _, thread = place.partition("-")
        if int(process) == os.getpid():
            assert int(thread) == threading.get_ident()
            here.append(arguments)
        else:
            elsewhere.append(arguments)
    return here, elsewhere


def is_served(scale, m):
    x = torch.full((m, WIDTH), float(m))
    found = scale(x, INDICES)
    assert torch.equal(found, x) or torch.equal(found, x + 1000), f"wrong result for {m} rows: {found.flatten()[0]}"
    return torch.equal(found, x)


@pytest.mark.slow
def test_first_runs_never_overlap_with_calls_of_the_solution(scale, tmp_path):
    """A solution with a module-level workspace gives no wrong result while other sizes run for the first time."""
    log = tmp_path / "runs"
    with enable_apply(data_set(WORKSPACE.format(log=str(log)))) as runtime:
        is_served(scale, 1)
        assert runtime.wait_until_built(300)
        assert is_served(scale, 1)
        for m in SIZES:
            is_served(scale, m)
            while not runtime.wait_until_built(0):
                assert is_served(scale, 1)
            assert is_served(scale, m)

    here, elsewhere = runs(log)
    assert elsewhere == [f"{m} [3, 5]" for m in SIZES]
    assert here[0] == "1 [3, 5]"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ValueError('no such size')", "its first run failed: ValueError: no such size"),
        ("import os; os.abort()", "its first run failed: it ended the process that ran it by SIGABRT"),
    ],
)
@pytest.mark.slow
def test_a_first_run_that_fails_quarantines_the_solution(scale, source, reason):
    with enable_apply(
        data_set(f"def run(x, indices):\n    {source}\n", "def run(x, indices):\n    return x.clone()\n")
    ) as runtime:
        for _ in range(4):
            is_served(scale, 1)
            assert runtime.wait_until_built(300)
        assert runtime.left_out() == {"s0": reason}
        assert is_served(scale, 1)  # by the next candidate


@pytest.mark.slow
def test_a_first_run_without_memory_blames_nobody(scale, caplog):
    source = "import torch\ndef run(x, indices):\n    torch.empty(1 << 60)\n"
    with enable_apply(data_set(source), stats=True) as runtime:
        for _ in range(2):
            assert not is_served(scale, 1)
            assert runtime.wait_until_built(300)
        assert not is_served(scale, 1)
        assert runtime.left_out() == {}
        assert dict(runtime.stats()["scale"].misses) == {"being compiled": 1, "not compiled": 2}
    assert "s0 is not used for m=1, because it could not be run first: RuntimeError" in caplog.text


def test_a_call_with_integers_beyond_the_budget_is_not_copied(scale, monkeypatch):
    monkeypatch.setattr(service, "_MAX_QUEUED_BYTES", INDICES.nbytes - 1)
    with enable_apply(data_set("def run(x, indices):\n    return x.clone()\n"), stats=True) as runtime:
        assert not is_served(scale, 1)
        assert runtime._router.build_service.pending == 0
        assert dict(runtime.stats()["scale"].misses) == {"not compiled": 1}


def test_a_recorded_call_gives_equal_integers_and_finite_floats():
    dtypes = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64)
    inputs = [torch.zeros(3, 2, dtype=dtype) for dtype in dtypes]
    large = torch.full((1 << 21,), 200, dtype=torch.uint8)
    inputs += [torch.tensor([[1 << 40], [-1]]), torch.tensor([True, False]), torch.empty(0, dtype=torch.int32), large]

    made = make_inputs(RecordedCall.of([*inputs, 3, 0.5, True, None]).to_line())

    assert made[-4:] == [3, 0.5, True, None]
    assert [(x.shape, x.dtype) for x in made[:-4]] == [(x.shape, x.dtype) for x in inputs]
    assert all(x.to(torch.complex64).isfinite().all() for x in made[: len(dtypes)])
    assert all(torch.equal(a, b) for a, b in zip(made[5:8], inputs[5:8], strict=True))
    assert copied_bytes(inputs) == 16 + 2


@pytest.mark.slow
def test_calls_with_another_alignment_do_not_compile_in_the_engine(scale):
    aligned = torch.zeros(WIDTH + 4)[:WIDTH].view(1, WIDTH)
    unaligned = torch.zeros(WIDTH + 4)[1 : WIDTH + 1].view(1, WIDTH)
    with enable_apply(data_set("def run(x, indices):\n    return x.clone()\n"), stats=True) as runtime:
        scale(aligned, INDICES)
        assert runtime.wait_until_built(300)
        found = [float(scale(x, INDICES)[0, 0]) for x in (aligned, aligned, unaligned, aligned)]
        assert found == [0, 0, 1000, 0]
        assert dict(runtime.stats()["scale"].misses) == {"being compiled": 1, "unaligned": 1}


@pytest.mark.slow
def test_scalars_on_which_kernels_specialize_are_run_first_each():
    d = Definition(
        "add",
        "elementwise",
        axes={"m": AxisVar()},
        inputs={"x": TensorSpec(("m",), "float32"), "count": TensorSpec(None, "int32")},
        outputs={"y": TensorSpec(("m",), "float32")},
        reference="def run(x, count):\n    return x + count\n",
    )
    solution = new_solution(
        "s", "triton", "def run(x, count):\n    return x + count\n", definition="add", passing=False
    )
    trace = new_trace("s", axes={"m": 4}, inputs=("x", "count"), definition="add")
    found = samples.data_set(trace, solutions=[solution], definition=d)
    add = apply("add")(lambda x, count: x - 1)
    x = torch.zeros(4)
    with enable_apply(found) as runtime:
        for new, equal in ((3, 5), (16, 48), (1, 1), (1 << 20, 32)):
            if new != 1 << 20:
                assert float(add(x, new)[0]) == -1
                assert runtime.wait_until_built(300)
            for count in (new, equal, equal):
                assert float(add(x, count)[0]) == count


class TestCapturePhase:
    """Calls in the block wait for their first run; an engine captures each right afterwards."""

    def capture_all(self, runtime, scale, capturing):
        """Whether a capture of each size records the solution."""
        found = []
        for m in SIZES:
            is_served(scale, m)
            runtime.dispatcher("scale").invalidate()
            capturing[0] = True
            found.append(is_served(scale, m))
            capturing[0] = False
        return found

    @pytest.mark.slow
    def test_what_compiles_when_it_is_called_is_captured(self, scale, capturing, tmp_path):
        log = tmp_path / "log"
        with enable_apply(data_set(WORKSPACE.format(log=str(log))), ApplyConfig(aot_ratio=0.0)) as runtime:
            runtime.warm_up(0.0)  # nothing is ready, and the gate is closed
            with capture_phase(300.0):
                assert self.capture_all(runtime, scale, capturing) == [True, True, True]
            assert runtime.warm_up(0.0).not_ready == {}
        here, elsewhere = runs(log)
        assert len(elsewhere) == 3
        assert len(here) == 6

    @pytest.mark.slow
    def test_a_later_process_runs_nothing_first(self, scale, capturing, tmp_path):
        log = tmp_path / "log"
        made = data_set(WORKSPACE.format(log=str(log)))
        for _ in range(2):
            with enable_apply(made) as runtime, capture_phase(300.0):
                assert self.capture_all(runtime, scale, capturing) == [True, True, True]
        assert len(runs(log)[1]) == 3

    @pytest.mark.slow
    def test_no_call_waits_outside_of_the_block_or_after_its_deadline(self, scale, capturing):
        with enable_apply(
            data_set("import time\ndef run(x, indices):\n    time.sleep(1)\n    return x.clone()\n")
        ) as runtime:
            with capture_phase(0.0):
                assert not is_served(scale, 1)
            assert not is_served(scale, 2)
            assert runtime.wait_until_built(300)
            capturing[0] = True
            assert self.capture_all(runtime, scale, capturing) == [False] * 3

    def test_a_capture_itself_never_waits(self, scale, capturing):
        source = "import time\ndef run(x, indices):\n    time.sleep(300)\n    return x.clone()\n"
        with enable_apply(data_set(source), ApplyConfig(aot_ratio=0.0)), capture_phase(200.0):
            capturing[0] = True
            began = time.monotonic()
            assert not is_served(scale, 1)
            assert time.monotonic() - began < 100

    def test_its_calls_are_ranked_by_the_device_latency_and_others_by_the_call_latency(self, scale):
        sources = [f"def run(x, indices):\n    return x + {number}\n" for number in (0, 1)]
        made = data_set(*sources, language="python", calls_ms=(7.0, 5.0))
        with enable_apply(made, ApplyConfig(require_speedup=False)) as runtime:
            assert scale(torch.zeros(1, WIDTH), INDICES)[0, 0] == 1
            with capture_phase(60.0):
                assert scale(torch.zeros(1, WIDTH), INDICES)[0, 0] == 0
            assert scale(torch.zeros(1, WIDTH), INDICES)[0, 0] == 1
            assert runtime.warm_up(0.0).not_ready == {}

    def test_without_routing_it_does_nothing(self, scale):
        with capture_phase(10.0):
            assert not is_served(scale, 1)
