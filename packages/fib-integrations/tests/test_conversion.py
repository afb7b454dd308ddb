"""Conversion of calls: unsupported ones reach the original with its own arguments, and `explain` gives the reason."""

import functools
import inspect
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fib_apply import set_apply_hook
from fib_integrations import (
    ConvertedCall,
    UnsupportedCall,
    explain,
    install_flashinfer_integrations,
    uninstall_flashinfer_integrations,
)
from fib_integrations.adapter import CannotAdapt, NotPatched
from fib_integrations.adapters import BUILT_IN
from fib_integrations.attention import make_plan, output_buffers
from fib_integrations.handlers import PlanStore
from fib_integrations.patched_function import PatchedFunction
from flashinfer_stand_ins import HERE, signatures
from flashinfer_stand_ins.examples import (
    KV_INDICES,
    KV_INDPTR,
    QO_INDPTR,
    caches,
    decode_wrapper,
    last_page_len,
    mla_wrapper,
    moe_ds_arguments,
    prefill_wrapper,
    ragged_wrapper,
    random,
    workspace,
)
from flashinfer_stand_ins.marks import one_version
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

X, W = random(3, 8), random(8)
Q, PAIR = random(3, 4, 8), caches(1)
FP8_CACHE = "the dtype of keys and values (float8_e4m3fn) differs from that of queries (bfloat16)"


@pytest.fixture
def fi(flashinfer):
    """The patched stand-ins, with a hook set, so that plans are recorded."""
    install_flashinfer_integrations(also=["torch_linear", "torch_mm"], count_calls=True)
    set_apply_hook(lambda name, inputs: None)
    return flashinfer


def reason(function, *args, **kwargs):
    found = explain(function, *args, **kwargs)
    assert isinstance(found, UnsupportedCall), found
    return found.reason


def patched(adapter, target, original):
    return PatchedFunction(adapter, target, original, plans=PlanStore())


def test_norms(fi):
    rmsnorm = fi.norm.rmsnorm
    assert isinstance(explain(rmsnorm, X, W, enable_pdl=True), ConvertedCall)
    assert reason(rmsnorm, random(2, 3, 8), W) == "the input is not a matrix"
    wide = random(128)
    assert "eps is 1e-05" in reason(rmsnorm, random(3, 128), wide, 1e-5)
    assert isinstance(explain(rmsnorm, random(3, 128), wide, 1e-6), ConvertedCall)
    assert reason(fi.norm.fused_add_rmsnorm, X[0], X[0], W) == "the input is not a matrix"


def test_rope(fi):
    rope = fi.rope.apply_rope_with_cos_sin_cache
    arguments = torch.arange(3), random(3, 16), random(3, 8), 8, torch.rand(9, 4)
    assert "interleaved" in reason(rope, *arguments, is_neox=False)
    assert "not matrices" in reason(rope, arguments[0], random(3, 2, 8), *arguments[2:])


def test_sampling(fi):
    probs, k = torch.rand(3, 32), torch.ones(3, dtype=torch.int32)
    function = fi.sampling.top_k_sampling_from_probs
    assert reason(function, probs, k, indices=torch.arange(3)) == "indices is given"
    assert reason(function, probs, k, generator=torch.Generator()) == "generator is given"
    assert reason(function, probs, k, seed=3) == "seed is given"
    assert reason(function, probs, k, check_nan=True) == "check_nan is given"
    assert "at once" in reason(fi.sampling.top_k_top_p_sampling_from_probs, probs, k, 0.5, filter_apply_order="joint")


def test_gemm(fi):
    a, b = random(3, 16), random(8, 16)
    assert reason(fi.gemm.mm_bf16, a, b.t(), bias=random(8)) == "bias is given"
    assert "differs from that of the factors" in reason(fi.gemm.mm_bf16, a, b.t(), out_dtype=torch.float32)
    assert reason(torch.nn.functional.linear, a, b, random(8)) == "it has a bias"
    assert reason(torch.nn.functional.linear, a.view(1, 3, 16), b) == "a factor is not a matrix"
    assert reason(torch.mm, a, b.t(), out_dtype=torch.float32) == "an unknown keyword is given"


def test_moe(fi):
    moe, arguments = fi.fused_moe.trtllm_fp8_block_scale_moe, moe_ds_arguments()
    assert isinstance(explain(moe, **arguments), ConvertedCall)
    assert "routing method is unsupported" in reason(moe, **{**arguments, "routing_method_type": 0})
    assert "lacks a bias" in reason(moe, **{**arguments, "routing_bias": None})
    assert "has a bias" in reason(moe, **{**arguments, "routing_method_type": 1})
    elsewhere = {
        **arguments,
        "routing_method_type": 1,
        "routing_bias": None,
        "routed_scaling_factor": None,
        "n_group": None,
    }
    assert reason(moe, **elsewhere) == "some experts are on other devices"
    assert reason(moe, **{**arguments, "use_shuffled_weight": True}) == "use_shuffled_weight is given"


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"pos_encoding_mode": "ROPE_LLAMA"}, "a positional encoding is applied inside (ROPE_LLAMA)"),
        ({"window_left": 128}, "it has a sliding window"),
        ({"logits_soft_cap": 30.0}, "it has a logits soft cap"),
        ({"kv_data_type": torch.float8_e4m3fn}, FP8_CACHE),
        ({"data_type": torch.float8_e4m3fn}, FP8_CACHE),
        ({"o_data_type": torch.float16}, "the dtype of the output (float16) differs from that of queries (bfloat16)"),
        ({"seq_lens": torch.ones(3)}, None),
    ],
)
def test_decode_plans(fi, plan, expected):
    found = reason(decode_wrapper(fi, 1, **plan).run, Q, PAIR)
    assert found == expected or (expected is None and "given" in found)


def test_decode_plans_with_defaults_of_unknown_keywords(fi):
    """An engine (vLLM) passes `block_tables` and `seq_lens` as None; FlashInfer 0.7.2 takes them as ``**kwargs``."""
    assert isinstance(explain(decode_wrapper(fi, 1, block_tables=None, seq_lens=None).run, Q, PAIR), ConvertedCall)


@pytest.mark.parametrize("version", ["0.7.2"], indirect=True)
def test_newer_keywords_of_decode_plans(fi):
    assert isinstance(explain(decode_wrapper(fi, 1, q_len_per_req=1, is_causal=None).run, Q, PAIR), ConvertedCall)
    for given in ({"q_len_per_req": 2}, {"window_right": -1}, {"is_causal": True}, {"another": None}, {"seq_lens": Q}):
        assert reason(decode_wrapper(fi, 1, **given).run, Q, PAIR) == "an unknown keyword is given"


def test_decode_runs(fi):
    run = decode_wrapper(fi, 1).run
    assert isinstance(explain(run, Q, PAIR, k_scale=1.0, v_scale=1.0), ConvertedCall)
    assert "quantisation scales" in reason(run, Q, PAIR, k_scale=0.5)
    assert "quantisation scales" in reason(run, Q, PAIR, v_scale=torch.ones(1))
    assert reason(run, Q, PAIR, window_left=4) == "window_left is given"
    assert reason(run, Q, PAIR, sinks=torch.ones(4)) == "sinks is given"
    assert reason(run, Q, PAIR, 1.0) == "*args is given"
    assert reason(run, random(6, 4, 8), PAIR) == "the number of queries differs from the plan"


@one_version
def test_wrappers_with_custom_kernels(fi):
    wrapper = fi.decode.BatchDecodeWithPagedKVCacheWrapper(workspace(), jit_args=["mine"])
    wrapper.plan(KV_INDPTR, KV_INDICES, last_page_len(1), 4, 2, 8, 1, q_data_type=torch.bfloat16)
    assert "jit_args" in reason(wrapper.run, Q, PAIR)


def test_prefill_plans(fi):
    q = random(5, 4, 8)
    assert reason(prefill_wrapper(fi, 1, causal=False).run, q, PAIR) == "it is not causal"
    assert reason(prefill_wrapper(fi, 1, custom_mask=torch.ones(9)).run, q, PAIR) == "custom_mask is given"
    assert "head_dim_vo differs" in reason(prefill_wrapper(fi, 1, head_dim_vo=4).run, q, PAIR)
    k = random(6, 2, 8)
    assert reason(ragged_wrapper(fi, 2, 8, 8, causal=False).run, q, k, k) == "it is not causal"
    assert "grouped" in reason(ragged_wrapper(fi, 2, 8, 4).run, q, k, k)
    assert "differs from the plan" in reason(ragged_wrapper(fi, 2, 8, 8).run, q, k[:4], k[:4])


def test_mla(fi):
    tensors = random(5, 4, 8), random(5, 4, 4), random(8, 1, 8), random(8, 1, 4)
    assert reason(mla_wrapper(fi, 1, QO_INDPTR, causal=False).run, *tensors) == "it is not causal"
    run = mla_wrapper(fi, 1, QO_INDPTR, causal=True).run
    assert isinstance(explain(run, *tensors), ConvertedCall)
    assert reason(run, *tensors, return_lse_base_on_e=True) == "return_lse_base_on_e is given"
    scaled = mla_wrapper(fi, 1, QO_INDPTR, causal=True, sm_scale=torch.tensor(0.5))  # it may change after the plan
    assert reason(scaled.run, *tensors) == "its softmax scale is not a number"
    uneven = torch.tensor([0, 2, 2, 3], dtype=torch.int32)  # three requests, three queries, not one each
    rows = tuple(tensor[:3] for tensor in tensors[:2])
    found = explain(mla_wrapper(fi, 1, uneven, causal=True).run, *rows, *tensors[2:])
    assert isinstance(found, ConvertedCall)
    assert found.definition.startswith("mla_paged_prefill_causal_")


@one_version
def test_plan_made_before_anything_was_enabled_is_unsupported(flashinfer):
    install_flashinfer_integrations()
    wrapper = decode_wrapper(flashinfer, 1)
    set_apply_hook(lambda name, inputs: None)
    assert "not planned" in reason(wrapper.run, Q, PAIR)


@one_version
def test_plan_that_bypassed_the_patched_method_is_unsupported(fi):
    seen = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    wrapper = decode_wrapper(fi, 1)
    wrapper.run(Q, PAIR)
    wrapper._plan_info = object()  # as fast_decode_plan does
    wrapper.run(Q, PAIR)
    assert len(seen) == 1
    assert reason(wrapper.run, Q, PAIR) == "it was replanned without a call of the patched plan method"


def test_forward_replaces_the_settings_of_the_plan(fi):
    """Also for later runs, as in FlashInfer, and whether the original or a solution served it."""
    seen = []
    set_apply_hook(lambda name, inputs: seen.append(inputs["sm_scale"]))
    wrapper = decode_wrapper(fi, 1, sm_scale=0.5)
    expected = decode_wrapper(fi, 1, sm_scale=2.0).run(Q, PAIR)
    seen.clear()
    assert torch.equal(wrapper.forward(Q, PAIR, sm_scale=2.0), expected)
    assert wrapper._sm_scale == 2.0
    assert torch.equal(wrapper.run(Q, PAIR), expected)
    wrapper.forward(Q, PAIR)
    wrapper.run(Q, PAIR)
    default = 1 / math.sqrt(8)
    assert seen == [2.0, 2.0, default, default]


@one_version
def test_forward_of_a_prefill_says_whether_it_is_causal(fi):
    q = random(5, 4, 8)
    wrapper = prefill_wrapper(fi, 1, causal=False)
    assert reason(wrapper.run, q, PAIR) == reason(wrapper.forward, q, PAIR) == "it is not causal"
    assert isinstance(explain(wrapper.forward, q, PAIR, causal=True), ConvertedCall)
    wrapper = prefill_wrapper(fi, 1, causal=True)
    wrapper.forward(q, PAIR)
    assert reason(wrapper.run, q, PAIR) == "it is not causal"
    wrapper.forward(q, PAIR, True)
    assert isinstance(explain(wrapper.run, q, PAIR), ConvertedCall)


@one_version
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pos_encoding_mode": "ROPE_LLAMA"}, "a positional encoding is applied inside (ROPE_LLAMA)"),
        ({"window_left": 128}, "it has a sliding window"),
        ({"logits_soft_cap": 30.0}, "it has a logits soft cap"),
        ({"use_fp16_qk_reduction": True}, "it sums products in float16"),
        ({"k_scale": 0.5}, "it has quantisation scales"),
        ({"sm_scale": torch.tensor(0.5)}, "its softmax scale is not a number"),
        ({"rope_scale": 2.0, "rope_theta": 1e4}, None),  # without effect
    ],
)
def test_unsupported_settings_of_forward(fi, settings, expected):
    q = random(5, 4, 8)
    wrapper = prefill_wrapper(fi, 1, causal=False)
    if expected is None:
        assert isinstance(explain(wrapper.forward, q, PAIR, causal=True, **settings), ConvertedCall)
        return
    assert reason(wrapper.forward, q, PAIR, causal=True, **settings) == expected
    set_apply_hook(lambda name, inputs: pytest.fail("no definition describes it"))
    wrapper.forward(q, PAIR, causal=True, **settings)
    if "k_scale" not in settings:
        assert reason(wrapper.run, q, PAIR) == expected  # its runs have these settings too


@one_version
def test_forward_with_an_unknown_parameter_invalidates_the_plan(importable, monkeypatch):
    """A later version may change more settings than the adapter knows."""
    import flashinfer.decode

    wrapper_class = flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper
    original = wrapper_class.forward

    def forward(self, q, paged_kv_cache, sm_scale=None, brand_new=3):
        self._brand_new = brand_new
        return original(self, q, paged_kv_cache, sm_scale=sm_scale)

    monkeypatch.setattr(wrapper_class, "forward", forward)
    install_flashinfer_integrations()
    seen = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    wrapper = decode_wrapper(flashinfer, 1)
    wrapper.forward(Q, PAIR, brand_new=4)
    wrapper.run(Q, PAIR)
    assert seen == []
    assert "not planned" in reason(wrapper.run, Q, PAIR)


@pytest.mark.parametrize("is_uninstalled", [False, True])
@pytest.mark.parametrize("does", ["forward", "plan"])
@one_version
def test_plan_changed_while_nothing_is_enabled_is_unsupported(fi, does, is_uninstalled):
    wrapper = decode_wrapper(fi, 1)
    assert isinstance(explain(wrapper.run, Q, PAIR), ConvertedCall)
    stamp = wrapper._plan_info
    set_apply_hook(None)
    if is_uninstalled:
        uninstall_flashinfer_integrations()
    if does == "forward":
        wrapper.forward(Q, PAIR, sm_scale=3.0)
    else:
        wrapper.plan(KV_INDPTR, KV_INDICES.flip(0), last_page_len(1), 4, 2, 8, 1, q_data_type=torch.bfloat16)
    wrapper._plan_info = stamp  # nothing else shows it
    install_flashinfer_integrations()
    set_apply_hook(lambda name, inputs: pytest.fail("its inputs are not those that were planned"))
    wrapper.run(Q, PAIR)
    assert "not planned" in reason(wrapper.run, Q, PAIR)


@one_version
def test_failed_plan_is_not_recorded(fi):
    wrapper = decode_wrapper(fi, 1)
    with pytest.raises(TypeError):
        wrapper.plan(KV_INDPTR)
    with pytest.raises(KeyError):
        wrapper.plan(KV_INDPTR, KV_INDICES, last_page_len(1), 4, 2, 8, 1, **_without_buffers(wrapper))
    assert "not planned" in reason(wrapper.run, Q, PAIR)


def _without_buffers(wrapper):
    wrapper.buffers = (("", "", "missing"),)
    return {}


@one_version
def test_unsupported_call_reaches_the_original_unchanged(importable, monkeypatch):
    import flashinfer.norm

    seen = []

    def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None, brand_new=3):
        raise AssertionError

    def recording(*args, **kwargs):
        seen.append((args, kwargs))
        return "original"

    recording.__signature__ = inspect.signature(rmsnorm)
    monkeypatch.setattr(flashinfer.norm, "rmsnorm", recording)
    install_flashinfer_integrations()
    set_apply_hook(lambda name, inputs: None)
    calls = [((X, W), {"brand_new": 4}), ((random(1, 3, 8), W), {"out": None}), ((X,), {"weight": W, "eps": 1e-6})]
    for args, kwargs in calls:
        assert flashinfer.norm.rmsnorm(*args, **kwargs) == "original"
    for (args, kwargs), (got, named) in zip(calls, seen, strict=True):
        assert list(map(id, got)) == list(map(id, args))
        assert {name: id(value) for name, value in named.items()} == {n: id(v) for n, v in kwargs.items()}
    assert reason(flashinfer.norm.rmsnorm, X, W, brand_new=4) == "brand_new is given"


@one_version
def test_positional_wrapper_passes_the_default_values_of_the_original(importable, monkeypatch):
    import flashinfer.norm

    marker = object()

    def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=marker):
        return input, weight, eps, out, enable_pdl

    monkeypatch.setattr(flashinfer.norm, "rmsnorm", rmsnorm)
    install_flashinfer_integrations()
    unsupported = random(1, 3, 8)
    for hook in (None, lambda name, inputs: None):
        set_apply_hook(hook)
        assert flashinfer.norm.rmsnorm(X, W) == (X, W, 1e-6, None, marker)
        assert flashinfer.norm.rmsnorm(weight=W, input=unsupported, out=X) == (unsupported, W, 1e-6, X, marker)
        assert flashinfer.norm.rmsnorm(X, W, 2.0, enable_pdl=True) == (X, W, 2.0, None, True)
        with pytest.raises(TypeError, match=r"rmsnorm\(\) got an unexpected keyword argument 'epsilon'"):
            flashinfer.norm.rmsnorm(X, W, epsilon=1.0)


@one_version
def test_keyword_that_the_signature_lacks_reaches_the_original(importable, monkeypatch):
    """FlashInfer's backend checks take `skip_check`, which the wrapped function does not have."""
    import flashinfer.norm

    def checked(function):
        @functools.wraps(function)
        def wrapper(*args, skip_check=False, **kwargs):
            return skip_check, function(*args, **kwargs)

        return wrapper

    @checked
    def rmsnorm(input: Any, weight: Any, eps: float = 1e-6, out: Any = None, enable_pdl: Any = None) -> Any:
        return "original"

    monkeypatch.setattr(flashinfer.norm, "rmsnorm", rmsnorm)
    install_flashinfer_integrations()
    for hook in (None, lambda name, inputs: None):
        set_apply_hook(hook)
        assert flashinfer.norm.rmsnorm(X, W, skip_check=True) == (True, "original")
    assert reason(flashinfer.norm.rmsnorm, X, W, skip_check=True) == "an unknown keyword is given"
    assert isinstance(explain(flashinfer.norm.rmsnorm, X, W), ConvertedCall)


@one_version
def test_conversion_that_raises_is_logged_once(fi, caplog):
    for _ in range(2):
        with pytest.raises(AttributeError):  # the original's own
            fi.norm.rmsnorm("no tensor", W)
    assert len([record for record in caplog.records if "conversion raised" in record.message]) == 1
    assert "conversion raised" in reason(fi.norm.rmsnorm, "no tensor", W)


@one_version
def test_plan_method_cannot_be_explained(fi):
    with pytest.raises(CannotAdapt, match="computes nothing itself"):
        explain(decode_wrapper(fi, 1).plan)
    with pytest.raises(NotPatched, match="len is not patched"):
        explain(len, "")


@pytest.mark.parametrize("path", sorted(HERE.glob("*.json")), ids=lambda path: path.stem)
def test_convert_functions_have_the_defaults_of_the_library(path):
    """A dump may omit an argument for which `convert` has a default."""
    recorded = json.loads(path.read_text())["signatures"]
    for adapter in BUILT_IN:
        for target in adapter.targets:
            if target.path not in recorded or not hasattr(target, "convert"):
                continue
            scope = {"torch": torch, "OBJECT": object()}
            exec(f"def stated({recorded[target.path]}): ...", scope)
            theirs = inspect.signature(scope["stated"]).parameters
            for name, parameter in inspect.signature(target.convert).parameters.items():
                defaults = parameter.default, theirs[name].default if name in theirs else inspect.Parameter.empty
                if inspect.Parameter.empty not in defaults:
                    assert defaults[0] == defaults[1], f"{target.path}: {name}"


def test_recorded_signatures_match_the_installed_library():
    pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
    import flashinfer

    if not signatures.recorded_file(flashinfer.__version__).exists():
        pytest.skip(f"no signatures of {flashinfer.__version__} are recorded")
    assert signatures.main(["--check"]) == 0


def test_each_wrapper_has_memory_of_its_own_for_an_unwanted_lse():
    wrappers = [SimpleNamespace(_kv_layout="NHD") for _ in range(2)]

    def buffer(rows, wrapper, mode=None):
        plan, query = make_plan(SimpleNamespace(), "name", "q k_cache", rows, ()), torch.zeros(rows, 4, 8)
        query = query if mode is None else mode.from_tensor(query)
        out, lse = output_buffers(plan, query, query, None, False, lambda: wrapper)
        assert out is query
        assert lse.shape == (rows, 4)
        return lse

    kept = buffer(3, wrappers[0])
    assert buffer(3, wrappers[0]) is kept, "of the next plan, too"
    assert not kept.is_inference()
    others = [buffer(3, wrappers[1]), buffer(2, wrappers[0]), *(buffer(3, None) for _ in range(2))]
    assert len({one.data_ptr() for one in (kept, *others)}) == 5
    with FakeTensorMode() as mode:
        assert isinstance(buffer(5, wrappers[0], mode), FakeTensor)
    assert not isinstance(buffer(5, wrappers[0]), FakeTensor)
