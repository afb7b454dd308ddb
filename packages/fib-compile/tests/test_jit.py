"""Each solution can have a JIT cache of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fib_compile import jit_environment
from fib_schema import Solution


def test_each_solution_has_folders_of_its_own(make_solution: Callable[..., Solution], cache_path: Path) -> None:
    first, second = (jit_environment(make_solution(f"# {n}")) for n in (1, 2))

    assert set(first) == set(second) >= {"TRITON_CACHE_DIR", "TILELANG_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"}
    assert first["TRITON_CACHE_AUTOTUNING"] == "1"
    folders = [{value for name, value in each.items() if name != "TRITON_CACHE_AUTOTUNING"} for each in (first, second)]
    assert not folders[0] & folders[1]
    assert all(Path(folder).is_relative_to(cache_path) for folder in folders[0])
    assert jit_environment(make_solution("# 1")) == first
