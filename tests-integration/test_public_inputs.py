"""Tests of inputs on the public data set: what is drawn for timed calls is valid for every definition."""

import copy
import re
from collections import Counter

import attrs
import pytest
import torch
from fib_bench.config.model import DISTRIBUTIONS
from fib_bench.inputs.generation import distributions_of, make_input_values, make_inputs
from fib_bench.inputs.recipes import native_input, plan_recipes
from fib_bench.inputs.redrawing import Structure
from fib_bench.inputs.synthesis import InputDraft, Role, enlarge_totals, role_of, synthesis_order, synthesize_input
from fib_bench.timing.handshake import native
from fib_schema import AxisConst, evaluate_constraint
from public_data_set import definition_names, needs_data_set, public_set, small_workload

pytestmark = needs_data_set

REDUCED = {
    "gemm": {"N": 64},
    "moe": {
        "hidden_size": 256, "intermediate_size": 128, "gemm1_out_size": 256, "num_hidden_blocks": 2,
        "num_intermediate_blocks": 1, "num_gemm1_out_blocks": 2,
    },
}  # fmt: skip
FEW = (
    "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64", "fused_add_rmsnorm_h2048", "gdn_decode_qk4_v8_d128_k_last",
    "gemm_n256_k7168", "gqa_paged_decode_h5_kv1_d128_ps1", "gqa_ragged_prefill_causal_h5_kv1_d128",
    "mamba_ssu_decode_h64_d64_s128_ng4", "mla_paged_decode_h8_ckv512_kpe64_ps1",
    "mla_ragged_prefill_causal_h8_qk192_vo128", "rmsnorm_h128", "rope_with_cos_sin_cache_neox_style_d128_rd64",
    "trtllm_fp8_per_tensor_scale_moe_topk1_e16_h5120_i8192",
)  # fmt: skip


def _reduced(definition):
    """The definition with smaller constants, in its reference as well."""
    small = {axis: size for axis, size in REDUCED.get(definition.op_type, {}).items() if axis in definition.const_axes}
    numbers = {str(definition.const_axes[axis]): str(size) for axis, size in small.items() if "blocks" not in axis}
    reference = re.sub(r"\b\d+\b", lambda match: numbers.get(match[0], match[0]), definition.reference)
    axes = {**definition.axes, **{axis: AxisConst(size) for axis, size in small.items()}}
    return attrs.evolve(definition, axes=axes, reference=reference)


def _outputs(definition, values):
    scope = {}
    exec(definition.reference, scope)
    found = scope["run"](**copy.deepcopy(dict(values)))
    return [found] if isinstance(found, torch.Tensor) else list(found)


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


def _check_outputs(definition, keys):
    """Outputs for drawn values and structure are finite wherever those of the base are, and not the same."""
    workload = small_workload(definition)
    axes = workload.axes
    base, before = _with_outputs(definition, workload)
    accepted = distributions_of(definition, DISTRIBUTIONS)
    recipes, reasons = plan_recipes(definition, axes, base, distributions=accepted)
    assert not reasons.keys() - {"cos_sin_cache"}
    structure = Structure(definition, axes, base)
    for key in keys:
        redrawn = _redrawn(structure, key)
        values = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in redrawn.items()}
        module = native.open_native(torch.device("cpu"))
        places = {name: (values[name].data_ptr(), redrawn[name].data_ptr()) for name in recipes}
        module.refill([native_input(recipes[name], *each) for name, each in places.items()], [key])
        for found, old in zip(_outputs(definition, values), before, strict=True):
            assert (found.float().isfinite() | ~old.float().isfinite()).all()
            assert not torch.equal(found, old) or found.dtype == torch.int64 or not old.any()


def _with_outputs(definition, workload):
    """Inputs whose outputs are not zero, and these: of a few tokens, all may go to experts of other devices."""
    for seed in range(1, 20):
        base = make_inputs(definition, workload, seed=seed)
        outputs = _outputs(definition, base)
        if all(bool(output.float().any()) for output in outputs):
            return base, outputs
    raise AssertionError("outputs of zeros for each seed")


def _redrawn(structure, seed):
    """The inputs with other structure, all of which changes, or has a reason not to."""
    found = structure.redraw(_seeded(seed))
    names = {name for name, spec in structure.definition.inputs.items() if spec.is_integer and name in found.values}
    assert {*found.changed, *found.kept} >= {*structure.integers}
    assert {*found.changed, *found.kept} <= names
    for constraint in structure.definition.constraints:
        assert evaluate_constraint(constraint, {**structure.axes, **found.values})
    for name in found.changed:
        old, new = structure.values[name], found.values[name]
        assert (new.dtype, new.shape, new.stride()) == (old.dtype, old.shape, old.stride())
        assert not torch.equal(new, old)
        if "indptr" in name or "cu_seqlens" in name:
            assert new[[0, -1]].tolist() == old[[0, -1]].tolist()
    return found.values


@pytest.mark.parametrize("name", FEW)
def test_references_accept_drawn_inputs(name):
    _check_outputs(_reduced(public_set().definitions[name]), range(2))


@pytest.mark.slow
@pytest.mark.parametrize("name", definition_names())
def test_references_of_all_public_definitions_accept_drawn_inputs(name):
    _check_outputs(_reduced(public_set().definitions[name]), range(10, 14))


def _recorded_structures():
    """The structure of all recorded workloads, as it is synthesized for missing blobs."""
    for name, traces in public_set().workloads.items():
        definition = public_set().definitions[name]
        integers = [each for each, spec in definition.inputs.items() if spec.is_integer]
        for axes in (trace.workload.axes for trace in traces if integers):
            draft = InputDraft(definition, {**definition.const_axes, **axes}, 2)
            enlarge_totals(draft, [each for each in integers if role_of(definition, each) is Role.OFFSETS])
            for each in synthesis_order(definition, integers):
                synthesize_input(draft, each)
            yield Structure(definition, draft.axes, draft.values)


def test_requests_of_recorded_sizes_have_tokens_and_keys_for_all_queries():
    for structure in _recorded_structures():
        for values in (structure.values, structure.redraw(_seeded(5)).values):
            lengths = {
                name: torch.as_tensor(values[name]).diff() for name in ("qo_indptr", "kv_indptr") if name in values
            }
            assert all(bool((found > 0).all()) for found in lengths.values())
            if len(lengths) == 2:
                assert (lengths["qo_indptr"] <= lengths["kv_indptr"] * structure.axes.get("page_size", 1)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in definition_names() if public_set().workloads.get(name)])
def test_references_accept_inputs_that_are_synthesized_for_recorded_workloads(name):
    definition = _reduced(public_set().definitions[name])
    recorded = [trace.workload for trace in public_set().workloads[name]]
    workload = min(recorded, key=lambda workload: sum(workload.axes.values()))
    made = make_input_values(
        definition, workload, seed=1, root=None, synthesize_missing=True, device="cpu", distribution="normal"
    )
    structure = Structure(definition, made.axes, made.values)
    for values in (made.values, _redrawn(structure, 2)):
        assert all(not found.isnan().any() for found in _outputs(definition, values))


def test_most_integers_of_recorded_workloads_change():
    """Unless there is one request or one page, of which there is no other order."""
    kept = Counter()
    changed = 0
    for structure in _recorded_structures():
        found = structure.redraw(_seeded(3))
        changed += len(found.changed)
        if structure.axes.get("num_pages", 2) > 1 and all(group.count > 1 for group in structure.groups):
            kept.update(name for name in found.kept if name in structure.integers)
    assert changed
    assert kept.total() <= 0.1 * (changed + kept.total()), kept
