"""Tests of records: equal contents have equal uuids in all processes, different contents different ones."""

import itertools

import torch
from fib_schema import RandomInput, SafetensorsInput, ScalarInput, TraceSet
from fib_tracer import RANDOM
from fib_tracer.records import make_record, workload_digest
from hypothesis import given
from hypothesis import strategies as st

from .conftest import SILU

VALUES = st.one_of(
    st.just(RANDOM),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.lists(st.integers(-3, 3), max_size=4).map(torch.tensor),
    st.lists(st.booleans(), max_size=4).map(lambda found: torch.tensor(found, dtype=torch.bool)),
)
CONTENTS = st.dictionaries(st.sampled_from("abcde"), VALUES, max_size=4)
AXES = st.dictionaries(st.sampled_from("MNK"), st.integers(0, 9), max_size=3)


@given(AXES, CONTENTS, st.randoms())
def test_the_order_of_axes_and_inputs_does_not_matter(axes, inputs, chance):
    shuffled = [*inputs.items()]
    chance.shuffle(shuffled)
    copied = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in shuffled}
    assert workload_digest("d", dict(reversed(axes.items())), copied) == workload_digest("d", axes, inputs)


def test_different_contents_have_different_digests():
    ones = torch.ones(2, 4)
    contents = [
        ("d", {"M": 2}, {"x": ones}),
        ("e", {"M": 2}, {"x": ones}),
        ("d", {"M": 3}, {"x": ones}),
        ("d", {"N": 2}, {"x": ones}),
        ("d", {"M": 2}, {"y": ones}),
        ("d", {"M": 2}, {"x": RANDOM}),
        ("d", {"M": 2}, {"x": ones.reshape(4, 2)}),
        ("d", {"M": 2}, {"x": ones.reshape(8)}),
        ("d", {"M": 2}, {"x": ones.view(torch.int32)}),
        ("d", {"M": 2}, {"x": torch.zeros(2, 4)}),
        ("d", {"M": 2}, {"x": -torch.zeros(2, 4)}),
        ("d", {"M": 2}, {"x": torch.zeros(0, 4)}),
        ("d", {"M": 2}, {"x": torch.zeros(4, 0)}),
        ("d", {"M": 2}, {"x": torch.tensor(1.0)}),
        *(("d", {"M": 2}, {"x": value}) for value in (1, 1.0, True, 0.0, -0.0, 2**80, float("nan"), float("inf"))),
        ("d", {"M": 2}, {"x": torch.tensor([1]), "y": torch.tensor([2])}),
        ("d", {"M": 2}, {"x": torch.tensor([2]), "y": torch.tensor([1])}),
        ("d", {"M": 2}, {"x": torch.tensor([1, 2]), "y": torch.tensor([], dtype=torch.int64)}),
    ]
    for one, other in itertools.combinations(contents, 2):
        assert workload_digest(*one) != workload_digest(*other), (one, other)


def test_a_record_names_the_file_of_its_tensors(tmp_path):
    log = TraceSet(tmp_path).workload_log()
    inputs = {"x": torch.ones(2, 8), "s": 1.5, "r": RANDOM}
    workload, stored = make_record(SILU, {"M": 2}, inputs, log)
    path = log.blob_path(SILU, workload.uuid)
    assert workload.inputs == {"x": SafetensorsInput(path, "x"), "s": ScalarInput(1.5), "r": RandomInput()}
    assert stored == {"x": inputs["x"]}
    assert workload.uuid in path
