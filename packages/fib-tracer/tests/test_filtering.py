"""Tests of filter policies: verdicts and samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch
from fib_schema import Definition
from fib_tracer import Call, FilterPolicy, InvalidSetting, PolicyRegistry, Verdict, WorkloadEntry
from fib_tracer.policies.filtering import AllOf, Attention, KeepFirstK, KeepFirstKByAxes, KeepFirstKByKey, KeepRandomK
from hypothesis import given
from hypothesis import strategies as st

from .conftest import DECODE, SILU


def silu_call(size: int) -> Call:
    return Call(SILU, {"M": size}, {"x": torch.empty(size, 8)})


def decode_call(total: int, sequences: int = 2) -> Call:
    inputs = {"q": None, "kv_indptr": torch.empty(sequences + 1), "kv_indices": None, "sm_scale": 1.0}
    return Call(DECODE, {"B": sequences}, inputs, {"kv_indptr": total})


def offered(policy: FilterPolicy, calls: Sequence[Call]) -> list[Verdict]:
    """The verdicts on calls; kept calls are admitted and submitted."""
    verdicts = []
    for order, call in enumerate(calls):
        verdicts.append(policy.decide(call))
        if verdicts[-1] is Verdict.KEEP:
            ticket = policy.admit(call)
            if not policy.is_final:
                policy.submit(WorkloadEntry(call.definition, call.axes, {}, order, 0, ticket, call.probed))
    return verdicts


def sizes(entries: Sequence[WorkloadEntry]) -> list[int]:
    return [entry.axes["M"] for entry in entries]


KEEP, SKIP, FULL, CLOSED = Verdict.KEEP, Verdict.SKIP, Verdict.FULL, Verdict.CLOSED
BY_PARITY = KeepFirstKByKey(lambda call: call.axes["M"] % 2, 1)


@pytest.mark.parametrize(
    ("policy", "verdicts"),
    [
        (PolicyRegistry.get_filter_policy("keep_all")(), [KEEP] * 4),
        (PolicyRegistry.get_filter_policy("keep_none")(), [CLOSED] * 4),
        (PolicyRegistry.get_filter_policy("keep_first")(), [KEEP, CLOSED, CLOSED, CLOSED]),
        (KeepFirstK(2), [KEEP, KEEP, CLOSED, CLOSED]),
        (KeepFirstKByAxes(1), [KEEP, KEEP, FULL, KEEP]),
        (KeepFirstKByAxes(2), [KEEP, KEEP, KEEP, KEEP]),
        (KeepFirstKByAxes(1, axes=["H"]), [KEEP, FULL, FULL, FULL]),
        (BY_PARITY, [KEEP, KEEP, SKIP, SKIP]),
        (AllOf([KeepFirstKByAxes(1), KeepFirstK(2)]), [KEEP, KEEP, FULL, CLOSED]),
    ],
)
def test_verdicts_on_calls_of_sizes_1_2_1_4(policy: FilterPolicy, verdicts: list[Verdict]) -> None:
    """A reset policy has forgotten all calls."""
    calls = [silu_call(size) for size in (1, 2, 1, 4)]
    assert offered(policy, calls) == verdicts
    policy.reset()
    assert offered(policy, calls) == verdicts


@given(st.lists(st.integers(1, 5)), st.integers(1, 3))
def test_each_key_is_kept_exactly_k_times(found: list[int], k: int) -> None:
    verdicts = offered(KeepFirstKByAxes(k), [silu_call(size) for size in found])
    kept = Counter(size for size, verdict in zip(found, verdicts, strict=True) if verdict is KEEP)
    assert kept == Counter({size: min(k, count) for size, count in Counter(found).items()})


def test_attention_is_kept_by_rounded_average_length() -> None:
    calls = [decode_call(total) for total in (8, 9, 10, 7)]
    assert offered(Attention(), calls) == [KEEP, KEEP, SKIP, SKIP]
    assert offered(Attention(2), [*calls, decode_call(8)]) == [KEEP, KEEP, KEEP, KEEP, SKIP]


def test_attention_without_offsets_compares_axes() -> None:
    policy = Attention()
    assert policy.value_probes(SILU) == {}
    assert policy.value_probes(DECODE) == {"kv_indptr": ("kv_indptr", -1)}
    assert offered(policy, [silu_call(1), silu_call(2), silu_call(1)]) == [KEEP, KEEP, FULL]


@given(st.integers(0, 60), st.integers(1, 8), st.integers())
def test_a_sample_has_k_entries_in_the_order_of_calls(calls: int, k: int, seed: int) -> None:
    policy = KeepRandomK(k, seed)
    offered(policy, [silu_call(size) for size in range(1, calls + 1)])
    sample = sizes(policy.drain())
    assert len(sample) == min(k, calls)
    assert sample == sorted(set(sample))
    assert policy.drain() == []


def test_the_sample_is_uniform() -> None:
    counts: Counter[int] = Counter()
    for seed in range(2000):
        policy = KeepRandomK(2, seed)
        offered(policy, [silu_call(size) for size in range(1, 9)])
        counts.update(sizes(policy.drain()))
    assert all(400 < counts[size] < 600 for size in range(1, 9))


def test_a_repeated_decision_counts_as_one_call() -> None:
    """A policy decides again on a call that waits for memory; the probability does not change."""
    call = silu_call(1)
    policy, patient = KeepRandomK(1, seed=3), KeepRandomK(1, seed=3)
    for size in range(1, 30):
        call = silu_call(size)
        verdict = policy.decide(call)
        again = attrs.evolve(call, probed={"a": 1})
        assert [patient.decide(call), patient.decide(call), patient.decide(again)] == [verdict] * 3


class Peeking(FilterPolicy):
    """Probes one element, and remembers the probes of calls and entries."""

    is_final = True

    def __init__(self, index: int) -> None:
        self._index = index
        self.seen: list[Mapping[str, int]] = []

    def value_probes(self, definition: Definition) -> Mapping[str, tuple[str, int]]:
        return {"it": ("kv_indptr", self._index)}

    def decide(self, call: Call) -> Verdict:
        self.seen.append(call.probed)
        return Verdict.KEEP


class Holding(Peeking):
    """Holds its entries."""

    is_final = False


def test_each_of_several_policies_receives_its_probes() -> None:
    """Also if two use one label for different elements."""
    first, last = Peeking(0), Holding(1)
    both = AllOf([first, Attention(), last])
    values = {0: 10, 1: 11, -1: 12}
    probed = {label: values[index] for label, (_, index) in both.value_probes(DECODE).items()}
    call = attrs.evolve(decode_call(0), probed=probed)
    assert offered(both, [call]) == [KEEP]
    assert (first.seen, last.seen) == ([{"it": 10}], [{"it": 11}])
    assert [entry.probed for entry in both.drain()] == [{"it": 11}]


def test_only_the_last_of_several_may_sample() -> None:
    sampling = AllOf([KeepFirstKByAxes(1), KeepRandomK(2, seed=0)])
    assert not sampling.is_final
    offered(sampling, [silu_call(size) for size in (1, 1, 2, 3, 3, 4)])
    assert len(set(sizes(sampling.drain()))) == 2
    for wrong in ([], [KeepRandomK(1), KeepFirstK(1)]):
        with pytest.raises(InvalidSetting):
            AllOf(wrong)


@pytest.mark.parametrize("k", [0, -1, True, 1.5, "3", None])
@pytest.mark.parametrize("make", [KeepFirstK, KeepFirstKByAxes, Attention, KeepRandomK])
def test_k_must_be_a_positive_integer(make: Any, k: Any) -> None:
    with pytest.raises(InvalidSetting, match="k: got"):
        make(k)


@pytest.mark.parametrize("axes", ["M", [1], [["M"]]])
def test_axes_must_be_a_list_of_names(axes: Any) -> None:
    with pytest.raises(InvalidSetting, match="axes: got"):
        KeepFirstKByAxes(1, axes)


def test_a_key_must_be_a_function() -> None:
    wrong: Hashable = "M"
    with pytest.raises(InvalidSetting, match="key"):
        KeepFirstKByKey(wrong)  # type: ignore[arg-type]
