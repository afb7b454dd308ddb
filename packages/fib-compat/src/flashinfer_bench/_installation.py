"""Checks of the installation: the system is Linux, and flashinfer-bench is not installed too.

Importing this module makes the first check, so that it precedes the imports of packages that need Linux.
"""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, version

from fib_schema.package_init import require_linux

from .errors import MixedInstallation

require_linux("fib-compat")

_CONFLICTING = "flashinfer-bench"
_MESSAGE = """\
{name} {version} and fib-compat are both installed, and both install files into the package flashinfer_bench: \
the one that was installed last has overwritten the other, and uninstalling either breaks both. Keep one of them:
  to use FIB:              pip uninstall -y {name} fib-compat && pip install fib-compat
  to use {name}: pip uninstall -y {name} fib-compat && pip install {name}
The other FIB packages do not conflict with it and can be used by their own names (fib_schema, fib_bench, ...)."""


def warn_of_conflict() -> None:
    """Warn if flashinfer-bench is installed too; the message says which commands repair the installation."""
    try:
        found = version(_CONFLICTING)
    except PackageNotFoundError:
        return
    warnings.warn(_MESSAGE.format(name=_CONFLICTING, version=found), MixedInstallation, stacklevel=3)
