import pytest
from devtools.repository import find_packages
from devtools.rules import release_problems

FOLDER = "packages/fib-low"


def problems(repository, tag=None):
    (package,) = find_packages(repository.root, ["low"])
    return list(release_problems(repository.root, package, tag))


@pytest.fixture
def tagged(repository):
    """`fib-low` 0.1.0 with a section in its changelog, tagged on origin/main."""
    repository.write(f"{FOLDER}/CHANGELOG.md", "## 0.1.0 (2026-01-02)\n")
    repository.commit()
    repository.git("tag", "fib-low-v0.1.0")
    repository.git("update-ref", "refs/remotes/origin/main", "HEAD")
    return repository


def test_a_tag_with_a_section_in_the_changelog_can_be_built(tagged):
    assert problems(tagged) == problems(tagged, "fib-low-v0.1.0") == []


def test_a_version_has_to_be_newer_than_the_last_release(tagged):
    tagged.git("tag", "fib-low-v0.1.1")
    assert "0.1.0 is not newer than 0.1.1" in problems(tagged)[0]


@pytest.mark.parametrize("text", ["", "## 0.1.00 (2026-01-02)\n", "## 0.1.0 (not released)\n"])
def test_a_release_has_a_section_with_a_date(tagged, text):
    tagged.write(f"{FOLDER}/CHANGELOG.md", text)
    assert "has no section `## 0.1.0 (YYYY-MM-DD)`" in problems(tagged)[0]


def test_a_commit_outside_of_the_main_branch_is_not_released(tagged):
    tagged.commit()
    assert "is not on origin/main" in problems(tagged, "fib-low-v0.1.0")[0]


def test_a_tag_of_another_version_is_refused(tagged):
    assert "the version in pyproject.toml is 0.1.0" in problems(tagged, "fib-low-v0.1.1")[0]
