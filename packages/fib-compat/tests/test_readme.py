"""The README's example runs, and the defaults that the migration guide states are correct."""

import re
from pathlib import Path

from fib_apply import ApplyConfig
from flashinfer_bench import BenchmarkConfig, EvaluationStatus

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


def test_the_example_runs(monkeypatch, tmp_path, cache_path, capsys):
    monkeypatch.setenv("FIB_CACHE_PATH", str(cache_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == "['M']\n"


def test_listed_defaults_are_correct():
    assert (ApplyConfig().max_atol, ApplyConfig().max_rtol) == (None, None)
    assert (BenchmarkConfig().device, BenchmarkConfig().devices) == ("cpu", None)
    assert len(EvaluationStatus) == 8


def test_the_readme_is_short():
    assert len(README.split()) <= 400
