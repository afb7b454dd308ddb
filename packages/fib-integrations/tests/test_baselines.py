"""Baselines: solutions that call FlashInfer agree with the references, and the original serves in their place."""

import json

import attrs
import pytest
import torch
from fib_apply import enable_apply
from fib_compile import BuilderRegistry
from fib_compile.builders.python import PythonBuilder
from fib_integrations import install_flashinfer_integrations
from fib_integrations.adapters import BUILT_IN
from fib_integrations.baselines import baseline_name, baseline_solutions, make_baselines
from fib_integrations.cli import main
from fib_schema import TraceSet
from flashinfer_stand_ins.examples import BY_DEFINITION, EXAMPLES, data_set, passed, reference_solution
from flashinfer_stand_ins.marks import one_version

BY_NAME = {example.name: example for example in EXAMPLES}
every_definition = pytest.mark.parametrize("example", BY_DEFINITION.values(), ids=lambda e: e.definition.name)


def baselines(definition):
    return next(made for adapter in BUILT_IN if (made := baseline_solutions(adapter, definition)))


def baseline(definition):
    """The baseline with the default settings."""
    return baselines(definition)[0]


@every_definition
def test_baseline_agrees_with_the_reference(example, flashinfer, inputs_of_examples):
    inputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs_of_examples[example.name].values()]
    registry = BuilderRegistry([PythonBuilder()])  # the next version's stand-ins are other modules
    reference = registry.build(example.definition, reference_solution(example.definition))
    expected = reference.call_value_returning(*inputs)
    for solution in baselines(example.definition):
        runnable = registry.build(example.definition, solution)
        assert (runnable.setup is not None) == example.is_planned
        found = runnable.plan(*inputs).call_value_returning(*inputs)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["fused_add_rmsnorm", "rope in place", "decode, out"])
@one_version
def test_original_serves_where_its_baseline_is_the_best_solution(name, flashinfer, inputs_of_examples):
    example = BY_NAME[name]
    expected = example.prepare(flashinfer)()
    solution = baselines(example.definition)[-1]  # with other settings, if an engine may choose them
    install_flashinfer_integrations()
    traces = (passed(solution, example.definition, inputs_of_examples[name]),)
    with enable_apply(data_set(example.definition, traces, (solution,)), stats=True) as runtime:
        torch.testing.assert_close(example.prepare(flashinfer)(), expected, rtol=0, atol=0)
        stats = runtime.stats()[example.definition.name]
    assert stats.hits == {}
    assert stats.misses == {"the fallback is the best": 1}


@one_version
def test_solution_within_the_uncertainty_of_the_original_does_not_replace_it(flashinfer, inputs_of_examples):
    example = BY_DEFINITION["rmsnorm_h8"]
    own = baseline(example.definition)
    other, inputs = reference_solution(example.definition), inputs_of_examples["rmsnorm"]
    own_trace = passed(own, example.definition, inputs, 0.1)
    install_flashinfer_integrations()
    for latency_ms, hits in ((0.0985, 0), (0.05, 1)):
        trace = attrs.evolve(passed(other, example.definition, inputs, latency_ms), workload=own_trace.workload)
        with enable_apply(data_set(example.definition, (own_trace, trace), (own, other)), stats=True) as runtime:
            example.prepare(flashinfer)()
            assert sum(runtime.stats()["rmsnorm_h8"].hits.values()) == hits


@one_version
def test_decodes_with_tensor_cores_are_a_baseline_that_solutions_must_beat(flashinfer, inputs_of_examples):
    """Engines choose tensor cores for some models; which of both is faster depends on the size."""
    example = BY_NAME["decode, out"]
    plain, other = baselines(example.definition)
    assert other.name == f"{plain.name}_tensor_cores"
    assert (plain.author, other.author) == ("flashinfer", "flashinfer-tensor-cores")
    assert 'BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)' in other.sources[0].content
    assert "tensor_cores" not in plain.sources[0].content
    own, inputs = reference_solution(example.definition), inputs_of_examples[example.name]
    install_flashinfer_integrations()
    workload = passed(own, example.definition, inputs).workload
    for with_cores_ms, hits in ((0.02, 0), (0.2, 1)):
        measured = ((plain, 0.1), (other, with_cores_ms), (own, 0.05))
        traces = tuple(
            attrs.evolve(passed(one, example.definition, inputs, taken_ms), workload=workload)
            for one, taken_ms in measured
        )
        with enable_apply(data_set(example.definition, traces, (plain, other, own)), stats=True) as runtime:
            example.prepare(flashinfer)()
            assert sum(runtime.stats()[example.definition.name].hits.values()) == hits


@one_version
def test_different_solution_with_the_name_of_a_baseline_serves(flashinfer, inputs_of_examples):
    example = BY_DEFINITION["rmsnorm_h8"]
    other = reference_solution(example.definition)
    named = attrs.evolve(other, name=baseline_name(example.definition), author="flashinfer")
    install_flashinfer_integrations()
    traces = (passed(named, example.definition, inputs_of_examples["rmsnorm"]),)
    with enable_apply(data_set(example.definition, traces, (named,)), stats=True) as runtime:
        example.prepare(flashinfer)()
        assert sum(runtime.stats()["rmsnorm_h8"].hits.values()) == 1


def test_each_supported_public_definition_has_a_baseline(public_definitions):
    trace_set = TraceSet.from_path(public_definitions.parent)
    found = make_baselines(trace_set, BUILT_IN)
    covered = {solution.definition for solution in found.solutions}
    kinds = {trace_set.definitions[name].op_type for name in covered}
    assert kinds == {"rmsnorm", "rope", "sampling", "gqa_paged", "gqa_ragged", "mla_paged", "mla_ragged", "moe"}
    for solution in found.solutions:
        compile(solution.sources[0].content, solution.name, "exec")
    products = [name for name in found.unsupported if name.startswith("gemm_")]
    assert all(str(trace_set.definitions[name].inputs["A"].dtype) == "float16" for name in products)


def test_command_keeps_existing_baselines(tmp_path, capsys):
    trace_set = TraceSet.from_path(tmp_path)
    trace_set.add_definitions([example.definition for example in BY_DEFINITION.values()])
    assert main(["baselines", str(tmp_path), "--dry-run", "--json"]) == 0
    wanted = json.loads(capsys.readouterr().out)
    names = [solution.name for example in BY_DEFINITION.values() for solution in baselines(example.definition)]
    assert sorted(wanted["solutions"]) == sorted(names)
    assert len(names) > len(BY_DEFINITION)
    assert TraceSet.from_path(tmp_path).solution_names() == ()
    assert main(["baselines", str(tmp_path), "--definitions", "rmsnorm_h8"]) == 0
    assert "wrote flashinfer_rmsnorm_h8" in capsys.readouterr().out
    assert main(["baselines", str(tmp_path)]) == 0
    assert "exists already: flashinfer_rmsnorm_h8" in capsys.readouterr().out
    files = sorted(path.stem for path in (tmp_path / "solutions").rglob("*.json"))
    assert files == sorted(names)


def test_command_refuses_an_unknown_definition(tmp_path, capsys):
    (tmp_path / "definitions").mkdir()
    assert main(["baselines", str(tmp_path), "--definitions", "gemm_x"]) == 2
    assert "gemm_x" in capsys.readouterr().err
    assert main(["baselines", str(tmp_path / "none")]) == 2


def test_command_names_a_folder_that_is_no_data_set(tmp_path, capsys):
    assert main(["baselines", str(tmp_path)]) == 1
    assert f"error: {tmp_path}: is no data set" in capsys.readouterr().err


@one_version
def test_status_prints_each_target(importable, capsys):
    assert main(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["import_errors"] == {}
    states = {target["path"]: target["state"] for target in found["targets"]}
    assert {state for path, state in states.items() if path.startswith("flashinfer.")} == {"installed"}
    assert states["vllm._custom_ops.rms_norm"] == "pending"  # the engine is not installed, and nothing imports it
    assert main(["status"]) == 0
    assert "also BatchDecodeWithPagedKVCacheWrapper.begin_forward" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--json", "--dry-run"])
def test_command_names_bad_files(tmp_path, capsys, option):
    for file in ("definitions/gemm/bad.json", "solutions/me/gemm/bad/worse.json"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("{")
    assert main(["baselines", str(tmp_path), option]) == 0
    errors = capsys.readouterr().err
    assert "definitions/gemm/bad.json" in errors
    assert "solutions/me/gemm/bad/worse.json" in errors
