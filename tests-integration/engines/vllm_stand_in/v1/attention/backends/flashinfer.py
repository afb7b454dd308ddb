"""The function that plans decodes."""


def fast_plan_decode(
    self, indptr_cpu, indices, last_page_len_cpu, num_qo_heads, num_kv_heads, head_dim, page_size,
    pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
    o_data_type=None, data_type=None, sm_scale=None, rope_scale=None, rope_theta=None, non_blocking=True,
    fixed_split_size=-1, disable_split_kv=False,
):  # fmt: skip
    """Plan by the method at first and without graphs, else into the wrapper's buffers."""
    if self._use_cuda_graph and hasattr(self, "vllm_first_call"):
        self._paged_kv_indptr_buf.copy_(indptr_cpu)
        self._paged_kv_indices_buf[: len(indices)].copy_(indices)
        self._paged_kv_last_page_len_buf.copy_(last_page_len_cpu)
        self._plan_info = object()
        return
    given = dict(locals(), indptr=indptr_cpu, last_page_len=last_page_len_cpu, block_tables=None, seq_lens=None)
    for name in ("self", "indptr_cpu", "last_page_len_cpu"):
        del given[name]
    self.plan(**given)
    self.vllm_first_call = False
