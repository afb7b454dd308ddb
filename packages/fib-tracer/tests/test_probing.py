"""Tests of value probes: an engine whose quotas are full is not probed at every call."""

import pytest
import torch
from fib_tracer import TracingConfig, enable_tracing
from fib_tracer.policies import Attention

from .conftest import workloads
from .test_call_counts import traffic

BY_LENGTH = TracingConfig("dump_int", filter_policy="attention")


@pytest.fixture
def decided(monkeypatch):
    """The total length of each call that the policy was asked about."""
    asked = []
    decide = Attention.decide

    def noting(self, call):
        asked.extend(call.probed.values())
        return decide(self, call)

    monkeypatch.setattr(Attention, "decide", noting)
    return asked


def call(decode, length):
    indptr = torch.tensor([0, length], dtype=torch.int32)
    decode(torch.ones(1, 2), indptr, torch.arange(length, dtype=torch.int32), 0.5)


def test_an_engine_with_full_quotas_is_rarely_probed_and_all_calls_are_counted(root, decode, decided):
    with enable_tracing(root, BY_LENGTH) as runtime:
        for _ in range(5000):
            call(decode, 3)
        assert len(decided) < 500  # those in flight before the first decision count too
        for _ in range(251):
            call(decode, 4)
        runtime.flush()
        assert 4 in decided
    assert sorted(w.axes["K"] for w in workloads(root, "gqa_paged_decode_h2")) == [3, 4]
    assert sorted(traffic(root, "gqa_paged_decode_h2").sizes.values()) == [251, 5000]


def test_all_calls_are_probed_on_request(root, decode, decided):
    with enable_tracing(root, BY_LENGTH, probes_all=True):
        for _ in range(500):
            call(decode, 3)
    assert len(decided) == 500
