"""Exceptions of signal handlers during a routed call: they reach the caller, and no solution is blamed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fib_apply import ApplyConfig, apply, enable_apply
from fib_schema import Definition, Solution, TraceSet

SIGNALLING = "import signal\ndef run(x, y):\n    signal.raise_signal(signal.SIGUSR1)\n    y.copy_(2 * x)\n"


def leave(*_: object) -> None:
    sys.exit(7)


@pytest.fixture(autouse=True)
def _restored_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def data_set(source: str, definition: Definition, new_solution: Any, new_trace: Any) -> TraceSet:
    solution: Solution = new_solution("fast", content=source)
    return TraceSet(None, {"scale": definition}, {"scale": (solution,)}, {}, {"scale": (new_trace("fast", m=2),)})


HANDLERS: list[tuple[Any, type[BaseException]]] = [
    (leave, SystemExit),
    (signal.default_int_handler, KeyboardInterrupt),
]


@pytest.mark.parametrize("settings", [{}, {"shadow_ratio": 1.0}], ids=["plain", "shadow"])
@pytest.mark.parametrize(("handler", "expected"), HANDLERS, ids=["exit", "interrupt"])
def test_what_a_handler_raises_during_a_kernel_reaches_the_caller(
    handler: Callable[..., Any],
    expected: type[BaseException],
    settings: dict[str, Any],
    definition: Definition,
    new_solution: Any,
    new_trace: Any,
) -> None:
    @apply("scale")
    def scale(x: Any) -> Any:
        return 2 * x

    x = torch.ones(2, 4)
    config = ApplyConfig(on_error="fallback", **settings)
    with enable_apply(data_set(SIGNALLING, definition, new_solution, new_trace), config, stats=True) as runtime:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        scale(x)  # later calls take the fast path
        for call in (lambda: scale(x), lambda: apply("scale", args=(x,), fallback=lambda x: 2 * x)):
            signal.signal(signal.SIGUSR1, handler)
            with pytest.raises(expected):
                call()
        assert runtime.left_out() == {}
        assert runtime.stats()["scale"].errors == {}


def test_sigterm_ends_a_server_whose_kernel_runs(
    definition: Definition, new_solution: Any, new_trace: Any, tmp_path: Path
) -> None:
    """The exit code is that of the server's own handler."""
    source = "import os, signal\ndef run(x, y):\n    os.kill(os.getpid(), signal.SIGTERM)\n    y.copy_(2 * x)\n"
    dataset = TraceSet.from_path(tmp_path)
    dataset.add_definitions([definition])
    dataset.add_solutions([new_solution("fast", content=source)])
    dataset.add_traces([new_trace("fast", m=2)])
    server = (
        "import signal, sys, torch, fib_apply\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "@fib_apply.apply('scale')\n"
        "def scale(x):\n    return 2 * x\n"
        "fib_apply.enable_apply(sys.argv[1], fib_apply.ApplyConfig(on_error='fallback'))\n"
        "for _ in range(3): scale(torch.ones(2, 4))\n"
    )
    found = subprocess.run([sys.executable, "-c", server, str(tmp_path)], check=False)
    assert found.returncode == 9
