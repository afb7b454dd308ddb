import re

import pytest
from workshop.check import static_steps
from workshop.environment import Environment
from workshop.process import Console
from workshop.verbs import VERBS, Workbench, clean, help_text, run


def test_the_help_has_one_line_for_each_verb():
    lines = help_text().splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(VERBS)


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"]])
def test_help_is_what_one_gets_without_a_verb(arguments, capsys):
    assert run(arguments) == 0
    assert capsys.readouterr().out == help_text() + "\n"


def test_an_unknown_verb_is_an_error_that_lists_the_verbs(capsys):
    assert run(["tset"]) == 2
    assert capsys.readouterr().err.startswith("no verb 'tset' (there are: demo, test,")


def test_a_missing_compiler_stops_before_anything_is_installed(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert run(["test"]) == 2
    assert capsys.readouterr().err.startswith("a C++ compiler is missing")


def test_clean_removes_what_the_tools_made_and_nothing_else(checkout, capsys):
    for name in (".venv", ".dev/logs", "dist", "mine"):
        (checkout.root / name).mkdir(parents=True)
    assert clean(Workbench(checkout, Console()), []) == 0
    left = {path.name for path in checkout.root.iterdir()}
    assert left == {"packages", "pyproject.toml", "tools", "mine"}


def test_the_verbs_are_in_the_contributors_table(repository):
    table = (repository.root / "CONTRIBUTING.md").read_text()
    documented = set(re.findall(r"^\| `([a-z]+)", table, re.MULTILINE))
    assert documented == set(VERBS)


def test_types_are_checked_in_every_package(repository, tmp_path):
    command = static_steps(repository, Environment(tmp_path))["types"]
    sources = {f"packages/{package.name}/src" for package in repository.packages}
    assert sources <= set(command)
