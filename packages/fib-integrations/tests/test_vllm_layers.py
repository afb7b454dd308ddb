"""Layers below vLLM's custom ops: routed eagerly, in ops and in compiled code; all other calls reach the original."""

import inspect
import itertools
import sys
from types import ModuleType, SimpleNamespace

import attrs
import pytest
import torch
from engine_stand_ins import LAYERS
from fib_apply import ApplyConfig, enable_apply
from fib_integrations import install_flashinfer_integrations, installation, status
from fib_integrations.adapters import all_adapters, find_definitions
from fib_integrations.adapters.vllm_layers import VLLM_ATTENTION, VLLM_EXPERTS, convert_attention
from fib_integrations.baselines import baseline_solutions, make_baselines
from fib_integrations.cli import main
from fib_integrations.vllm import install_hooks
from fib_schema import TraceSet
from fib_tracer import enable_tracing
from flashinfer_stand_ins import examples
from flashinfer_stand_ins.examples import is_routed, random
from torch._subclasses import FakeTensorMode

ATTENTION, LINEAR = "vllm.vllm_flash_attn.flash_attn_interface", f"{LAYERS}.utils"
EXPERTS = f"{LAYERS}.fused_moe.experts.triton_moe"
HALF = torch.float16
FACTORS = {"layer": None, "x": random(3, 8), "weight": random(5, 8), "bias": None}


def attention(counts=(1, 1, 1), lengths=(5, 9, 2), **changed):
    """The arguments of vLLM's backend: keys and values are views of one cache, in pages of any order."""
    torch.manual_seed(5)
    k, v = random(12, 4, 2, 16).split(8, dim=-1)
    rows = sum(counts)
    return {
        "q": random(rows, 4, 8), "k": k, "v": v, "out": torch.full((rows, 4, 8), 7.0).bfloat16(),
        "cu_seqlens_q": torch.tensor([0, *itertools.accumulate(counts)]).int(), "max_seqlen_q": max(counts),
        "seqused_k": torch.tensor(lengths).int(), "max_seqlen_k": 9, "softmax_scale": 0.3, "causal": True,
        "window_size": [-1, -1], "block_table": torch.randperm(12).int().view(3, 4), "softcap": 0, "fa_version": 3,
        **dict.fromkeys(("alibi_slopes", "dynamic_causal", "s_aux", "mask_mod", "aux_tensors", "scheduler_metadata")),
        **{f"{n}_descale": torch.ones(1).expand(3, 2) for n in "qkv"}, "num_splits": 8, **changed,
    }  # fmt: skip


def experts(**changed):
    torch.manual_seed(6)
    return {
        "output": torch.full((3, 8), 7.0).bfloat16(), "hidden_states": random(3, 8), "w1": random(4, 12, 8),
        "w2": random(4, 8, 6), "topk_weights": torch.rand(3, 2), "activation": SimpleNamespace(value="silu"),
        "topk_ids": torch.tensor([[0, 3], [3, 1], [2, 0]]).int(), "global_num_experts": 4, "expert_map": None,
        **dict.fromkeys(("a1q_scale", "a2_scale", "workspace13", "workspace2", "expert_tokens_meta")),
        "apply_router_weight_on_input": False, **changed,
    }  # fmt: skip


QUANTISATION = ("quant_dtype", "weight_quant_dtype", "w1_scale", "w2_scale", "w1_bias", "w2_bias", "gemm1_clamp_limit")


def call_experts(modules, given):
    """Call an object as vLLM makes it; it is its own settings, of which those that are given are not None."""
    made = modules[EXPERTS].TritonExperts()
    vars(made).update(dict.fromkeys(("quantization_emulation", "_lora_context", *QUANTISATION)), quant_config=made)
    vars(made).update(given.pop("fields", {}))
    assert made.apply(**given) is None
    return given["output"]


_FA = ("q", "k", "v", "cu_seqlens_q", "seqused_k", "block_table", "softmax_scale")
DECODE, CAUSAL, MOE, GEMM = NAMES = (
    "fa_paged_decode_h4_kv2_d8_ps4", "fa_paged_causal_h4_kv2_d8_ps4", "moe_bf16_e4_topk2_h8_i6", "gemm_bf16_n5_k8"
)  # fmt: skip
CASES = {
    DECODE: (lambda m, a: m[ATTENTION].flash_attn_varlen_func(**a), attention, (*_FA[:3], *_FA[4:])),
    CAUSAL: (
        lambda m, a: m[ATTENTION].flash_attn_varlen_func(**a),
        lambda **changed: attention((3, 1, 6), (7, 9, 6), **changed),
        _FA,
    ),
    MOE: (call_experts, experts, ("hidden_states", "w1", "w2", "topk_weights", "topk_ids")),
    GEMM: (lambda m, a: m[LINEAR].default_unquantized_gemm(**a), lambda **changed: FACTORS | changed, ("x", "weight")),
}
each_name = pytest.mark.parametrize("name", CASES)


def inputs_of(name):
    _, make, inputs = CASES[name]
    given = make()
    return [given[one] for one in inputs]


def marked(name):
    return examples.marked(find_definitions([name])[0], inputs_of(name))


@each_name
def test_solutions_serve_and_write_to_the_callers_buffer(name, modules):
    call, make, _ = CASES[name]
    expected, given = call(modules, make()), make()
    install_flashinfer_integrations()
    with enable_apply(marked(name)):
        found = call(modules, given)
        assert is_routed(found)
        assert found is given.get("out", given.get("output", found))
    with enable_apply(marked(name), ApplyConfig(shadow_ratio=1.0)) as runtime:
        torch.testing.assert_close(call(modules, make()), expected, rtol=0, atol=0)
        assert list(runtime.left_out()) == ["marked"]


@each_name
def test_traced_calls_are_workloads_of_a_reference_that_agrees_with_an_independent_one(name, modules, tmp_path, capsys):
    call, make, _ = CASES[name]
    assert main(["definitions", str(tmp_path), name]) == 0
    assert main(["definitions", str(tmp_path), "gemm_bf16_n5"]) == 2
    assert capsys.readouterr().out == f"wrote {name}\n"
    (baseline,) = make_baselines(TraceSet.from_path(tmp_path), all_adapters().values()).solutions
    assert (baseline.name, baseline.author) == (f"vllm_{name}", "vllm")  # before those of FlashInfer's GEMM
    install_flashinfer_integrations()
    with enable_tracing(tmp_path):
        expected = call(modules, make())
    found, scope = TraceSet.from_path(tmp_path), {}
    ((trace,),) = found.workloads.values()
    values = dict(zip(trace.workload.inputs, inputs_of(name), strict=True))
    for key, source in trace.workload.inputs.items():
        assert (source.type == "safetensors") == str(found.definitions[name].inputs[key].dtype).startswith("int")
        if source.type == "safetensors":
            values[key] = found.get_workload_blob_tensor(source.path)[source.tensor_key]
    exec(found.definitions[name].reference, scope)
    torch.testing.assert_close(scope["run"](**values), expected)


REFUSED = [
    (DECODE, "it has a sliding window", {"window_size": [3, 0]}),
    (DECODE, "it has a logits soft cap", {"softcap": 30.0}),
    (DECODE, "it returns the log-sum-exp", {"return_softmax_lse": True}),
    (DECODE, "a request has no query", {"q": random(4, 4, 8), "out": random(4, 4, 8)}),
    (DECODE, "a tensor is not bfloat16", {"k": attention()["k"].to(torch.float8_e4m3fn)}),
    (DECODE, "cp_world_size is given", {"cp_world_size": 2}),
    *(
        (DECODE, f"{n} is given", {n: torch.ones(4)})
        for n in ("alibi_slopes", "s_aux", "q_v", "mask_mod", "output_scale")
    ),
    (CAUSAL, "it is not causal", {"causal": False}),
    (MOE, "the activation is another one", {"activation": SimpleNamespace(value="gelu")}),
    *((MOE, "some experts are on other devices", {n: 8}) for n in ("expert_map", "global_num_experts")),
    (MOE, "the weights of the routing apply to the input", {"apply_router_weight_on_input": True}),
    (MOE, "the weights of the routing apply to the input", {"fields": {"_lora_context": 7}}),
    (MOE, "it has a quantisation", {"a2_scale": torch.ones(1)}),
    (MOE, "it has a limit", {"fields": {"activation_config": SimpleNamespace(clamp_limit=7.0)}}),
    *((MOE, "it has a quantisation", {"fields": {name: 7}}) for name in ("quantization_emulation", *QUANTISATION)),
    (MOE, "a tensor is not bfloat16", {"w1": experts()["w1"].to(HALF)}),
    (GEMM, "it has a bias", {"bias": random(5)}),
    (GEMM, "a factor is not a matrix", {"x": random(2, 3, 8)}),
    (GEMM, "a tensor is not bfloat16", {"x": random(3, 8).to(HALF), "weight": random(5, 8).to(HALF)}),
]


@pytest.mark.parametrize(
    ("name", "reason", "change"), REFUSED, ids=[f"{index}-{case[1]}" for index, case in enumerate(REFUSED)]
)
def test_unsupported_calls_reach_the_original(name, reason, change, modules):
    call, make, _ = CASES[name]
    expected = call(modules, make(**change))
    install_flashinfer_integrations(count_calls=True)
    with enable_apply(marked(name)):
        torch.testing.assert_close(call(modules, make(**change)), expected, rtol=0, atol=0)
    assert any(text.startswith(reason) for one in status() for text, _ in one.unsupported_calls)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        *((DECODE, name) for name in ("BATCH_INVARIANT", "USE_BREAKABLE_CUDAGRAPH")),
        *((MOE, name) for name in ("BATCH_INVARIANT", "MOE_SKIP_PADDING")),
    ],
)
def test_promises_of_the_engine_are_kept(name, variable, modules, monkeypatch):
    install_flashinfer_integrations()
    call, make, _ = CASES[name]
    for value, is_served in (("0", True), ("1", False)):
        monkeypatch.setenv(f"VLLM_{variable}", value)
        with enable_apply(marked(name)):
            assert is_routed(call(modules, make())) is is_served


def test_a_row_without_keys_is_zero(modules):
    """The engine fills up captured batches with requests without queries and keys, and reads none of their rows."""
    given = attention(lengths=(5, 9, 0), cu_seqlens_q=torch.tensor([0, 1, 2, 2]).int())
    scope = {}
    exec(find_definitions([DECODE])[0].reference, scope)
    found = scope["run"](*(given[name] for name in CASES[DECODE][2]))
    assert not found[2].any()
    expected = CASES[DECODE][0](modules, given)
    torch.testing.assert_close(found[:2], expected[:2])
    assert (expected[2] == 7).all()


MODES = [((2, 1), None, 1), ((2, 0), None, 1), (2, None, 1), ((2, 1), 7, 1), ((2, 1), None, 2)]


@pytest.mark.parametrize(("mode", "draft", "queries"), MODES)
def test_only_decodes_with_graphs_of_their_own_are_captured(mode, draft, queries, monkeypatch):
    """Graphs of another mode, or of a draft model, are replayed with any number of queries per request."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    mode = SimpleNamespace(cudagraph_mode=SimpleNamespace(value=mode))
    with FakeTensorMode():
        q = torch.empty(3, 4, 8, dtype=torch.bfloat16, device="cuda")
    given, taken = attention(q=q, max_seqlen_q=queries), inspect.signature(convert_attention).parameters

    class GPUModelRunner:
        vllm_config = SimpleNamespace(compilation_config=mode, speculative_config=draft)

        def capture_model(self=None):
            return convert_attention(**{name: given[name] for name in taken if name in given})

    path, original = "vllm.v1.worker.gpu.model_runner", GPUModelRunner.capture_model
    monkeypatch.setitem(sys.modules, path, SimpleNamespace(GPUModelRunner=GPUModelRunner))
    install_hooks()
    is_captured = (type(mode.cudagraph_mode.value), draft, queries) == (tuple, None, 1)
    assert isinstance(GPUModelRunner().capture_model(), tuple) is is_captured
    assert "with which no solution was verified" in original()


@pytest.mark.parametrize("name", [DECODE, CAUSAL])
def test_baselines_pass_what_vllm_passes(name, modules, monkeypatch):
    (definition,), calls, original = find_definitions([name]), [], modules[ATTENTION].flash_attn_varlen_func

    def plan(
        batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens, *, qkv_dtype,
        cu_seqlens_q, page_size, causal, num_splits,
    ):  # fmt: skip
        return batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, page_size, num_splits

    attend = lambda **given: (calls.append(given), original(**given))  # noqa: E731
    for path, names in (
        ("vllm.v1.attention.backends.fa_utils", {"get_flash_attn_version": lambda: 3}),
        ("vllm.vllm_flash_attn", {"get_scheduler_metadata": plan, "flash_attn_varlen_func": attend}),
    ):
        monkeypatch.setitem(sys.modules, path, SimpleNamespace(**names))
    inputs, scope = inputs_of(name), {}
    exec(baseline_solutions(VLLM_ATTENTION, definition)[0].sources[0].content, scope)
    scope["run"](*inputs, found := torch.empty_like(inputs[0]), **scope["setup"](*inputs))
    exec(definition.reference, scope)
    torch.testing.assert_close(found, scope["run"](*inputs))
    assert calls[0]["scheduler_metadata"] == (3, calls[0]["max_seqlen_q"], 9, 4, 2, 8, 4, 32)
    assert [calls[0][n] for n in ("max_seqlen_k", "num_splits", "fa_version")] == [9, 32, 3]


@pytest.mark.parametrize("name", [DECODE, MOE])
@pytest.mark.parametrize("kind", ["no trace", "slower", "counted", "faster"])
def test_calls_with_buffers_are_not_converted_where_nothing_can_win(name, kind, modules):
    """The baseline of vLLM is faster than the solution, but for the last kind."""
    call, make, _ = CASES[name]
    install_flashinfer_integrations(count_calls=True)
    (definition,), found = find_definitions([name]), marked(name)
    (baseline,) = baseline_solutions(VLLM_ATTENTION if name == DECODE else VLLM_EXPERTS, definition)
    latency, (theirs,) = 1.0 if kind == "faster" else 0.01, found.traces[name]
    evaluation = theirs.evaluation
    evaluation = attrs.evolve(evaluation, performance=attrs.evolve(evaluation.performance, latency_ms=latency))
    ours = attrs.evolve(theirs, solution=baseline.name, evaluation=evaluation)
    patched = modules[ATTENTION].flash_attn_varlen_func if name == DECODE else modules[EXPERTS].TritonExperts.apply
    traces = () if kind == "no trace" else (theirs, ours)
    data_set = examples.data_set(definition, traces, (*found.solutions[name], baseline))
    with enable_apply(data_set, stats=kind == "counted"):
        call(modules, make())
        vars(patched)["__fib_patched__"]._scope["_fib_convert"] = None
        call(modules, make())
    reasons = [text for one in status() for text, _ in one.unsupported_calls]
    assert reasons == ([] if kind in {"no trace", "slower"} else ["its conversion raised TypeError"])


def test_calls_within_a_custom_op_are_routed(modules):
    """Of an op that writes to its output, as vLLM's."""
    install_flashinfer_integrations()

    @torch.library.custom_op("fib_tests::attend", mutates_args=["output"])
    def op(query: torch.Tensor, output: torch.Tensor) -> None:
        CASES[DECODE][0](modules, attention(q=query, out=output))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def model(query):
        op(query, output := torch.empty_like(query))
        return output + 1

    with enable_apply(marked(DECODE)), torch.inference_mode():
        assert is_routed(model(attention()["q"]))


HALVES = {name: random(5, 8).to(HALF) for name in ("x", "weight")}
OTHERS = [{"bias": random(5)}, {"weight": random(6, 8)}, HALVES, {"weight": random(5, 8).requires_grad_()}]


@pytest.mark.parametrize("change", [{}, *OTHERS], ids=["served", "bias", "shape", "dtype", "gradients"])
def test_compiled_linear_layers_are_ops_where_a_solution_may_serve(modules, change, monkeypatch):
    monkeypatch.setenv("FIB_ENABLE_APPLY", "1")  # a compiler may come before the runtime starts
    install_flashinfer_integrations()
    monkeypatch.delenv("FIB_ENABLE_APPLY")
    torch.compiler.reset()
    given, codes = FACTORS | change, []
    compiled = torch.compile(fullgraph=True, backend=lambda graph, _: codes.append(graph.code) or graph)
    model, expected = (
        compiled(modules[LINEAR].default_unquantized_gemm),
        torch.nn.functional.linear(*[*given.values()][1:]),
    )
    with torch.no_grad():
        torch.testing.assert_close(model(**given), expected)
    installation.start()
    unmeasured = examples.data_set(find_definitions([GEMM])[0], (), ())
    for data_set, is_enabled in ((unmeasured, True), (marked(GEMM), False)):
        with enable_apply(data_set, ApplyConfig(enabled=is_enabled)), torch.no_grad():
            torch.testing.assert_close(model(**given), expected)
    assert "fib_integrations.linear" not in "".join(codes)
    with enable_apply(marked(GEMM)), torch.set_grad_enabled(given["weight"].requires_grad):
        result = model(**given)
        assert is_routed(result) is ("fib_integrations.linear" in "".join(codes)) is (not change)
        if result.requires_grad:
            result.sum().backward()
            assert given["weight"].grad is not None


def test_the_table_is_part_of_the_key_of_compiled_code(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm.envs", envs := ModuleType("vllm.envs"))
    envs.compile_factors = lambda: {"VLLM": 1}
    install_hooks()
    with enable_apply(marked(GEMM)) as runtime:
        assert envs.compile_factors() == {"VLLM": 1, "FIB": (runtime.table.digest, False)}
