"""Metrics for Prometheus: the collector counts calls by definition and reason, and durations of events."""

import pytest
import torch
from apply_samples import scale, set_of
from fib_apply import enable_apply, get_runtime

client = pytest.importorskip("prometheus_client", reason="needs the extra `metrics`")


@pytest.fixture(name="registry")
def registry_fixture():
    from fib_apply.prometheus import ApplyCollector

    registry = client.CollectorRegistry()
    collector = ApplyCollector(get_runtime)
    registry.register(collector)
    yield registry
    collector.close()


def values_in(registry):
    text = client.generate_latest(registry).decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_it_has_counts_by_definition_and_reason_and_durations(registry):
    with enable_apply(set_of(), stats=True) as runtime:
        for rows in (2, 2, 2, 5):
            scale(torch.ones(rows, 4))
        runtime.reload()
        runtime.dispatcher("scale").quarantine("fast", "it is wrong")
        values = values_in(registry)
    assert values['fib_apply_hits_total{definition="scale"}'] == 3
    assert values['fib_apply_misses_total{definition="scale",reason="not recorded"}'] == 1
    assert values["fib_apply_up"] == values["fib_apply_left_out_solutions"] == 1
    for kind, result in (("built", "done"), ("reloaded", "done"), ("quarantined", "failed")):
        labels = f'{{kind="{kind}",result="{result}"}}'
        assert values[f"fib_apply_event_seconds_count{labels}"] == 1
        assert (values[f"fib_apply_event_seconds_sum{labels}"] > 0) == (kind != "quarantined")
    assert values_in(registry)["fib_apply_up"] == 0
