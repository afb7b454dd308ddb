"""vLLM's captures of CUDA graphs: calls wait there for their solutions, so that the graphs record them.

vLLM calls each size once and captures it right afterwards, when it starts. A solution that is not built and run by
then would be missing in the graph for as long as the engine lives.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any, Final

from .import_hooks import when_imported

_RUNNERS = ("vllm.v1.worker.gpu.model_runner", "vllm.v1.worker.gpu_model_runner")
"""The modules with a class `_CLASS`; the engine uses one of them."""
_CLASS, _METHOD = "GPUModelRunner", "capture_model"
_SECONDS: Final = 300.0
"""The longest time that calls wait in all. Sizes that were run before, by any process, do not wait."""
_MARK = "__fib_waits__"
_logger = logging.getLogger(__name__)


def wait_when_imported() -> None:
    """Wrap the method that captures when vLLM's model runners are imported, or now if they are."""
    for module in _RUNNERS:
        when_imported(module, functools.partial(_wrap_imported, module))


def _wrap_imported(module: str) -> None:
    runner = getattr(sys.modules.get(module), _CLASS, None)
    original = getattr(runner, _METHOD, None)
    if original is None:
        _logger.warning("%s has no %s.%s: its graphs may record the engine's own kernels", module, _CLASS, _METHOD)
    elif not hasattr(original, _MARK):
        setattr(runner, _METHOD, _waiting(original))


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def capture_model(*args: Any, **kwargs: Any) -> Any:
        from fib_apply import capture_phase

        with capture_phase(_SECONDS):
            return original(*args, **kwargs)

    setattr(capture_model, _MARK, True)
    return capture_model
