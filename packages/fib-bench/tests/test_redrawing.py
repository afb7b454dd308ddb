"""Tests of integer redrawing: new values, valid for the op, with the same totals and structure."""

from collections import Counter

import attrs
import pytest
import torch
from fib_bench.inputs.redrawing import Redrawing, Structure
from hypothesis import given
from hypothesis import strategies as st

from .samples import make_definition

SAME = "for calls of these sizes it is the same however it is drawn"
PAGED = {
    "qo_indptr": "int32[len_indptr]", "kv_indptr": "int32[len_indptr]", "kv_indices": "int32[num_kv_indices]",
    "kv_last_page_len": "int32[batch]",
}  # fmt: skip


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def offsets(lengths):
    return int32([0, *torch.tensor(lengths).cumsum(0).tolist()])


def definition_of(inputs, constraints=(), **axes):
    """Make a definition that knows axes which no input has."""
    known = {**inputs, "unused": f"float32[{','.join(axes)}]?"}
    return make_definition(known, {"y": "float32[]"}, "def run(*args): ...", constraints=constraints)


def redraw(inputs, values, *, seed=0, constraints=(), **axes):
    return Structure(definition_of(inputs, constraints, **axes), axes, values).redraw(seeded(seed))


def tensor(values, name):
    value = values[name]
    assert isinstance(value, torch.Tensor)
    return value


@given(data=st.data(), seed=st.integers(0, 2**32))
def test_each_request_keeps_its_lengths_and_its_pages_up_to_one_relabelling(data, seed):
    pool = 12
    queries = data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=6, unique=True))
    count = len(queries)
    pages = data.draw(st.lists(st.lists(st.integers(0, pool - 1), max_size=5), min_size=count, max_size=count))
    last = data.draw(st.lists(st.integers(1, 64), min_size=count, max_size=count))
    values = {
        "qo_indptr": offsets(queries),
        "kv_indptr": offsets([len(found) for found in pages]),
        "kv_indices": int32([page for found in pages for page in found]),
        "kv_last_page_len": int32(last),
    }
    constraints = ("kv_indptr[-1].item() == num_kv_indices", f"qo_indptr[-1].item() == {sum(queries)}")
    sizes = {"len_indptr": count + 1, "num_kv_indices": sum(map(len, pages)), "batch": count}
    found = redraw(PAGED, values, seed=seed, constraints=constraints, num_pages=pool, page_size=64, **sizes).values
    assert {name: (tensor(found, name).dtype, tensor(found, name).shape) for name in PAGED} == {
        name: (torch.int32, tensor(values, name).shape) for name in PAGED
    }
    new_queries = tensor(found, "qo_indptr").diff().tolist()
    starts = tensor(found, "kv_indptr").tolist()
    labels = {}
    for place, length in enumerate(new_queries):
        request = queries.index(length)
        assert int(tensor(found, "kv_last_page_len")[place]) == last[request]
        segment = tensor(found, "kv_indices")[starts[place] : starts[place + 1]].tolist()
        assert len(segment) == len(pages[request])
        for old, new in zip(pages[request], segment, strict=True):
            assert labels.setdefault(old, new) == new != old
    assert len(set(labels.values())) == len(labels)
    assert set(labels.values()) <= set(range(pool))


@given(lengths=st.lists(st.integers(0, 9), min_size=2, max_size=9), seed=st.integers(0, 2**32))
def test_offsets_change_unless_all_lengths_are_equal(lengths, seed):
    values = {"cu_seqlens": offsets(lengths)}
    found = redraw({"cu_seqlens": "int32[n]"}, values, seed=seed, n=len(lengths) + 1)
    if len(set(lengths)) == 1:
        assert found.kept == {"cu_seqlens": SAME}
        assert found.values == values
        return
    new = tensor(found.values, "cu_seqlens")
    assert found.changed == ("cu_seqlens",)
    assert not torch.equal(new, values["cu_seqlens"])
    assert int(new[0]) == 0
    assert sorted(new.diff().tolist()) == sorted(lengths)


TOTAL = "num_kv_indices == kv_indptr[-1].item()"
DECODE = {name: PAGED[name] for name in ("kv_indptr", "kv_indices", "kv_last_page_len")}


@pytest.mark.parametrize(("length", "others"), [(1, {2, 3, 4}), (5, {2, 3, 4}), (16, {13, 14, 15})])
def test_of_one_request_the_last_page_changes_and_the_sizes_determine_the_offsets(length, others):
    """Timed calls have such lengths too, so they stay close to the recorded one."""
    values = {
        "kv_indptr": offsets([3]), "kv_indices": int32([0, 1, 2]), "kv_last_page_len": int32([length])
    }  # fmt: skip
    sizes = {"len_indptr": 2, "num_kv_indices": 3, "batch": 1, "num_pages": 4, "page_size": 16}
    seen = set()
    for seed in range(50):
        found = redraw(DECODE, values, seed=seed, constraints=(TOTAL,), **sizes)
        assert found.changed == ("kv_indices", "kv_last_page_len")
        assert (found.kept, found.determined) == ({"kv_indptr": SAME}, {"kv_indptr"})
        seen.add(int(tensor(found.values, "kv_last_page_len")))
    assert seen == others
    assert redraw(DECODE, values, **sizes).determined == frozenset()  # nothing says where the offsets end
    apart = {**values, "kv_indptr": int32([1, 3])}
    assert redraw(DECODE, apart, constraints=(TOTAL,), **sizes).determined == frozenset()


def test_last_pages_of_queries_stay_because_no_query_may_be_longer_than_its_keys():
    values = {
        "qo_indptr": offsets([20]), "kv_indptr": offsets([2]), "kv_indices": int32([0, 1]),
        "kv_last_page_len": int32([8]),
    }  # fmt: skip
    sizes = {"len_indptr": 2, "num_kv_indices": 2, "batch": 1, "num_pages": 4, "page_size": 16}
    found = redraw(PAGED, values, constraints=(TOTAL,), **sizes)
    assert (found.changed, found.determined) == (("kv_indices",), {"kv_indptr"})
    assert found.kept["kv_last_page_len"] == SAME


def test_pages_of_requests_with_equal_lengths_change_places():
    """The constraint says to which request an element belongs."""
    values = {"kv_indptr": offsets([2, 2]), "kv_indices": int32([0, 1, 2, 2])}
    inputs = {name: PAGED[name] for name in values}
    sizes = {"num_pages": 3, "len_indptr": 3, "num_kv_indices": 4}
    for constraints, is_known in (((TOTAL,), True), ((), False)):
        orders = set()
        for seed in range(20):
            found = redraw(inputs, values, seed=seed, constraints=constraints, **sizes)
            assert (found.changed, found.kept) == (("kv_indices",), {"kv_indptr": SAME})
            orders.add(len(set(tensor(found.values, "kv_indices")[:2].tolist())) == 1)
        assert (True in orders) is is_known


def test_rows_of_a_page_table_follow_their_lengths_and_keep_their_padding():
    inputs = {"seq_lens": "int32[batch]", "block_tables": "int32[batch,width]"}
    values = {"seq_lens": int32([1, 2, 3]), "block_tables": int32([[4, -1, -1], [4, 5, -1], [6, 7, 8]])}
    for seed in range(20):
        found = redraw(inputs, values, seed=seed, num_pages=9, batch=3, width=3)
        assert found.changed == ("seq_lens", "block_tables")
        table = tensor(found.values, "block_tables")
        rows = dict(zip(tensor(found.values, "seq_lens").tolist(), table.tolist(), strict=True))
        assert [sum(page >= 0 for page in rows[length]) for length in (1, 2, 3)] == [1, 2, 3]
        assert rows[1][0] == rows[2][0]
        assert len({page for row in rows.values() for page in row}) == 6


def test_slots_of_one_page_stay_in_one_page_with_their_positions():
    values = {"sparse_indices": int32([4, 5, 7, 12, -1]), "kv_indices": int32([1, 3])}
    found = redraw(
        {"sparse_indices": "int32[n]", "kv_indices": "int32[m]"}, values, num_pages=5, page_size=4, n=5, m=2
    ).values
    slots, pages = tensor(found, "sparse_indices").tolist(), tensor(found, "kv_indices").tolist()
    assert slots == [pages[0] * 4, pages[0] * 4 + 1, pages[0] * 4 + 3, pages[1] * 4, -1]
    assert pages[0] != 1


@pytest.mark.parametrize(
    ("pages", "pool", "reason"),
    [
        ([0, 0], 1, SAME),
        ([-1, -1], 4, SAME),
        ([0, 4], 4, "it contains 4, the axes allow numbers below 4"),
        ([], 4, "it has no elements"),
    ],
)
def test_pages_that_cannot_be_relabelled_stay(pages, pool, reason):
    values = {"kv_indices": int32(pages)}
    found = redraw({"kv_indices": "int32[n]"}, values, num_pages=pool, n=len(pages))
    assert found == Redrawing(values, (), {"kv_indices": reason})


@given(tokens=st.integers(1, 6), seed=st.integers(0, 2**32), is_packed=st.booleans())
def test_experts_are_relabelled_and_tokens_permuted(tokens, seed, is_packed):
    experts, chosen = 8, 3
    ids = torch.rand((tokens, experts), generator=seeded(seed)).argsort(1)[:, :chosen]
    weights = torch.randint(0, 1 << 16, ids.shape, generator=seeded(seed))
    given_ids = (((ids << 16) | weights) if is_packed else ids).to(torch.int32)
    definition = definition_of({"topk_ids": "int32[n,k]"}, n=tokens, k=chosen, num_experts=experts)
    if is_packed:
        spec = attrs.evolve(definition.inputs["topk_ids"], description="Packed: expert, weight")
        definition = attrs.evolve(definition, inputs={**definition.inputs, "topk_ids": spec})
    axes = {"n": tokens, "k": chosen, "num_experts": experts}
    found = Structure(definition, axes, {"topk_ids": given_ids}).redraw(seeded(seed))
    assert found.changed == ("topk_ids",)
    new = tensor(found.values, "topk_ids").long()
    new_ids = new >> 16 if is_packed else new
    assert all(len(set(row)) == chosen and set(row) <= set(range(experts)) for row in new_ids.tolist())
    old_loads, new_loads = (Counter(table.flatten().tolist()).values() for table in (ids, new_ids))
    assert sorted(old_loads) == sorted(new_loads)
    if is_packed:
        assert sorted((new & 0xFFFF).tolist()) == sorted(weights.tolist())


def test_local_experts_keep_their_load():
    inputs = {"topk_ids": "int32[n,k]", "local_expert_offset": "int32"}
    values = {"topk_ids": int32([[0, 1], [2, 3], [0, 3]]), "local_expert_offset": 2}
    found = redraw(inputs, values, n=3, k=2, num_experts=8)
    assert sorted(tensor(found.values, "topk_ids").tolist()) == [[0, 1], [0, 3], [2, 3]]
    assert found.changed == ("topk_ids",)
    assert found.kept == {"local_expert_offset": "a scalar is a parameter of the call"}


def test_positions_take_any_other_valid_value():
    seen, old = set(), [0, 5, 19]
    for seed in range(100):
        given_positions = {"positions": torch.tensor([*old, -1])}
        found = redraw({"positions": "int64[n]"}, given_positions, seed=seed, n=4, max_seq_len=20)
        assert found.changed == ("positions",)
        *new, padding = tensor(found.values, "positions").tolist()
        assert padding == -1
        assert all(a != b for a, b in zip(old, new, strict=True))
        seen.update(new)
    assert seen == set(range(20))


@pytest.mark.parametrize("name", ["input_ids", "top_k", "seed"])
def test_integers_that_are_data_are_left_alone(name):
    values = {name: int32([1, 2, 3])}
    assert redraw({name: "int32[n]"}, values, n=3, vocab_size=30) == Redrawing(values, (), {})


def test_unknown_integers_stay_and_keep_the_requests_in_order():
    inputs = {"mystery": "int32[n]", "seq_lens": "int32[n]", "kv_indices": "int32[n]", "x": "float32[n]"}
    values = {name: int32([1, 2]) for name in inputs} | {"x": torch.ones(2)}
    found = redraw(inputs, values, n=2, num_pages=4)
    assert found.changed == ("kv_indices",)
    assert found.kept == {
        "mystery": "no rule states which values are valid",
        "seq_lens": "input 'mystery' of unknown meaning may depend on the order of the requests",
    }
    assert found.values["mystery"] is values["mystery"]
    assert found.values["x"] is values["x"]


def test_a_violated_constraint_keeps_the_inputs_that_it_reads():
    inputs = {"qo_indptr": "int32[n]", "kv_indptr": "int32[n]", "kv_indices": "int32[m]"}
    values = {
        "qo_indptr": offsets([1, 2]), "kv_indptr": offsets([3, 4]), "kv_indices": torch.arange(7, dtype=torch.int32),
    }  # fmt: skip
    constraint = "qo_indptr[1].item() == 1"
    found = redraw(inputs, values, constraints=(constraint,), n=3, m=7, num_pages=9)
    assert found.changed == ("kv_indices",)
    reason = f"redrawn values violate the constraint {constraint!r}"
    assert found.kept == {"qo_indptr": reason, "kv_indptr": reason}


def test_a_constraint_that_some_draws_violate_holds():
    constraint = "positions[0].item() % 2 == 0"
    values = {"positions": torch.tensor([4, 5])}
    for seed in range(30):
        found = redraw({"positions": "int64[n]"}, values, seed=seed, constraints=(constraint,), n=2, max_seq_len=30)
        assert int(tensor(found.values, "positions")[0]) % 2 == 0


class TestMovedPages:
    """Requests with equal numbers of pages: other orders would change nothing."""

    def moved(self, inputs, seed=0, pages=3, **values):
        constraints = ("len_indptr == batch + 1", "num_kv_indices == kv_indptr[-1]")
        definition = definition_of(inputs, constraints, num_pages=64, page_size=16)
        given = {
            "kv_indptr": offsets([pages] * 5),
            "kv_indices": torch.arange(5 * pages, dtype=torch.int32),
            "kv_last_page_len": torch.full((5,), 7, dtype=torch.int32),
            **values,
        }
        axes = {"batch": 5, "len_indptr": 6, "num_kv_indices": 5 * pages, "num_pages": 64, "page_size": 16}
        return Structure(definition, axes, {name: given[name] for name in inputs}).move_pages(seeded(seed))

    @given(seed=st.integers(0, 1 << 30), pages=st.integers(2, 9))
    def test_each_request_keeps_a_page_and_the_total_stays(self, seed, pages):
        found = self.moved(DECODE, seed, pages)
        assert found.changed == ("kv_indptr",)
        lengths = torch.as_tensor(found.values["kv_indptr"]).diff()
        assert int(lengths.sum()) == 5 * pages
        assert int(lengths.min()) >= 1
        assert int((lengths != pages).sum()) == 4  # the fifth has no partner
        assert found.values["kv_indptr"].dtype is torch.int32

    def test_offsets_of_queries_forbid_it(self):
        """A request must not have more queries than keys."""
        assert not self.moved(PAGED, qo_indptr=offsets([4] * 5)).changed

    def test_requests_of_one_page_have_none_to_give(self):
        assert not self.moved(DECODE, pages=1).changed

    @pytest.mark.parametrize("lengths", [[7] * 5, [3, 1, 9, 0, 2], [8]], ids=["constant", "other", "one"])
    def test_the_last_requests_are_empty_where_a_constraint_allows_it(self, lengths):
        inputs = {"seq_lens": "int32[batch]", "block_table": "int32[batch,width]"}
        given = {"seq_lens": int32(lengths), "block_table": torch.arange(3 * len(lengths)).int().view(-1, 3)}
        axes = {"batch": len(lengths), "width": 3, "num_pages": 64, "page_size": 4}
        for constraints in ((), ("seq_lens.min().item() >= 0",)):
            definition = definition_of(inputs, constraints, num_pages=64, page_size=4)
            found = Structure(definition, axes, given).move_pages(seeded(3))
            assert found.changed == (("seq_lens",) if constraints else ())
        moved = tensor(found.values, "seq_lens")
        assert ((moved >= 0) & (moved <= given["seq_lens"]))[1:].all()
        assert max(lengths) < int(moved[0]) <= 12
        assert len(lengths) == 1 or int(moved[-1]) == 0
