import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from workshop.errors import Usage
from workshop.requirements import Requirement, parse_requirement, release

releases = st.lists(st.integers(0, 3), min_size=2, max_size=4).map(lambda numbers: ".".join(map(str, numbers)))
prefixes = st.tuples(st.sampled_from(["==", "!="]), releases.map(lambda version: f"{version}.*"))
clauses = st.one_of(st.tuples(st.sampled_from([">=", "<=", ">", "<", "==", "!=", "~="]), releases), prefixes)


def test_a_requirement_is_read_with_its_extras_range_and_marker():
    found = parse_requirement("Fib_Schema[blobs, Fast]>=0.1,<0.2 ; python_version > '3'")
    assert found.name == "fib-schema"
    assert found.extras == {"blobs", "fast"}
    assert found.clauses == {(">=", "0.1"), ("<", "0.2")}
    assert found.marker == "python_version > '3'"
    assert str(found) == "fib-schema[blobs,fast]>=0.1,<0.2"


def test_a_bare_name_admits_everything_and_has_no_lowest_version():
    found = parse_requirement("attrs")
    assert found == Requirement("attrs", frozenset(), frozenset())
    assert found.lowest is None
    assert found.admits("0")


@pytest.mark.parametrize(
    ("text", "lowest"),
    [
        ("a>=1.2,<2", "1.2"),
        ("a~=1.4", "1.4"),
        ("a==3", "3"),
        ("a<2", None),
        ("a>=1.9,>=1.10", "1.10"),
        ("a==3.*", None),
    ],
)
def test_the_lowest_version_is_the_highest_of_the_lower_bounds(text, lowest):
    assert parse_requirement(text).lowest == lowest


@pytest.mark.parametrize("text", ["a @ https://example.org/a.whl", "a>=1.0rc1", "a==1.0.post1", "a>1 2", ">=1", ""])
def test_what_cannot_be_read_is_an_error_that_shows_what_was_wanted(text):
    with pytest.raises(Usage, match="cannot read the requirement"):
        parse_requirement(text)


@given(clause=clauses, version=releases)
def test_ranges_mean_what_they_mean_to_pip(clause, version):
    operator, bound = clause
    expected = SpecifierSet(f"{operator}{bound}").contains(version)
    assert parse_requirement(f"a{operator}{bound}").admits(version) is expected


@given(first=releases, second=releases)
def test_releases_are_ordered_as_pip_orders_them(first, second):
    assert (release(first) < release(second)) is (Version(first) < Version(second))
    assert (release(first) == release(second)) is (Version(first) == Version(second))


@pytest.mark.parametrize("version", ["1.0rc1", "v1", "", "1..2", "1.0+cpu"])
def test_a_version_that_is_no_plain_release_is_refused(version):
    with pytest.raises(Usage, match="no plain release number"):
        release(version)
