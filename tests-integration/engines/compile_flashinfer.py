"""Compiles the FlashInfer kernels of the harness for a Hopper GPU, on a machine that has nvcc and no GPU.

usage: PYTHONPATH=SITE compile_flashinfer.py OUT [INCLUDE]

SITE has the FlashInfer of the GPU machine, with torch for any device. INCLUDE is a folder with ``curand_kernel.h``, if
the CUDA toolkit lacks it; the package nvidia-curand has it. On the GPU machine, copy what is in OUT to
SITE/flashinfer/data/aot: FlashInfer then loads these libraries, and compiles nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

KERNELS = (("fa2", "bfloat16"), ("fa3", "bfloat16"), ("fa2", "float8_e4m3fn"))
"""The backend and the type of the cache of each library: decode and chunked prefill, prefill, and the fp8 cache."""
_HEAD_DIM = 128


def main(out: Path, include: str | None) -> None:
    """Compile the libraries of `KERNELS`."""
    work = out.resolve() / "work"
    stub = work / "libcuda.so"  # of the driver, which a machine without a GPU lacks: only its name is linked
    stub.parent.mkdir(parents=True, exist_ok=True)
    linker = ["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(stub), "-x", "c", os.devnull]
    subprocess.run(linker, check=True)
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"
    os.environ["FLASHINFER_WORKSPACE_BASE"] = str(work)
    os.environ["FLASHINFER_EXTRA_LDFLAGS"] = f"-L{stub.parent}"
    if include is not None:
        os.environ["FLASHINFER_EXTRA_CUDAFLAGS"] = os.environ["FLASHINFER_EXTRA_CFLAGS"] = f"-I{include}"
    import torch
    from flashinfer.jit.attention.modules import gen_batch_prefill_module  # reads the variables when it is imported

    for backend, cache in KERNELS:
        begin = time.monotonic()
        types = (torch.bfloat16, getattr(torch, cache), torch.bfloat16, torch.int32)
        # heads, positions, sliding window, cap of logits, products in float16
        module = gen_batch_prefill_module(backend, *types, _HEAD_DIM, _HEAD_DIM, 0, False, False, False)
        module.build(verbose=False)
        library = out / module.name / f"{module.name}.so"
        library.parent.mkdir(exist_ok=True)
        shutil.copy(module.jit_library_path, library)
        print(f"{backend}, {cache}: {time.monotonic() - begin:.0f} s, {library.stat().st_size >> 10} KiB", flush=True)
    shutil.rmtree(work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(sys.argv[2:3] or [None]))
