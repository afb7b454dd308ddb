"""Wrappers for CUDA graphs: decode goes to solutions that were verified with padded indices, with the whole buffers.

Nothing is captured here. A replay reads the tensors that the captured call got, with what later plans wrote to them, so
the tests call the solution again with the tensors of its first call.
"""

import builtins
import sys
from types import ModuleType
from typing import ClassVar

import attrs
import pytest
import torch
from fib_apply import ApplyConfig, enable_apply, set_apply_hook
from fib_integrations import status
from fib_integrations.vllm import install_hooks
from flashinfer_stand_ins.examples import (
    BY_DEFINITION,
    KV_INDICES,
    KV_INDPTR,
    QO_INDPTR,
    caches,
    data_set,
    last_page_len,
    passed,
    random,
    reference_solution,
    workspace,
)
from flashinfer_stand_ins.marks import one_version

CONSTRAINTS = ("len_indptr == batch_size + 1", "num_kv_indices == kv_indptr[-1].item()")
BUFFER = 32
SAFE = {"graph_safe": True, "padded_indices": True}
ROUTED = 1000.0
"""The number that the solution adds to the log-sum-exp."""
PLANS = (
    ([0, 2, 3, 6], [4, 1, 7, 0, 3, 5]),
    ([0, 1, 2, 3], [7, 7, 2]),
    ([0, 5, 5, 16], [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 0, 7, 2, 3, 2, 3]),
)
REPLAYED = "a CUDA graph may replay it after a later plan"


def definition_of(page_size, constraints=CONSTRAINTS):
    name = f"gqa_paged_decode_h4_kv2_d8_ps{page_size}"
    return attrs.evolve(BY_DEFINITION[name].definition, constraints=constraints)


def solution_of(definition):
    """The reference, which marks its log-sum-exp and keeps its arguments."""
    made = reference_solution(definition)
    (source,) = made.sources
    names = ", ".join(definition.inputs)
    code = source.content.replace("\ndef run(", "\ndef marked(") + (
        f"\n\nimport builtins\n\ndef run({names}):\n"
        f"    builtins.fib_calls.append((run, ({names})))\n"
        f"    output, lse = marked({names})\n"
        f"    return output, lse + {ROUTED}\n"
    )
    return attrs.evolve(made, sources=(attrs.evolve(source, content=code),))


def trace_of(definition, solution, timing, total=6):
    indices = torch.zeros(total, dtype=torch.int32)
    k, v = caches(page_size_of(definition))
    values = {"q": random(3, 4, 8), "k_cache": k, "v_cache": v, "kv_indptr": KV_INDPTR, "kv_indices": indices}
    values |= {"kv_last_page_len": last_page_len(1), "sm_scale": 1.0}
    made = passed(solution, definition, values)
    performance = attrs.evolve(made.evaluation.performance, extra=None if timing is None else {"timing": timing})
    workload = attrs.evolve(made.workload, uuid=f"w{total}")
    return attrs.evolve(made, workload=workload, evaluation=attrs.evolve(made.evaluation, performance=performance))


def page_size_of(definition):
    return definition.const_axes["page_size"]


def set_of(definition, timing=SAFE):
    solution = solution_of(definition)
    traces = tuple(trace_of(definition, solution, timing, total) for total in (6, 9))
    return data_set(definition, traces, (solution,))


@pytest.fixture
def calls(monkeypatch):
    """The solution and its arguments, for each of its calls."""
    found = []
    monkeypatch.setattr(builtins, "fib_calls", found, raising=False)
    return found


def graph_wrapper(fi):
    """A decode wrapper for CUDA graphs, with page numbers of nobody in its buffer."""
    return fi.decode.BatchDecodeWithPagedKVCacheWrapper(
        workspace(),
        use_cuda_graph=True,
        paged_kv_indptr_buffer=torch.zeros(4, dtype=torch.int32),
        paged_kv_indices_buffer=torch.full((BUFFER,), 2**31 - 1, dtype=torch.int32),
        paged_kv_last_page_len_buffer=torch.zeros(3, dtype=torch.int32),
    )


def plan(wrapper, page_size, offsets, indices, **settings):
    tensors = (torch.tensor(values, dtype=torch.int32) for values in (offsets, indices))
    wrapper.plan(*tensors, last_page_len(page_size), 4, 2, 8, page_size, q_data_type=torch.bfloat16, **settings)


def expected(fi, page_size, offsets, indices, q, cache, **settings):
    """The answer of an ordinary wrapper."""
    wrapper = fi.decode.BatchDecodeWithPagedKVCacheWrapper(workspace())
    plan(wrapper, page_size, offsets, indices, **settings)
    return wrapper.run(q, cache, return_lse=True)


def counts(path):
    return next(dict(target.unsupported_calls) for target in status() if target.path == path)


@pytest.mark.parametrize("page_size", [1, 4])
def test_runs_get_the_whole_buffers_and_a_replay_reads_what_later_plans_wrote(fi, calls, page_size):
    q, cache, wrapper = random(3, 4, 8), caches(page_size), graph_wrapper(fi)
    wanted = [expected(fi, page_size, *planned, q, cache) for planned in PLANS]
    with enable_apply(set_of(definition_of(page_size))):
        for planned, (output, lse) in zip(PLANS, wanted, strict=True):
            plan(wrapper, page_size, *planned)
            torch.testing.assert_close(wrapper.run(q, cache, return_lse=True), (output, lse + ROUTED))
    places = {tuple(x.data_ptr() for x in arguments[3:-1]) for _, arguments in calls}
    assert len(calls) == len(PLANS)
    assert len(places) == 1, "replays would read other tensors"
    assert all(len(arguments[4]) == BUFFER for _, arguments in calls)
    replay, tensors = calls[0]
    for planned, (output, lse) in zip(reversed(PLANS), reversed(wanted), strict=True):
        plan(wrapper, page_size, *planned)
        torch.testing.assert_close(replay(*tensors), (output, lse + ROUTED))


def test_what_is_decided_for_other_wrappers_is_decided_again(fi, calls):
    """Without padding, no solution is recorded at these sizes."""
    q, cache, definition = random(3, 4, 8), caches(4), definition_of(4)
    found = set_of(definition)
    (solution,) = found.solutions[definition.name]
    (source,) = solution.sources
    code = f"{source.content}\n\ndef setup({', '.join(definition.inputs)}):\n    return {{}}\n"
    planned = attrs.evolve(solution, name="planned", sources=(attrs.evolve(source, content=code),))
    traces = (*found.traces[definition.name], *(trace_of(definition, planned, None, total) for total in (6, 9)))
    other, wrapper = fi.decode.BatchDecodeWithPagedKVCacheWrapper(workspace()), graph_wrapper(fi)
    with enable_apply(data_set(definition, traces, (solution, planned)), ApplyConfig(require_speedup=False)):
        for _ in range(2):
            plan(other, 4, *PLANS[1])
            other.run(q, cache)
        assert calls == []
        plan(wrapper, 4, *PLANS[1])
        wrapper.run(q, cache)
        assert len(calls) == 1
        plan(other, 4, *PLANS[0])
        other.run(q, cache)
        assert len(calls) == 2


def test_outputs_of_the_caller_and_forward_are_served(fi, calls):
    q, cache, wrapper = random(3, 4, 8), caches(1), graph_wrapper(fi)
    output, lse = expected(fi, 1, *PLANS[0], q, cache)
    with enable_apply(set_of(definition_of(1))):
        plan(wrapper, 1, *PLANS[0])
        out = torch.empty_like(q)
        assert wrapper.run(q, cache, out=out) is out
        torch.testing.assert_close(out, output)
        torch.testing.assert_close(wrapper.forward_return_lse(q, cache)[1], lse + ROUTED)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "timing", [None, {"graph_safe": True}, {**SAFE, "padded_indices": False}], ids=["none", "graph-safe", "failed"]
)
def test_others_are_not_routed(fi, calls, timing):
    q, cache, wrapper = random(3, 4, 8), caches(1), graph_wrapper(fi)
    output, lse = expected(fi, 1, *PLANS[0], q, cache)
    definition = definition_of(1)
    with enable_apply(set_of(definition, timing), stats=True) as runtime:
        plan(wrapper, 1, *PLANS[0])
        found = wrapper.run(q, cache, return_lse=True)
        assert runtime.stats()[definition.name].misses == {"not recorded": 1}
    torch.testing.assert_close(found, (output, lse))
    assert calls == []


def test_listeners_get_the_exact_indices(fi, calls):
    seen = []
    set_apply_hook(lambda name, inputs: seen.append(dict(inputs)))
    q, cache, wrapper = random(3, 4, 8), caches(1), graph_wrapper(fi)
    plan(wrapper, 1, *PLANS[0])
    wrapper.run(q, cache)
    with enable_apply(set_of(definition_of(1))):
        plan(wrapper, 1, *PLANS[0])
        wrapper.run(q, cache)
    assert [len(inputs["kv_indices"]) for inputs in seen] == [6, 6]
    buffer = wrapper._paged_kv_indices_buf
    assert {inputs["kv_indices"].data_ptr() for inputs in seen} == {buffer.data_ptr()}, "what kernels read"
    assert len(calls) == 1


@one_version
def test_a_definition_without_the_constraint_is_a_counted_fallback(fi, calls):
    q, cache, wrapper = random(3, 4, 8), caches(1), graph_wrapper(fi)
    with enable_apply(set_of(definition_of(1, ()))):
        plan(wrapper, 1, *PLANS[0])
        wrapper.run(q, cache)
    assert calls == []
    assert counts("flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run") == {REPLAYED: 1}


@one_version
def test_prefill_is_a_counted_fallback(fi):
    name = "gqa_paged_prefill_causal_h4_kv2_d8_ps1"
    definition = BY_DEFINITION[name].definition
    wrapper = fi.prefill.BatchPrefillWithPagedKVCacheWrapper(
        workspace(),
        use_cuda_graph=True,
        qo_indptr_buf=torch.zeros(4, dtype=torch.int32),
        paged_kv_indptr_buf=torch.zeros(4, dtype=torch.int32),
        paged_kv_indices_buf=torch.zeros(BUFFER, dtype=torch.int32),
        paged_kv_last_page_len_buf=torch.zeros(3, dtype=torch.int32),
    )
    with enable_apply(data_set(definition, (), ())):
        planned = QO_INDPTR, KV_INDPTR, KV_INDICES, last_page_len(1)
        wrapper.plan(*planned, 4, 2, 8, 1, causal=True, q_data_type=torch.bfloat16)
        wrapper.run(random(5, 4, 8), caches(1))
    assert counts("flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper.run") == {REPLAYED: 1}


def fast_plan_decode(
    self, indptr_cpu, indices, last_page_len_cpu, num_qo_heads, num_kv_heads, head_dim, page_size,
    pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
    o_data_type=None, data_type=None, sm_scale=None, rope_scale=None, rope_theta=None, non_blocking=True,
    fixed_split_size=-1, disable_split_kv=False,
):  # fmt: skip
    """As vLLM 0.26.0 plans: by the wrapper's method at first and without graphs, else into its buffers."""
    if not self._use_cuda_graph or getattr(self, "vllm_first_call", True):
        self.plan(
            indptr=indptr_cpu, indices=indices, last_page_len=last_page_len_cpu, num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads, head_dim=head_dim, page_size=page_size, pos_encoding_mode=pos_encoding_mode,
            window_left=window_left, logits_soft_cap=logits_soft_cap, q_data_type=q_data_type,
            kv_data_type=kv_data_type, o_data_type=o_data_type, data_type=data_type, sm_scale=sm_scale,
            rope_scale=rope_scale, rope_theta=rope_theta, non_blocking=non_blocking, block_tables=None, seq_lens=None,
            fixed_split_size=fixed_split_size, disable_split_kv=disable_split_kv,
        )  # fmt: skip
        self.vllm_first_call = False
        return
    plan_unpatched(self, indptr_cpu, indices, last_page_len_cpu, sm_scale)


def plan_unpatched(wrapper, indptr, indices, last, sm_scale):
    """Plan without the method `plan`: only the buffers, the scale and the state change."""
    wrapper._paged_kv_indptr_buf.copy_(indptr)
    wrapper._paged_kv_indices_buf[: len(indices)].copy_(indices)
    wrapper._paged_kv_last_page_len_buf.copy_(last)
    wrapper._sm_scale, wrapper._plan_info = sm_scale, object()


class TestFastPlans:
    """vLLM's function that plans, whose later calls make no call of `plan`; with all its keywords."""

    RUN = "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run"
    REPLANNED: ClassVar = {"it was replanned without a call of the patched plan method": 1}

    @pytest.fixture
    def vllm(self, monkeypatch):
        module = ModuleType("vllm.v1.attention.backends.flashinfer")
        module.fast_plan_decode = fast_plan_decode
        monkeypatch.setitem(sys.modules, module.__name__, module)
        install_hooks()
        install_hooks()
        assert module.fast_plan_decode.__wrapped__ is fast_plan_decode
        return module

    def plan(self, vllm, wrapper, planned, **settings):
        offsets, indices = (torch.tensor(values, dtype=torch.int32) for values in planned)
        given = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 8, "page_size": 4, "sm_scale": 0.5}
        given |= {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16, **settings}
        vllm.fast_plan_decode(wrapper, indptr_cpu=offsets, indices=indices, last_page_len_cpu=last_page_len(4), **given)

    def test_first_and_later_plans_are_routed(self, fi, vllm, calls):
        q, cache, wrapper = random(3, 4, 8), caches(4), graph_wrapper(fi)
        wanted = [expected(fi, 4, *planned, q, cache, sm_scale=0.5) for planned in PLANS]
        with enable_apply(set_of(definition_of(4))):
            for planned, (output, lse) in zip([*PLANS, *PLANS], wanted * 2, strict=True):
                self.plan(vllm, wrapper, planned)
                torch.testing.assert_close(wrapper.run(q, cache, return_lse=True), (output, lse + ROUTED))
        assert len(calls) == 6
        assert counts(self.RUN) == {}
        places = {tuple(x.data_ptr() for x in arguments[3:-1]) for _, arguments in calls}
        assert len(places) == 1, "replays would read other tensors"

    def test_listeners_get_the_indices_of_the_last_plan(self, fi, vllm, calls):
        seen = []
        names = "kv_indptr", "kv_indices"
        set_apply_hook(lambda name, inputs: seen.append(tuple(inputs[each].tolist() for each in names)))
        q, cache, wrapper = random(3, 4, 8), caches(4), graph_wrapper(fi)
        with enable_apply(set_of(definition_of(4))):
            for planned in (*PLANS, PLANS[-1]):
                self.plan(vllm, wrapper, planned)
                wrapper.run(q, cache)
        assert seen == [*PLANS, PLANS[-1]]

    @pytest.mark.parametrize(
        "changed",
        [{"sm_scale": 0.25}, {"window_left": 4}, {"logits_soft_cap": 30.0}, {"kv_data_type": torch.float16}],
        ids=["scale", "window", "soft cap", "dtype"],
    )
    def test_a_plan_with_other_parameters_is_refused(self, fi, vllm, calls, changed):
        q, cache, wrapper = random(3, 4, 8), caches(4), graph_wrapper(fi)
        with enable_apply(set_of(definition_of(4))):
            self.plan(vllm, wrapper, PLANS[0])
            self.plan(vllm, wrapper, PLANS[1], **changed)
            wrapper.run(q, cache)
            assert counts(self.RUN) == self.REPLANNED
            assert calls == []
            self.plan(vllm, wrapper, PLANS[0])
            wrapper.run(q, cache)
        assert len(calls) == 1

    @pytest.mark.parametrize("attribute", ["_window_left", "_paged_kv_indptr_buf"])
    def test_a_wrapper_with_other_settings_or_buffers_is_refused(self, fi, vllm, calls, attribute):
        q, cache, wrapper = random(3, 4, 8), caches(4), graph_wrapper(fi)
        with enable_apply(set_of(definition_of(4))):
            self.plan(vllm, wrapper, PLANS[0])
            value = getattr(wrapper, attribute)
            setattr(wrapper, attribute, 4 if attribute == "_window_left" else value.clone())
            self.plan(vllm, wrapper, PLANS[1])
            wrapper.run(q, cache)
        assert calls == []
        assert counts(self.RUN) == self.REPLANNED

    def test_a_plan_by_others_is_refused(self, fi, vllm, calls):
        q, cache, wrapper = random(3, 4, 8), caches(4), graph_wrapper(fi)
        with enable_apply(set_of(definition_of(4))):
            self.plan(vllm, wrapper, PLANS[0])
            offsets, indices = (torch.tensor(values, dtype=torch.int32) for values in PLANS[1])
            plan_unpatched(wrapper, offsets, indices, last_page_len(4), 0.5)
            wrapper.run(q, cache)
            assert counts(self.RUN) == self.REPLANNED
            self.plan(vllm, wrapper, PLANS[1])
            wrapper.run(q, cache)
        assert calls == []

    def test_other_wrappers_and_unrecorded_plans_are_left_alone(self, fi, vllm, calls):
        q, cache, wrapper = random(3, 4, 8), caches(4), graph_wrapper(fi)
        self.plan(vllm, wrapper, PLANS[0])  # nothing is enabled
        ordinary = fi.decode.BatchDecodeWithPagedKVCacheWrapper(workspace())
        with enable_apply(set_of(definition_of(4))):
            self.plan(vllm, wrapper, PLANS[1])
            wrapper.run(q, cache)
            assert counts(self.RUN) == {"it was not planned while routing or tracing was enabled": 1}
            for planned in PLANS[:2]:
                self.plan(vllm, ordinary, planned)
                ordinary.run(q, cache)
        assert [len(arguments[4]) for _, arguments in calls] == [6]  # the sizes of one plan are recorded


def test_a_fast_plan_that_differs_is_left_alone(monkeypatch, caplog):
    module = ModuleType("vllm.v1.attention.backends.flashinfer")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    install_hooks()
    assert "has no fast_plan_decode" in caplog.text
    module.fast_plan_decode = lambda wrapper, indptr: None
    install_hooks()
    assert "fast_plan_decode has other parameters" in caplog.text
