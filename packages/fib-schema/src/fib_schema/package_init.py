"""Package initialisation shared by the FIB packages: lazily imported names, the version, the platform check."""

from __future__ import annotations

import _ast
import functools
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_exports(package: str, distribution: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package that imports its public names on first use.

    The names are those that the source of the package imports below ``if TYPE_CHECKING``, as type checkers see them.
    ``__version__`` is read from the metadata of the installed distribution, on first use too: importing
    `importlib.metadata` takes longer than importing a whole package of names.
    """
    namespace = vars(sys.modules[package])
    modules = _modules_of_names(namespace["__spec__"].loader.get_source(package))

    def load(name: str) -> Any:
        if name == "__version__":
            value: Any = installed_version(distribution)
        elif name in modules:
            value = getattr(import_module(modules[name], package), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        namespace[name] = value
        return value

    def list_names() -> list[str]:
        special = (name for name in namespace if name.startswith("__"))
        return sorted({*special, *modules, "__version__"})  # without submodules, and what the package itself imports

    return load, list_names


def _modules_of_names(source: str) -> dict[str, str]:
    """The module, relative or not, from which each name is imported for type checkers."""
    module: Any = compile(source, "<package>", "exec", _ast.PyCF_ONLY_AST)  # `ast` itself takes milliseconds to import
    blocks = (node for node in module.body if isinstance(node, _ast.If) and isinstance(node.test, _ast.Name))
    imports = (one for block in blocks for one in block.body if isinstance(one, _ast.ImportFrom))
    return {name.name: f"{'.' * one.level}{one.module}" for one in imports for name in one.names}


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
