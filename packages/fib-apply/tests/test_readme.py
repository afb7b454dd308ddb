"""The examples of the README run."""

from __future__ import annotations

import re
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from fib_apply import disable_apply

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    """The README beside these tests, or what the installed package carries of it."""
    return README.read_text("utf-8") if README.exists() else str(metadata("fib-apply").get_payload())


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", readme(), re.DOTALL))
def test_examples_run(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try:
        exec(compile(example, "README.md", "exec"), {})
    finally:
        disable_apply()


def test_the_list_of_installed_packages_is_complete() -> None:
    """The list names the direct dependencies, without those of extras; indirect ones are counted by hand."""
    listed = readme().partition(" packages: `fib-apply`")[2].partition(".")[0].lower()
    for requirement in requires("fib-apply") or ():
        if "extra ==" in requirement:
            continue
        assert f"`{re.match(r'[A-Za-z0-9-]+', requirement)[0]}`" in listed  # type: ignore[index]
