"""The choice between the real `flashinfer_bench` and fib-compat, in an environment where ``fib-compat enable`` was run.

The file that it wrote calls `find_spec` at the first import of `flashinfer_bench`.
"""

from __future__ import annotations

import sys
import warnings
from importlib.machinery import ModuleSpec

from .finder import TableFinder, install_finder
from .table import PACKAGE

_BOTH = (
    "the real flashinfer_bench can be imported in this environment ({origin}), so FIB_COMPAT=1 has no effect; "
    "call fib_compat.install() to use fib-compat in one process"
)


def find_spec() -> ModuleSpec | None:
    """The specification of fib-compat's package; None, with a warning, if another finder has one of this name."""
    for finder in list(sys.meta_path):
        spec = finder.find_spec(PACKAGE, None)
        if spec is not None and spec.loader is not None and spec.origin is not None:  # not a folder of any kind
            warnings.warn(_BOTH.format(origin=spec.origin), stacklevel=2)
            return None
    install_finder()
    return TableFinder().find_spec(PACKAGE, None)
