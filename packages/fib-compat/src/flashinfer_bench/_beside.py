"""Notices that flashinfer-bench itself is installed too: both put their files into the folder ``flashinfer_bench``."""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, version

from .errors import MixedInstallation

_OTHER = "flashinfer-bench"
_PROBLEM = """\
{other} {version} and fib-compat are both installed, and both put files into the package flashinfer_bench: what was \
installed last has overwritten the other, and removing either breaks both. Keep one of them:
  to use FIB:              pip uninstall -y {other} fib-compat && pip install fib-compat
  to use {other}: pip uninstall -y {other} fib-compat && pip install {other}
The other packages of FIB share nothing with it: use them beside it by their own names (fib_schema, fib_bench, ...)."""


def warn_if_mixed() -> None:
    """Say so, and what to do about it, where this package is imported."""
    try:
        found = version(_OTHER)
    except PackageNotFoundError:
        return
    warnings.warn(_PROBLEM.format(other=_OTHER, version=found), MixedInstallation, stacklevel=3)
