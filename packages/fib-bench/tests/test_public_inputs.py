"""Tests of inputs on the public data set: what is drawn for timed calls is valid for every definition."""

from __future__ import annotations

import copy
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs
import pytest
import torch
from fib_bench.config.model import DISTRIBUTIONS
from fib_bench.inputs.generation import Value, distributions_of, make_input_values, make_inputs
from fib_bench.inputs.generator import native_input, plan_recipes
from fib_bench.inputs.makers import InputDraft, enlarge_totals
from fib_bench.inputs.redrawing import Structure
from fib_bench.inputs.synthesis import Role, role_of, synthesis_order, synthesize_input
from fib_bench.timing.handshake import native
from fib_schema import AxisConst, Definition, RandomInput, TraceSet, Workload, evaluate_constraint

SIZES = {
    "M": 3, "batch_size": 3, "len_cu_seqlens": 4, "len_indptr": 4, "max_seq_len": 64, "num_kv_heads": 2,
    "num_kv_indices": 20, "num_pages": 24, "num_qo_heads": 4, "num_seqs": 3, "num_tokens": 5, "pool_size": 8,
    "seq_len": 3, "state_cache_size": 8, "total_kv": 20, "total_q": 12, "total_seq_len": 12,
}  # fmt: skip
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
    "mla_paged_decode_h8_ckv512_kpe64_ps1", "rmsnorm_h128", "rope_with_cos_sin_cache_neox_style_d128_rd64",
    "trtllm_fp8_per_tensor_scale_moe_topk1_e16_h5120_i8192",
)  # fmt: skip


def _data_set() -> Path | None:
    given_path = os.environ.get("FIB_TEST_DATASET")
    here = Path(__file__).resolve()
    beside = [parent.parent / "shared" / "flashinfer-trace" for parent in here.parents if (parent / ".git").exists()]
    return next((path for path in ([Path(given_path)] if given_path else beside) if path.is_dir()), None)


def _definitions() -> dict[str, Definition]:
    root = _data_set()
    return dict(TraceSet.from_path(root).definitions) if root else {}


def _workloads() -> dict[str, list[Workload]]:
    root = _data_set()
    recorded = TraceSet.from_path(root).workloads if root else {}
    return {name: [trace.workload for trace in traces] for name, traces in recorded.items()}


def _reduced(definition: Definition) -> Definition:
    """The definition with smaller constants, in its reference as well."""
    small = {axis: size for axis, size in REDUCED.get(definition.op_type, {}).items() if axis in definition.const_axes}
    numbers = {str(definition.const_axes[axis]): str(size) for axis, size in small.items() if "blocks" not in axis}
    reference = re.sub(r"\b\d+\b", lambda match: numbers.get(match[0], match[0]), definition.reference)
    axes = {**definition.axes, **{axis: AxisConst(size) for axis, size in small.items()}}
    return attrs.evolve(definition, axes=axes, reference=reference)


def _outputs(definition: Definition, values: Mapping[str, Value]) -> list[torch.Tensor]:
    scope: dict[str, Callable[..., object]] = {}
    exec(definition.reference, scope)
    found = scope["run"](**copy.deepcopy(dict(values)))
    return [found] if isinstance(found, torch.Tensor) else list(found)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _check_outputs(definition: Definition, keys: range) -> None:
    """Outputs for drawn values and structure are finite wherever those of the base are, and not the same."""
    axes = {axis: SIZES[axis] for axis in definition.var_axes}
    workload = Workload(axes, {name: RandomInput() for name in definition.inputs}, "small")
    base = make_inputs(definition, workload, seed=1)
    accepted = distributions_of(definition, DISTRIBUTIONS)
    recipes, reasons = plan_recipes(definition, axes, base, distributions=accepted)
    assert not reasons.keys() - {"cos_sin_cache"}
    structure = Structure(definition, axes, base)
    before = _outputs(definition, base)
    for key in keys:
        redrawn = _redrawn(structure, key)
        values = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in redrawn.items()}
        module = native.open_native(torch.device("cpu"), makes_passes=True)
        places = {name: (values[name].data_ptr(), redrawn[name].data_ptr()) for name in recipes}
        module.refill(native.call_of([native_input(recipes[name], *each) for name, each in places.items()], ()), key)
        for found, old in zip(_outputs(definition, values), before, strict=True):
            assert (found.float().isfinite() | ~old.float().isfinite()).all()
            assert not torch.equal(found, old) or found.dtype == torch.int64 or not old.any()


def _redrawn(structure: Structure, seed: int) -> Mapping[str, Value]:
    """The inputs with other structure, all of which changes, or has a reason not to."""
    found = structure.redraw(_seeded(seed))
    names = {name for name, spec in structure.definition.inputs.items() if spec.is_integer and name in found.values}
    assert {*found.changed, *found.kept} >= {*structure.integers}
    assert {*found.changed, *found.kept} <= names
    for constraint in structure.definition.constraints:
        assert evaluate_constraint(constraint, {**structure.axes, **found.values})
    for name in found.changed:
        old, new = structure.values[name], found.values[name]
        assert isinstance(old, torch.Tensor)
        assert isinstance(new, torch.Tensor)
        assert (new.dtype, new.shape, new.stride()) == (old.dtype, old.shape, old.stride())
        assert not torch.equal(new, old)
        if "indptr" in name or "cu_seqlens" in name:
            assert new[[0, -1]].tolist() == old[[0, -1]].tolist()
    return found.values


needs_data = pytest.mark.skipif(
    _data_set() is None, reason="the public flashinfer-trace data set is not here; set FIB_TEST_DATASET to its folder"
)


@needs_data
@pytest.mark.parametrize("name", FEW)
def test_references_accept_drawn_inputs(name: str) -> None:
    _check_outputs(_reduced(_definitions()[name]), range(2))


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(_definitions()))
def test_references_of_all_public_definitions_accept_drawn_inputs(name: str) -> None:
    _check_outputs(_reduced(_definitions()[name]), range(10, 14))


def _recorded_structures() -> Iterator[Structure]:
    """The structure of all recorded workloads, as it is synthesized for missing blobs."""
    definitions = _definitions()
    for name, workloads in _workloads().items():
        definition = definitions[name]
        integers = [each for each, spec in definition.inputs.items() if spec.is_integer]
        for axes in (workload.axes for workload in workloads if integers):
            draft = InputDraft(definition, {**definition.const_axes, **axes}, 2)
            enlarge_totals(draft, [each for each in integers if role_of(definition, each) is Role.OFFSETS])
            for each in synthesis_order(definition, integers):
                synthesize_input(draft, each)
            yield Structure(definition, draft.axes, draft.values)


@needs_data
def test_requests_of_recorded_sizes_have_tokens_and_keys_for_all_queries() -> None:
    for structure in _recorded_structures():
        for values in (structure.values, structure.redraw(_seeded(5)).values):
            lengths = {
                name: torch.as_tensor(values[name]).diff() for name in ("qo_indptr", "kv_indptr") if name in values
            }
            assert all(bool((found > 0).all()) for found in lengths.values())
            if len(lengths) == 2:
                assert (lengths["qo_indptr"] <= lengths["kv_indptr"] * structure.axes.get("page_size", 1)).all()


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(_workloads()))
def test_references_accept_inputs_that_are_synthesized_for_recorded_workloads(name: str) -> None:
    definition = _reduced(_definitions()[name])
    workload = min(_workloads()[name], key=lambda workload: sum(workload.axes.values()))
    made = make_input_values(
        definition, workload, seed=1, root=None, synthesize_missing=True, device="cpu", distribution="normal"
    )
    structure = Structure(definition, made.axes, made.values)
    for values in (made.values, _redrawn(structure, 2)):
        assert all(not found.isnan().any() for found in _outputs(definition, values))


@needs_data
def test_most_integers_of_recorded_workloads_change() -> None:
    reasons: Counter[str] = Counter()
    changed = 0
    for structure in _recorded_structures():
        found = structure.redraw(_seeded(3))
        changed += len(found.changed)
        reasons.update(found.kept.values())
    assert changed
    allowed = {"the call has only one request", "the pool has only one page", "a scalar is a parameter of the call"}
    unexpected = {reason: count for reason, count in reasons.items() if reason not in allowed}
    assert sum(unexpected.values()) <= 0.1 * (changed + sum(unexpected.values())), unexpected
