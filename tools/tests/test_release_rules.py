import pytest
from workshop import release_rules
from workshop.candidate import Candidate
from workshop.checkout import Checkout
from workshop.release_rules import AT_TAG, BEFORE_TAG, objections

FOLDER = "packages/fib-low"


@pytest.fixture
def candidate(checkout, history):
    """Read anew at each call: `fib-low`, with one fragment and an empty changelog."""
    history.write(f"{FOLDER}/CHANGELOG.md", "# Changelog of fib-low\n")
    history.write(f"{FOLDER}/changes/7.added.md")
    history.commit()

    def read(version=None):
        manifest = checkout.root / FOLDER / "pyproject.toml"
        if version:
            manifest.write_text(manifest.read_text().replace("0.1.0", version))
        fresh = Checkout(checkout.root)
        return Candidate(fresh, fresh.named(["low"])[0])

    return read


def fold(history, version):
    history.write(f"{FOLDER}/CHANGELOG.md", f"# Changelog of fib-low\n\n## {version} (2026-01-02)\n")
    for path in (history.root / FOLDER / "changes").glob("*.md"):
        path.unlink()


def test_a_first_release_with_a_fragment_has_nothing_in_its_way(candidate):
    assert objections(candidate(), BEFORE_TAG) == []


@pytest.mark.parametrize("last", ["0.1.0", "0.2.0"])
def test_a_version_has_to_be_newer_than_the_last_one(candidate, history, last):
    history.git("tag", f"fib-low-v{last}")
    assert release_rules.is_not_newer(candidate()).startswith(f"{last} is released already, and 0.1.0 is not newer")


@pytest.mark.parametrize(
    ("last", "version", "part"),
    [("0.1.0", "0.1.1", "minor"), ("0.1.0", "0.2.0", None), ("1.1.0", "1.2.0", "major"), ("1.1.0", "2.0.0", None)],
)
def test_a_breaking_change_raises_the_minor_version_before_1_and_the_major_one_after(
    candidate, history, last, version, part
):
    history.git("tag", f"fib-low-v{last}")
    history.write(f"{FOLDER}/changes/+gone.breaking.md")
    found = release_rules.breaks_in_silence(candidate(version))
    assert found is None if part is None else f"raise the {part} version" in found


def test_without_breaking_fragments_a_patch_may_follow(candidate, history):
    history.git("tag", "fib-low-v0.1.0")
    assert objections(candidate("0.1.1"), BEFORE_TAG) == []


def test_a_release_has_something_to_say_and_says_it_once(candidate, history):
    history.write(f"{FOLDER}/CHANGELOG.md", "## 0.1.0 (2026-01-02)\n")
    (found,) = objections(candidate(), BEFORE_TAG)
    assert "has a section for 0.1.0 already, and there are fragments: 7.added.md" in found
    fold(history, "0.0.9")
    (found,) = objections(candidate(), BEFORE_TAG)
    assert "says what is new in 0.1.0: add a fragment" in found


def test_ranges_that_the_checkout_does_not_satisfy_are_in_the_way(candidate):
    (found,) = objections(candidate("0.2.0"), BEFORE_TAG)
    assert found == "fib-middle requires fib-low[blobs]>=0.1,<0.2, and 0.2.0 is here: change the range"


def test_a_tagged_commit_with_its_changelog_folded_can_be_built(candidate, history):
    fold(history, "0.1.0")
    history.commit()
    history.git("tag", "fib-low-v0.1.0")
    assert objections(candidate(), AT_TAG) == []


@pytest.mark.parametrize("version", ["0.1.00", "10.1.0", "0.1.0.1"])
def test_a_section_of_a_similar_version_does_not_count(candidate, history, version):
    fold(history, version)
    assert "does not hold all of 0.1.0" in release_rules.is_not_folded(candidate())


def test_a_fragment_that_was_left_behind_is_in_the_way_of_the_tag(candidate, history):
    fold(history, "0.1.0")
    history.write(f"{FOLDER}/changes/9.fixed.md")
    assert "does not hold all of 0.1.0" in release_rules.is_not_folded(candidate())


def test_only_the_commit_that_the_tag_names_is_built(candidate, history):
    assert "names nothing" in release_rules.is_not_tagged_here(candidate())
    tagged = history.commit()
    history.git("tag", "fib-low-v0.1.0")
    assert release_rules.is_not_tagged_here(candidate()) is None
    history.commit()
    assert f"names {tagged}" in release_rules.is_not_tagged_here(candidate())


def test_a_file_that_is_not_committed_is_not_built(candidate, history):
    history.git("tag", "fib-low-v0.1.0")
    history.write(f"{FOLDER}/src/fib_low/new.py")
    assert "files differ from the commit" in release_rules.is_not_tagged_here(candidate())


def test_a_commit_beside_the_main_branch_is_not_released(candidate, history):
    history.git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert release_rules.is_off_the_trunk(candidate()) is None
    history.commit("not merged")
    assert "not on origin/main" in release_rules.is_off_the_trunk(candidate())


def test_an_earlier_commit_of_the_main_branch_can_be_released(candidate, history):
    earlier = history.commit("a")
    history.git("update-ref", "refs/remotes/origin/main", history.commit("b"))
    history.git("checkout", "--quiet", earlier)
    assert release_rules.is_off_the_trunk(candidate()) is None
