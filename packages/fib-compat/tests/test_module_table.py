"""Modules that are made from a table instead of files."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import runpy
import subprocess
import sys

import pytest
from flashinfer_bench._module_table import MODULES, TableFinder, install_finder


@pytest.mark.parametrize("name", MODULES)
def test_a_row_becomes_a_module_with_its_names(name: str) -> None:
    module = importlib.import_module(f"flashinfer_bench.{name}")
    source, _, names = MODULES[name].partition(": ")
    assert module.__all__ == names.split()
    for exported in module.__all__:
        assert getattr(module, exported) is getattr(importlib.import_module(source), exported)
    assert module.__doc__
    assert hasattr(module, "__path__") == any(other.startswith(f"{name}.") for other in MODULES)


def test_a_name_outside_the_table_is_a_missing_module() -> None:
    for name in ("flashinfer_bench.bench.no_such_module", "flashinfer_bench.apply.key.below"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
            importlib.import_module(name)
    assert TableFinder().find_spec("other.apply.key", None) is None
    with pytest.raises(ImportError, match=r"no module 'flashinfer_bench\.nothing' in the table"):
        TableFinder().get_source("flashinfer_bench.nothing")


def test_import_tools_treat_a_row_like_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert importlib.util.find_spec("flashinfer_bench.apply.key") is not None
    module = importlib.import_module("flashinfer_bench.bench.config")
    assert importlib.reload(module) is module
    monkeypatch.delitem(sys.modules, "flashinfer_bench.data.solution", raising=False)
    names = runpy.run_module("flashinfer_bench.data.solution", run_name="__main__")
    assert "Solution" in names["__all__"]


def test_objects_pickle_by_the_module_that_defines_them() -> None:
    for path, name in (("data.trace", "Trace"), ("compile.registry", "get_registry"), ("tracer.types", "TracingRule")):
        value = getattr(importlib.import_module(f"flashinfer_bench.{path}"), name)
        assert pickle.loads(pickle.dumps(value)) is value


def test_the_finder_is_installed_once() -> None:
    install_finder()
    assert [type(finder).__name__ for finder in sys.meta_path].count("TableFinder") == 1


def test_importing_a_row_imports_the_package_first() -> None:
    code = "from flashinfer_bench.data.definition import Definition; print(hasattr(Definition, 'model_dump'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
