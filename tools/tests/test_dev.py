import ast
import re
import sys
from pathlib import Path

import dev
import pytest

ROOT = Path(__file__).parents[2]


def test_an_old_python_gets_the_version_that_is_needed_and_a_command():
    message = dev.explain_old_python((3, 8, 18, "final", 0))
    assert "Python 3.11 or newer is needed, this is Python 3.8.18" in message
    assert "`python3.11 tools/dev.py help`" in message


def test_the_script_parses_under_old_pythons():
    ast.parse((ROOT / "tools/dev.py").read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", ["tools/dev.py", "tools/devtools/report.py"])
def test_the_script_needs_only_the_standard_library(path):
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    assert names - {"devtools"} <= sys.stdlib_module_names


def test_a_compiler_is_the_one_of_the_variable_or_the_first_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    for name in ("g++", "icpx"):
        (tmp_path / name).touch(0o755)
    assert dev.find_compiler() == "g++"
    monkeypatch.setenv("CXX", "icpx -fast")
    assert dev.find_compiler() == "icpx -fast"
    monkeypatch.setenv("CXX", "absent")
    with pytest.raises(SystemExit, match="no C\\+\\+ compiler: absent not on the path"):
        dev.find_compiler()


def test_documented_commands_exist():
    sessions = set(re.findall(r"^@nox\.session.*\ndef (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    texts = [
        path.read_text()
        for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")]
    ]
    named = {name for text in texts for name in re.findall(r"python tools/dev\.py ([a-z]+)", text)}
    assert named - sessions <= {"check", "report", "help"}
    table = set(re.findall(r"^\| `([a-z]+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert table == sessions | {"check", "report"}


def test_a_report_never_shows_an_earlier_run(tmp_path, monkeypatch):
    monkeypatch.setattr(dev, "WORK", tmp_path)
    monkeypatch.setattr(dev.signal, "signal", lambda *_: None)
    monkeypatch.setenv("CXX", "absent")
    (tmp_path / "reports/test").mkdir(parents=True)
    (tmp_path / "reports/test/nox.json").touch()
    with pytest.raises(SystemExit):
        dev.main(["test"])
    assert list((tmp_path / "reports/test").iterdir()) == []
