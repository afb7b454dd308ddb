import importlib
import shutil
import sys
from pathlib import Path

import pytest
import torch
from fib_apply import set_apply_hook
from fib_integrations import ConvertedCall, UnsupportedCall, explain, install_flashinfer_integrations
from fib_integrations.adapter import CannotAdapt
from fib_integrations.adapters import all_adapters

SOURCES = Path(__file__).parent / "support" / "acme"


@pytest.fixture
def acme(tmp_path, monkeypatch, write_distribution):
    """A library and its adapter, as if they were installed."""
    shutil.copytree(SOURCES, tmp_path, dirs_exist_ok=True)
    write_distribution(tmp_path, "acme", "[fib_integrations.adapters]\nacme = acme_fib:ADAPTER\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for source in SOURCES.glob("*.py"):
        sys.modules.pop(source.stem, None)


def test_adapter_of_another_package(acme):
    install_flashinfer_integrations()
    acme_ops = importlib.import_module("acme_ops")
    seen = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    x, out = torch.ones(2, 8), torch.zeros(2, 4)
    assert acme_ops.silu_and_mul(x).shape == (2, 4)
    assert acme_ops.silu_and_mul(x, out=out, enable_pdl=True) is out
    acme_ops.silu_and_mul(torch.ones(1, 2, 8))
    assert seen == ["silu_and_mul_d4", "silu_and_mul_d4"]
    assert isinstance(explain(acme_ops.silu_and_mul, x), ConvertedCall)
    assert explain(acme_ops.silu_and_mul, torch.ones(1, 2, 8)) == UnsupportedCall("the input is not a matrix")


def test_two_adapters_with_one_name_are_refused(acme):
    adapter = acme / "acme_fib.py"
    adapter.write_text(adapter.read_text().replace("acme_silu", "rmsnorm"))
    with pytest.raises(CannotAdapt, match="fib_integrations has an adapter 'rmsnorm', too; rename one"):
        all_adapters()


def test_entry_point_that_is_not_an_adapter_is_refused(acme, write_distribution):
    write_distribution(acme, "acme", "[fib_integrations.adapters]\nacme = acme_fib:describe\n")
    with pytest.raises(CannotAdapt, match=r"entry point 'acme' .* is a function, not an Adapter"):
        all_adapters()
