import json

import pytest
from workshop.affected import explain_affected, find_affected
from workshop.checkout import Checkout
from workshop.process import Console
from workshop.verbs import Workbench, affected

EVERY = ("fib-low", "fib-middle", "fib-other", "fib-top")


def names(checkout, *changed):
    return set(explain_affected(checkout, changed))


def test_a_change_affects_the_package_it_touches_and_all_that_depend_on_it(checkout):
    assert names(checkout, "packages/fib-low/src/fib_low/a.py") == {"fib-low", "fib-middle", "fib-top"}
    assert names(checkout, "packages/fib-top/README.md") == {"fib-top"}
    assert names(checkout, "packages/fib-other/a", "packages/fib-top/b") == {"fib-other", "fib-top"}


def test_the_reason_names_the_file_or_the_package_between(checkout):
    reasons = explain_affected(checkout, ["packages/fib-low/a.py"])
    assert reasons == {
        "fib-low": "packages/fib-low/a.py has changed",
        "fib-middle": "it depends on fib-low",
        "fib-top": "it depends on fib-middle",
    }


@pytest.mark.parametrize("table", ["[project.optional-dependencies]\nx", "[dependency-groups]\ntest"])
def test_an_arrow_of_an_extra_or_of_the_tests_counts(checkout, table):
    manifest = checkout.root / "packages/fib-other/pyproject.toml"
    manifest.write_text(f'{manifest.read_text()}\n{table} = ["Fib.Top[x]>=0.1"]\n')
    assert "fib-other" in names(Checkout(checkout.root), "packages/fib-low/a.py")


@pytest.mark.parametrize(
    "path", ["pyproject.toml", "tools/dev.py", ".github/workflows/ci.yml", "packages/fib-gone/a.py", "LICENSE"]
)
def test_what_all_packages_share_affects_all(checkout, path):
    assert names(checkout, "packages/fib-top/a.py", path) == set(EVERY)


@pytest.mark.parametrize("path", ["README.md", "docs/index.md", "docs/deep/conf.py", "tests-integration/test_a.py"])
def test_what_lies_beside_the_packages_affects_none(checkout, path):
    assert names(checkout, path) == set()


def test_packages_come_in_the_order_of_the_checkout_with_the_folders_of_their_tests(checkout, history):
    history.write("packages/fib-middle/a.py")
    found = find_affected(checkout, "HEAD")
    assert found.packages == ("fib-middle", "fib-top")
    assert found.tests == ("packages/fib-middle", "packages/fib-top")


def test_tests_that_belong_to_no_package_run_after_every_change(checkout, history):
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write('[tool.pytest]\ntestpaths = ["packages", "tools", "docs"]\n')
    history.commit()
    history.write("README.md")
    found = find_affected(Checkout(checkout.root), "HEAD")
    assert (found.packages, found.tests) == ((), ("tools", "docs"))


def test_without_an_earlier_commit_everything_is_affected(checkout, history):
    assert find_affected(checkout, "").packages == EVERY


def test_the_outputs_for_later_jobs_are_json_lists_on_a_line_each(checkout, history, tmp_path, capsys):
    history.write("packages/fib-top/a.py")
    file = tmp_path / "outputs"
    file.write_text("earlier=1\n")
    arguments = ["--base", "HEAD", "--json", "--output", str(file)]
    assert affected(Workbench(checkout, Console()), arguments) == 0
    assert file.read_text() == 'earlier=1\npackages=["fib-top"]\ntests=["packages/fib-top"]\n'
    assert json.loads(capsys.readouterr().out) == {"packages": ["fib-top"], "tests": ["packages/fib-top"]}


def test_the_verb_says_why_or_that_there_is_nothing(checkout, history, capsys):
    workbench = Workbench(checkout, Console())
    affected(workbench, [])
    history.write("packages/fib-other/a.py")
    affected(workbench, [])
    assert capsys.readouterr().out.splitlines() == [
        "no package is affected",
        "fib-other: packages/fib-other/a.py has changed",
    ]


def test_the_graph_of_this_repository_is_read_from_its_manifests(repository):
    found = names(repository, "packages/fib-schema/src/fib_schema/__init__.py")
    assert found == {package.name for package in repository.packages}
