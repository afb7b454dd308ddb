import torch


def run(q, k_cache, v_cache, kv_indptr, kv_indices):
    pages = [
        kv_indices[begin:end].long() for begin, end in zip(kv_indptr.tolist(), kv_indptr.tolist()[1:], strict=False)
    ]
    keys, values = ([cache[p].flatten(0, 1).transpose(0, 1) for p in pages] for cache in (k_cache, v_cache))
    attention = torch.nn.functional.scaled_dot_product_attention
    triples = zip(q, keys, values, strict=True)
    return torch.stack([attention(one.unsqueeze(1), k, v).squeeze(1) for one, k, v in triples])
