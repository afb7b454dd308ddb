"""Import of every module of an installed package: a dependency that is not declared is missing here.

Usage: python import_all.py DISTRIBUTION MODULE. Modules may need what an extra of the distribution declares.
"""

import importlib
import importlib.metadata
import pkgutil
import re
import sys


def import_all(distribution: str, package: str) -> None:
    """Import all modules of a package but `__main__`."""
    lines = [line for line in importlib.metadata.requires(distribution) or () if "extra ==" in line]
    optional = {re.split(r"[^\w.-]", line)[0].replace("-", "_").lower() for line in lines}
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        try:
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)
        except Exception as error:  # some modules say which extra is missing, in an error of their own
            missing = error.__cause__ or error
            if not isinstance(missing, ModuleNotFoundError) or str(missing.name).partition(".")[0] not in optional:
                raise


if __name__ == "__main__":
    import_all(*sys.argv[1:])
