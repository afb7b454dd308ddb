"""Where languages that compile at run time keep what they compiled."""

from __future__ import annotations

from fib_schema import Solution, get_fib_cache_path

from .builder import CACHE_FOLDER

_VARIABLES = {
    "TRITON_CACHE_DIR": "triton",
    "TILELANG_CACHE_DIR": "tilelang",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}


def jit_environment(solution: Solution) -> dict[str, str]:
    """Environment variables that give a solution a JIT cache of its own.

    For a process that runs this solution alone: set them before it imports torch or triton. Then no
    solution finds another's kernels, and the folder can be measured and deleted by itself.
    """
    root = get_fib_cache_path() / CACHE_FOLDER / "jit" / solution.hash()[:20]
    return {variable: str(root / folder) for variable, folder in _VARIABLES.items()}
