"""Import of the modules of `fib_compat.table` under the name `flashinfer_bench`.

`install_finder` registers a `TableFinder` in `sys.meta_path`. A module of the table imports the owner of a name when
the name is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

from .errors import AlreadyImported, NotOfferedAttribute, NotOfferedImport
from .names import functions, records
from .table import PACKAGE, has_module, missing_extra, names_of, submodules

_SOURCE = '''\
"""Names of flashinfer-bench, offered by fib-compat. `fib_compat.table` lists them."""
from fib_compat.finder import fill_module
fill_module(globals())
'''
_MAIN = "raise SystemExit(main())\n"


class TableFinder(MetaPathFinder, InspectLoader):
    """Finder and loader of the modules of the table.

    Each module has a source of its own, so that `runpy` and ``importlib.reload`` treat it like a file.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a module of the table, else None.

        A module whose extra is not installed has one too: its import fails with the reason.
        """
        del path, target
        return spec_from_loader(fullname, self) if has_module(fullname) else None

    def is_package(self, fullname: str) -> bool:
        """Whether a module has submodules."""
        return bool(submodules(fullname))

    def get_source(self, fullname: str) -> str:
        """The source of a module.

        Raises:
            NotOfferedImport: An extra of fib-compat that it needs is not installed.
            ImportError: The table has no such module.
        """
        if (reason := missing_extra(fullname)) is not None:
            raise NotOfferedImport(fullname, reason)
        if not has_module(fullname):
            raise ImportError(f"no module {fullname!r} in the table of fib-compat", name=fullname)
        return _SOURCE + (_MAIN if fullname == f"{PACKAGE}.__main__" else "")


def install_finder() -> None:
    """Make the modules of the table importable; see `fib_compat.install`."""
    loaded = sys.modules.get(PACKAGE)
    if loaded is not None and not isinstance(getattr(loaded.__spec__, "loader", None), TableFinder):
        file = getattr(loaded, "__file__", None) or "<unknown file>"
        raise AlreadyImported(
            f"{PACKAGE} is already imported from {file}, so fib-compat cannot take its name in this process; "
            "call fib_compat.install() before the first import"
        )
    if not any(isinstance(finder, TableFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TableFinder())


def fill_module(namespace: dict[str, Any]) -> None:
    """Give a module of the table its names, which are imported on first use."""
    module: str = namespace["__spec__"].name
    names = names_of(module)

    def load(name: str) -> Any:
        if name in names:
            owner, attribute = names[name]
            value = getattr(import_module(owner), attribute)
            records.add_to_loaded_packages()
        elif (reason := missing_extra(submodule := f"{module}.{name}")) is not None:
            raise NotOfferedAttribute(submodule, reason)
        elif has_module(submodule):
            value = import_module(submodule)
        else:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        namespace[name] = value
        return value

    def list_names() -> list[str]:
        below = [name.rpartition(".")[2] for name in submodules(module) if missing_extra(name) is None]
        return sorted({*namespace, *names, *below})

    namespace.update(__all__=list(names), __getattr__=load, __dir__=list_names)
    for name in names:
        if has_module(submodule := f"{module}.{name}"):  # importing it later would replace the function `apply`
            import_module(submodule)
            load(name)
    if module == f"{PACKAGE}.__main__":
        load("main")
    if module == PACKAGE:
        functions.start_by_environment()
