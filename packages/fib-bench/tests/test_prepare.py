"""Tests of prepared workloads: input sets, expected outputs, flags."""

import pytest
import torch
from fib_bench import ReferenceFailed, ResolvedEvalConfig
from fib_bench.config.model import DISTRIBUTIONS
from fib_bench.judge import prepare as preparation
from fib_bench.judge.prepare import needed_bytes, slot_count
from fib_bench.judge.prepared import fill
from fib_schema import AxisError, EvaluationStatus

from .samples import DOUBLE, make_definition, make_solution, make_workload

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def prepare(make_judge):
    """Prepare a workload of ``x -> y`` with a reference of that body."""

    def run(body, *, x="float32[n]", y="float32[n]", n=8, uuid="w", **fields):
        reference = f"import torch\ndef run(x):\n    {body}\n"
        definition = make_definition({"x": x}, {"y": y}, reference)
        return make_judge(**fields).prepare(definition, make_workload(definition, {"n": n}, uuid))

    return run


def inputs_of(prepared, sets):
    return [prepared.layout.input_tensors(item.inputs)["x"] for item in sets]


class TestInputSets:
    def test_no_set_is_like_another(self, prepare):
        prepared = prepare("return x * 2", num_trials=3, n=5000)
        sets = prepared.trials
        assert len({bytes(item.inputs.numpy()) for item in sets}) == len(sets) == 3 + len(DISTRIBUTIONS[1:]) + 1
        for item in sets:
            x, y = prepared.layout.input_tensors(item.inputs)["x"], prepared.layout.output_tensors(item.expected)["y"]
            assert torch.equal(y, x * 2)

    def test_generated_values_come_from_the_key_alone(self, prepare):
        prepared = prepare("return x * 2", n=5000)
        assert prepared.generated in prepared.trials
        assert prepared.recipes.keys() == {"x"}
        base = prepared.trials[0].inputs
        made = [torch.zeros_like(base) for _ in range(3)]
        for memory, key in zip(made, (7, 7, 8), strict=True):
            fill(prepared.recipes, prepared.layout, memory, base, key)
        assert torch.equal(made[0], made[1])
        first, _, other = (prepared.layout.input_tensors(memory)["x"] for memory in made)
        assert (first == other).float().mean() < 0.2  # zeros and ones are alike

    def test_the_seed_decides_on_typical_values_and_not_on_generated_ones(self, prepare):
        once, again, other = (prepare("return x * 2", seed=seed) for seed in (1, 1, 2))
        for a, b in zip(once.trials[:2], again.trials[:2], strict=True):
            assert torch.equal(a.inputs, b.inputs)
        assert not torch.equal(once.trials[0].inputs, other.trials[0].inputs)
        assert not torch.equal(once.generated.inputs, again.generated.inputs)

    def test_each_workload_has_values_of_its_own(self, prepare):
        first, second = (prepare("return x * 2", uuid=uuid) for uuid in ("a", "b"))
        assert not torch.equal(inputs_of(first, first.trials)[0], inputs_of(second, second.trials)[0])

    def test_with_typical_values_only_others_are_not_generated(self, prepare):
        mixed, typical = (prepare("return x * 2", n=4096, **only) for only in ({}, {"distributions": ("normal",)}))
        zeros = [int((inputs_of(each, (each.generated,))[0] == 0).sum()) for each in (typical, mixed)]
        assert zeros[0] == 0 < zeros[1]
        assert mixed.timed_config.required_matched_ratio == 0.99

    def test_a_reference_that_is_slow_gets_one_set_of_each_kind(self, prepare, monkeypatch):
        monkeypatch.setattr("fib_bench.judge.prepare._REFERENCE_SECONDS", -1.0)
        prepared = prepare("return x * 2", num_trials=5)
        assert [item.distribution for item in prepared.trials] == ["normal", "generated"]
        assert prepared.left_out == dict.fromkeys(DISTRIBUTIONS[1:], "the reference is too slow")


class TestOtherDistributions:
    @pytest.mark.parametrize(
        ("body", "fields", "others", "left_out"),
        [
            (
                "return x / x",
                {},
                ["wide", "tiny", "shifted"],
                {"zeros_and_ones": "the reference gives NaN or infinity"},
            ),
            (
                "assert x.abs().max() > 0.1, 'too small'; return x * 2",
                {},
                ["wide", "zeros_and_ones", "shifted"],
                {"tiny": "AssertionError: too small"},
            ),
            ("y = x * 2; y[0] = float('inf'); return y", {}, list(DISTRIBUTIONS[1:]), {}),  # all have infinities
            ("return x / x", {"distributions": ("normal", "tiny")}, ["tiny"], {}),
            ("return x.argsort()", {"y": "int64[n]"}, [], {}),  # it chooses by value
        ],
    )
    def test_those_apply_for_which_the_reference_has_a_finite_answer(self, prepare, body, fields, others, left_out):
        prepared = prepare(body, **fields)
        assert [item.distribution for item in prepared.trials] == ["normal", "normal", "generated", *others]
        assert prepared.left_out.keys() == left_out.keys()
        assert all(reason in prepared.left_out[name] for name, reason in left_out.items())
        assert prepared.to_extra().get("left_out", {}) == prepared.left_out

    def test_a_reference_that_ends_on_another_distribution_has_answered_the_first_ones(self, prepare):
        prepared = prepare("import os; x.abs().max() > 0.1 or os._exit(1); return x * 2")
        assert [item.distribution for item in prepared.trials[:4]] == ["normal", "normal", "generated", "wide"]
        assert "exited with status 1" in prepared.left_out["tiny"]


class TestFlags:
    def test_integers_that_are_data_are_generated(self, prepare):
        prepared = prepare("return x // 2", x="int8[n]", y="int8[n]")
        assert [item.distribution for item in prepared.trials] == ["normal", "normal", "generated"]
        assert prepared.recipes.keys() == {"x"}
        assert prepared.flags() == []
        assert "flags" not in prepared.to_extra()

    def test_inputs_that_cannot_vary_are_told(self, prepare):
        prepared = prepare("return x * 0 + 1", n=0)
        assert prepared.recipes == {}
        assert prepared.generated is prepared.trials[0]
        assert prepared.flags()[0] == "fixed_inputs"
        assert not prepared.to_extra().get("constant_inputs")

    def test_values_that_the_reference_refuses_are_not_generated(self, prepare):
        prepared = prepare("assert x.abs().max() < 9, 'too large'; return x * 2", num_trials=1)
        assert prepared.recipes.keys() == {"x"}  # of normal values

    @pytest.mark.parametrize(
        ("body", "flags"),
        [
            ("return x * 0", ["insensitive: y to zeros"]),
            ("return x.clone()", ["insensitive: y to input x"]),
            ("return torch.full_like(x, 3.0)", ["insensitive: y to other inputs"]),
            ("return torch.softmax(x[:, None], 1)[:, 0] * 3.0", ["insensitive: y to other inputs"]),
            ("return x + 1", []),
        ],
    )
    def test_wrong_answers_that_would_pass_are_told(self, prepare, body, flags):
        assert prepare(body).flags() == flags

    def test_a_call_is_named_by_the_inputs_that_differ_there_for_the_first_time(self, prepare):
        """Weights, for instance, are the same in all sets of recorded values, and solutions rearrange them once."""
        assert prepare("return x * 2").places[:3] == [
            "input set 0 (normal)",
            "input set 1 (normal)",
            "input set 2 (generated)",
        ]
        assert prepare("return x * 2", num_trials=1).places[:2] == [
            "input set 0 (normal)",
            "first with other x (generated)",
        ]

    def test_a_trace_carries_them(self, evaluate):
        code = "def run(x):\n    return ~x\n"
        definition = make_definition({"x": "bool[n]"}, {"y": "bool[n]"}, code)
        (evaluation,) = evaluate(make_solution(code, definition="made"), definition=definition)
        assert evaluation.status is EvaluationStatus.PASSED
        assert evaluation.flags == ("unranked: cpu timing",)
        assert evaluation.extra["trials"] == ["normal", "normal", "generated"]


class TestReference:
    @pytest.mark.parametrize("noise", [0.1, 1e6])
    def test_one_that_gives_other_outputs_each_time_cannot_judge(self, prepare, noise):
        with pytest.raises(ReferenceFailed, match="gives other outputs when it is called again with the same inputs"):
            prepare(f"return x * 2 + {noise} * torch.rand(x.shape)")

    def test_noise_within_the_tolerance_is_no_matter(self, prepare):
        assert len(prepare("return x * 2 + 1e-4 * torch.rand(x.shape)", distributions=("normal",)).trials) == 3


class TestMemory:
    @pytest.mark.parametrize(
        ("size_bytes", "device", "count"),
        [
            (0, CPU, 16),
            (8 << 20, CPU, 8),
            (1 << 40, CPU, 2),
            (1 << 20, CUDA, 32),
            (1 << 26, CUDA, 16),  # a 40th of the device
            (1 << 40, CUDA, 2),
        ],
    )
    def test_a_pass_has_as_many_slots_as_fit_and_at_least_two(self, monkeypatch, size_bytes, device, count):
        monkeypatch.setattr(preparation, "total_bytes", lambda _: 40 << 30)
        assert slot_count(size_bytes, device) == count

    def test_sets_and_slots_are_counted(self):
        config = ResolvedEvalConfig(num_trials=5, distributions=("normal", "tiny"))
        needed = needed_bytes(DOUBLE, make_workload(DOUBLE, {"n": 1 << 20}), config, CPU)
        assert needed == (8 << 20) * (5 + 2 + 2 + 8)

    def test_without_a_size_it_is_unknown(self):
        with pytest.raises(AxisError):
            needed_bytes(DOUBLE, make_workload(DOUBLE, {}), ResolvedEvalConfig(), CPU)
