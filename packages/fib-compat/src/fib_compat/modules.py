"""The modules of `fib_compat.table`, which import the owner of a name on its first use."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .errors import AlreadyImported, NotOffered
from .names import functions, records
from .table import MODULES, PACKAGE, missing_extra, names_of


class TableModule(ModuleType):
    """A module of the table, by its full name."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"Names of {name}, offered by fib-compat. `fib_compat.table` lists them.")
        self.__path__ = []
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__all__ = list(names_of(name))

    def __getattr__(self, name: str) -> Any:
        names = names_of(self.__name__)
        if name not in names:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if (reason := missing_extra(self.__name__)) is not None:
            raise NotOffered(f"{self.__name__} is not offered: {reason}")
        owner, attribute = names[name]
        value = getattr(import_module(owner), attribute)
        records.add_to_loaded_packages()
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self.__all__})


def install_modules() -> None:
    """Make the modules of the table importable; see `fib_compat.install`."""
    loaded = sys.modules.get(PACKAGE)
    if isinstance(loaded, TableModule):
        return
    if loaded is not None:
        file = getattr(loaded, "__file__", None) or "<unknown file>"
        raise AlreadyImported(
            f"{PACKAGE} is already imported from {file}, so fib-compat cannot take its name in this process; "
            "call fib_compat.install() before the first import"
        )
    for name in MODULES:  # a package comes before its modules
        module = sys.modules[name] = TableModule(name)
        package, _, short = name.rpartition(".")
        if package and short not in names_of(package):  # the function `apply` has the name of a module
            setattr(sys.modules[package], short, module)
    functions.start_by_environment()
