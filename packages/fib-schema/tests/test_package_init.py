"""Initialisation of packages: lazily imported names, the version, the platform check."""

import sys
from importlib.metadata import version
from types import ModuleType

import fib_schema
import pytest
from fib_schema.package_init import installed_version, lazy_exports, require_linux


@pytest.fixture
def package(monkeypatch):
    """An empty package in the place of one that initialises itself."""
    module = ModuleType("some_package")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_name_is_imported_on_first_use_and_kept(package, monkeypatch):
    submodule = ModuleType("some_package.shapes")
    submodule.Circle = object()
    monkeypatch.setitem(sys.modules, submodule.__name__, submodule)
    load, list_names = lazy_exports("some_package", "some-package", {"shapes": "Circle Square"})
    assert "Circle" not in vars(package)
    assert load("Circle") is submodule.Circle is package.Circle
    assert {"Circle", "Square", "__version__"} <= set(list_names())


def test_an_unknown_name_is_an_attribute_error(package):
    load, _ = lazy_exports("some_package", "some-package", {"shapes": "Circle"})
    with pytest.raises(AttributeError, match="module 'some_package' has no attribute 'Cube'"):
        load("Cube")


def test_the_version_is_that_of_the_metadata():
    assert fib_schema.__version__ == version("fib-schema")
    assert installed_version("no-such-distribution-here") == "0+unknown"


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_another_system_than_linux_is_an_import_error_that_names_it(platform, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ImportError, match=f"^fib-x supports Linux only, and this system is '{platform}'; fib-schema"):
        require_linux("fib-x")
