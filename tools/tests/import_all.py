"""Import of every module of an installed package: a dependency that is not declared is missing here.

Usage: python import_all.py DISTRIBUTION MODULE. Modules may need what an extra of the distribution declares.
"""

import importlib
import importlib.metadata
import pkgutil
import re
import sys
from contextlib import suppress


def optional_modules(distribution, extra=""):
    """The modules that an extra installs, or any extra; also through extras of other distributions, as "a[b]"."""
    found = set()
    for line in importlib.metadata.requires(distribution) or ():
        condition = re.search(r"extra == ['\"](.*?)['\"]", line)
        if condition is None or (extra and condition[1] != extra):
            continue
        name, extras = re.match(r"([\w.-]+)(?:\[(.*?)\])?", line).groups()
        found.add(name.replace("-", "_").lower())
        for inner in filter(None, (extras or "").split(",")):
            with suppress(importlib.metadata.PackageNotFoundError):  # itself optional, and not installed
                found |= optional_modules(name, inner.strip())
    return found


def import_all(distribution, package):
    """Import all modules of a package but `__main__`."""
    optional = optional_modules(distribution)
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
