"""Start-up hook: every Python process below ``python -m fib_integrations.run`` finds it first on PYTHONPATH."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

try:
    from fib_integrations.startup import install_with_torch
except ImportError:  # a Python of another environment, without this package
    pass
else:
    install_with_torch()


def _run_hidden_sitecustomize() -> None:
    """Run the ``sitecustomize`` that this one hides."""
    here = Path(__file__).resolve().parent
    others = [path for path in sys.path if Path(path).resolve() != here]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))


_run_hidden_sitecustomize()
