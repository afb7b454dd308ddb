import pytest
from devtools.repository import find_packages
from devtools.rules import release_problems

FOLDER = "packages/fib-low"


def problems(repository, tag=None):
    (package,) = find_packages(repository.root, ["low"])
    return list(release_problems(repository.root, package, tag))


@pytest.fixture
def ready(repository):
    """`fib-low` 0.1.0 with a fragment, ready for its first release."""
    repository.write(f"{FOLDER}/CHANGELOG.md", "# Changelog\n")
    repository.write(f"{FOLDER}/changes/7.added.md")
    repository.commit()
    return repository


@pytest.fixture
def tagged(repository):
    """`fib-low` 0.1.0 with a complete changelog, tagged on origin/main."""
    repository.write(f"{FOLDER}/CHANGELOG.md", "## 0.1.0 (2026-01-02)\n")
    repository.commit()
    repository.git("tag", "fib-low-v0.1.0")
    repository.git("update-ref", "refs/remotes/origin/main", "HEAD")
    return repository


def test_a_package_with_a_fragment_can_be_released(ready):
    assert problems(ready) == []


def test_a_version_has_to_be_newer_than_the_last_release(ready):
    ready.git("tag", "fib-low-v0.1.1")
    assert "0.1.0 is not newer than 0.1.1" in problems(ready)[0]


@pytest.mark.parametrize(
    ("last", "version", "first"),
    [
        ("0.1.0", "0.1.1", "0.3.0"),
        ("0.1.0", "0.2.0", "0.3.0"),
        ("0.1.0", "0.3.0", None),
        ("0.1.0", "1.0.0", None),
        ("1.1.0", "1.2.0", "2.0.0"),
        ("1.1.0", "2.0.0", None),
    ],
)
def test_a_breaking_change_skips_a_minor_version_before_1_and_raises_the_major_one_after(ready, last, version, first):
    ready.git("tag", f"fib-low-v{last}")
    ready.write_package("fib-low", version=version)
    ready.write(f"{FOLDER}/changes/+gone.breaking.md")
    found = problems(ready)
    assert found == [] if first is None else found[0].endswith(f"raise `version` to at least {first}")


def test_a_release_has_either_fragments_or_a_section_in_the_changelog(ready):
    ready.write(f"{FOLDER}/CHANGELOG.md", "## 0.1.0 (2026-01-02)\n")
    assert "has a section for 0.1.0, but there are fragments" in problems(ready)[0]
    (ready.root / FOLDER / "changes/7.added.md").unlink()
    assert problems(ready) == []
    ready.write(f"{FOLDER}/CHANGELOG.md", "## 0.1.00\n")
    assert "has no section: add a fragment" in problems(ready)[0]


def test_a_tag_with_a_complete_changelog_can_be_built(tagged):
    assert problems(tagged, "fib-low-v0.1.0") == []


def test_a_fragment_that_is_not_in_the_changelog_prevents_the_release(tagged):
    tagged.write(f"{FOLDER}/changes/9.fixed.md")
    assert "CHANGELOG.md is not complete" in problems(tagged, "fib-low-v0.1.0")[0]


def test_a_commit_outside_of_the_main_branch_is_not_released(tagged):
    tagged.commit()
    assert "is not on origin/main" in problems(tagged, "fib-low-v0.1.0")[0]


def test_a_tag_of_another_version_is_refused(tagged):
    assert "the version in pyproject.toml is 0.1.0" in problems(tagged, "fib-low-v0.1.1")[0]
