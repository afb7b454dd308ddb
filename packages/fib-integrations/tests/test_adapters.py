"""Adapters: converted calls reach solutions and listeners, and the caller gets the same result as from the library."""

import pytest
import torch
from fib_apply import enable_apply, set_apply_hook
from fib_integrations import install_flashinfer_integrations
from fib_schema import Solution, SourceFile
from flashinfer_stand_ins.examples import EXAMPLES, STRIDED, data_set, passed, reference_solution
from flashinfer_stand_ins.marks import one_version

BY_NAME = {example.name: example for example in EXAMPLES}
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
SERVED = [
    pytest.param(example, kind, id=f"{example.name}-{kind}")
    for example in EXAMPLES
    for kind in ("returning", "passing", *(["setup"] if example.is_planned else []))
]


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@every_example
def test_listeners_receive_the_inputs_of_the_definition(example, flashinfer, noted):
    install_flashinfer_integrations()
    inputs = noted(example, flashinfer)
    assert list(inputs) == list(example.definition.inputs)
    example.definition.get_axes_values_from_inputs(list(inputs.values()))  # raises if shapes disagree


@pytest.mark.parametrize(("example", "kind"), SERVED)
def test_solution_serves_with_the_same_results(example, kind, flashinfer, runtime_of):
    expected = example.prepare(flashinfer)()
    install_flashinfer_integrations()
    with runtime_of(kind) as runtime:
        before = runtime.stats().get(example.definition.name)
        hits = sum(before.hits.values()) if before else 0
        for _ in range(2):
            torch.testing.assert_close(example.prepare(flashinfer)(), expected)
        assert sum(runtime.stats()[example.definition.name].hits.values()) == hits + 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rope", "rope in place"])
@one_version
def test_results_may_have_any_strides(name, flashinfer, inputs_of_examples):
    example = BY_NAME[name]
    original = reference_solution(example.definition)
    source = original.sources[0].content.replace("    return reference(", "    return by_columns(*reference(")
    source = source.rstrip() + ")\n\n\ndef by_columns(*tensors):\n"
    source += "    return tuple(x.transpose(0, 1).contiguous().transpose(0, 1) for x in tensors)\n"
    solution = Solution("by_columns", original.definition, "tests", original.spec, [SourceFile("main.py", source)])
    expected = example.prepare(flashinfer)()
    install_flashinfer_integrations()
    traces = (passed(solution, example.definition, inputs_of_examples[name]),)
    with enable_apply(data_set(example.definition, traces, (solution,)), stats=True) as runtime:
        assert_same(example.prepare(flashinfer)(), expected)
        assert sum(runtime.stats()[example.definition.name].hits.values()) == 1


@one_version
def test_planned_solution_serves_all_runs_until_the_next_plan(flashinfer, runtime_of):
    example = BY_NAME["decode, lse"]
    install_flashinfer_integrations()
    with runtime_of("setup") as runtime:
        call = example.prepare(flashinfer)
        found = [call() for _ in range(3)]
        hits = runtime.stats()[example.definition.name].hits
    assert_same(found[0], found[2])
    assert {key.endswith("planned") for key in hits} == {True}


@one_version
def test_plan_serves_runs_inside_and_outside_of_inference_mode(flashinfer, runtime_of):
    example = BY_NAME["decode, out"]
    expected = example.prepare(flashinfer)()
    install_flashinfer_integrations()
    with runtime_of("passing"):
        call = example.prepare(flashinfer)
        with torch.inference_mode():
            call()
        torch.testing.assert_close(call(), expected)


@pytest.mark.slow
@every_example
@one_version
def test_original_serves_without_an_eligible_solution(example, flashinfer, runtime_of):
    expected = example.prepare(flashinfer)()
    install_flashinfer_integrations()
    with runtime_of("returning", max_atol=0.0, max_rtol=0.0, baseline="none of these"):
        assert_same(example.prepare(flashinfer)(), expected)


@pytest.mark.slow
@every_example
def test_shadow_comparison_returns_the_result_of_the_original(example, flashinfer, runtime_of):
    expected = example.prepare(flashinfer)()
    install_flashinfer_integrations()
    with runtime_of("returning", shadow_ratio=1.0) as runtime:
        found = example.prepare(flashinfer)()
        assert runtime.left_out() == {}
    assert_same(found, expected)


@pytest.mark.parametrize("example", STRIDED, ids=lambda example: example.name)
def test_caches_with_strides_that_were_not_measured_are_traced_and_served_by_the_original(
    example, flashinfer, runtime_of, noted
):
    expected = example.prepare(flashinfer)()
    install_flashinfer_integrations()
    assert list(noted(example, flashinfer)) == list(example.definition.inputs)
    with runtime_of("passing") as runtime:
        before = runtime.stats().get(example.definition.name)
        assert_same(example.prepare(flashinfer)(), expected)
        after = runtime.stats()[example.definition.name]
    assert sum(after.hits.values()) == (sum(before.hits.values()) if before else 0)


@pytest.mark.parametrize("example", STRIDED, ids=lambda example: example.name)
def test_caches_are_served_by_solutions_that_were_measured_with_their_strides(example, flashinfer, inputs_of_examples):
    expected = example.prepare(flashinfer)()
    install_flashinfer_integrations()
    layout = {}

    def note(name, inputs):
        strided = {n: x for n, x in inputs.items() if isinstance(x, torch.Tensor) and not x.is_contiguous()}
        layout.update({n: list(x.stride()) for n, x in strided.items()})

    set_apply_hook(note)
    example.prepare(flashinfer)()
    set_apply_hook(None)
    assert layout.keys() == {"k_cache", "v_cache"}
    solution = reference_solution(example.definition)
    traces = (passed(solution, example.definition, inputs_of_examples[example.name], layout=layout),)
    with enable_apply(data_set(example.definition, traces, (solution,)), stats=True) as runtime:
        torch.testing.assert_close(example.prepare(flashinfer)(), expected)
        stats = runtime.stats()[example.definition.name]
        assert (sum(stats.hits.values()), stats.misses) == (1, {})
