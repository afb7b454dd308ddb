import pytest
from devtools.repository import affected_packages, changed_files, find_packages

ALL = ["fib-low", "fib-other", "fib-top"]


def affected(repository, base):
    return affected_packages(find_packages(repository.root), changed_files(repository.root, base))


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
    repository.commit()
    assert affected(repository, "HEAD~1") == packages


def test_a_branch_is_compared_with_the_point_where_it_left_the_base(repository):
    repository.git("switch", "--quiet", "--create", "topic")
    repository.write("packages/fib-top/a")
    repository.commit()
    repository.git("switch", "--quiet", "main")
    repository.write("packages/fib-other/a")
    repository.commit()
    repository.git("switch", "--quiet", "topic")
    assert affected(repository, "main") == ["fib-top"]


@pytest.mark.parametrize("base", ["", "0" * 40, "no-such-branch"])
def test_all_packages_are_affected_without_a_commit_to_compare_with(repository, base):
    assert affected(repository, base) == ALL
