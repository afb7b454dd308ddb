"""Behaviour of the stand-ins: one function per FlashInfer function, taking its arguments by name."""

import math

import torch

from . import computing


def _written(value, out):
    return value if out is None else out.copy_(value)


def rmsnorm(a):
    return _written(computing.normalised(a["input"], a["weight"], a["eps"]), a["out"])


def fused_add_rmsnorm(a):
    result = computing.normalised_sum(a["input"], a["residual"], a["weight"], a["eps"])
    a["residual"].add_(a["input"])
    a["input"].copy_(result)


def apply_rope_with_cos_sin_cache(a):
    heads = (-1, a["head_size"])
    query, key = (a[name].unflatten(1, heads) for name in ("query", "key"))
    return tuple(computing.rotated(x, a["cos_sin_cache"], a["positions"]).flatten(1) for x in (query, key))


def apply_rope_with_cos_sin_cache_inplace(a):
    query, key = apply_rope_with_cos_sin_cache(a)
    a["query"].copy_(query)
    a["key"].copy_(key)


def _limit(value, probs):
    return value if isinstance(value, torch.Tensor) else torch.full((len(probs),), value)


def _sampled(a, *names):
    limits = {name: _limit(a[name], a["probs"]) for name in names}
    return computing.limited(a["probs"], **limits).to(torch.int32)


def top_k_sampling_from_probs(a):
    return _sampled(a, "top_k")


def top_p_sampling_from_probs(a):
    return _sampled(a, "top_p")


def top_k_top_p_sampling_from_probs(a):
    return _sampled(a, "top_k", "top_p")


def mm_bf16(a):
    result = a["a"] @ a["b"]
    return _written(result if a["bias"] is None else result + a["bias"], a["out"])


def trtllm_fp8_block_scale_moe(a):
    names = "hidden_states hidden_states_scale gemm1_weights gemm1_weights_scale gemm2_weights gemm2_weights_scale"
    if a["routing_method_type"] == 2:
        bias = a["routing_bias"] if a["routing_bias"] is not None else torch.zeros(a["num_experts"])
        factor = a["routed_scaling_factor"] or 1.0
        groups = a["n_group"], a["topk_group"]
        weights = computing.chosen_by_groups(a["routing_logits"], bias, a["top_k"], *groups, factor)
    else:
        weights = computing.chosen_by_softmax(a["routing_logits"], a["top_k"])
    return computing.mixed(weights, *(a[name] for name in names.split()), a["local_expert_offset"])


SETTINGS = (
    "causal", "pos_encoding_mode", "use_fp16_qk_reduction", "window_left", "logits_soft_cap", "sm_scale", "rope_scale",
    "rope_theta",
)  # fmt: skip
"""Settings that ``plan`` and ``forward`` give the next runs, as attributes."""


class Wrapper:
    """Common base of wrappers: keeps the plan in FlashInfer's attributes."""

    buffers = ()

    def begin(self, a):
        self._kv_layout = a.get("kv_layout", "NHD")
        self._use_cuda_graph = a.get("use_cuda_graph", False)
        self._jit_module = a.get("jit_args")
        self.device = a["float_workspace_buffer"].device
        self._plan_info = None
        for argument, kept, _ in self.buffers:
            setattr(self, kept, a.get(argument))

    def keep(self, a):
        a = self._planned = {**a, **a.pop("kwargs", {}), "self": None}
        for _, kept, planned in self.buffers:
            value = a[planned]
            if self._use_cuda_graph:
                getattr(self, kept)[: len(value)].copy_(value)
            else:
                setattr(self, kept, value)
        for name in SETTINGS:
            setattr(self, f"_{name}", a.get(name))
        self._plan_info = object()

    def answer(self, a, result):
        output, lse = _written(result[0], a["out"]), result[1]
        return (output, _written(lse, a["lse"])) if a["return_lse"] else output

    def scale(self, q):
        return 1 / math.sqrt(q.shape[-1]) if self._sm_scale is None else self._sm_scale

    def forward(self, a, *arguments):
        for name in SETTINGS:
            if name in a:
                setattr(self, f"_{name}", a[name])
        run = self.run_return_lse if a.get("return_lse") else self.run
        return run(*arguments, **{name: a[name] for name in ("q_scale", "k_scale", "v_scale") if name in a})


class Paged(Wrapper):
    is_decode = False

    def attend(self, a):
        cache = a["paged_kv_cache"]
        k, v = cache if isinstance(cache, tuple) else (cache[:, 0], cache[:, 1])
        if self._kv_layout == "HND":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        pages = self._paged_kv_indptr_buf, self._paged_kv_indices_buf, self._paged_kv_last_page_len_buf
        rows = torch.arange(len(pages[0])) if self.is_decode else self._qo_indptr_buf
        causal = bool(self._causal)
        return self.answer(a, computing.attended_in_pages(a["q"], k, v, rows, *pages, self.scale(a["q"]), causal))


class BatchDecodeWithPagedKVCacheWrapper(Paged):
    is_decode = True
    buffers = (
        ("paged_kv_indptr_buffer", "_paged_kv_indptr_buf", "indptr"),
        ("paged_kv_indices_buffer", "_paged_kv_indices_buf", "indices"),
        ("paged_kv_last_page_len_buffer", "_paged_kv_last_page_len_buf", "last_page_len"),
    )


class BatchPrefillWithPagedKVCacheWrapper(Paged):
    buffers = (
        ("qo_indptr_buf", "_qo_indptr_buf", "qo_indptr"),
        ("paged_kv_indptr_buf", "_paged_kv_indptr_buf", "paged_kv_indptr"),
        ("paged_kv_indices_buf", "_paged_kv_indices_buf", "paged_kv_indices"),
        ("paged_kv_last_page_len_buf", "_paged_kv_last_page_len_buf", "paged_kv_last_page_len"),
    )


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    buffers = (("qo_indptr_buf", "_qo_indptr_buf", "qo_indptr"), ("kv_indptr_buf", "_kv_indptr_buf", "kv_indptr"))

    def attend(self, a):
        k, v = (a["k"], a["v"]) if self._kv_layout == "NHD" else (a["k"].transpose(0, 1), a["v"].transpose(0, 1))
        rows = self._qo_indptr_buf, self._kv_indptr_buf
        found = computing.attended_in_rows(a["q"], k, v, *rows, self.scale(a["q"]), self._causal)
        return self.answer(a, found)


class BatchMLAPagedAttentionWrapper(Wrapper):
    buffers = (
        ("qo_indptr", "_qo_indptr_buf", "qo_indptr"),
        ("kv_indptr", "_kv_indptr_buf", "kv_indptr"),
        ("kv_indices", "_kv_indices_buf", "kv_indices"),
        ("kv_len_arr", "_kv_len_arr_buf", "kv_len_arr"),
    )

    def attend(self, a):
        last = (self._kv_len_arr_buf - 1) % self._planned["page_size"] + 1
        tensors = (a[name] for name in ("q_nope", "q_pe", "ckv_cache", "kpe_cache"))
        pages = self._qo_indptr_buf, self._kv_indptr_buf, self._kv_indices_buf, last
        found = computing.attended_latently(*tensors, *pages, self._sm_scale, self._planned["causal"])
        return self.answer(a, found)
