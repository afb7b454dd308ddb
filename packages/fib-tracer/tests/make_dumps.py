"""Has a real FlashInfer dump small calls, in both formats: what lies in ``dumps/`` was made so on a GPU.

usage: python make_dumps.py FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_FORMATS = {"pt": "0", "safetensors": "1"}


def main() -> int:
    """Dump once in each format, each in a process of its own: FlashInfer reads its variables when it is imported."""
    if len(sys.argv) > 2:
        make_calls()
        return 0
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name, is_safetensors in _FORMATS.items():
        variables = {
            "FLASHINFER_LOGLEVEL": "10",
            "FLASHINFER_LOGDEST": os.devnull,
            "FLASHINFER_DUMP_DIR": name,
            "FLASHINFER_DUMP_SAFETENSORS": is_safetensors,
        }
        command = [sys.executable, str(Path(__file__).resolve()), str(folder), name]
        subprocess.run(command, env={**os.environ, **variables}, cwd=folder, check=True)
    return 0


def make_calls() -> None:
    """Norms, and a decode of two sequences by a wrapper that is planned twice."""
    import flashinfer
    import torch

    torch.manual_seed(0)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    weight = rand(128)
    flashinfer.rmsnorm(rand(3, 128), weight, eps=1e-6)
    flashinfer.rmsnorm(rand(2, 128), weight, 1e-6, out=rand(2, 128))
    flashinfer.rmsnorm(rand(2, 128), weight, 1e-3)
    flashinfer.fused_add_rmsnorm(rand(1, 2048), rand(1, 2048), rand(2048), 1e-6)
    workspace = torch.zeros(1 << 16, dtype=torch.uint8, device="cuda")  # small, for it is dumped too
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    for lengths in ((3, 2), (1, 4)):
        indptr = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32, device="cuda")
        indices = torch.arange(sum(lengths), dtype=torch.int32, device="cuda").flip(0).contiguous()
        last = torch.ones(2, dtype=torch.int32, device="cuda")
        wrapper.plan(indptr, indices, last, 16, 2, 128, 1, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
        wrapper.run(rand(2, 16, 128), rand(7, 2, 1, 2, 128), return_lse=True)


if __name__ == "__main__":
    sys.exit(main())
