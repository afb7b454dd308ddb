"""Folders of sources are complete, also with concurrent writers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from fib_compile.cache import ensure_sources
from fib_schema import Solution

MakeSolution = Callable[..., Solution]


def test_concurrent_writers_agree(make_solution: MakeSolution, tmp_path: Path) -> None:
    solution = make_solution({f"part{n}.py": f"# {n}\n" * 100 for n in range(20)})
    barrier = threading.Barrier(8)
    problems: list[str] = []

    def work() -> None:
        barrier.wait(10)
        folder = ensure_sources(tmp_path, "package", solution.sources)
        if len(list(folder.iterdir())) != 20:
            problems.append("sources are missing")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert problems == []
    assert [path.name for path in tmp_path.iterdir()] == ["package"]
