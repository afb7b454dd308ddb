"""Tests of filter policies: decisions and samples."""

from collections import Counter

import pytest
import torch
from fib_tracer import Call, Decision, InvalidSetting, PolicyRegistry, WorkloadEntry
from fib_tracer.policies import Attention, KeepFirstK, KeepFirstKByAxes, KeepFirstKByKey, KeepRandomK
from hypothesis import given
from hypothesis import strategies as st

from .conftest import DECODE, SILU


def silu_call(size):
    return Call(SILU, {"M": size}, {"x": torch.empty(size, 8)})


def decode_call(total, sequences=2):
    inputs = {"q": None, "kv_indptr": torch.empty(sequences + 1), "kv_indices": None, "sm_scale": 1.0}
    return Call(DECODE, {"B": sequences}, inputs, {"kv_indptr": total})


def offered(policy, calls):
    """The decisions on calls; kept calls are admitted and submitted."""
    decisions = []
    for order, call in enumerate(calls):
        decisions.append(policy.decide(call))
        if decisions[-1] is Decision.KEEP:
            ticket = policy.admit(call)
            if not policy.is_final:
                policy.submit(WorkloadEntry(call.definition, call.axes, {}, order, 0, ticket, call.probed))
    return decisions


def sizes(entries):
    return [entry.axes["M"] for entry in entries]


KEEP, SKIP, FULL, CLOSED = Decision.KEEP, Decision.SKIP, Decision.FULL, Decision.CLOSED
BY_PARITY = KeepFirstKByKey(lambda call: call.axes["M"] % 2, 1)


@pytest.mark.parametrize(
    ("policy", "decisions"),
    [
        (PolicyRegistry.get_filter_policy("keep_all")(), [KEEP] * 4),
        (PolicyRegistry.get_filter_policy("keep_none")(), [CLOSED] * 4),
        (PolicyRegistry.get_filter_policy("keep_first")(), [KEEP, CLOSED, CLOSED, CLOSED]),
        (KeepFirstK(2), [KEEP, KEEP, CLOSED, CLOSED]),
        (KeepFirstKByAxes(1), [KEEP, KEEP, FULL, KEEP]),
        (KeepFirstKByAxes(2), [KEEP, KEEP, KEEP, KEEP]),
        (KeepFirstKByAxes(1, axes=["H"]), [KEEP, FULL, FULL, FULL]),
        (BY_PARITY, [KEEP, KEEP, SKIP, SKIP]),
    ],
)
def test_decisions_on_calls_of_sizes_1_2_1_4(policy, decisions):
    """A reset policy has forgotten all calls."""
    calls = [silu_call(size) for size in (1, 2, 1, 4)]
    assert offered(policy, calls) == decisions
    policy.reset()
    assert offered(policy, calls) == decisions


@given(st.lists(st.integers(1, 5)), st.integers(1, 3))
def test_each_key_is_kept_exactly_k_times(found, k):
    decisions = offered(KeepFirstKByAxes(k), [silu_call(size) for size in found])
    kept = Counter(size for size, decision in zip(found, decisions, strict=True) if decision is KEEP)
    assert kept == Counter({size: min(k, count) for size, count in Counter(found).items()})


def test_attention_is_kept_by_rounded_average_length():
    calls = [decode_call(total) for total in (8, 9, 10, 7)]
    assert offered(Attention(), calls) == [KEEP, KEEP, SKIP, SKIP]
    assert offered(Attention(2), [*calls, decode_call(8)]) == [KEEP, KEEP, KEEP, KEEP, SKIP]


def test_attention_without_offsets_compares_axes():
    policy = Attention()
    assert policy.value_probes(SILU) == {}
    assert policy.value_probes(DECODE) == {"kv_indptr": ("kv_indptr", -1)}
    assert offered(policy, [silu_call(1), silu_call(2), silu_call(1)]) == [KEEP, KEEP, FULL]


@given(st.integers(0, 60), st.integers(1, 8), st.integers())
def test_a_sample_has_k_entries_in_the_order_of_calls(calls, k, seed):
    policy = KeepRandomK(k, seed)
    offered(policy, [silu_call(size) for size in range(1, calls + 1)])
    sample = sizes(policy.drain())
    assert len(sample) == min(k, calls)
    assert sample == sorted(set(sample))
    assert policy.drain() == []


def test_the_sample_is_uniform():
    counts = Counter()
    for seed in range(2000):
        policy = KeepRandomK(2, seed)
        offered(policy, [silu_call(size) for size in range(1, 9)])
        counts.update(sizes(policy.drain()))
    assert all(400 < counts[size] < 600 for size in range(1, 9))


@pytest.mark.parametrize("k", [0, -1, True, 1.5, "3", None])
@pytest.mark.parametrize("make", [KeepFirstK, KeepFirstKByAxes, Attention, KeepRandomK])
def test_k_must_be_a_positive_integer(make, k):
    with pytest.raises(InvalidSetting, match="k: got"):
        make(k)


@pytest.mark.parametrize("axes", ["M", [1], [["M"]]])
def test_axes_must_be_a_list_of_names(axes):
    with pytest.raises(InvalidSetting, match="axes: got"):
        KeepFirstKByAxes(1, axes)
