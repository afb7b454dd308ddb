import torch


def run(
    pages: "bfloat16[page_count, page_size=16, width=128]", indptr: "int32[request_bounds]", indices: "int32[used]"
) -> "out: bfloat16[slots, width]":
    return pages[indices.long()].flatten(0, 1)
