"""Layouts: a solution that was verified with strided inputs serves calls with these strides, and no others."""

import apply_samples as samples
import attrs
import pytest
import torch
from apply_samples import new_solution, new_trace
from fib_apply import ApplyConfig, ApplyKey, ApplyKeyFactory, ApplyTable, AxesOnlyKeyBuilder, apply, enable_apply
from fib_apply.build_service.recorded_call import RecordedCall, make_inputs
from fib_apply.routing.guards import GuardOptions, compile_python_guard, make_native_guard
from fib_schema import AxisConst, AxisVar, Definition, RandomInput, TensorSpec, Workload

pytestmark = pytest.mark.usefixtures("without_probes")

HEADS, WIDTH = 4, 8
DEFINITION = Definition(
    "attend",
    "test",
    axes={"pages": AxisVar(), "heads": AxisConst(HEADS), "width": AxisConst(WIDTH)},
    inputs={
        "k": TensorSpec(("pages", "heads", "width"), "float32"),
        "v": TensorSpec(("pages", "heads", "width"), "float32"),
    },
    outputs={"y": TensorSpec(("pages", "heads", "width"), "float32")},
    reference="def run(k, v):\n    return k + v\n",
)
PACKED = {"k": [2 * HEADS * WIDTH, 2 * WIDTH, 1], "v": [2 * HEADS * WIDTH, 2 * WIDTH, 1]}
HEADS_FIRST = {"k": [WIDTH, 3 * WIDTH, 1]}  # of 3 pages
FALLBACK = -1


def solution(number, code="", *, passing=False):
    """A solution that writes its number."""
    own = f"def run(k, v, y):\n    y.fill_({number})\n" if passing else f"def run(k, v):\n    return k * 0 + {number}\n"
    return new_solution(f"s{number}", content=code or own, definition="attend", passing=passing)


def trace(number, layout=None, *, measured=..., pages=3, latency_ms=1.0):
    stated = layout if measured is ... else measured
    extra, reference = {"layout": stated} if stated else None, 100.0
    made = new_trace(f"s{number}", latency_ms, definition="attend", extra=extra, reference=reference)
    workload = Workload(
        {"pages": pages},
        dict.fromkeys("kv", RandomInput()),
        f"w-{pages}-{layout}",
        {"layout": layout} if layout else None,
    )
    return attrs.evolve(made, workload=workload)


def data_set(*traces, passing=False, code="", definition=DEFINITION):
    numbers = {int(str(one.solution)[1:]) for one in traces}
    solutions = [solution(number, code, passing=passing) for number in sorted(numbers)]
    return samples.data_set(*traces, solutions=solutions, definition=definition)


def packed(pages=3):
    """Keys and values as views of one packed cache, as vLLM passes them."""
    cache = torch.zeros(pages, HEADS, 2 * WIDTH)
    return cache[..., :WIDTH], cache[..., WIDTH:]


def contiguous(pages=3):
    return torch.zeros(pages, HEADS, WIDTH), torch.zeros(pages, HEADS, WIDTH)


def heads_first(pages=3):
    return torch.zeros(HEADS, pages, WIDTH).transpose(0, 1), torch.zeros(pages, HEADS, WIDTH)


@pytest.fixture
def attend():
    @apply("attend")
    def attend(k, v):
        return torch.full_like(v, FALLBACK)

    return attend


def number_of(result):
    return int(result.flatten()[0])


class TestRouting:
    def test_each_layout_is_served_by_its_own_solution(self, attend, guards):
        traces = trace(1), trace(2, PACKED), trace(3, HEADS_FIRST)
        calls = [contiguous, packed, heads_first]
        with enable_apply(data_set(*traces), stats=True) as runtime:
            for _ in range(3):
                assert [number_of(attend(*make())) for make in calls] == [1, 2, 3]
            stats = runtime.stats()["attend"]
        assert not stats.misses
        assert stats.hits["pages=3, layout=k [64, 16, 1]; v [64, 16, 1]"] == 3

    @pytest.mark.parametrize(
        "make",
        [
            contiguous,
            heads_first,
            lambda: (packed()[0], contiguous()[1]),
            lambda: tuple(torch.zeros(3, HEADS, 3 * WIDTH)[..., :WIDTH] for _ in range(2)),
            lambda: tuple(torch.zeros(3, HEADS + 1, 2 * WIDTH)[:, 1:, :WIDTH] for _ in range(2)),
        ],
        ids=["contiguous", "heads first", "one of two", "other strides", "a longer page"],
    )
    def test_other_layouts_go_to_the_fallback(self, attend, guards, make):
        with enable_apply(data_set(trace(2, PACKED)), stats=True) as runtime:
            for _ in range(2):
                assert number_of(attend(*packed())) == 2
                assert number_of(attend(*make())) == FALLBACK
            misses = runtime.stats()["attend"].misses
        assert dict(misses) == {"not recorded": 2}

    def test_elements_that_share_memory_have_no_layout(self, attend, guards):
        shared = torch.zeros(1, 1, 1).expand(3, HEADS, WIDTH), contiguous()[1]
        with enable_apply(data_set(trace(1), trace(2, PACKED)), stats=True) as runtime:
            assert [number_of(attend(*shared)) for _ in range(2)] == [FALLBACK] * 2
            assert dict(runtime.stats()["attend"].misses) == {"tensor": 2}

    def test_the_solution_gets_the_caller_s_tensors(self, guards):
        source = "def run(k, v):\n    assert k.stride() == (64, 16, 1)\n    return k * 0 + k.data_ptr() % 2**20\n"
        k, v = packed()
        with enable_apply(data_set(trace(2, PACKED), code=source)):
            found = apply("attend")(lambda k, v: k)(k, v)
        assert found[0, 0, 0] == k.data_ptr() % 2**20  # nothing was copied

    def test_outputs_are_contiguous(self, guards):
        @apply("attend")
        def attend(k, v, y):
            y.fill_(FALLBACK)

        strided = torch.zeros(3, HEADS, 2 * WIDTH)[..., :WIDTH]
        with enable_apply(data_set(trace(2, PACKED), passing=True)):
            for y, expected in ((contiguous()[0], 2), (strided, FALLBACK), (contiguous()[0], 2)):
                attend(*packed(), y)
                assert number_of(y) == expected

    def test_a_dimension_of_one_element_has_no_stride(self, attend, guards):
        k, v = (t[:1] for t in packed())
        layout = {"k": [HEADS * 2 * WIDTH, 2 * WIDTH, 1], "v": [HEADS * 2 * WIDTH, 2 * WIDTH, 1]}
        other = k.as_strided(k.shape, (5, 2 * WIDTH, 1))
        with enable_apply(data_set(trace(2, layout, pages=1))):
            assert [number_of(attend(x, v)) for x in (k, other, k)] == [2, 2, 2]

    def test_a_plan_is_made_for_its_layout(self):
        source = "def setup(k, v):\n    return {}\ndef run(k, v):\n    return k * 0 + 2\n"
        with enable_apply(data_set(trace(2, PACKED), code=source)) as runtime:
            dispatcher = runtime.dispatcher("attend")
            for inputs, expected in ((packed(), 2), (contiguous(), FALLBACK)):
                run = dispatcher.plan(*inputs, fallback=lambda k, v: torch.full_like(v, FALLBACK))
                assert number_of(run(*inputs)) == expected
            planned = dispatcher.plan(*packed(), fallback=lambda k, v: torch.full_like(v, FALLBACK))
            assert number_of(planned(*contiguous())) == FALLBACK

    def test_key_builders_of_others_get_layouts_too(self, attend):
        class Constant(AxesOnlyKeyBuilder):
            def build_from_args(self, args):
                return ApplyKey({})

            def build_from_workload(self, workload):
                return ApplyKey({})

        ApplyKeyFactory.register("test", Constant)
        with enable_apply(data_set(trace(1), trace(2, PACKED))):
            assert [number_of(attend(*make())) for make in (contiguous, packed, heads_first)] == [1, 2, FALLBACK]


class TestOverlap:
    """An output that lies between the rows of a strided input is no verified call."""

    def between_rows(self):
        memory = torch.zeros(256)
        k = memory[:192].view(3, HEADS, 2 * WIDTH)[..., :WIDTH]
        return [k, torch.zeros(3, HEADS, WIDTH), memory[96:192].view(3, HEADS, WIDTH)]

    def test_guards_reject_it(self, native_module):
        k, v, y = self.between_rows()
        apart = k, v, torch.zeros_like(v)
        options = GuardOptions(outputs=1)
        native = make_native_guard(native_module, apart, options)
        for guard in (compile_python_guard(apart, options), native):
            assert guard(*apart)
            assert not guard(k, v, y)


class TestSelection:
    def keys(self, *traces, **config):
        table = ApplyTable.load_or_build(data_set(*traces), ApplyConfig(**config))
        rankings = table.rankings("attend")["cpu"]
        found = {str(key): [c.solution for c in ranking.candidates] for key, ranking in rankings.by_key.items()}
        best = [] if rankings.best is None else [c.solution for c in rankings.best.candidates]
        return {**found, "best": best}

    def test_layouts_are_ranked_apart(self):
        found = self.keys(trace(1), trace(2, latency_ms=2.0), trace(2, {"k": [64, 16, 1]}))
        assert found == {"pages=3": ["s1", "s2"], "pages=3, layout=k [64, 16, 1]": ["s2"], "best": ["s1", "s2"]}

    @pytest.mark.parametrize("measured", [None, {"k": [96, 16, 1]}, {"k": "damaged"}])
    def test_an_evaluation_with_another_layout_does_not_count(self, measured):
        """A tool that does not know layouts measures contiguous inputs and copies the workload into its trace."""
        table = ApplyTable.load_or_build(data_set(trace(1), trace(2, {"k": [64, 16, 1]}, measured=measured)))
        (ranking,) = table.rankings("attend")["cpu"].by_key.values()
        assert [candidate.solution for candidate in ranking.candidates] == ["s1"]

    def test_an_invalid_layout_is_a_problem(self):
        table = ApplyTable.load_or_build(data_set(trace(1), trace(2, {"k": [1, 1, 1]})))
        assert len(table.rankings("attend")["cpu"].by_key) == 1
        (problem,) = table.problems
        assert "has no key: InvalidField: extra['layout']['k']" in str(problem)

    def test_the_best_over_all_keys_serves_contiguous_calls_only(self, attend):
        config = ApplyConfig(on_miss_policy="use_def_best")
        with enable_apply(data_set(trace(1), trace(2, PACKED)), config):
            assert number_of(attend(*contiguous(5))) == 1
            assert number_of(attend(*packed(5))) == FALLBACK

    def test_absent_inputs_are_told_apart_at_equal_sizes(self):
        optional = {**DEFINITION.inputs, "v": attrs.evolve(DEFINITION.inputs["v"], optional=True)}
        definition = attrs.evolve(DEFINITION, inputs=optional)
        both = trace(1)
        alone = attrs.evolve(both, workload=Workload({"pages": 3}, {"k": RandomInput()}, "alone"), solution="s2")
        found = ApplyTable.load_or_build(data_set(both, alone, definition=definition)).rankings("attend")["cpu"].by_key
        assert {str(key): ranking.candidates[0].solution for key, ranking in found.items()} == {
            "pages=3": "s1",
            "pages=3, without=v": "s2",
        }


def test_a_first_run_in_a_child_has_the_strides():
    ids = torch.arange(24).view(4, 6)[:, :3]
    inputs = [*packed(), torch.arange(6).view(2, 3).T, ids]
    made = make_inputs(RecordedCall.of(inputs).to_line())
    assert [tensor.stride() for tensor in made] == [tensor.stride() for tensor in inputs]
    assert all(torch.equal(a, b) for a, b in zip(made[2:], inputs[2:], strict=True))
