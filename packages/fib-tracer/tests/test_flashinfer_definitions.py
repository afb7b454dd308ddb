"""Tests of importing definitions of FlashInfer's automatic trace dump."""

import copy
import json

import pytest
import torch
from fib_schema import Definition, TraceSet, parse_json, to_plain, validate
from fib_tracer.dump_definitions import DefinitionImport, UnsupportedDefinition, convert, import_definition

REFERENCE = '''\
from __future__ import annotations
import math
import torch


def _scaled(x, factor):
    return x * factor


@torch.no_grad()
def _norm_reference(hidden_states, weight, eps=1e-6):
    """A norm."""
    return _scaled(hidden_states, weight)
'''
DUMPED = {
    "name": "norm_h4",
    "description": "A norm. Epsilon is fixed.",
    "op_type": "norm",
    "tags": ["fi_api:flashinfer.norm.norm", "status:verified"],
    "axes": {"num_tokens": {"type": "var", "description": "rows"}, "hidden_size": {"type": "const", "value": 4}},
    "constraints": ["num_tokens >= 1"],
    "inputs": {
        "hidden_states": {"shape": ["num_tokens", "hidden_size"], "dtype": "bfloat16"},
        "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"},
    },
    "outputs": {"output": {"shape": ["num_tokens", "hidden_size"], "dtype": "bfloat16", "param": "out"}},
    "reference": REFERENCE,
    "check": "def _norm_check(reference_outputs, actual_outputs):\n    return True\n",
    "init": "def _norm_init(num_tokens):\n    return {}\n",
}
CALLED = "a new function 'run' calls the reference's '_norm_reference'"


def dumped(**changes):
    """The dumped definition with other fields."""
    return copy.deepcopy({**DUMPED, **changes})


def parsed(plain):
    new, changes = convert(plain)
    return parse_json(json.dumps(new), Definition), changes


def run(definition, *inputs):
    """Outputs of a definition's reference."""
    scope = {}
    exec(definition.reference, scope)
    return scope["run"](*inputs)


def test_run_calls_a_reference_of_any_name():
    plain = dumped()
    definition, changes = parsed(plain)
    assert changes == [CALLED]
    assert torch.equal(run(definition, torch.ones(2, 4), torch.full((4,), 3.0)), torch.full((2, 4), 3.0))
    assert plain == DUMPED


def test_conversion_keeps_other_fields():
    definition, _ = parsed(dumped())
    plain = json.loads(json.dumps({**DUMPED, "reference": definition.reference}))
    assert to_plain(definition) == plain


def test_a_current_definition_is_not_changed():
    plain = dumped(reference="def run(hidden_states, weight):\n    return hidden_states\n")
    assert convert(plain) == (plain, [])


def test_renamed_parameters_are_matched_by_position():
    source = REFERENCE.replace("hidden_states, weight, eps=1e-6", "input, weight").replace("(hidden_states,", "(input,")
    definition, _ = parsed(dumped(reference=source))
    assert torch.equal(run(definition, torch.ones(2, 4), torch.full((4,), 2.0)), torch.full((2, 4), 2.0))


def test_an_optional_input_without_a_dtype_is_removed():
    inputs = {**DUMPED["inputs"], "bias": {"shape": ["bias_size"], "dtype": "unknown", "optional": True}}
    source = REFERENCE.replace("weight, eps=1e-6", "weight, bias").replace(
        "weight)\n", "weight) if bias is None else 0\n"
    )
    axes = {**DUMPED["axes"], "bias_size": {"type": "const"}}
    definition, changes = parsed(dumped(inputs=inputs, axes=axes, reference=source))
    assert list(definition.inputs) == ["hidden_states", "weight"]
    assert changes == [
        "optional input 'bias' is removed: its dtype is 'unknown'",
        "axis 'bias_size' is removed: it has no size, and no shape names it",
        CALLED,
    ]
    assert run(definition, torch.ones(2, 4), torch.ones(4)).shape == (2, 4)


def test_arguments_of_plan_become_inputs():
    """The dumped run() lacks it, and the reference needs it."""
    planned = {"shape": ["len_indptr"], "dtype": "unknown", "optional": True, "description": "Set during plan()."}
    source = REFERENCE.replace("hidden_states, weight, eps=1e-6", "hidden_states, kv_indptr, weight")
    definition, changes = parsed(
        dumped(
            inputs={**DUMPED["inputs"], "kv_indptr": planned},
            axes={**DUMPED["axes"], "len_indptr": {"type": "var"}},
            constraints=["len_indptr == num_tokens + 1", "num_tokens == kv_indptr[-1].item()"],
            reference=source,
        )
    )
    assert changes[0].startswith("input 'kv_indptr' is int32 and required")
    assert (definition.inputs["kv_indptr"].dtype, definition.inputs["kv_indptr"].optional) == ("int32", False)
    assert len(definition.constraints) == 2


def test_constraints_on_removed_inputs_are_removed():
    inputs = {**DUMPED["inputs"], "bias": {"shape": ["hidden_size"], "dtype": "unknown", "optional": True}}
    constraints = ["num_tokens >= 1", "bias.shape[0] == hidden_size"]
    definition, changes = parsed(dumped(inputs=inputs, constraints=constraints))
    assert definition.constraints == ("num_tokens >= 1",)
    assert "constraint 'bias.shape[0] == hidden_size' is removed: it names what is removed" in changes


def test_an_undeclared_axis_is_variable():
    inputs = {**DUMPED["inputs"], "weight": {"shape": ["hidden_div_2"], "dtype": "bfloat16"}}
    definition, changes = parsed(dumped(inputs=inputs))
    assert definition.var_axes == ["num_tokens", "hidden_div_2"]
    assert changes[0] == "axis 'hidden_div_2' is variable: shapes name it, and it is not declared"


def test_unused_library_parameters_are_none():
    source = REFERENCE.replace("weight, eps=1e-6", "weight, workspace, **kwargs")
    assert run(parsed(dumped(reference=source))[0], torch.ones(2, 4), torch.ones(4)).shape == (2, 4)
    with pytest.raises(UnsupportedDefinition, match="needs 'workspace'"):
        convert(dumped(reference=source.replace("return _scaled(hidden", "return workspace(hidden")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": None}, "has no reference"),
        ({"reference": "def f(:"}, "does not parse"),
        ({"reference": "x = 1\n"}, "defines no function"),
        ({"reference": "def f(hidden_states, /, weight): ...\n"}, "positional-only"),
        ({"reference": "def f(hidden_states): ...\n"}, "does not take the input 'weight'"),
        ({"outputs": {"weight": DUMPED["outputs"]["output"]}}, "weight: input and output at once"),
        ({"inputs": []}, "'inputs' is not a mapping"),
        ({"inputs": {"x": {"shape": [[1]], "dtype": "int8"}}}, "not a list of axes"),
    ],
)
def test_unsupported_files_are_refused(changes, message):
    with pytest.raises(UnsupportedDefinition, match=message):
        convert(dumped(**changes))


@pytest.fixture
def trace_set(root):
    return TraceSet.from_path(root)


def written(folder, plain):
    file = folder / "norm_h4.json"
    file.write_text(json.dumps(plain, indent=2))
    return file


def test_a_definition_is_added_once(trace_set, root, tmp_path_factory):
    file = written(tmp_path_factory.mktemp("dump"), DUMPED)
    assert import_definition(trace_set, file) == DefinitionImport("norm_h4", str(file), "added", (CALLED,))
    assert import_definition(trace_set, file) == DefinitionImport("norm_h4", str(file), "equal", (CALLED,))
    reopened = TraceSet.from_path(root)
    assert import_definition(reopened, file) == DefinitionImport("norm_h4", str(file), "equal", (CALLED,))
    assert (root / "definitions/norm/norm_h4.json").exists()
    assert validate(root).is_ok


def test_a_different_definition_of_the_name_is_refused(trace_set, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dump")
    import_definition(trace_set, written(folder, DUMPED))
    before = (root / "definitions/norm/norm_h4.json").read_bytes()
    other = import_definition(trace_set, written(folder, dumped(description="Another.", constraints=[])))
    assert (other.state, other.is_refused) == ("differs", True)
    assert str(other.problem).endswith("which is kept; different: description, constraints")
    assert (root / "definitions/norm/norm_h4.json").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        (json.dumps(dumped(reference=None)), "has no reference"),
        (json.dumps(dumped(name="../escape")), "path separator"),
        (json.dumps(dumped(outputs={"y": {"shape": ["num_tokens"], "dtype": "uint3"}})), "'uint3' is unknown"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(trace_set, root, tmp_path_factory, content, message):
    file = tmp_path_factory.mktemp("dump") / "norm_h4.json"
    file.write_text(content)
    added = import_definition(trace_set, file)
    assert added.state == "refused"
    assert message in str(added.problem)
    assert sorted(TraceSet.from_path(root).definitions) == ["gather_h8", "gqa_paged_decode_h2", "silu_h8"]


def test_other_json_is_not_a_definition(trace_set, tmp_path_factory):
    assert import_definition(trace_set, written(tmp_path_factory.mktemp("dump"), {"name": "package"})) is None
    assert import_definition(trace_set, written(tmp_path_factory.mktemp("dump"), [1, 2])) is None


INIT = """\
from __future__ import annotations
import math
import torch


def _rows(count, device):
    return torch.arange(count, device=device, dtype=torch.int32) % 3


def _pick_init(*, num_tokens, hidden_size=4, device="cuda", seed=0):
    torch.manual_seed(seed)
    return {
        "HIDDEN_STATES": torch.randn(num_tokens, hidden_size, device=device).to(torch.bfloat16),
        "rows": _rows(num_tokens, device),
        "eps": 1e-6,
    }
"""
PICKED = {
    "inputs": {
        "hidden_states": {"shape": ["num_tokens", "hidden_size"], "dtype": "bfloat16"},
        "rows": {"shape": ["num_tokens"], "dtype": "int32"},
    },
    "reference": "def _pick_reference(hidden_states, rows, hidden_size): return hidden_states[rows] * hidden_size\n",
}
CALLED_PICK = "a new function 'run' calls the reference's '_pick_reference'"


def test_init_makes_inputs_of_which_some_cannot_be_drawn_and_constant_axes_are_arguments():
    definition, changes = parsed(dumped(**PICKED, init=INIT))
    assert changes == [CALLED_PICK, "FlashInfer's init makes hidden_states, rows"]
    inputs = ["hidden_states", "rows"]
    assert definition.extra["input_generator"] == {"function": "_generate_inputs", "inputs": inputs}
    scope = {}
    exec(definition.reference, scope)
    made = scope["_generate_inputs"](
        {"num_tokens": 5, "hidden_size": 4, "seed": 1, "inputs": inputs}, torch.device("cpu")
    )
    assert made["rows"].tolist() == [0, 1, 2, 0, 1]
    assert torch.equal(run(definition, *made.values()), made["hidden_states"][made["rows"]] * 4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import math", "import flashinfer"),
        ('"rows": _rows(num_tokens, device),', ""),
        ("*, num_tokens,", "*, num_tokens, spread,"),
    ],
)
def test_init_that_needs_more_than_sizes_or_makes_less_is_not_used(old, new):
    definition, changes = parsed(dumped(**PICKED, init=INIT.replace(old, new)))
    assert changes == [CALLED_PICK, "FlashInfer's init makes no inputs: it needs or returns others"]
    assert "input_generator" not in definition.extra
