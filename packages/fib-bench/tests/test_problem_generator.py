"""Generators of definitions: inputs that a function of the reference makes in a worker."""

import attrs
import pytest
from fib_bench import InputError, make_inputs
from fib_schema import Definition, RandomInput, ScalarInput, Workload

from .samples import make_definition, make_solution

REFERENCE = """
import torch

def make(arguments, device):
    n, top = arguments["n"], arguments["top"]
    values = torch.randn(n, device=device).sort().values
    return {"values": values, "places": torch.randint(0, top, (n,), dtype=torch.int32), "scales": torch.rand(4) + 1}

def run(values, places, scales, factor):
    return torch.searchsorted(values, factor * values.flip(0)) + places * scales.sum()
"""
KEEPS = """
KEPT = []

def run(values, places, scales, factor):
    KEPT.append(places.clone())
    return solve(values, KEPT[0], scales, factor)
"""
GENERATOR = {"function": "make", "inputs": ["values", "places", "scales"], "parameters": ["scales"]}
SEARCH = make_definition(
    {"values": "float32[n]", "places": "int32[n]", "scales": "float32[4]", "factor": "float32"},
    {"found": "float32[n]"},
    REFERENCE,
    constraints=("n > 1",),
    name="search",
)
DEFINITION = attrs.evolve(SEARCH, extra={"input_generator": GENERATOR})
INPUTS = {**dict.fromkeys(("values", "places", "scales"), RandomInput()), "factor": ScalarInput(1.0)}
WORKLOAD = Workload({"n": 64}, INPUTS, "w", extra={"generator_arguments": {"top": 9}})


def with_function(before: str, after: str) -> Definition:
    assert before in REFERENCE
    return attrs.evolve(DEFINITION, reference=REFERENCE.replace(before, after))


@pytest.fixture
def judge(make_judge):
    return make_judge()


def test_all_sets_and_timed_calls_have_valid_values_of_their_own(judge):
    prepared = judge.prepare(DEFINITION, WORKLOAD)
    assert prepared.redraw is not None
    sets = [prepared.layout.input_tensors(item.inputs) for item in prepared.trials]
    drawn = [*sets, {**sets[0], **prepared.redraw()}, {**sets[0], **prepared.redraw()}]
    assert all(bool((each["values"].diff() >= 0).all() & (each["places"] < 9).all()) for each in drawn)
    assert len({tuple(each["values"].tolist()) for each in drawn}) >= 4
    assert (list(prepared.recipes), dict(prepared.constant)) == (["scales"], {})
    assert prepared.redraw().keys() == {"values", "places"}


def test_solutions_are_judged_by_calls_with_values_of_the_generator(evaluate):
    run = "def run" + REFERENCE.partition("def run")[2]
    right = make_solution(f"import torch\n{run}", definition="search")
    wrong = make_solution(f"import torch\n{KEEPS}{run.replace('run', 'solve')}", definition="search", name="keeps")
    passed, failed = evaluate(right, wrong, definition=DEFINITION, workloads=[WORKLOAD])
    assert (passed.status, failed.status) == ("PASSED", "INCORRECT_NUMERICAL")


def test_equal_seeds_give_equal_inputs(judge):
    one, other = (judge.prepare(DEFINITION, WORKLOAD).trials[0].inputs.tolist() for _ in range(2))
    assert one == other


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        (with_function("torch.randn(n,", "torch.randn(n + 1,"), "output 'values' has shape (65,), expected (64,)"),
        (with_function("dtype=torch.int32", "dtype=torch.int64"), "output 'places' has dtype torch.int64"),
        (with_function("torch.rand(4) + 1", "torch.rand(4) / 0 * 0"), "made NaN in 'scales' from seed"),
        (with_function("torch.rand(4)", "__import__('os').getpid()*torch.rand(4)"), "makes other values of 'scales'"),
        (with_function('"scales":', '"scale":'), "KeyError: 'scales'"),
        (with_function("def make", "def other"), "the generator 'make' failed"),
        (attrs.evolve(DEFINITION, constraints=("n > 64",)), "constraint 'n > 64' does not hold"),
        (attrs.evolve(DEFINITION, extra={"input_generator": "make"}), "must be {'function': name"),
        (
            attrs.evolve(DEFINITION, extra={"input_generator": {"function": "make", "inputs": ["factor"]}}),
            "'factor' is no input of the definition that is a tensor",
        ),
    ],
)
def test_a_generator_that_makes_others_than_the_definition_says_is_refused(judge, definition, said):
    with pytest.raises(InputError) as raised:
        judge.prepare(definition, WORKLOAD)
    assert said in str(raised.value)


def test_inputs_that_only_a_generator_makes_are_not_drawn_elsewhere():
    with pytest.raises(InputError, match="input 'values' is made by 'make' of the reference, which runs in a sandbox"):
        make_inputs(DEFINITION, WORKLOAD, seed=0)
