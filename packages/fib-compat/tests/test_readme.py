"""The README's example runs, and its tables say what is so."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest
from fib_apply import ApplyConfig
from flashinfer_bench import BenchmarkConfig, EvaluationStatus
from flashinfer_bench._older_names import _MEMBERS

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README beside these tests, or what the installed package carries of it."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-compat").get_payload())


def test_the_example_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIB_CACHE_PATH", str(cache_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (example,) = re.findall(r"```python\n(.*?)```", readme(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == "PASSED\n"


def test_defaults_that_differ_are_as_told() -> None:
    assert (ApplyConfig().max_atol, ApplyConfig().max_rtol) == (None, None)
    assert (BenchmarkConfig().device, BenchmarkConfig().devices) == ("cpu", None)
    assert len(EvaluationStatus) == 8


def test_every_older_member_is_listed() -> None:
    (listed,) = re.findall(r"\*\*Members of the first release\*\*(.*?)\n\n", readme(), re.DOTALL)
    for kind, members in _MEMBERS.items():
        assert f"`{kind}." in listed
        for name in members:
            assert re.search(rf"[`.]{name}`", listed), name
