"""Fault tests: failing policies, failing disks, forks, and objects that must not stay alive."""

import gc
import resource
import threading
import weakref

import attrs
import pytest
import torch
from fib_apply import apply
from fib_tracer import Decision, FilterPolicy, InputDumpPolicy, TracingConfig, enable_tracing
from fib_tracer.policies import Attention, KeepAll, KeepRandomK

from .conftest import errors_of, silu_rows, workloads
from .test_processes import run

EVERYTHING = TracingConfig("dump_all")
FILE = "workloads/activation/silu_h8.jsonl"


def decode_args():
    return torch.ones(1, 2), torch.tensor([0, 3], dtype=torch.int32), torch.arange(3, dtype=torch.int32), 0.5


def failing(method, base):
    """A policy whose given method always raises."""

    def fail(self, *arguments):
        raise RuntimeError(f"of {method}")

    return type("Failing", (base,), {method: fail})


@pytest.mark.parametrize(
    ("method", "base"),
    [("value_probes", KeepAll), ("decide", KeepAll), ("admit", KeepAll), ("reset", KeepAll), ("submit", KeepRandomK)],
)
def test_a_filter_policy_that_raises_leaks_no_memory(root, silu, method, base):
    """The call succeeds, and all bytes of the budget are released."""
    x = torch.ones(2, 8)
    with enable_tracing(root, TracingConfig("dump_all", filter_policy=failing(method, base))) as runtime:
        for _ in range(3):
            assert torch.equal(silu(x), x * torch.sigmoid(x))
        runtime.flush()
        assert runtime.budget.reserved_bytes == 0
    assert any("RuntimeError" in kind or "cannot be traced" in kind for kind in runtime.error_counts())


@pytest.mark.parametrize("method", ["dump", "always_dumped"])
def test_a_dump_policy_that_raises_does_not_fail_the_call(root, silu, method):
    class Nothing(InputDumpPolicy):
        def dump(self, inputs):
            return ()

    policy = failing(method, Nothing)()
    with enable_tracing(root, TracingConfig(policy)) as runtime:
        silu(torch.ones(2, 8))
    assert runtime.error_counts()
    assert workloads(root, "silu_h8") == []


def test_a_policy_may_call_a_traced_function(root, silu):
    class Calling(KeepAll):
        def decide(self, call):
            if call.axes["M"] > 1:
                silu(torch.ones(1, 8))
            return Decision.KEEP

    with enable_tracing(root, TracingConfig("dump_all", filter_policy=Calling)) as runtime:
        caller = threading.Thread(target=silu, args=(torch.ones(2, 8),), daemon=True)
        caller.start()
        caller.join(60)
        assert not caller.is_alive()
        runtime.flush()
    assert sorted(silu_rows(root)) == [1, 2]


@pytest.mark.parametrize("method", ["submit", "drain"])
def test_a_policy_that_exits_does_not_end_the_storage_thread(root, silu, gather, method):
    def leave(self, *arguments):
        raise SystemExit(f"of {method}")

    policy = type("Leaving", (FilterPolicy,), {method: leave})
    config = {"silu_h8": TracingConfig(filter_policy=policy), "gather_h8": TracingConfig()}
    with enable_tracing(root, config) as runtime:
        silu(torch.ones(2, 8))
        runtime.flush(60)
        gather(torch.ones(4, 8), torch.tensor([1, 2]), None, 1.0)
        assert runtime.flush(60)["gather_h8"].stored == 1
    assert any("SystemExit" in kind for kind in runtime.error_counts())


def test_an_invalid_entry_does_not_affect_others(root, silu):
    class Meddling(FilterPolicy):
        def drain(self):
            first, *others = super().drain()
            return [attrs.evolve(first, inputs={"x": object()}), *others]

    with enable_tracing(root, TracingConfig(filter_policy=Meddling)) as runtime:
        for size in (1, 2, 3):
            silu(torch.ones(size, 8))
    assert silu_rows(root) == [2, 3]
    assert runtime.stats()["silu_h8"].dropped == {"errors": 1}


@pytest.mark.parametrize("method", ["decide", "admit"])
def test_a_deferred_decision_that_raises_releases_its_memory(root, decode, method):
    """The storage thread asks the policy when the elements that it needs are on the CPU."""
    policy = failing(method, Attention)
    with enable_tracing(root, TracingConfig("dump_int", filter_policy=policy)) as runtime:
        for _ in range(60):
            decode(*decode_args())
        runtime.flush()
        assert runtime.budget.reserved_bytes == 0
    assert runtime.stats()["gqa_paged_decode_h2"].dropped == {"errors": 60}


@pytest.mark.parametrize("spoilt", [FILE, "workloads", "blob"])
def test_unwritable_records_are_counted_and_later_ones_stored(root, silu, spoilt):
    """A folder is in place of a file, or a file in place of a folder."""
    if spoilt == FILE:
        (root / FILE).mkdir(parents=True)
    else:
        (root / spoilt).touch()
    with enable_tracing(root, EVERYTHING) as runtime:
        silu(torch.ones(2, 8))
        assert runtime.flush()["silu_h8"].dropped == {"could not be written": 1}
        assert runtime.budget.reserved_bytes == 0
        (root / spoilt).rename(root / "moved")
        silu(torch.ones(3, 8))
        assert runtime.flush()["silu_h8"].stored == 1
    assert runtime.error_counts()["silu_h8: writing"] == 1


def test_of_a_batch_that_cannot_be_written_whole_the_rest_is_stored(root, silu):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with enable_tracing(root, EVERYTHING) as runtime:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            for rows in (2, 3, 5000, 4, 6000, 5):
                silu(torch.ones(rows, 8))
            stats = runtime.flush()["silu_h8"]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (stats.stored, stats.dropped) == (4, {"could not be written": 2})
    assert sorted(silu_rows(root)) == [2, 3, 4, 5]


def test_a_damaged_definition_does_not_keep_others_from_being_traced(root, silu, gather, caplog):
    next(root.rglob("definitions/**/gather_h8.json")).write_text("{")
    with enable_tracing(root, TracingConfig(["x"])) as runtime:
        assert "gather_h8.json" in caplog.text
        silu(torch.ones(2, 8))
        gather(torch.ones(4, 8), torch.tensor([1, 2]), None, 1.0)
    assert silu_rows(root) == [2]
    assert errors_of(runtime, "silu_h8", "gather_h8") == {"gather_h8: cannot be traced": 1}


def test_threads_may_call_while_the_process_ends(root):
    out = run(
        root,
        """
enable_tracing(sys.argv[1], TracingConfig("dump_none", filter_policy="keep_random_k"))
ready = threading.Barrier(5)
def work():
    x = torch.ones(2, 8)  # a thread that is inside of torch when the interpreter is gone ends badly by itself
    for index in range(10**9):
        silu(x)
        if index == 10:
            ready.wait()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
ready.wait()
print("ends")
""",
    )
    assert out == "ends\n"


_POLICIES = ["keep_all", "keep_first_k_by_axes", "keep_random_k", "attention"]


@pytest.mark.parametrize("policy", _POLICIES)
@pytest.mark.parametrize("dump", ["dump_all", "dump_none"])
def test_the_callers_tensors_are_not_kept_alive(root, gather, dump, policy):
    """Scalar tensors too; by reference counts alone, without garbage collection."""
    with enable_tracing(root, TracingConfig(dump, filter_policy=policy)) as runtime:
        gc.collect()
        gc.disable()
        try:
            arguments = [torch.ones(4, 8), torch.tensor([1]), torch.tensor([True]), torch.tensor(0.5)]
            alive = [weakref.ref(argument) for argument in arguments]
            gather(*arguments)
            del arguments
            runtime.settle()
            assert [tensor for ref in alive if (tensor := ref()) is not None] == []
        finally:
            gc.enable()


def test_a_deferred_decision_does_not_keep_the_callers_tensors(root, silu, decode):
    """They may be large, and the budget does not count them."""
    seen = []

    class Late(Attention):
        def decide(self, call):
            seen.append((alive(), call.inputs["q"].shape, call.inputs["sm_scale"], dict(call.probed)))
            return super().decide(call)

    may_go_on = threading.Event()

    class Waiting(KeepAll):
        def drain(self):
            return []

        is_final = False

        def submit(self, entry):
            may_go_on.wait()  # those who store wait

    config = {"gqa_paged_decode_h2": TracingConfig("dump_int", filter_policy=Late)}
    config["silu_h8"] = TracingConfig(filter_policy=Waiting)
    with enable_tracing(root, config) as runtime:
        silu(torch.ones(2, 8))
        arguments = decode_args()
        alive = weakref.ref(arguments[0])
        decode(*arguments)
        del arguments
        may_go_on.set()
        runtime.flush()
    ((q, shape, scale, probed),) = seen
    assert (q, tuple(shape), scale, probed) == (None, (1, 2), 0.5, {"kv_indptr": 3})
    assert len(workloads(root, "gqa_paged_decode_h2")) == 1


def test_routed_functions_and_runtimes_are_garbage_collected(root):
    function = apply("silu_h8")(lambda x: x)
    runtime = enable_tracing(root, EVERYTHING)
    function(torch.ones(2, 8))
    gone = [weakref.ref(function)]
    del function
    gc.collect()
    assert gone[0]() is None
    runtime.stop()
    gone.append(weakref.ref(runtime))
    del runtime
    gc.collect()
    assert gone[1]() is None
