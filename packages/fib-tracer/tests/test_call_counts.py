"""Counts of calls: exact by size and layout, across threads, in bounded memory, whatever the policy keeps."""

import pytest
import torch
from fib_schema import TraceSet
from fib_schema.traffic import load_traffic
from fib_tracer import FilterPolicy, TracingConfig, enable_tracing

from .conftest import errors_of, in_threads, workloads

BY_AXES = TracingConfig("dump_none", filter_policy="keep_first_k_by_axes")
FINAL = [
    TracingConfig(filter_policy="keep_none"),
    TracingConfig("dump_all", filter_policy="keep_first"),
    TracingConfig("dump_all", filter_policy="keep_first_k", filter_policy_kwargs={"k": 5}),
    TracingConfig("dump_all", filter_policy="keep_first_k_by_axes"),
    TracingConfig("dump_all"),
    TracingConfig(),
    TracingConfig("dump_all", max_kept=1),
    TracingConfig("dump_none", filter_policy="keep_random_k"),
]


def traffic(root, name="silu_h8"):
    return load_traffic(root).definitions[name]


def by_rows(root, name="silu_h8"):
    return {dict(axes)["M"]: calls for (axes, _), calls in traffic(root, name).sizes.items()}


@pytest.mark.parametrize("config", FINAL)
def test_every_call_is_counted_by_its_size_also_when_quotas_are_full(config, root, silu):
    with enable_tracing(root, config) as runtime:
        for calls in (40, 60):
            for rows in (1, 2, 3):
                for _ in range(calls * rows):
                    silu(torch.ones(rows, 8))
        assert runtime.flush()["silu_h8"].calls == 600
    assert by_rows(root) == {1: 100, 2: 200, 3: 300}
    assert traffic(root).calls == 600


def test_layouts_are_told_apart_where_they_make_another_workload(root, silu):
    views = torch.ones(4, 16)[:, :8], torch.ones(4, 8)
    with enable_tracing(root, TracingConfig()):
        for count, x in zip((3, 5), views, strict=True):
            for _ in range(count):
                silu(x)
    axes = (("M", 4),)
    assert dict(traffic(root).sizes) == {(axes, (("x", (16, 1)),)): 3, (axes, ()): 5}
    records = workloads(root, "silu_h8")
    assert sorted(traffic(root).calls_by_workload(records).values()) == [3, 5]


def test_scalars_and_absent_inputs_do_not_divide_the_count(root, gather):
    table, rows = torch.ones(5, 8), torch.tensor([1, 2])
    with enable_tracing(root, TracingConfig()) as runtime:
        for scale in (1.0, 2.0, 1.0, torch.tensor(2.0)):
            for mask in (None, torch.ones(2, dtype=torch.bool)):
                gather(table, rows, mask, scale)
        assert runtime.flush()["gather_h8"].stored == 4
    assert list(traffic(root, "gather_h8").sizes.values()) == [8]
    shares = traffic(root, "gather_h8").calls_by_workload(workloads(root, "gather_h8"))
    assert list(shares.values()) == [2, 2, 2, 2]


def test_calls_of_threads_are_counted_exactly(root, silu):
    inputs = [torch.ones(rows, 8) for rows in (1, 2, 3)]

    def work(_):
        for number in range(3000):
            silu(inputs[number % 3])

    with enable_tracing(root, BY_AXES):
        in_threads(work, range(8))
    assert by_rows(root) == {1: 8000, 2: 8000, 3: 8000}


def test_a_failing_policy_does_not_change_the_count(root, silu):
    class Failing(FilterPolicy):
        is_final = True

        def decide(self, call):
            raise RuntimeError("of a policy")

    with enable_tracing(root, TracingConfig(filter_policy=Failing)) as runtime:
        for _ in range(7):
            silu(torch.ones(2, 8))
        assert runtime.stats()["silu_h8"].dropped == {"errors": 7}
    assert (traffic(root).calls, by_rows(root)) == (7, {2: 7})


@pytest.mark.parametrize("config", [BY_AXES, TracingConfig("dump_all", max_kept=20), TracingConfig()])
def test_sizes_beyond_the_limit_are_counted_together(config, root, silu, monkeypatch):
    monkeypatch.setattr("fib_tracer.counts.MAX_SIZES", 30)
    with enable_tracing(root, config) as runtime:
        for _ in range(4):
            for rows in range(100):
                silu(torch.ones(rows, 8))
        assert runtime.flush()["silu_h8"].calls == 400
    assert by_rows(root) == dict.fromkeys(range(30), 4)
    assert traffic(root).calls == 400


def test_a_definition_is_only_counted_after_max_kept_calls(root, silu, caplog):
    with enable_tracing(root, TracingConfig("dump_all", max_kept=3)) as runtime:
        for value in range(10):
            silu(torch.full((2, 8), float(value)))
        stats = runtime.flush()["silu_h8"]
        assert (stats.calls, stats.kept, stats.stored) == (10, 3, 3)
        assert errors_of(runtime, "silu_h8") == {"silu_h8: max_kept": 1}
    assert "3 calls were kept (max_kept); later ones are only counted" in caplog.text


def test_nothing_is_written_without_calls_or_where_it_is_not_wanted(root, silu):
    with enable_tracing(root, TracingConfig("dump_all")):
        pass
    with enable_tracing(root, TracingConfig("dump_all"), saves_traffic=False):
        silu(torch.ones(2, 8))
    assert not (root / "traffic").exists()
    assert len(TraceSet.from_path(root).workloads["silu_h8"]) == 1
