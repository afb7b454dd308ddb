import pytest
from workshop.candidate import Candidate, candidate_of_tag, describe
from workshop.checkout import Checkout
from workshop.errors import Usage


def candidate(checkout, name):
    checkout = Checkout(checkout.root)
    (package,) = checkout.named([name])
    return Candidate(checkout, package)


def test_a_tag_names_a_package_in_the_version_of_its_manifest(checkout):
    assert candidate_of_tag(checkout, "fib-low-v0.1.0").package.name == "fib-low"


@pytest.mark.parametrize("tag", ["fib-lwo-v0.1.0", "v0.1.0", "fib-low-0.1.0", "fib-low", ""])
def test_a_tag_that_names_no_package_is_an_error_that_lists_the_tags(checkout, tag):
    with pytest.raises(Usage, match=r"names no package \(the tags of what is here: fib-low-v0.1.0, fib-middle-v0.1.0"):
        candidate_of_tag(checkout, tag)


@pytest.mark.parametrize("version", ["0.2.0", "0.1", "0.1.0rc1", ""])
def test_a_tag_with_another_version_than_the_manifest_is_an_error(checkout, version):
    with pytest.raises(Usage, match=f"the tag says fib-low '{version}', and its manifest '0.1.0'"):
        candidate_of_tag(checkout, f"fib-low-v{version}")


def test_the_last_release_is_the_highest_tag_of_the_package_itself(checkout, history):
    assert candidate(checkout, "low").last is None
    for tag in ("fib-low-v0.9.0", "fib-low-v0.10.0", "fib-lowest-v7.0.0", "v9"):
        history.git("tag", tag)
    assert candidate(checkout, "low").last == "0.10.0"


def test_the_description_shows_both_directions_and_whether_the_ranges_admit(checkout, history):
    assert describe(candidate(checkout, "middle")).splitlines() == [
        "fib-middle 0.1.0, tag fib-middle-v0.1.0, its first release",
        "",
        "needs",
        "  fib-middle 0.1.0: fib-low[blobs]>=0.1,<0.2 admits 0.1.0, which is not released yet: release it first",
        "",
        "is needed by",
        "  fib-top 0.1.0: fib-middle admits 0.1.0",
    ]


def test_what_is_released_needs_no_word_and_what_stands_alone_says_so(checkout, history):
    history.git("tag", "fib-low-v0.1.0")
    assert "0.1.0: fib-low[blobs]>=0.1,<0.2 admits 0.1.0\n" in describe(candidate(checkout, "middle"))
    assert describe(candidate(checkout, "other")).count("no package of ours") == 2


def test_a_range_that_does_not_admit_the_new_version_stands_out(checkout, history):
    manifest = checkout.root / "packages/fib-low/pyproject.toml"
    manifest.write_text(manifest.read_text().replace("0.1.0", "0.2.0"))
    assert "fib-middle 0.1.0: fib-low[blobs]>=0.1,<0.2 REFUSES 0.2.0" in describe(candidate(checkout, "low"))
