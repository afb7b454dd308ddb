"""Tests of TracingRuntime: the workloads that calls leave in the data set."""

import logging

import pytest
import torch
from fib_apply import apply, enable_apply
from fib_schema import DataSetNotFound, NoRoot, RandomInput, ScalarInput, TraceSet, UnknownName, validate
from fib_tracer import FilterPolicy, InvalidSetting, TracingConfig, TracingRuntime, enable_tracing, get_tracing_runtime

from .conftest import SILU, in_threads, silu_rows, tensors, workloads

EVERYTHING = TracingConfig("dump_all")


def decode_args(lengths):
    indptr = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return torch.ones(len(lengths), 2), indptr, torch.arange(int(indptr[-1]), dtype=torch.int32), 0.5


def test_a_kept_call_is_stored_with_the_values_it_had(root, silu):
    """Also if the caller overwrites its tensors at once."""
    x = torch.randn(3, 8)
    seen = x.clone()
    with enable_tracing(root, EVERYTHING):
        silu(x)
        x.zero_()
    (workload,) = workloads(root, "silu_h8")
    assert workload.axes == {"M": 3}
    assert torch.equal(tensors(root, workload)["x"], seen)


def test_the_data_set_is_valid_afterwards(root, silu, gather, decode):
    with enable_tracing(root):
        silu(torch.ones(2, 8))
        gather(torch.ones(4, 8), torch.tensor([1, 2]), scale=2.0)
        decode(*decode_args([3, 5]))
    report = validate(root)
    assert not [problem for problem in report.problems if problem.severity == "error"]
    assert len(workloads(root, "gqa_paged_decode_h2")) == 1


def test_calls_are_recorded_with_and_without_routing(root, silu):
    with enable_tracing(root, EVERYTHING):
        silu(torch.zeros(1, 8))
        with enable_apply(root):
            silu(torch.zeros(2, 8))
        silu(torch.zeros(3, 8))
    assert silu_rows(root) == [1, 2, 3]


def test_direct_calls_of_apply_are_recorded(root):
    x = torch.ones(2, 8)
    with enable_tracing(root, EVERYTHING):
        apply("silu_h8", args=(x,), fallback=lambda x: x)
        apply("silu_h8", kwargs={"x": x + 1}, fallback=lambda x: x)
        with enable_apply(root) as runtime:
            runtime.dispatch("silu_h8", (x + 2,), fallback=lambda x: x)
    assert [float(tensors(root, w)["x"][0, 0]) for w in workloads(root, "silu_h8")] == [1, 2, 3]


def test_inputs_that_are_not_dumped_are_random(root, gather):
    with enable_tracing(root, TracingConfig("dump_int")):
        gather(torch.ones(4, 8), torch.tensor([3, 0]), scale=3)
    (workload,) = workloads(root, "gather_h8")
    assert workload.inputs["table"] == RandomInput()
    assert workload.inputs["scale"] == ScalarInput(3.0)
    assert "mask" not in workload.inputs
    assert torch.equal(tensors(root, workload)["rows"], torch.tensor([3, 0]))


def test_a_scalar_tensor_is_stored_as_a_scalar(root, gather):
    with enable_tracing(root, TracingConfig("dump_none")):
        gather(torch.ones(4, 8), torch.tensor([3]), scale=torch.tensor(0.25))
    assert workloads(root, "gather_h8")[0].inputs["scale"] == ScalarInput(0.25)


def test_equal_calls_are_stored_once_also_by_a_later_runtime(root, silu):
    for _ in range(2):
        with enable_tracing(root, EVERYTHING) as runtime:
            silu(torch.ones(2, 8))
            silu(torch.ones(2, 8))
    assert len(workloads(root, "silu_h8")) == 1
    stats = runtime.stats()["silu_h8"]
    assert (stats.calls, stats.kept, stats.stored, stats.equal) == (2, 2, 0, 2)


def test_equal_bytes_of_another_dtype_or_input_are_another_workload(root, gather):
    table = torch.ones(4, 8)
    with enable_tracing(root, TracingConfig("dump_int")):
        gather(table, torch.tensor([1, 0]), torch.tensor([True, False]), scale=1.0)
        gather(table, torch.tensor([1, 0]), torch.tensor([False, True]), scale=1.0)
        gather(table, torch.tensor([1, 0]), None, scale=1.0)
    assert len(workloads(root, "gather_h8")) == 3


def test_without_dumped_tensors_equal_sizes_are_recorded_once(root, gather):
    with enable_tracing(root, TracingConfig("dump_none")) as runtime:
        for scale in (1.0, 1.0, 2.0):
            gather(torch.ones(4, 8), torch.tensor([1]), scale=scale)
    assert len(workloads(root, "gather_h8")) == 2
    assert runtime.stats()["gather_h8"].kept == 2


@pytest.mark.parametrize("x", [torch.ones(2, 8, dtype=torch.float16), torch.ones(2, 7), torch.ones(8), 3])
def test_a_call_that_does_not_fit_is_counted_and_not_stored(root, x, caplog):
    silu = apply("silu_h8")(lambda x: x)
    with enable_tracing(root, EVERYTHING) as runtime, caplog.at_level(logging.WARNING, "fib_tracer"):
        for _ in range(3):
            silu(x)
    assert runtime.stats()["silu_h8"].dropped == {"does not fit the definition": 3}
    assert len([record for record in caplog.records if "does not fit" in record.message]) == 1
    assert workloads(root, "silu_h8") == []


def test_a_call_that_breaks_a_constraint_is_not_stored(root, decode):
    q, indptr, indices, scale = decode_args([3, 5])
    with enable_tracing(root) as runtime:
        decode(q, indptr, torch.cat([indices, indices]), scale)
    assert workloads(root, "gqa_paged_decode_h2") == []
    assert runtime.stats()["gqa_paged_decode_h2"].dropped == {"breaks a constraint": 1}
    assert any("constraint" in kind for kind in runtime.error_counts())


class Halves(FilterPolicy):
    """Holds all calls, and returns every other one when it is drained."""

    def drain(self):
        return super().drain()[::2]


def test_a_policy_may_decide_at_the_flush(root, silu):
    with enable_tracing(root, TracingConfig("dump_all", filter_policy=Halves)) as runtime:
        for size in range(1, 6):
            silu(torch.ones(size, 8))
        assert workloads(root, "silu_h8") == []
        runtime.flush()
        assert silu_rows(root) == [1, 3, 5]
        assert runtime.budget.reserved_bytes == 0


def test_a_sample_holds_no_more_memory_than_its_entries(root, silu):
    config = TracingConfig("dump_all", filter_policy="keep_random_k", filter_policy_kwargs={"k": 4, "seed": 1})
    with enable_tracing(root, config) as runtime:
        for size in range(1, 200):
            silu(torch.full((size, 8), 1.0))
        runtime.settle()
        assert runtime.budget.reserved_bytes <= 4 * (200 * 8 * 4 + 4096)
    assert len(workloads(root, "silu_h8")) == 4
    assert runtime.budget.reserved_bytes == 0


def test_calls_beyond_the_byte_budget_are_dropped_and_counted(root, silu):
    with enable_tracing(root, EVERYTHING, max_bytes=8000) as runtime:
        silu(torch.ones(1000, 8))
        silu(torch.ones(2, 8))
        runtime.flush()
    assert runtime.stats()["silu_h8"].dropped == {"no room in the byte budget": 1}
    assert silu_rows(root) == [2]


def test_threads_keep_no_more_than_the_quota(root, silu):
    config = TracingConfig("dump_all", filter_policy="keep_first_k", filter_policy_kwargs={"k": 10})

    def work(offset):
        for index in range(200):
            silu(torch.full((2, 8), float(offset * 1000 + index)))

    with enable_tracing(root, config) as runtime:
        in_threads(work, range(8))
    assert len(workloads(root, "silu_h8")) == 10
    assert runtime.stats()["silu_h8"].calls == 1600


def test_attention_is_kept_by_average_length(root, decode):
    with enable_tracing(root):
        for lengths in ([4, 4], [2, 6], [8, 8], [16, 16, 16], [17, 15]):
            decode(*decode_args(lengths))
    kept = [tensors(root, w)["kv_indptr"].tolist() for w in workloads(root, "gqa_paged_decode_h2")]
    assert kept == [[0, 4, 8], [0, 8, 16], [0, 16, 32, 48]]


def test_runtimes_nest_and_the_last_one_records(root, silu, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    TraceSet(other).add_definitions([SILU])
    with enable_tracing(root, EVERYTHING) as outer:
        with enable_tracing(other, EVERYTHING) as inner:
            assert get_tracing_runtime() is inner
            silu(torch.ones(1, 8))
        assert get_tracing_runtime() is outer
        silu(torch.ones(2, 8))
    assert get_tracing_runtime() is None
    silu(torch.ones(3, 8))
    assert silu_rows(other) == [1]
    assert silu_rows(root) == [2]


def test_collect_records_a_call_that_is_not_routed(root):
    runtime = TracingRuntime(root, EVERYTHING)
    runtime.collect("silu_h8", (torch.ones(2, 8),))
    runtime.collect("silu_h8", {"x": torch.ones(3, 8)})
    runtime.collect("gather_h8", kwargs={"table": torch.ones(3, 8), "rows": torch.tensor([1]), "scale": 1.0})
    assert {name: stats.stored for name, stats in runtime.flush().items()} == {"silu_h8": 2, "gather_h8": 1}
    with pytest.raises(UnknownName):
        runtime.collect("silu_h9", (torch.ones(2, 8),))
    with pytest.raises(TypeError, match="misses argument"):
        runtime.collect("gather_h8", (torch.ones(2, 8),))


def test_unknown_definitions_are_reported_once(root, caplog):
    scale = apply("scale_h4")(lambda x: x)
    with enable_tracing(root), caplog.at_level(logging.WARNING, "fib_tracer"):
        for rows in (3, 5):
            scale(torch.ones(rows, 4))
    messages = [record.message for record in caplog.records if record.message.startswith("scale_h4: unknown")]
    assert len(messages) == 1


def test_a_function_without_the_inputs_is_reported_once(root):
    odd = apply("gather_h8")(lambda one: one)
    with enable_tracing(root) as runtime:
        odd(torch.ones(2, 8))
    assert any("parameters" in kind for kind in runtime.error_counts())


def test_settings_that_match_nothing_are_refused(root):
    with pytest.raises(UnknownName, match="silu_h8"):
        enable_tracing(root, {"silu_h9": TracingConfig()})
    with pytest.raises(UnknownName, match="rows"):
        enable_tracing(root, {"gather_h8": TracingConfig(["row"])})
    with pytest.raises(DataSetNotFound):
        enable_tracing(root / "nowhere")
    with pytest.raises(NoRoot):
        enable_tracing(TraceSet())
    with pytest.raises(InvalidSetting):
        enable_tracing(root, max_bytes=0)
    assert get_tracing_runtime() is None


def test_nothing_is_copied_while_a_graph_is_captured(root, silu, monkeypatch):
    monkeypatch.setattr("fib_tracer.recorder.is_capturing", lambda: True)
    with enable_tracing(root, EVERYTHING) as runtime:
        silu(torch.zeros(2, 8))
    assert workloads(root, "silu_h8") == []
    assert runtime.stats()["silu_h8"].dropped == {"captured in a graph": 1}


@pytest.mark.parametrize("given", ["path", "trace set", "environment"])
def test_a_relative_root_does_not_follow_the_working_directory(root, silu, given, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("FIB_DATASET_PATH", root.name)
    trace_set = {"path": root.name, "trace set": TraceSet.from_path(root.name), "environment": None}[given]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with enable_tracing(trace_set, EVERYTHING):
        silu(torch.ones(1, 8))
        monkeypatch.chdir(elsewhere)
        silu(torch.ones(2, 8))
    assert silu_rows(root) == [1, 2]
    assert (root / "traffic").is_dir()
    assert list(elsewhere.iterdir()) == []
