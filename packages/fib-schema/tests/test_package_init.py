"""Initialisation of packages: lazily imported names, the version, the platform check."""

import importlib
import sys
from importlib.metadata import version

import fib_schema
import pytest
from fib_schema.package_init import installed_version, require_linux

INIT = """
from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports

if TYPE_CHECKING:
    from os.path import basename

    from .shapes import Circle, Square
else:
    __getattr__, __dir__ = lazy_exports(__name__, "some-package")
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with two names of a submodule and one of another package."""
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "__init__.py").write_text(INIT)
    (tmp_path / "some_package" / "shapes.py").write_text("class Circle:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("some_package")
    for name in ("some_package", "some_package.shapes"):
        sys.modules.pop(name, None)


def test_a_name_is_imported_on_first_use_and_kept(package):
    assert "some_package.shapes" not in sys.modules
    assert {"Circle", "Square", "basename", "__version__"} <= set(dir(package))
    assert package.Circle is sys.modules["some_package.shapes"].Circle is vars(package)["Circle"]
    assert package.basename("a/b") == "b"


def test_an_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match="module 'some_package' has no attribute 'Cube'"):
        _ = package.Cube


def test_the_version_is_that_of_the_metadata():
    assert fib_schema.__version__ == version("fib-schema")
    assert installed_version("no-such-distribution-here") == "0+unknown"


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_another_system_than_linux_is_an_import_error_that_names_it(platform, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ImportError, match=f"^fib-x supports Linux only, and this system is '{platform}'; fib-schema"):
        require_linux("fib-x")
