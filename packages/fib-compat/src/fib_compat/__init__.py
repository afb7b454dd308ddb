"""The documented `flashinfer_bench` names and command line over the FIB packages.

Importing this package changes nothing in the process; `install` makes the name `flashinfer_bench` importable.
"""

import sys

__all__ = ["__version__", "install"]

if sys.platform != "linux":
    from fib_schema.package_init import require_linux

    require_linux("fib-compat")


def install() -> None:
    """Make `flashinfer_bench` and its submodules importable in this process, implemented by the FIB packages.

    A flashinfer-bench that is installed but was not imported yet stays hidden in this process. Routing and tracing
    start if the environment enables them. Calling it again has no effect.

    Raises:
        AlreadyImported: The real `flashinfer_bench` has been imported in this process.
    """
    from .modules import install_modules

    install_modules()


def __getattr__(name: str) -> str:
    if name == "__version__":
        from fib_schema.package_init import installed_version

        return installed_version("fib-compat")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
