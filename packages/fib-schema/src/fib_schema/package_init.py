"""Package initialisation shared by the FIB packages: lazily imported names, the version, the platform check."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["installed_version", "lazy_exports", "require_linux"]


def lazy_exports(
    package: str, distribution: str, names_of_modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package that imports its public names on first use.

    ``__version__`` is read from the metadata of the installed distribution, on first use too: importing
    `importlib.metadata` takes longer than importing a whole package of names.

    Args:
        package: The import name of the package.
        distribution: The name of the installed distribution.
        names_of_modules: The public names of each submodule, separated by spaces.
    """
    modules = {name: module for module, names in names_of_modules.items() for name in names.split()}
    namespace = vars(sys.modules[package])

    def load(name: str) -> Any:
        if name == "__version__":
            value: Any = installed_version(distribution)
        elif name in modules:
            value = getattr(import_module(f".{modules[name]}", package), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        namespace[name] = value
        return value

    def list_names() -> list[str]:
        special = (name for name in namespace if name.startswith("__"))
        return sorted({*special, *modules, "__version__"})  # without submodules, and what the package itself imports

    return load, list_names


@functools.cache
def installed_version(distribution: str) -> str:
    """The version of an installed distribution; ``0+unknown`` if its sources are imported without being installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "0+unknown"


def require_linux(distribution: str) -> None:
    """Refuse to import a package on a system that it does not support.

    Raises:
        ImportError: The system is not Linux.
    """
    if sys.platform != "linux":
        raise ImportError(
            f"{distribution} supports Linux only, and this system is {sys.platform!r}; "
            "fib-schema, which reads and writes data sets, supports every POSIX system"
        )
