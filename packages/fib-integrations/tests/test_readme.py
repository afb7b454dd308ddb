"""Examples of the README, and the adapter in it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

import pytest
import torch
from fib_apply import set_apply_hook
from fib_integrations import ConvertedCall, UnsupportedCall, explain, install_flashinfer_integrations
from fib_integrations.adapters import BUILT_IN, all_adapters
from fib_integrations.errors import CannotAdapt, DuplicateAdapter

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README beside these tests, or what the installed package carries of it."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-integrations").get_payload())


EXAMPLES = re.findall(r"```python\n(.*?)```", readme(), re.DOTALL)
FILES = {match[1]: example for example in EXAMPLES if (match := re.match(r"# (\w+\.py)\n", example))}


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example not in FILES.values()])
def test_examples_run(example: str) -> None:
    exec(compile(example, "README.md", "exec"), {})


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The library and the adapter of the README, as if they were installed."""
    for name, source in FILES.items():
        (tmp_path / name).write_text(source)
    points = re.search(r"```toml\n\[project.entry-points.\"([\w.]+)\"\]\n(.*?)```", readme(), re.DOTALL)
    assert points is not None
    write_entry_points(tmp_path, points[1], points[2].replace('"', ""))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def write_entry_points(place: Path, group: str, lines: str) -> None:
    folder = place / "acme-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{group}]\n{lines}")


def test_adapter_of_another_package(acme: Path) -> None:
    install_flashinfer_integrations()
    acme_ops = importlib.import_module("acme_ops")
    seen: list[str] = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    x, out = torch.ones(2, 8), torch.zeros(2, 4)
    assert acme_ops.silu_and_mul(x).shape == (2, 4)
    assert acme_ops.silu_and_mul(x, out=out, enable_pdl=True) is out
    acme_ops.silu_and_mul(torch.ones(1, 2, 8))
    assert seen == ["silu_and_mul_d4", "silu_and_mul_d4"]
    assert isinstance(explain(acme_ops.silu_and_mul, x), ConvertedCall)
    assert explain(acme_ops.silu_and_mul, torch.ones(1, 2, 8)) == UnsupportedCall("the input is not a matrix")


def test_two_adapters_with_one_name_are_refused(acme: Path) -> None:
    (acme / "acme_fib.py").write_text(FILES["acme_fib.py"].replace("acme_silu", "rmsnorm"))
    with pytest.raises(
        DuplicateAdapter, match="adapter name 'rmsnorm' is used twice: in fib_integrations and in acme_fib"
    ):
        all_adapters()


def test_entry_point_that_is_not_an_adapter_is_refused(acme: Path) -> None:
    write_entry_points(acme, "fib_integrations.adapters", "acme = acme_fib:describe\n")
    with pytest.raises(CannotAdapt, match="the entry point 'acme' is a function, not an Adapter"):
        all_adapters()


def test_readme_lists_every_adapter() -> None:
    told = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", readme(), re.MULTILINE))))
    assert {adapter.name for adapter in BUILT_IN} <= told
