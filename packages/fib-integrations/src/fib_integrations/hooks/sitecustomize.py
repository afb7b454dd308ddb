"""Found first on PYTHONPATH by every Python below ``python -m fib_integrations.run``."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

try:
    from fib_integrations.startup import install_with_torch
except ImportError:  # a Python of another environment, which a program may start as well
    pass
else:
    install_with_torch()


def _run_the_next_one() -> None:
    """Run the ``sitecustomize`` that this one hides."""
    here = Path(__file__).resolve().parent
    others = [path for path in sys.path if Path(path).resolve() != here]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))


_run_the_next_one()
