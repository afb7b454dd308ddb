import pytest
from devtools.affected import find_affected

ALL = ["fib-low", "fib-other", "fib-top"]


def affected(repository, base="HEAD"):
    return find_affected(repository.root, base)["packages"]


@pytest.mark.parametrize(
    ("path", "packages"),
    [
        ("packages/fib-low/src/a.py", ["fib-low", "fib-top"]),
        ("packages/fib-top/src/a.py", ["fib-top"]),
        ("pyproject.toml", ALL),
        ("tools/dev.py", ALL),
        ("docs/index.md", []),
        ("README.md", []),
        ("tests-integration/test_a.py", []),
    ],
)
def test_a_change_affects_its_package_and_all_dependents(repository, path, packages):
    repository.write(path)
    assert affected(repository) == packages


def test_committed_and_moved_files_count(repository):
    repository.git("mv", "packages/fib-other/pyproject.toml", "packages/fib-top/moved")
    repository.commit()
    assert affected(repository, "HEAD~1") == ["fib-top"]
    assert find_affected(repository.root, "HEAD")["tests"] == ["docs", "tests-integration", "tools"]


@pytest.mark.parametrize("base", ["", "0" * 40, "no-such-branch"])
def test_all_packages_are_affected_without_a_commit_to_compare_with(repository, base):
    assert affected(repository, base) == ALL
