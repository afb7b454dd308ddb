"""The README's example runs, and the defaults that the migration guide states are correct."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest
from fib_apply import ApplyConfig
from flashinfer_bench import BenchmarkConfig, EvaluationStatus

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README of the checkout, or the one in the metadata of the installed package."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-compat").get_payload())


def test_the_example_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIB_CACHE_PATH", str(cache_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (example,) = re.findall(r"```python\n(.*?)```", readme(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == "['M']\n"


def test_listed_defaults_are_correct() -> None:
    assert (ApplyConfig().max_atol, ApplyConfig().max_rtol) == (None, None)
    assert (BenchmarkConfig().device, BenchmarkConfig().devices) == ("cpu", None)
    assert len(EvaluationStatus) == 8


def test_the_readme_is_short() -> None:
    assert len(readme().split()) <= 400
