"""Strides: which layouts inputs may have, how records state them, and that other readers keep them."""

import itertools

import attrs
import pytest
from fib_schema import AxisError, InvalidField, RandomInput, Workload
from fib_schema.strides import normalized_strides, storage_elements, strides_problem, workload_strides
from hypothesis import given
from hypothesis import strategies as st

_SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@st.composite
def views(draw):
    """Shapes and strides of narrowed and transposed views of a contiguous tensor."""
    shape = draw(_SIZES)
    whole = [size + draw(st.integers(0, 3)) for size in shape]
    strides = [int(value) for value in itertools.accumulate([1, *reversed(whole[1:])], lambda a, b: a * b)][::-1]
    order = draw(st.permutations(range(len(shape))))
    return tuple(shape[i] for i in order), tuple(strides[i] for i in order)


def offsets(shape, strides):
    return [
        sum(i * s for i, s in zip(index, strides, strict=True))
        for index in itertools.product(*(range(size) for size in shape))
    ]


@given(views())
def test_all_views_of_a_contiguous_tensor_are_accepted(view):
    shape, strides = view
    assert strides_problem(shape, strides) is None
    places = offsets(shape, strides)
    assert len(set(places)) == len(places)
    assert storage_elements(shape, strides) == max(places) + 1


@given(views())
def test_normalized_strides_reach_the_same_elements(view):
    shape, strides = view
    found = normalized_strides(shape, strides)
    if found is None:
        assert offsets(shape, strides) == list(range(len(offsets(shape, strides))))
    else:
        assert offsets(shape, found) == offsets(shape, strides)
        assert normalized_strides(shape, found) == found


@given(_SIZES, st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_accepted_strides_give_each_element_a_place_of_its_own(sizes, strides):
    shape, chosen = tuple(sizes), tuple(strides[: len(sizes)])
    if strides_problem(shape, chosen) is None:
        assert len(set(offsets(shape, chosen))) == len(offsets(shape, chosen))


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((4, 8), (8, 1), None),
        ((1, 8), (99, 1), None),  # the stride of one element means nothing
        ((4, 1, 8), (8, 3, 1), None),
        ((0, 8), (5, 7), None),
        ((4, 8), (16, 1), (16, 1)),
        ((8, 4), (1, 8), (1, 8)),
        ((2, 1, 8), (32, 7, 1), (32, 8, 1)),
    ],
)
def test_strides_are_normalized(shape, strides, expected):
    assert normalized_strides(shape, strides) == expected


@pytest.mark.parametrize(
    ("strides", "problem"),
    [
        ((8,), "has 1 strides for 2 dimensions"),
        ((0, 1), "has the stride 0; strides are positive integers"),
        ((-8, 1), "has the stride -8; strides are positive integers"),
        ((8, True), "has the stride True; strides are positive integers"),
        ((7, 1), "has strides [7, 1] with which elements of shape [4, 8] share memory"),
        ((1, 1), "has strides [1, 1] with which elements of shape [4, 8] share memory"),
    ],
)
def test_other_strides_are_refused(strides, problem):
    assert strides_problem((4, 8), strides) == problem


def strided(layout, axes=None):
    inputs = {"A": RandomInput(), "B": RandomInput()}
    return Workload(axes or {"M": 4, "K": 8}, inputs, "w", {"layout": layout})


def test_a_workload_states_the_strides_of_its_inputs(definition):
    assert workload_strides(definition, attrs.evolve(strided({}), extra=None)) == {}
    assert workload_strides(definition, strided({})) == {}
    assert workload_strides(definition, strided({"A": [16, 1]})) == {"A": (16, 1)}
    assert workload_strides(definition, strided({"A": [8, 1]})) == {}  # contiguous


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ([1], r"extra\['layout'\]: must be an object"),
        ({"A": 16}, r"extra\['layout'\]\['A'\]: must be a list of positive integers, is 16"),
        ({"A": [16, 0]}, "must be a list of positive integers"),
        ({"A": [16, 1.0]}, "must be a list of positive integers"),
        ({"A": [1 << 63, 1]}, "must be a list of positive integers"),
        ({"C": [16, 1]}, r"extra\['layout'\]\['C'\]: the definition has no such input"),
        ({"A": [16]}, "has 1 strides for 2 dimensions"),
        ({"A": [1, 1]}, "share memory"),
    ],
)
def test_an_invalid_layout_is_an_error_where_it_is_read(definition, layout, message):
    with pytest.raises(InvalidField, match=message):
        workload_strides(definition, strided(layout))


def test_a_missing_axis_is_an_error(definition):
    with pytest.raises(AxisError):
        workload_strides(definition, strided({"A": [16, 1]}, {"M": 4}))
