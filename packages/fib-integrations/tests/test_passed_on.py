"""Calls that the original serves in any case: they are not converted, and nothing else changes for the caller."""

import pytest
import torch
from fib_apply import ApplyConfig, enable_apply, set_apply_hook
from fib_integrations import ConvertedCall, explain, status
from fib_schema import TraceSet
from flashinfer_stand_ins import behaviour
from flashinfer_stand_ins.examples import (
    BY_DEFINITION,
    KV_INDICES,
    KV_INDPTR,
    QO_INDPTR,
    RMSNORM,
    caches,
    data_set,
    decode_wrapper,
    last_page_len,
    passed,
    random,
    reference_solution,
    workspace,
)
from flashinfer_stand_ins.marks import one_version

pytestmark = one_version
DECODE = BY_DEFINITION["gqa_paged_decode_h4_kv2_d8_ps4"].definition
PREFILL = BY_DEFINITION["gqa_paged_prefill_causal_h4_kv2_d8_ps4"].definition


def other_sizes(definition):
    """A data set whose solution, with a ``setup``, is recorded for one request."""
    solution, offsets = reference_solution(definition, kind="setup"), torch.tensor([0, 1], dtype=torch.int32)
    k, v = caches(4)
    values = {"q": random(1, 4, 8), "k_cache": k, "v_cache": v, "kv_indptr": offsets, "kv_indices": offsets[:1]}
    values |= {"kv_last_page_len": offsets[1:], "sm_scale": 1.0, "qo_indptr": offsets}
    inputs = {name: values[name] for name in definition.inputs}
    return data_set(definition, (passed(solution, definition, inputs),), (solution,))


def misses(runtime, definition):
    return dict(runtime.stats()[definition.name].misses)


def test_arguments_without_a_key_raise_the_error_of_the_original(fi):
    with enable_apply(other_sizes(DECODE)), pytest.raises(TypeError):
        fi.rope.apply_rope_with_cos_sin_cache_inplace(torch.tensor([0]), random(1, 16), random(1, 8), 8, None)


@pytest.mark.parametrize("definition", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_each_run_has_the_pages_of_its_plan_and_is_counted(fi, definition):
    is_decode = definition is DECODE
    cls = fi.decode.BatchDecodeWithPagedKVCacheWrapper if is_decode else fi.prefill.BatchPrefillWithPagedKVCacheWrapper
    wrapper, cache = cls(workspace()), caches(4)
    q = random(3 if is_decode else 5, 4, 8)
    found = []
    with enable_apply(other_sizes(definition), stats=True) as runtime:
        for step in range(3):
            pages = KV_INDPTR, KV_INDICES.roll(step), last_page_len(4), 4, 2, 8, 4
            given = pages if is_decode else (QO_INDPTR, *pages)
            wrapper.plan(*given, q_data_type=torch.bfloat16, **({} if is_decode else {"causal": True}))
            found.append([wrapper.run(q, cache, k_scale=1.0) for _layer in range(2)])
        assert misses(runtime, definition) == {"not recorded": 6}
    assert torch.equal(*found[0])
    assert not torch.equal(found[0][0], found[1][0])


def test_a_listener_gets_all_runs(fi):
    seen, q, cache = [], random(3, 4, 8), caches(4)
    with enable_apply(other_sizes(DECODE), stats=True) as runtime:
        wrapper = decode_wrapper(fi, 4)
        for _ in range(2):
            wrapper.run(q, cache)
        set_apply_hook(lambda name, inputs: seen.append(list(inputs)))
        out = torch.empty_like(q)
        for given in ({}, {"out": out}):
            wrapper.run(q, cache, **given)
        set_apply_hook(None)
        wrapper.run(q, cache)
        assert misses(runtime, DECODE) == {"not recorded": 5}
    assert seen == [list(DECODE.inputs)] * 2, "without buffers"


def test_settings_of_forward_have_a_decision_of_their_own(fi):
    q, cache = random(3, 4, 8), caches(4)
    path = "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run"
    with enable_apply(other_sizes(DECODE), stats=True):
        wrapper = decode_wrapper(fi, 4)
        wrapper.run(q, cache)
        wrapper.forward(q, cache, window_left=4)
        wrapper.run(q, cache)  # has the window, too
    (counted,) = (dict(target.unsupported_calls) for target in status() if target.path == path)
    assert counted == {"it has a sliding window": 2}, "the original of `forward` calls `run`"


def test_nothing_within_the_original_is_routed(fi, monkeypatch):
    """Its own calls of other patched functions are parts of it."""
    x, weight = random(3, 8), random(8)
    original = behaviour.BatchDecodeWithPagedKVCacheWrapper.attend

    def with_norm(*args):
        fi.norm.rmsnorm(x, weight)
        return original(*args)

    solution = reference_solution(RMSNORM)
    inputs = {"hidden_states": x, "weight": weight}
    both = other_sizes(DECODE)
    both = TraceSet(
        None,
        {**both.definitions, RMSNORM.name: RMSNORM},
        {**both.solutions, RMSNORM.name: (solution,)},
        {},
        {**both.traces, RMSNORM.name: (passed(solution, RMSNORM, inputs),)},
    )
    q, cache = random(3, 4, 8), caches(4)
    with enable_apply(both, ApplyConfig(require_speedup=False), stats=True) as runtime:
        wrapper = decode_wrapper(fi, 4)
        fi.norm.rmsnorm(x, weight)
        monkeypatch.setattr(behaviour.BatchDecodeWithPagedKVCacheWrapper, "attend", with_norm)
        for _ in range(3):
            wrapper.run(q, cache)
        assert sum(runtime.stats()[RMSNORM.name].hits.values()) == 1
        fi.norm.rmsnorm(x, weight)
        assert sum(runtime.stats()[RMSNORM.name].hits.values()) == 2, "routing goes on afterwards"


def test_an_error_of_the_original_ends_its_part(fi, monkeypatch):
    def fail(*args):
        raise RuntimeError("out of pages")

    q, cache = random(3, 4, 8), caches(4)
    with enable_apply(other_sizes(DECODE), stats=True) as runtime:
        wrapper = decode_wrapper(fi, 4)
        wrapper.run(q, cache)
        wrapper.run(q, cache)
        with monkeypatch.context() as failing:
            failing.setattr(behaviour.BatchDecodeWithPagedKVCacheWrapper, "attend", fail)
            with pytest.raises(RuntimeError, match="out of pages"):
                wrapper.run(q, cache)
        wrapper.run(q, cache)
        assert misses(runtime, DECODE) == {"not recorded": 4}


def test_explaining_makes_no_call(fi, monkeypatch):
    rope = fi.rope.apply_rope_with_cos_sin_cache_inplace
    q, cache = random(3, 4, 8), caches(4)
    given = torch.tensor([0, 5, 9]), random(3, 16), random(3, 8), 8, torch.rand(16, 4)
    with enable_apply(other_sizes(DECODE), stats=True) as runtime:
        wrapper = decode_wrapper(fi, 4)
        for _ in range(2):
            wrapper.run(q, cache)
            rope(*given)
        called = lambda *_: pytest.fail("a call")  # noqa: E731
        monkeypatch.setattr(behaviour.BatchDecodeWithPagedKVCacheWrapper, "attend", called)
        monkeypatch.setattr(behaviour, "apply_rope_with_cos_sin_cache_inplace", called)
        assert isinstance(explain(wrapper.run, q, cache), ConvertedCall)
        assert isinstance(explain(rope, *given), ConvertedCall)
        assert misses(runtime, DECODE) == {"not recorded": 2}
