"""Modules that are made from a table instead of files."""

import importlib
import importlib.util
import sys

import pytest
from fib_compat.errors import NotOffered
from fib_compat.modules import TableModule
from fib_compat.table import EXTRAS, MODULES, missing_extra, names_of


@pytest.mark.parametrize("name", MODULES)
def test_a_row_becomes_a_module_with_its_names(name):
    if (reason := missing_extra(name)) is not None:
        pytest.skip(reason)
    module = importlib.import_module(name)
    assert importlib.util.find_spec(name) is module.__spec__
    assert module.__all__ == sorted(names_of(name))
    for exported in module.__all__:
        owner, attribute = names_of(name)[exported]
        assert getattr(module, exported) is getattr(importlib.import_module(owner), attribute)
        assert exported in dir(module)
    assert module.__doc__


def test_no_row_names_something_twice():
    for name, row in MODULES.items():
        words = [word.partition("=")[0] for part in row.split("; ") for word in part.partition(": ")[2].split()]
        assert sorted(words) == list(names_of(name)), name


def test_a_name_outside_the_table_is_a_missing_module():
    for name in ("flashinfer_bench.bench.no_such_module", "flashinfer_bench.apply.key.below"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
            importlib.import_module(name)


def test_a_module_without_its_extra_says_what_to_install(monkeypatch):
    name = "flashinfer_bench.agents"
    monkeypatch.setitem(sys.modules, "fib_agents", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, name, TableModule(name))
    with pytest.raises(NotOffered, match=r"fib-agents is not installed \(pip install 'fib-compat\[agents\]'\)"):
        exec(f"from {name} import FFI_PROMPT")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTRAS)
def test_other_modules_need_no_extra(name, run):
    code = f"import sys; sys.modules['{EXTRAS[name]}'] = None; import flashinfer_bench; from flashinfer_bench import *"
    assert run(f"{code}; print('imported')") == "imported"
