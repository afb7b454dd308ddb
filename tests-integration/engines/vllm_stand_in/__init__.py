"""Stand-in for vLLM 0.26 on the CPU: one layer's norms and attention, called as vLLM calls them; copied as ``vllm``.

A generation calls them for a prefill and for two steps of decode, of four requests at most; its tokens are constant.
CUDA graphs are not captured: the calls that would be are made once, inside a stand-in for ``torch.cuda.graph``.
"""

import importlib.metadata
import os
import types

import torch

__version__ = "0.26.0"
_HEADS, _KEY_HEADS, _SIZE, _PAGE, _BLOCKS, _REQUESTS, _STEPS = 32, 8, 128, 64, 64, 4, 2


class _Graph:
    def __init__(self, *arguments, **settings):
        del arguments, settings

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


if not torch.cuda.is_available():
    torch.cuda.graph = _Graph


def load_plugins():
    """Load the plug-ins that the environment names, or all, as vLLM does in each process."""
    names = os.environ.get("VLLM_PLUGINS")
    for point in importlib.metadata.entry_points(group="vllm.general_plugins"):
        if names is None or point.name in names.split(","):
            point.load()()


class SamplingParams:
    def __init__(self, **settings):
        self.max_tokens = settings["max_tokens"]


class LLM:
    def __init__(self, model, **settings):
        assert settings["load_format"] == "dummy"
        load_plugins()
        self.ranks = None
        if settings.get("tensor_parallel_size", 1) > 1:
            from vllm.ranks import Ranks

            self.ranks = Ranks({"model": model, **settings})
            return
        import flashinfer
        from vllm.ir import ops
        from vllm.v1.attention.backends import flashinfer as backend
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        self.backend, self.ops = backend, ops
        for name, providers in settings.get("ir_op_priority", {}).items():
            getattr(ops, name).set_default(providers)
        packed = torch.zeros(_BLOCKS, _PAGE, _KEY_HEADS, 2 * _SIZE, dtype=torch.bfloat16)
        self.cache = packed.split(_SIZE, -1)
        self.weight = torch.ones(4096, dtype=torch.bfloat16)
        workspace = torch.zeros(1024, dtype=torch.uint8)
        self.prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        self.decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        self.is_eager, self.graphs = settings["enforce_eager"], {}
        if not self.is_eager:
            for size in (_REQUESTS, 1):
                self.graphs[size] = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                    workspace, "NHD", use_cuda_graph=True, use_tensor_cores=True,
                    paged_kv_indptr_buffer=torch.zeros(size + 1, dtype=torch.int32),
                    paged_kv_indices_buffer=torch.zeros(_BLOCKS, dtype=torch.int32),
                    paged_kv_last_page_len_buffer=torch.ones(size, dtype=torch.int32),
                )  # fmt: skip
            GPUModelRunner().capture_model(self)

    def capture(self):
        """Call each size of decode twice: before a graph is captured, and while it is."""
        for size in self.graphs:
            self.plan(self.graphs[size], size, 1)
            self.attend(self.graphs[size], size)
            with torch.cuda.graph(None):
                self.attend(self.graphs[size], size)

    def plan(self, wrapper, size, length):
        """Plan a decode as vLLM does; all requests have the same length."""
        pages = -(-length // _PAGE)
        self.backend.fast_plan_decode(
            wrapper, indptr_cpu=torch.arange(0, size * pages + 1, pages, dtype=torch.int32),
            indices=torch.arange(size * pages, dtype=torch.int32),
            last_page_len_cpu=torch.full((size,), (length - 1) % _PAGE + 1, dtype=torch.int32), num_qo_heads=_HEADS,
            num_kv_heads=_KEY_HEADS, head_dim=_SIZE, page_size=_PAGE, pos_encoding_mode="NONE", sm_scale=0.1,
            q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16, o_data_type=torch.bfloat16,
        )  # fmt: skip

    def attend(self, wrapper, rows):
        q = torch.ones(rows, _HEADS, _SIZE, dtype=torch.bfloat16)
        wrapper.run(q, self.cache, q_scale=1.0, k_scale=1.0, v_scale=1.0, out=torch.empty_like(q))

    def generate(self, requests, wanted, use_tqdm):
        """Generate constant tokens."""
        del use_tqdm
        tokens = types.SimpleNamespace(token_ids=[1] * wanted.max_tokens)
        answers = [types.SimpleNamespace(outputs=[tokens])] * len(requests)
        if self.ranks is not None:
            self.ranks.call("generate", len(requests), wanted.max_tokens)
            return answers
        size, length = min(len(requests), _REQUESTS), len(requests[0]["prompt_token_ids"]) // 32
        offsets = torch.arange(size + 1, dtype=torch.int32)
        self.prefill.plan(
            qo_indptr=offsets * length, paged_kv_indptr=offsets, paged_kv_indices=torch.arange(size, dtype=torch.int32),
            paged_kv_last_page_len=torch.full((size,), length, dtype=torch.int32), num_qo_heads=_HEADS,
            num_kv_heads=_KEY_HEADS, head_dim_qk=_SIZE, page_size=_PAGE, causal=True, sm_scale=0.1,
            q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16, o_data_type=torch.bfloat16,
            fixed_split_size=-1, disable_split_kv=False,
        )  # fmt: skip
        self.attend(self.prefill, size * length)
        self.ops.rms_norm(torch.ones(size * length, 4096, dtype=torch.bfloat16), self.weight, 1e-5)
        for step in range(min(wanted.max_tokens - 1, _STEPS)):
            wrapper = self.decode if self.is_eager else self.graphs[size]
            self.plan(wrapper, size, length + 1 + step)
            if self.is_eager:  # else a graph is replayed
                self.ops.rms_norm(torch.ones(size, 4096, dtype=torch.bfloat16), self.weight, 1e-5)
                self.attend(wrapper, size)
        return answers

    def collective_rpc(self, method, args=()):
        """Call a function with each rank's worker."""
        return self.ranks.call_function(method, args)
