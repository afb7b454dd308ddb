"""Modules that are made from a table instead of files."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from collections.abc import Callable

import pytest
from fib_compat.errors import NotOfferedAttribute, NotOfferedImport
from fib_compat.finder import TableFinder
from fib_compat.table import EXTRAS, MODULES, missing_extra, names_of

FULL_NAMES = [f"flashinfer_bench.{name}".rstrip(".") for name in MODULES if name != "__main__"]
Run = Callable[..., str]


@pytest.mark.parametrize("name", FULL_NAMES)
def test_a_row_becomes_a_module_with_its_names(name: str) -> None:
    if (reason := missing_extra(name)) is not None:
        pytest.skip(reason)
    module = importlib.import_module(name)
    assert module.__all__ == sorted(names_of(name))
    for exported in module.__all__:
        owner, attribute = names_of(name)[exported]
        assert getattr(module, exported) is getattr(importlib.import_module(owner), attribute)
        assert exported in dir(module)
    assert module.__doc__


def test_no_row_names_something_twice() -> None:
    for name, row in MODULES.items():
        words = [word.partition("=")[0] for part in row.split("; ") for word in part.partition(": ")[2].split()]
        assert sorted(words) == list(names_of(f"flashinfer_bench.{name}".rstrip("."))), name


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


@pytest.mark.parametrize("name", EXTRAS)
def test_a_module_without_its_extra_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXTRAS[name], None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"flashinfer_bench.{name}", raising=False)
    package = importlib.import_module("flashinfer_bench")
    monkeypatch.delitem(vars(package), name, raising=False)
    remedy = rf"fib-{name} is not installed \(pip install 'fib-compat\[{name}\]'\)"
    assert not hasattr(package, name)
    assert name not in dir(package)
    with pytest.raises(NotOfferedAttribute, match=remedy):
        getattr(package, name)
    for statement in (f"import flashinfer_bench.{name}", f"from flashinfer_bench import {name}"):
        with pytest.raises(NotOfferedImport, match=remedy):
            exec(statement)
    with pytest.raises(NotOfferedImport, match=remedy):
        exec(f"from flashinfer_bench.{name} import anything")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTRAS)
def test_other_modules_need_no_extra(name: str, run: Run) -> None:
    code = f"import sys; sys.modules['{EXTRAS[name]}'] = None; import flashinfer_bench; from flashinfer_bench import *"
    assert run(f"{code}; print('imported')") == "imported"
