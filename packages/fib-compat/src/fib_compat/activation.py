"""Activation of fib-compat for an environment: a ``.pth`` file, which takes effect together with ``FIB_COMPAT=1``.

The file calls `find_spec` at the first import of `flashinfer_bench`, and a real package of that name takes precedence.
"""

from __future__ import annotations

import sys
import sysconfig
import warnings
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .finder import TableFinder, install_finder
from .table import PACKAGE

FILE_NAME = "fib-compat-enabled.pth"
_CODE = """\
import sys
class FibCompatStartup:
    def find_spec(self, name, path=None, target=None):
        if name != 'flashinfer_bench':
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        try:
            from fib_compat import activation
        except ImportError as error:
            print('fib-compat: FIB_COMPAT=1 has no effect:', error, file=sys.stderr)
            return None
        return activation.find_spec()
if not (sys.flags.ignore_environment or any(type(f).__name__ == 'FibCompatStartup' for f in sys.meta_path)):
    sys.meta_path.insert(0, FibCompatStartup())
"""
LINE = f'import os; os.environ.get("FIB_COMPAT") == "1" and exec({_CODE!r}, {{}})\n'
"""The content of the file, which Python runs at each start, and in virtual environments twice.

Without the variable it reads one variable. With it, it registers a finder, which imports fib-compat only when
`flashinfer_bench` is imported: site-packages of other folders may not be in `sys.path` before.
"""


def activation_file() -> Path:
    """Path of the file in the site-packages of this environment."""
    return Path(sysconfig.get_path("purelib"), FILE_NAME)


def enable() -> str:
    """Write the file and return what to tell the user.

    Raises:
        OSError: The folder cannot be written.
    """
    from fib_schema.files import write_output

    write_output(activation_file(), LINE.encode())
    text = f"wrote {activation_file()}\nprocesses with FIB_COMPAT=1 can import flashinfer_bench from now on"
    try:
        real = version("flashinfer-bench")
    except PackageNotFoundError:
        return text
    return f"{text}\nwarning: flashinfer-bench {real} is installed too and takes precedence, so this has no effect"


def disable() -> str:
    """Remove the file and return what to tell the user.

    Raises:
        OSError: The file cannot be removed.
    """
    try:
        activation_file().unlink()
    except FileNotFoundError:
        return f"nothing to remove: {activation_file()} does not exist"
    return f"removed {activation_file()}"


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
