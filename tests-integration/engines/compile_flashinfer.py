"""Compiles the FlashInfer kernels of the harness for a Hopper GPU, on a machine that has nvcc and no GPU.

FlashInfer must be importable: that of the GPU machine, with torch for any device. CUDA_HOME names the CUDA toolkit. On
the GPU machine, copy the content of OUT to SITE/flashinfer/data/aot: FlashInfer loads these libraries, and compiles
none.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

KERNELS = (("fa2", "bfloat16"), ("fa3", "bfloat16"), ("fa2", "float8_e4m3fn"))
"""The backend and the type of the cache of each library: decode and chunked prefill, prefill, and the fp8 cache."""
_HEAD_DIM = 128


def main(out, include):
    with tempfile.TemporaryDirectory() as work:
        _link_driver(Path(work))
        os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"
        os.environ["FLASHINFER_WORKSPACE_BASE"] = work
        os.environ["FLASHINFER_EXTRA_LDFLAGS"] = f"-L{work}"
        if include is not None:
            os.environ["FLASHINFER_EXTRA_CUDAFLAGS"] = os.environ["FLASHINFER_EXTRA_CFLAGS"] = f"-I{include}"
        import torch
        from flashinfer.jit.attention.modules import gen_batch_prefill_module  # its import reads the variables

        for backend, cache in KERNELS:
            begin = time.monotonic()
            types = (torch.bfloat16, getattr(torch, cache), torch.bfloat16, torch.int32)
            # position encoding, sliding window, cap of logits, products in float16
            module = gen_batch_prefill_module(backend, *types, _HEAD_DIM, _HEAD_DIM, 0, False, False, False)
            module.build(verbose=False)
            library = out / module.name / f"{module.name}.so"
            library.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(module.jit_library_path, library)
            seconds = time.monotonic() - begin
            print(f"{backend}, {cache}: {seconds:.0f} s, {library.stat().st_size >> 10} KiB", flush=True)


def _link_driver(folder):
    """Make an empty library with the name of CUDA's driver, which a machine without a GPU lacks; only it is linked."""
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    target = ["-shared", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so")]
    subprocess.run([*compiler, *target, "-x", "c++", os.devnull], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="a folder for the libraries")
    text = "a folder with curand_kernel.h, if the CUDA toolkit lacks it; the package nvidia-curand has it"
    parser.add_argument("--include", type=Path, metavar="DIR", help=text)
    options = parser.parse_args()
    main(options.out, options.include)
