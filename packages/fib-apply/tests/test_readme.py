import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from fib_apply import disable_apply

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_examples_run(example, tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try:
        exec(compile(example, "README.md", "exec"), {})
    finally:
        disable_apply()


def test_the_list_of_installed_packages_is_complete():
    """The list names the direct dependencies, without those of extras; indirect ones are counted by hand."""
    listed = README.partition(" packages: `fib-apply`")[2].partition(".")[0].lower()
    for requirement in requires("fib-apply") or ():
        if "extra ==" in requirement:
            continue
        assert f"`{re.match(r'[A-Za-z0-9-]+', requirement)[0]}`" in listed
